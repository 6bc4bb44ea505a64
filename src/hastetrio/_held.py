"""A row this process holds: its lease as a deadline, its handler's scope, its progress."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import trio

from hastetrio._context import CancelReason
from hastetrio._storable import clean_text, decode_json

if TYPE_CHECKING:
    from hastetrio._config import AsyncJobWorkerConfig
    from hastetrio._model import AsyncJob, JobLease, JobResult


class HeldJob:
    """One claimed row, from its claim until its finish or release was answered.

    Args:
        job: The row, as it was claimed.
        lease: The claim it is held under.
        sent: When the claim was sent, on trio's clock. The database grants the lease later than
            that, so a deadline counted from here is never later than the database's.
        config: The worker's durations and limits.
        is_over: Whether the body is the clean-up after a job that is over: that its renewals find
            the job cancelled or expired is then no reason to end.
    """

    __slots__ = (
        "_clock",
        "_config",
        "_progress",
        "_reason",
        "_scope",
        "_state",
        "cancelled_at",
        "deadline",
        "is_over",
        "job",
        "lease",
        "lost",
        "nursery",
        "renew_again",
        "renewing",
        "settled",
        "started",
    )

    def __init__(
        self,
        job: AsyncJob,
        lease: JobLease,
        sent: float,
        config: AsyncJobWorkerConfig,
        *,
        is_over: bool = False,
    ) -> None:
        self.job = job
        self.lease = lease
        self.is_over = is_over
        self.started = sent
        self.deadline = sent + lease.duration - config.margin
        self.nursery: trio.Nursery | None = None
        self.renewing = False
        self.renew_again = False
        self.lost = False
        self.settled: JobResult | None = None
        self.cancelled_at: float | None = None
        self._config = config
        # Kept, because a handler's threads ask too, and trio's own function works in trio only.
        self._clock = trio.lowlevel.current_clock()
        self._scope: trio.CancelScope | None = None
        self._reason: CancelReason | None = None
        self._progress: list[str] = []
        self._state: str | None = None

    @property
    def name(self) -> str:
        """The claim's name, for `JobContext.claim`."""
        return self.lease.claim

    @property
    def state(self) -> Any:  # noqa: ANN401  # JSON is any value
        """What was saved last for the job, by this claim or an earlier one."""
        return self.job.state if self._state is None else decode_json(self._state)

    @property
    def is_settled(self) -> bool:
        """Whether the handler recorded the result itself, in a transaction."""
        return self.settled is not None

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why the job is no longer to be run; a deadline that has passed is a reason too."""
        if self._reason is None and self._clock.current_time() >= self.deadline:
            return CancelReason.LEASE_LOST
        return self._reason

    @property
    def is_last_attempt(self) -> bool:
        """Whether the job was started before, and has no attempt after this one."""
        return 1 < self.job.attempts >= self.job.max_attempts

    @property
    def is_suspect(self) -> bool:
        """Whether the job may be one that kills its process, and has no attempt after this one.

        It was started before; one that has outlived a lease is a suspect no more, or a long job
        would keep all others from their last attempt.
        """
        outlived = self._clock.current_time() >= self.started + self.lease.duration
        return self.is_last_attempt and not outlived

    @property
    def is_unwinding(self) -> bool:
        """Whether the body is to leave but is still there."""
        return self._scope is not None and self.cancel_reason is not None

    def enter(self, nursery: trio.Nursery) -> None:
        """The body begins, in `nursery`, whose scope is the lease."""
        self.nursery = nursery
        self._scope = nursery.cancel_scope
        self._scope.deadline = self.deadline
        if self._reason is not None:
            self._scope.cancel(self._reason)

    def leave(self) -> CancelReason | None:
        """The body has left; returns why it was to leave, if it was.

        A scope that was cancelled by nobody's reason was cancelled by a renewal task that died.
        """
        if self._reason is None and self._scope is not None and self._scope.cancel_called:
            self._reason = CancelReason.LEASE_LOST
            self.cancelled_at = min(self.deadline, trio.current_time())
        self.nursery = None
        self._scope = None
        return self._reason

    def cancel(self, reason: CancelReason) -> None:
        """End the body, if it still runs; the first reason stands."""
        if self._reason is None:
            self._reason = self.cancel_reason or reason
            self.cancelled_at = min(self.deadline, trio.current_time())
        if self._scope is not None:
            self._scope.cancel(self._reason)

    def extend(self, sent: float) -> None:
        """A renewal sent at `sent` was granted. A deadline that has passed stays passed."""
        if self.cancel_reason is not None:
            # Handed out before: from the deadline on the body counts as cancelled.
            self.cancel(CancelReason.LEASE_LOST)
        else:
            self.deadline = max(self.deadline, sent + self.lease.duration - self._config.margin)
            if self._scope is not None:
                self._scope.deadline = self.deadline

    def settle(self, result: JobResult) -> None:
        """The handler's own transaction recorded `result`: nothing is renewed or lost any more."""
        self.settled = result
        self.lost = True
        self.deadline = math.inf
        if self._scope is not None:
            self._scope.deadline = math.inf

    def save(self, state: str) -> None:
        """The storage has this state, JSON as text."""
        self._state = state

    def report(self, text: str, /) -> None:
        """Keep a progress text until it is acknowledged; the latest wins."""
        self._progress = [clean_text(text, self._config.progress_limit)]

    def pending_progress(self) -> list[str]:
        """The progress not acknowledged yet: one text or none. Pass it to `acknowledge`."""
        return self._progress

    def acknowledge(self, progress: list[str]) -> None:
        """The storage has this progress; what was reported since is still pending."""
        if self._progress is progress:
            self._progress = []
