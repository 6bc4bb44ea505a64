"""How the command line prints: aligned tables, times, durations, one JSON document.

Everything text goes through `one_line`: ids, kinds and progress come from other programs, and a
control character among them would drive the reader's terminal.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

if TYPE_CHECKING:
    from hastetrio._model import AsyncJob

_NOTHING: Final = "-"
_ELLIPSIS: Final = "\u2026"


def echo_json(value: object) -> None:
    """Print `value` as one JSON document: times as ISO 8601, numbers that JSON has no word for as
    null, keys as they are.
    """  # noqa: D205
    click.echo(json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, indent=2))


def echo_json_line(value: object) -> None:
    """Print `value` as one line of JSON."""
    click.echo(json.dumps(_plain(value), ensure_ascii=False, allow_nan=False))


def echo_table(heads: Sequence[str], rows: Sequence[Sequence[object]], *, width: int = 0) -> None:
    """Print rows under their heads, aligned.

    Args:
        heads: The names of the columns.
        rows: The cells. Numbers stand to the right; None shows as a dash.
        width: The most columns of the terminal a line may take, the last cell being cut; 0 for
            any number.
    """
    cells = [[cell(value) for value in row] for row in rows]
    widths = [max(map(_columns, column)) for column in zip(heads, *cells, strict=True)]
    right = [
        bool(rows) and all(isinstance(row[i], (int, float)) for row in rows)
        for i in range(len(heads))
    ]
    for line in (heads, *cells):
        parts = [
            _pad(text, size, right=side)
            for text, size, side in zip(line, widths, right, strict=True)
        ]
        text = "  ".join(parts).rstrip()
        click.echo(cut(text, width) if width else text)


def cell(value: object) -> str:
    """`value` as a cell of a table."""
    if value is None or value == "":
        return _NOTHING
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(cell, value)) or _NOTHING
    return one_line(str(value))


def iso(time: datetime) -> str:
    """`time` to the second, in ISO 8601, in UTC where it is."""
    return time.isoformat(timespec="seconds").replace("+00:00", "Z")


def duration(seconds: float) -> str:
    """`seconds` for a person: the two largest units that are not nothing."""
    if not math.isfinite(seconds):
        return _NOTHING
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    left = round(seconds)
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def one_line(text: str) -> str:
    """`text` on one line and without control characters."""
    return "".join(" " if _is_control(character) else character for character in text)


def cut(text: str, columns: int) -> str:
    """`text`, cut to so many columns of a terminal."""
    if _columns(text) <= columns:
        return text
    kept = ""
    left = columns - 1
    for character in text:
        left -= _columns(character)
        if left < 0:
            break
        kept += character
    return kept + _ELLIPSIS


def pretty(value: object, limit: int = 4000) -> str:
    """A JSON value for a person, cut after `limit` characters with a word on what is missing."""
    text = json.dumps(_plain(value), ensure_ascii=False, indent=2)
    lines = "\n".join(map(one_line, text[:limit].split("\n")))
    if len(text) <= limit:
        return lines
    return f"{lines}{_ELLIPSIS}\n({len(text):,} characters; --json shows all of them)"


def job_fields(job: AsyncJob, *, claims: bool = False) -> dict[str, Any]:
    """A job by its columns. Claims say as whom it runs, so they are left out unless asked for."""
    fields = attrs.asdict(job, recurse=False)
    if not claims:
        del fields["claims"]
    return fields


def _plain(value: object) -> Any:  # noqa: ANN401  # JSON is any value
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if attrs.has(type(value)):
        return _plain(attrs.asdict(value, recurse=False))  # type: ignore[arg-type]
    return str(value)


def _is_control(character: str) -> bool:
    # Cc drives a terminal; Zl and Zp break the line; Cf holds what reverses the reading order.
    return unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp")


def _columns(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 1 + (unicodedata.east_asian_width(one) in "WF")
        for one in text
    )


def _pad(text: str, size: int, *, right: bool) -> str:
    space = " " * (size - _columns(text))
    return space + text if right else text + space
