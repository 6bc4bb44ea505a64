"""What PostgreSQL can store as text and jsonb, checked before anything is sent.

A value that the server would refuse must fail where it was made: in a batch it would fail its
neighbours too. jsonb refuses NUL (https://www.postgresql.org/docs/current/datatype-json.html),
UTF-8 has no lone surrogates, and JSON has no NaN or Infinity (RFC 8259 section 6).
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from hastetrio._errors import UnstorableValue

REPLACEMENT: Final = "\ufffd"

# Nesting costs stack, and a row may be read deeper in the stack than it was written: what has this
# many brackets must be readable that many calls further down.
_FLAT_ENOUGH: Final = 200
_HEADROOM: Final = 150

# Kept: `json.dumps` with arguments makes an encoder for each call, `json.loads` guesses encodings.
_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_decode: Final = json.JSONDecoder().decode

# An escaped NUL: \u0000 behind an even number of backslashes (behind an odd one it is plain text).
_ESCAPED_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def encode_json(value: object, limit: int, what: str) -> str:
    """`value` as JSON text that jsonb accepts.

    Args:
        value: Anything `json.dumps` takes.
        limit: The most bytes of UTF-8 the text may have.
        what: How the error calls the value, such as "the output".

    Raises:
        UnstorableValue: It is not JSON, holds NUL, a lone surrogate or NaN, or exceeds the limit.
    """
    try:
        text = _encode(value)
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise UnstorableValue(f"{what} holds a lone surrogate, which is not text") from None
    except RecursionError:
        raise UnstorableValue(f"{what} is nested too deeply") from None
    except (TypeError, ValueError, RuntimeError) as error:
        # RuntimeError: another thread changed a dict meanwhile.
        raise UnstorableValue(f"{what} is not JSON: {clean_text(str(error))}") from None
    if size > limit:
        raise UnstorableValue(f"{what} has {size:,} bytes, and the limit is {limit:,}")
    if "\\u0000" in text and _ESCAPED_NUL.search(text):
        raise UnstorableValue(f"{what} holds a NUL character")
    if text.count("[") + text.count("{") >= _FLAT_ENOUGH and not _is_readable(text, _HEADROOM):
        raise UnstorableValue(f"{what} is nested too deeply")
    return text


def _is_readable(text: str, frames: int) -> bool:
    """Whether `text` can be decoded `frames` calls further down the stack than here."""
    try:
        if frames:
            return _is_readable(text, frames - 1)
        _decode(text)
    except RecursionError:
        return False
    return True


def decode_json(text: str | bytes) -> Any:  # noqa: ANN401  # JSON is any value
    """The value of JSON text, as `encode_json` made it or as the database shows it (in UTF-8).

    Raises:
        ValueError: It is not JSON.
        RecursionError: It is nested too deeply to be read here.
    """
    return _decode(text if isinstance(text, str) else text.decode())


def clean_text(text: str, limit: int | None = None) -> str:
    """`text` with NUL and lone surrogates replaced, cut to `limit` characters where given."""
    if limit is not None and len(text) > limit:
        text = text[:limit]
    return _UNSTORABLE.sub(REPLACEMENT, text)


def is_text(text: str) -> bool:
    """Whether a text column could hold `text`; if not, no row can have it."""
    return _UNSTORABLE.search(text) is None


def check_text(text: object, what: str, limit: int = 8192) -> str:
    """`text` itself, when a text column can hold it.

    Raises:
        UnstorableValue: It is not text, holds NUL or a lone surrogate, or is longer than `limit`
            characters.
    """
    if not isinstance(text, str):
        raise UnstorableValue(f"{what} must be text, not {type(text).__name__}")
    if not is_text(text):
        raise UnstorableValue(f"{what} holds a NUL character or a lone surrogate")
    if len(text) > limit:
        raise UnstorableValue(f"{what} has {len(text):,} characters, and the limit is {limit:,}")
    return text
