"""The sweeps: fail what was abandoned on its last attempt, clean up and remove what has expired.

They run beside the claim loop, never in it: a slow clean-up stops no claim. Each clean-up runs
like a job, under a lease with renewals; its row is deleted only after it returned.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import trio

from hastetrio import _log
from hastetrio._budget import within
from hastetrio._claims import ERROR_BACKOFF, Signal
from hastetrio._context import CancelReason
from hastetrio._handler import needs_clean_up
from hastetrio._held import HeldJob
from hastetrio._job import run_body
from hastetrio._log import current_job, describe, log, log_job
from hastetrio._model import JobLease
from hastetrio._outcome import abandoned_outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hastetrio._config import AsyncJobWorkerConfig
    from hastetrio._handler import JobHandler
    from hastetrio._provider import AsyncJobProvider
    from hastetrio._record import Recorder
    from hastetrio._renewals import Renewals
    from hastetrio._statistics import Counts

# Rows a sweep takes in one statement, which bounds the locks it holds.
SWEEP_LIMIT: Final = 100

# Rows without a clean-up deleted in one statement, which takes about 15 ms.
DISCARD_LIMIT: Final = 1000

# Clean-ups that run at once, outside of the slots for jobs.
CONCURRENT_CLEANUPS: Final = 10

# The longest one clean-up may take, and how long a failed one leaves its row alone, in seconds.
# Without that pause 100 clean-ups that always fail would keep the sweep from all others.
CLEANUP_TIMEOUT: Final = 600.0
CLEANUP_RETRY: Final = 600.0

# Seconds between looks for jobs that nobody cleans up after.
_ORPHANS_INTERVAL: Final = 3600.0


class AbandonedSweep:
    """Fails jobs whose lease lapsed on their last attempt, at the start and on the interval."""

    def __init__(self, provider: AsyncJobProvider, config: AsyncJobWorkerConfig) -> None:
        self._provider = provider
        self._config = config
        self._signal = Signal()
        self._stopping = trio.Event()

    def stop(self) -> None:
        """Sweep no more; a statement under way is finished."""
        self._stopping.set()
        self._signal.set()

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Sweep until told to stop."""
        while not self._stopping.is_set():
            try:
                await self._sweep()
            except Exception as error:  # noqa: BLE001  # no error ends the sweep
                log(_log.SWEEP_FAILED, what="abandoned", error=describe(error))
            await self._signal.wait(jittered(self._config.maintenance_interval))

    async def _sweep(self) -> None:
        count = SWEEP_LIMIT
        while count == SWEEP_LIMIT and not self._stopping.is_set():
            count = await within(
                _budget(self._config),
                self._provider.fail_abandoned_jobs(
                    abandoned_outcome(), self._config.retention, SWEEP_LIMIT
                ),
            )
            if count:
                log(_log.SWEEP_ABANDONED, count=count)


