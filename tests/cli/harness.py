"""What the tests of the command line share."""

from __future__ import annotations

import subprocess
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

import trio
from click.testing import Result

from hastetrio._model import JobLease
from hastetrio.postgres import PostgresJobProvider

T = TypeVar("T")

Run: TypeAlias = Callable[..., Result]
Start: TypeAlias = Callable[..., "subprocess.Popen[str]"]


def only_line(text: str) -> str:
    """The one line that `text` must be."""
    assert text.endswith("\n")
    assert text.count("\n") == 1, text
    return text.rstrip("\n")


def with_provider(url: str, work: Callable[[PostgresJobProvider], Awaitable[T]]) -> T:
    """Do something with a provider, the way a server or a worker would."""

    async def main() -> T:
        async with PostgresJobProvider.open(url) as provider:
            return await work(provider)

    return trio.run(main)


async def claim(provider: PostgresJobProvider, kind: str, *, seconds: float = 60) -> JobLease:
    """Claim one job of a kind as a worker named w1, and return the lease it is held under."""
    lease = JobLease("w1", seconds)
    assert len(await provider.claim_jobs([kind], lease, 1)) == 1
    return lease
