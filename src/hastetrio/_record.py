"""Tells the storage how a job ended, and goes on telling it until it answers.

The lease may have lapsed by then: nobody runs the job any more, and the fence decides. Only a
worker that is stopping gives up; then the lease lapses, and another worker takes the job.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import trio

from hastetrio import _log
from hastetrio._errors import ProviderUnavailable, UnstorableValue
from hastetrio._log import describe, log_job
from hastetrio._model import JobLease, JobResult
from hastetrio._outcome import internal_error_outcome, unstorable_outcome

if TYPE_CHECKING:
    from hastetrio._config import AsyncJobWorkerConfig
    from hastetrio._held import HeldJob
    from hastetrio._provider import AsyncJobProvider
    from hastetrio._verdict import Later

T = TypeVar("T")

# Seconds between attempts, from the first to the sixth and all later ones.
_FIRST_RETRY: Final = 0.1
_LONGEST_RETRY: Final = 5.0

# Seconds more for each MiB of result.
_SECONDS_PER_MEBIBYTE: Final = 1.0
_MEBIBYTE: Final = 1024 * 1024

_REFUSED: Final = partial(unstorable_outcome, "the database refuses a value in it")


def _must_leave(error: BaseException) -> bool:
    """Whether it is no storage's: a cancellation, an interrupt, a group that may hold one."""
    if isinstance(error, BaseExceptionGroup):
        return not isinstance(error, Exception)
    return isinstance(error, (trio.Cancelled, KeyboardInterrupt, GeneratorExit))


def _size(result: JobResult) -> int:
    return len(result.output_json or result.error_json or "")


class Recorder:
    """The calls that end a claim, each repeated until it is answered."""

    def __init__(self, provider: AsyncJobProvider, config: AsyncJobWorkerConfig) -> None:
        self._provider = provider
        self._config = config
        self._scopes: set[trio.CancelScope] = set()
        self._patient = True
        self._restored = trio.Event()

    async def finish(self, held: HeldJob, result: JobResult) -> JobResult | Literal[False] | None:
        """Record a result; returns the one that was recorded.

        A result that the storage refuses is replaced by an outcome that says so. False if the job
        was not this claim's to finish, None where it was given up.
        """
        for outcome in (_REFUSED, internal_error_outcome, None):
            try:
                recorded = await self._finish(held, result)
            except UnstorableValue as error:
                log_job(_log.JOB_REJECTED, held.job, error=describe(error))
                held.acknowledge(held.pending_progress())
            else:
                return result if recorded else recorded
            if outcome is not None:
                result = JobResult.failed(outcome())
        await self.release(held, give_back=False)
        return None

    async def once(
        self, call: Callable[[], Awaitable[T]], results: Iterable[JobResult], unanswered: T
    ) -> T:
        """The answer of one call about these results; `unanswered` where there is none in time."""
        if not self._patient:
            return unanswered
        scope = trio.CancelScope(relative_deadline=self._budget(sum(map(_size, results))))
        self._scopes.add(scope)
        try:
            with scope:
                return await call()
        except BaseException as error:
            if _must_leave(error):
                raise
            # Each result is asked about alone, and what goes wrong then is logged.
        finally:
            self._scopes.discard(scope)
        return unanswered

    def _budget(self, size: int) -> float:
        # A batch under way, this call's own, and as much again for a slow network.
        return 4 * self._config.call_budget + size / _MEBIBYTE * _SECONDS_PER_MEBIBYTE

    async def _finish(self, held: HeldJob, result: JobResult) -> bool | None:
        progress = held.pending_progress()
        return await self._until_answered(
            held,
            lambda: self._provider.finish_job(
                held.job.id,
                held.lease,
                result,
                self._config.retention,
                progress[0] if progress else None,
            ),
            _size(result),
        )

    async def release(self, held: HeldJob, *, give_back: bool) -> bool | None:
        """Let go of the row; returns as `release_job` does, or None where it was given up."""
        return await self._until_answered(
            held,
            lambda: self._provider.release_job(held.job.id, held.lease, give_back=give_back),
        )

    async def reschedule(self, held: HeldJob, later: Later) -> bool | None:
        """Let go of the row, to be run again later; False if it was not this claim's to change.

        What the storage refuses of it, the history or the progress, is left out. None where it was
        given up.
        """
        for failure in (later.failure, None):
            try:
                return await self._reschedule(held, later, failure)
            except UnstorableValue as error:
                log_job(_log.JOB_REJECTED, held.job, error=describe(error))
                held.acknowledge(held.pending_progress())
        await self.release(held, give_back=False)
        return None

    async def _reschedule(self, held: HeldJob, later: Later, failure: str | None) -> bool | None:
        progress = held.pending_progress()
        return await self._until_answered(
            held,
            lambda: self._provider.reschedule_job(
                held.job.id,
                held.lease,
                later.after,
                give_back=later.give_back,
                retention=self._config.retention,
                failure=failure,
                progress=progress[0] if progress else None,
            ),
        )

    async def delete(self, held: HeldJob) -> bool | None:
        """Delete an expired row; returns as `delete_expired_job` does, or None if given up."""
        return await self._until_answered(
            held, lambda: self._provider.delete_expired_job(held.job.id, held.lease)
        )

    async def keep(self, held: HeldJob, seconds: float) -> None:
        """Hold on to the row for `seconds`, so that nobody takes it before."""
        lease = JobLease(held.lease.worker, seconds, held.lease.token)
        await self._until_answered(held, lambda: self._provider.renew_lease(held.job.id, lease))

    def retry_now(self) -> None:
        """The storage may have come back: repeat at once what waits for its next attempt."""
        self._restored.set()
        self._restored = trio.Event()

    def give_up(self) -> None:
        """End all waiting for answers now; what begins later gets one call's time."""
        self._patient = False
        for scope in self._scopes:
            scope.cancel("the worker is stopping")

    async def _until_answered(
        self, held: HeldJob, call: Callable[[], Awaitable[T]], size: int = 0
    ) -> T | None:
        budget = self._budget(size)
        patient = self._patient
        end = math.inf if patient else trio.current_time() + self._config.call_budget
        delay = _FIRST_RETRY
        while patient is self._patient and trio.current_time() < end:
            error: BaseException | None = None
            # One scope for the budget and for giving up: each costs a job 8 microseconds.
            scope = trio.CancelScope(deadline=min(trio.current_time() + budget, end))
            self._scopes.add(scope)
            try:
                with scope:
                    return await call()
            except UnstorableValue:
                raise
            except BaseException as raised:  # whatever it is, ask again
                if _must_leave(raised):
                    raise
                error = raised
            finally:
                self._scopes.discard(scope)
            error = error or ProviderUnavailable(f"no answer within {budget:g} s")
            log_job(_log.JOB_RECORD_RETRIED, held.job, error=describe(error))
            if patient is self._patient:
                await self._pause(random.uniform(delay / 2, delay))  # noqa: S311
            delay = min(_LONGEST_RETRY, delay * 2)
        log_job(_log.JOB_RECORD_FAILED, held.job)
        return None

    async def _pause(self, seconds: float) -> None:
        """Sleep, unless the storage may have come back, or waiting was given up."""
        with trio.CancelScope(relative_deadline=seconds) as scope:
            self._scopes.add(scope)
            try:
                await self._restored.wait()
            finally:
                self._scopes.discard(scope)