class ExpiredSweep:
    """Cleans up after expired jobs and removes them, at the start and on the interval.

    Args:
        provider: The storage.
        handlers: The handlers by kind; only their kinds are swept.
        config: The worker's durations.
        worker: The worker's id.
        recorder: Deletes and releases rows.
        renewals: Renews the leases of clean-ups.
        counts: What the worker counts.
        interrupt: Called with a KeyboardInterrupt that a clean-up raised or was hit by.
        start: Starts a clean-up in a nursery that outlives the sweep.
    """

    def __init__(
        self,
        provider: AsyncJobProvider,
        handlers: Mapping[str, JobHandler],
        config: AsyncJobWorkerConfig,
        worker: str,
        recorder: Recorder,
        renewals: Renewals,
        counts: Counts,
        *,
        interrupt: Callable[[BaseException], None],
        start: Callable[[HeldJob], None],
    ) -> None:
        self._provider = provider
        self._handlers = handlers
        self._config = config
        self._worker = worker
        self._recorder = recorder
        self._renewals = renewals
        self._counts = counts
        self._interrupt = interrupt
        self._start = start
        self._free = CONCURRENT_CLEANUPS
        self._signal = Signal()
        self._stopping = trio.Event()
        self._orphans_due = 0.0

    def stop(self) -> None:
        """Sweep no more; rows taken by a statement under way are released."""
        self._stopping.set()
        self._signal.set()

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Sweep until told to stop."""
        self._orphans_due = trio.current_time()
        while not self._stopping.is_set():
            wait = jittered(self._config.maintenance_interval)
            try:
                await self._discard()
                await self._sweep()
                await self._remove_orphans()
            except Exception as error:  # noqa: BLE001  # no error ends the sweep
                log(_log.SWEEP_FAILED, what="expired", error=describe(error))
                wait = min(wait, jittered(ERROR_BACKOFF))
            end = trio.current_time() + wait
            while not self._stopping.is_set() and (left := end - trio.current_time()) > 0:
                await self._signal.wait(left)

    async def _discard(self) -> None:
        """Delete what needs no clean-up, at the rate the database deletes at.

        Through a claim and a task each, rows would go at a tenth of the rate jobs finish at.
        """
        kinds = [kind for kind, one in self._handlers.items() if not needs_clean_up(one)]
        count = DISCARD_LIMIT if kinds else 0
        while count == DISCARD_LIMIT and not self._stopping.is_set():
            count = await within(
                _budget(self._config), self._provider.discard_expired_jobs(kinds, DISCARD_LIMIT)
            )
            self._counts.cleaned_up += count
            if count:
                log(_log.SWEEP_DISCARDED, count=count)

    async def _sweep(self) -> None:
        """Take rows and start their clean-ups until a statement finds fewer than it asked for."""
        kinds = [kind for kind, one in self._handlers.items() if needs_clean_up(one)]
        while kinds and not self._stopping.is_set():
            while not self._free and not self._stopping.is_set():
                await self._signal.wait()
            limit = min(self._free, SWEEP_LIMIT)
            lease = JobLease(self._worker, self._config.lease_duration)
            sent = trio.current_time()
            jobs = await within(
                _budget(self._config),
                self._provider.claim_expired_jobs(kinds, lease, limit),
            )
            # A body that lost its lease may still unwind here. The lease just taken keeps its row
            # from others until it lapses; then the sweep finds it again.
            taken = [
                HeldJob(job, lease, sent, self._config, is_over=True)
                for job in jobs
                if job.id not in self._renewals
            ]
            self._renewals.hold(taken, sent)
            self._free -= len(taken)
            for held in taken:
                if self._stopping.is_set():
                    held.cancel(CancelReason.SHUTDOWN)
                self._start(held)
            if len(jobs) < limit:
                return

    async def _remove_orphans(self) -> None:
        if self._stopping.is_set() or trio.current_time() < self._orphans_due:
            return
        self._orphans_due = trio.current_time() + jittered(_ORPHANS_INTERVAL)
        count = SWEEP_LIMIT
        while count == SWEEP_LIMIT and not self._stopping.is_set():
            removed = await within(
                _budget(self._config), self._provider.delete_orphans(SWEEP_LIMIT)
            )
            count = sum(removed.values())
            for kind, number in sorted(removed.items()):
                log(_log.SWEEP_ORPHANS, count=number, kind=kind)

    @trio.lowlevel.enable_ki_protection
    async def clean_up(self, held: HeldJob) -> None:
        """Run one handler's `expire`, then delete the row."""
        current_job.set(held.job.id)
        try:
            await self._clean_up(held)
        finally:
            self._renewals.drop(held)
            self._free += 1
            self._signal.set()

    async def _clean_up(self, held: HeldJob) -> None:
        if held.cancel_reason is not None:
            # Taken too late, or while stopping: even its first step might meet another worker's.
            await self._recorder.release(held, give_back=False)
            return
        handler = self._handlers[held.job.kind]

        async def expire() -> None:
            with trio.fail_after(CLEANUP_TIMEOUT):
                await handler.expire(held.job)

        ending = await run_body(held, expire)
        if ending.manner == "interrupted" and ending.error is not None:
            self._interrupt(ending.error)
            await self._recorder.release(held, give_back=False)
        elif ending.manner == "returned":
            # Also when its lease is over: the deletion is fenced like every end of a claim.
            if await self._recorder.delete(held):
                self._counts.cleaned_up += 1
                log_job(_log.JOB_REMOVED, held.job)
        elif ending.reason is CancelReason.SHUTDOWN:
            await self._recorder.release(held, give_back=False)
        else:
            self._counts.cleanups_failed += 1
            error = ending.error
            if error is None:
                error = TimeoutError(f"cancelled: {ending.reason}")
            log_job(_log.JOB_CLEANUP_FAILED, held.job, trace=error, error=describe(error))
            await self._recorder.keep(held, CLEANUP_RETRY)


def _budget(config: AsyncJobWorkerConfig) -> float:
    # A statement of a sweep touches a hundred rows, and nobody waits for it.
    return 4 * config.call_budget


def jittered(seconds: float) -> float:
    """About `seconds`, so that workers started together do not stay in step."""
    return seconds * random.uniform(0.9, 1.1)  # noqa: S311
