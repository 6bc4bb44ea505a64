"""Slots, the claim loop, and what wakes it.

The loop claims for the free slots, for at most half of all at once. It looks again at once while
claims come back full, when a notification says that there is work, and otherwise after the poll
interval.
"""

from __future__ import annotations

import heapq
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import attrs
import trio

from hastetrio._budget import within
from hastetrio._held import HeldJob
from hastetrio._log import CLAIM_FAILED, describe, log
from hastetrio._model import JobLease

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from hastetrio._config import AsyncJobWorkerConfig
    from hastetrio._model import AsyncJob
    from hastetrio._provider import AsyncJobProvider
    from hastetrio._renewals import Renewals
    from hastetrio._statistics import Counts

# Seconds before claiming again after a claim that failed; jittered.
ERROR_BACKOFF: Final = 5.0

# Wake-ups that lead to nothing cost a worker one empty claim in this many seconds.
_WAKE_PAUSE: Final = 0.1

# Seconds to wait before the claim that a notification leads to; below zero is at once. So two
# thirds of the workers that it wakes claim at once, and the others within 2 ms.
_WAKE_JITTER: Final = (-0.004, 0.002)

# A worker claims for at most half of its slots at once: while the one half's results are recorded,
# the other half runs. All at once, all slots would wait for each statement (4,600 no-op jobs a
# second instead of 5,900, both cores busy). Up to so many slots one claim costs less than two.
_WHOLE: Final = 25

# Jobs put off whose times a worker keeps; of more the poll finds each.
_MOST_DUE: Final = 1000

# The database counts the delay from when it recorded it, a little after the worker asked for that.
_DUE_LATER: Final = 0.01

# Rows in one claim: 1,000 take the database about 30 ms, well inside the shortest call's budget.
_MOST_ROWS: Final = 1000


