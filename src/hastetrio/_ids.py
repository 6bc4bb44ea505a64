"""Random names: job ids, worker suffixes, claim tokens. All drawn from the kernel."""

from __future__ import annotations

import itertools
import os
import secrets
from typing import Final

from hastetrio._storable import clean_text

_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz-"
_ALPHANUMERIC: Final = _ALPHABET[:-1]
_counter = itertools.count(1)


def generate_job_id() -> str:
    """A new job id: 26 characters of 0-9, a-z and `-` (about 135 bits), not beginning with `-`.

    A leading `-` would read as an option on every command line.
    """
    return secrets.choice(_ALPHANUMERIC) + _draw(_ALPHABET, 25)


def generate_worker_id() -> str:
    """A new worker id: `{HOSTNAME or "worker"}-{pid}-{6 characters}`."""
    host = clean_text(os.environ.get("HOSTNAME") or "worker", 255)
    return f"{host}-{os.getpid()}-{_draw(_ALPHANUMERIC, 6)}"


def generate_token(worker: str) -> str:
    """A new claim token: worker id, slash, a growing number, dash, 8 random characters.

    The random part is drawn for each claim: a worker id and a counter alone repeat in a forked or
    restored process, and then a zombie's result would be taken for its successor's.
    """
    return f"{worker}/{next(_counter)}-{_draw(_ALPHANUMERIC, 8)}"


def _draw(alphabet: str, length: int) -> str:
    return "".join(secrets.choice(alphabet) for _ in range(length))
