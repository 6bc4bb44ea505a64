"""What is to be measured, and how much of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, TypeAlias

import attrs

from hastetrio import HastetrioError

SECTIONS: Final = ("throughput", "pick-up", "cancel", "idle", "leases")
"""Everything that can be measured, in the order it is."""

TENANT: Final = "bench"
"""The tenant, and the project, that the benchmark's jobs belong to."""

STALLED: Final = 30.0
"""Seconds without any progress after which a measurement is given up; the slowest step that is
waited for takes a small part of that."""

Advance: TypeAlias = Callable[[int], None]

Progress: TypeAlias = Callable[[str, int], AbstractContextManager[Advance]]
"""Opens a progress bar for a name and a number of steps; what it gives is told of each step."""


class BenchError(HastetrioError):
    """A measurement that could not be made; the text says why, and what to do."""


@attrs.frozen(kw_only=True)
class Plan:
    """What is to be measured. Durations are seconds.

    Args:
        sections: Which of `SECTIONS`.
        database_url: The server to measure on, or None for an embedded one.
        data_dir: The embedded server to use, or None for one that is thrown away.
        fsync: Whether a server that is thrown away waits for its disk at each commit.
        prepared_statements: As for `PostgresJobProvider.open`.
        log_level: The level that is logged while measuring.
        jobs: How many no-op jobs a round of the throughput drains.
        rounds: How many such rounds.
        slots: How many jobs the worker that drains them runs at once.
        samples: How many latencies of each kind are taken.
        seconds: How long the idle worker, and the one with many leases, are watched.
        leases: How many jobs sleep in one worker.
        lease: How long their lease is.
    """

    sections: tuple[str, ...] = SECTIONS
    database_url: str | None = attrs.field(default=None, repr=False)
    data_dir: Path | None = None
    fsync: bool = False
    prepared_statements: bool = True
    log_level: str = "warning"
    jobs: int = 10_000
    rounds: int = 5
    slots: int = 100
    samples: int = 200
    seconds: float = 60.0
    leases: int = 10_000
    lease: float = 60.0