class Signal:
    """Wakes one waiting task; a signal given while nobody waits is kept."""

    def __init__(self) -> None:
        self._set = False
        self._lot = trio.lowlevel.ParkingLot()

    def set(self) -> None:
        """Wake the waiting task, or the next that waits."""
        self._set = True
        self._lot.unpark()

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait for the signal, at most `seconds`; says whether it came."""
        with trio.move_on_after(seconds if seconds is not None else float("inf")):
            while not self._set:
                await self._lot.park()
        came, self._set = self._set, False
        return came


@attrs.frozen
class _Unanswered:
    lease: JobLease
    until: float


class Claims:
    """The claim loop.

    Args:
        provider: The storage.
        kinds: The kinds to claim.
        config: The worker's durations and slots.
        worker: The worker's id.
        renewals: Takes what was claimed into its clock.
        counts: What the worker counts.
        start: Starts a claimed job; it is to call `slot_freed` when the job has ended.
        hand_back: Starts handing a claimed job back; likewise.
    """

    def __init__(
        self,
        provider: AsyncJobProvider,
        kinds: Collection[str],
        config: AsyncJobWorkerConfig,
        worker: str,
        renewals: Renewals,
        counts: Counts,
        *,
        start: Callable[[HeldJob], None],
        hand_back: Callable[[HeldJob], None],
    ) -> None:
        self._provider = provider
        self._kinds = kinds
        self._config = config
        self._worker = worker
        self._renewals = renewals
        self._counts = counts
        self._start = start
        self._hand_back = hand_back
        self.free = config.max_concurrent_jobs
        self._most = min(max(config.max_concurrent_jobs // 2, _WHOLE), _MOST_ROWS)
        self._signal = Signal()
        self._more = True
        self._woken = False
        self._pause_until = 0.0
        self._restored = False
        self._stopping = trio.Event()
        self._unanswered: list[_Unanswered] = []
        self._due: list[float] = []

    def due_in(self, seconds: float) -> None:
        """A job of these kinds becomes due; the poll would find it up to its interval later."""
        # Another worker may take it, or it may be gone: then the look finds nothing, as a poll may.
        if len(self._due) < _MOST_DUE:
            heapq.heappush(self._due, trio.current_time() + seconds + _DUE_LATER)
            # It may be sooner than what the loop waits for now.
            self._signal.set()

    def wake(self, *, restored: bool = False) -> None:
        """There may be work; `restored`: also the storage may have come back."""
        self._more = True
        self._woken = True
        self._restored = self._restored or restored
        self._signal.set()

    def slot_freed(self, held: HeldJob) -> None:
        """A job has ended."""
        self.free += 1
        # Another one on its last attempt may have been left out for it.
        self._more = self._more or held.is_suspect
        if self._more or self.free == 1:
            self._signal.set()

    def stop(self) -> None:
        """Claim no more; a claim under way is handed back."""
        self._stopping.set()
        self._signal.set()

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Claim until told to stop.

        Cancellation: a claim under way is left unanswered; its rows wait for their lease.
        """
        while not self._stopping.is_set():
            if not self.free:
                await self._signal.wait()
            elif not self._more:
                # A signal alone says nothing: it may be older than the last claim.
                if not await self._signal.wait(self._until_due()):
                    self._more = True
            elif self._woken and trio.current_time() < self._pause_until:
                await self._pause(self._pause_until - trio.current_time())
            else:
                await self._claim_once()

    def _until_due(self) -> float:
        """Seconds until a job is due that this worker put off, at most the poll interval."""
        now = trio.current_time()
        if not self._due:
            return self._config.poll_interval
        left = self._due[0] - now
        while self._due and self._due[0] <= now:
            heapq.heappop(self._due)
        return min(max(left, 0.0), self._config.poll_interval)

    async def _claim_once(self) -> None:
        woken = self._woken
        if woken:
            await self._pause(random.uniform(*_WAKE_JITTER))  # noqa: S311
            if self._stopping.is_set():
                return
        restored = self._restored
        # A wake-up from here on is about rows this claim may not see.
        self._more = self._woken = self._restored = False
        limit = min(self.free, self._most)
        taken = await self._claim(limit)
        if taken is None:
            self._more = True
            await self._back_off()
        elif taken == limit:
            self._more = True
        elif taken == 0 and woken and not restored:
            self._pause_until = trio.current_time() + _WAKE_PAUSE

    async def _pause(self, seconds: float) -> None:
        """Sleep, unless told to stop."""
        end = trio.current_time() + seconds
        while not self._stopping.is_set() and (left := end - trio.current_time()) > 0:
            await self._signal.wait(left)

    async def _back_off(self) -> None:
        """Wait after a failed claim, unless told to stop, or that the storage is back."""
        # Where leases are short a stall of a fifth of a second is a failed claim, and 5 s without
        # another would leave a dead worker's jobs lying for several leases.
        longest = min(ERROR_BACKOFF, self._config.lease_duration / 2)
        end = trio.current_time() + random.uniform(longest / 2, longest)  # noqa: S311
        while not (self._stopping.is_set() or self._restored):
            left = end - trio.current_time()
            if left <= 0 or not await self._signal.wait(left):
                break

    async def _claim(self, limit: int) -> int | None:
        """Claim and start up to `limit` jobs; None if the claim failed."""
        lease = JobLease(self._worker, self._config.lease_duration)
        try:
            await self._forget_unanswered()
            if self._stopping.is_set():
                return 0
            sent = trio.current_time()
            jobs = await self._ask(lease, limit)
        except Exception as error:  # noqa: BLE001  # no error ends the claim loop
            self._counts.claims_failed += 1
            log(CLAIM_FAILED, error=describe(error))
            return None
        self._counts.claims += 1
        self._counts.claimed += len(jobs)
        if not jobs:
            self._counts.claims_empty += 1
        self._take(jobs, lease, sent)
        return len(jobs)

    async def _ask(self, lease: JobLease, limit: int) -> list[AsyncJob]:
        jobs: list[AsyncJob] | None = None
        # What kills its process takes along all it ran with. Jobs that died that way together get
        # their last attempt one at a time, so that the guilty one fails alone.
        last_chances = 0 if self._renewals.has_suspect() else 1
        try:
            jobs = await within(
                lease.duration / 2,
                self._provider.claim_jobs(
                    self._kinds,
                    lease,
                    limit,
                    exclude=self._renewals.over(),
                    last_chances=last_chances,
                ),
            )
        finally:
            if jobs is None:
                # It may have been applied, at the latest now; its rows are held by nobody.
                until = trio.current_time() + lease.duration
                self._unanswered.append(_Unanswered(lease, until))
        return jobs

    def _take(self, jobs: list[AsyncJob], lease: JobLease, sent: float) -> None:
        # A body of such a job is still here, though its lease has lapsed for the storage, whose
        # clock jumped. This claim has ended that lease, and goes back once the body has left.
        doubled = {job.id for job in jobs if self._renewals.end(job.id)}
        claimed = [HeldJob(job, lease, sent, self._config) for job in jobs]
        self._renewals.hold((held for held in claimed if held.job.id not in doubled), sent)
        self.free -= len(claimed)
        for held in claimed:
            if self._stopping.is_set() or held.cancel_reason is not None or held.job.id in doubled:
                self._hand_back(held)
            else:
                self._start(held)

    async def settle(self) -> None:
        """Once more, without a next claim to come: what is not forgotten costs an attempt.

        Called when the last handler has left, because a claim may be applied late. Errors are left
        to the leases, which lapse.
        """
        with trio.move_on_after(self._config.call_budget), suppress(Exception):
            await self._forget_unanswered()

    async def _forget_unanswered(self) -> None:
        """Hand back what unanswered claims took, until their leases have lapsed anyway."""
        now = trio.current_time()
        self._unanswered = [entry for entry in self._unanswered if now < entry.until]
        for entry in self._unanswered:
            await within(self._config.lease_duration / 2, self._provider.forget_claim(entry.lease))
