"""What a worker counts."""

from __future__ import annotations

import attrs


@attrs.define
class Counts:
    """Running totals since the worker started."""

    claims: int = 0
    claims_empty: int = 0
    claims_failed: int = 0
    claimed: int = 0
    completed: int = 0
    failed: int = 0
    dropped: int = 0
    handed_back: int = 0
    unrecorded: int = 0
    renewals: int = 0
    renewals_failed: int = 0
    cleaned_up: int = 0
    cleanups_failed: int = 0


@attrs.frozen
class WorkerStatistics:
    """How a worker stands.

    Attributes:
        worker: Its id.
        slots: How many jobs it runs at once.
        free: How many slots are free.
        held: How many rows it holds, clean-ups included.
        unwinding: The ids of jobs whose handlers were cancelled but have not left yet.
        totals: What it counted since it started.
    """

    worker: str
    slots: int
    free: int
    held: int
    unwinding: tuple[str, ...]
    totals: Counts
