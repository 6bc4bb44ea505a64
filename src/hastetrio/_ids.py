"""Random names: job ids, worker suffixes, claim tokens. All drawn from the kernel."""

from __future__ import annotations

import itertools
import os
from typing import Final

from hastetrio._storable import clean_text

_counter = itertools.count(1)


class _Alphabet:
    """Draws texts of its letters, each as likely as any other."""

    def __init__(self, letters: str) -> None:
        # Bytes beyond the last whole alphabet would make its first letters likelier: they go.
        whole = 256 - 256 % len(letters)
        self._surplus = bytes(range(whole, 256))
        self._letters = bytes(ord(letters[byte % len(letters)]) for byte in range(256))

    def draw(self, length: int) -> str:
        drawn = b""
        while len(drawn) < length:
            # One call to the kernel for all letters: one for each costs 45 microseconds an id.
            drawn += os.urandom(2 * length).translate(self._letters, self._surplus)
        return drawn[:length].decode()


_ALPHANUMERIC: Final = _Alphabet("0123456789abcdefghijklmnopqrstuvwxyz")
_WITH_DASH: Final = _Alphabet("0123456789abcdefghijklmnopqrstuvwxyz-")


def generate_job_id() -> str:
    """A new job id: 26 characters of 0-9, a-z and `-` (about 135 bits), not beginning with `-`.

    A leading `-` would read as an option on every command line.
    """
    return _ALPHANUMERIC.draw(1) + _WITH_DASH.draw(25)


def generate_worker_id() -> str:
    """A new worker id: `{HOSTNAME or "worker"}-{pid}-{6 characters}`."""
    host = clean_text(os.environ.get("HOSTNAME") or "worker", 255)
    return f"{host}-{os.getpid()}-{_ALPHANUMERIC.draw(6)}"


def generate_token(worker: str) -> str:
    """A new claim token: worker id, slash, a growing number, dash, 8 random characters.

    The random part is drawn for each claim: a worker id and a counter alone repeat in a forked or
    restored process, and then a zombie's result would be taken for its successor's.
    """
    return f"{worker}/{next(_counter)}-{_ALPHANUMERIC.draw(8)}"
