"""What a worker counts."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Final

import attrs

RENEWAL_BUCKETS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper ends of the classes that renewals are counted in by their lateness, seconds."""


def _own(classes: Any) -> list[int]:  # noqa: ANN401  # whatever can be iterated
    """A copy, so that a copy of the totals does not go on counting."""
    return list(classes)


@attrs.define
class Counts:
    """Running totals since the worker started.

    A renewal is late by the time from when it was due, a third of the lease after the last grant
    was sent, until it was granted; one asked for earlier is not late.

    Attributes:
        renewal_lateness: Renewals granted, by the class of `RENEWAL_BUCKETS` they fall in; the
            last class is for later ones.
        renewal_lateness_sum: Seconds of lateness, all together.
        renewal_worst: The largest share of a lease that passed from the sending of one grant
            until the next was answered. A lease that was never granted again is not in it.
    """

    claims: int = 0
    claims_empty: int = 0
    claims_failed: int = 0
    claimed: int = 0
    completed: int = 0
    failed: int = 0
    dropped: int = 0
    handed_back: int = 0
    retried: int = 0
    snoozed: int = 0
    unrecorded: int = 0
    renewals: int = 0
    renewals_failed: int = 0
    cleaned_up: int = 0
    cleanups_failed: int = 0
    renewal_lateness: list[int] = attrs.field(
        factory=lambda: [0] * (len(RENEWAL_BUCKETS) + 1), converter=_own
    )
    renewal_lateness_sum: float = 0.0
    renewal_worst: float = 0.0

    def granted(self, elapsed: float, lease: float) -> None:
        """Count a renewal that was granted.

        Args:
            elapsed: Seconds since the last grant was sent.
            lease: Seconds the lease lasts.
        """
        late = max(elapsed - lease / 3, 0.0)
        self.renewal_lateness[bisect_left(RENEWAL_BUCKETS, late)] += 1
        self.renewal_lateness_sum += late
        self.renewal_worst = max(self.renewal_worst, elapsed / lease)


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
