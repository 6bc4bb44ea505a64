"""One claimed job, from its claim to its recorded result.

    nursery, its scope's deadline = the lease { handler ; renewals } -> classify -> record -> slot

The handler's outcome is data: no exception of a handler crosses the job's nursery. Only when the
nursery has closed, so that no task of the job is left, is the row touched. Each job ends in
exactly one of: recorded; dropped because lost; released because cancelled or expired; handed back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal

import attrs
import trio

from hastetrio import _log
from hastetrio._errors import UnstorableValue
from hastetrio._finishing import Finishing
from hastetrio._handler import CancelReason, JobContext
from hastetrio._log import current_job, describe, log_job
from hastetrio._model import AsyncJobStatus, JobOutput, JobResult
from hastetrio._outcome import (
    Issue,
    OperationOutcomeError,
    fitting_outcome,
    internal_error_outcome,
    unstorable_outcome,
    unsupported_outcome,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastetrio._config import AsyncJobWorkerConfig
    from hastetrio._handler import JobHandler
    from hastetrio._held import HeldJob
    from hastetrio._provider import AsyncJobProvider
    from hastetrio._record import Recorder
    from hastetrio._renewals import Renewals
    from hastetrio._statistics import Counts


@attrs.frozen
class Ending:
    """How a body ended.

    Attributes:
        manner: It returned, raised, was interrupted by KeyboardInterrupt, or let its
            cancellation through.
        reason: Why it was to leave before it did, if it was.
        value: What it returned.
        error: What it raised.
    """

    manner: Literal["returned", "raised", "interrupted", "cancelled"]
    reason: CancelReason | None = None
    value: object = None
    error: BaseException | None = None


async def run_body(held: HeldJob, body: Callable[[], Awaitable[object]]) -> Ending:
    """Run `body` under the lease of `held`, with its renewals, in a nursery of their own.

    When this returns, no task of the body or of its renewals is left.
    """
    ending = Ending("cancelled")
    reason: CancelReason | None = None
    try:
        async with trio.open_nursery() as nursery:
            held.enter(nursery)
            try:
                ending = await _call(body)
            finally:
                reason = held.leave()
            # Rarely: most jobs end before their first renewal, and a cancel costs 5 microseconds.
            if nursery.child_tasks:
                nursery.cancel_scope.cancel("the handler has left")
    except BaseException as error:
        # A renewal task died: it took the body along. A body that had left by itself (`reason` is
        # None) keeps its ending; it may also be to blame, for a cancel scope it never closed.
        _, others = split(error, trio.Cancelled)
        if others is None:
            raise
        log_job(_log.JOB_RENEWAL_DIED, held.job, trace=others)
        if split(others, KeyboardInterrupt)[0] is not None:
            ending = Ending("interrupted", error=others)
    if reason is None:
        return ending
    if ending.manner in ("returned", "raised"):
        since = held.deadline if held.cancelled_at is None else held.cancelled_at
        elapsed = trio.current_time() - since
        log_job(_log.JOB_LATE, held.job, reason=str(reason), elapsed=elapsed)
    return attrs.evolve(ending, reason=reason)


@trio.lowlevel.disable_ki_protection
async def _call(body: Callable[[], Awaitable[object]]) -> Ending:
    try:
        return Ending("returned", value=await body())
    except BaseException as error:
        # An error raised beside the cancellation comes in a group with it.
        _, others = split(error, trio.Cancelled)
        if others is None:
            raise
        if split(others, KeyboardInterrupt)[0] is not None:
            return Ending("interrupted", error=others)
        return Ending("raised", error=others)


def split(
    error: BaseException, kind: type[BaseException]
) -> tuple[BaseException | None, BaseException | None]:
    """The part of `error` that is of `kind`, and the rest; either may be None."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(kind)
    return (error, None) if isinstance(error, kind) else (None, error)


class JobRunner:
    """Runs claimed jobs to their ends.

    Args:
        provider: The storage.
        handlers: The handlers by kind.
        config: The worker's durations and limits.
        recorder: Records how they ended.
        renewals: Knows what is held.
        counts: What the worker counts.
        interrupt: Called with a KeyboardInterrupt that a handler raised or was hit by.
        ended: Called once for each job that was run, when its end is recorded or given up.
        start: Starts a task in the nursery that waits for all jobs.
    """

    def __init__(
        self,
        provider: AsyncJobProvider,
        handlers: Mapping[str, JobHandler],
        config: AsyncJobWorkerConfig,
        recorder: Recorder,
        renewals: Renewals,
        counts: Counts,
        *,
        interrupt: Callable[[BaseException], None],
        ended: Callable[[HeldJob], None],
        start: Callable[..., None],
    ) -> None:
        self._handlers = handlers
        self._config = config
        self._recorder = recorder
        self._renewals = renewals
        self._counts = counts
        self._interrupt = interrupt
        self._ended = ended
        self._finishing = Finishing(
            provider,
            config,
            recorder,
            recorded=self._recorded,
            alone=self._record_alone,
            start=start,
        )

    async def run(self, held: HeldJob) -> None:
        """Run one job's handler, and see to it that its end is recorded."""
        current_job.set(held.job.id)
        log_job(_log.JOB_RUNNING, held.job)
        result: JobResult | None = None
        try:
            result = await self._run(held)
        finally:
            if result is None:
                self._let_go(held)
        if result is not None:
            self._finishing.add(held, result)

    async def _run(self, held: HeldJob) -> JobResult | None:
        """Run the handler; the result to record, or None where the job has ended without one."""
        handler = self._handlers.get(held.job.kind)
        if handler is None:
            # Only registered kinds are claimed; if one slips through, it must not sit in
            # progress until its lease lapses.
            return JobResult.failed(unsupported_outcome(held.job.kind))
        reason = held.cancel_reason
        if reason is not None:
            # Over before it began: even its first step might meet another worker's.
            ending = Ending("cancelled", reason)
        else:
            context = JobContext(held)
            ending = await run_body(held, lambda: handler.run(context))
            reason = ending.reason
        # After a shutdown's cancellation the lease is still ours, so a result counts.
        counts = reason is None or (reason is CancelReason.SHUTDOWN and ending.manner == "returned")
        if counts and ending.manner != "interrupted":
            return self._result_of(held, ending)
        await self._end(held, ending)
        return None

    def _let_go(self, held: HeldJob) -> None:
        self._renewals.drop(held)
        self._ended(held)

    async def hand_back(self, held: HeldJob, reason: str) -> None:
        """Let go of a row, so that it can be claimed again at once."""
        try:
            released = await self._recorder.release(held, give_back=True)
            if released:
                self._counts.handed_back += 1
                log_job(_log.JOB_HANDED_BACK, held.job, reason=reason)
            elif released is False:
                self._counts.dropped += 1
                log_job(_log.JOB_DROPPED, held.job, reason=reason)
            else:
                self._counts.unrecorded += 1
        finally:
            self._renewals.drop(held)

    async def _end(self, held: HeldJob, ending: Ending) -> None:
        """A job whose body was to leave, or was interrupted: what it left behind is no result."""
        reason = ending.reason
        if ending.manner == "interrupted" and ending.error is not None:
            self._interrupt(ending.error)
            await self.hand_back(held, "interrupted")
            return
        if ending.manner == "raised":
            log_job(_log.JOB_RAISED, held.job, trace=ending.error)
        if reason is CancelReason.CANCELLED or reason is CancelReason.EXPIRED:
            await self._drop(held, reason)
        elif held.lost:
            self._counts.dropped += 1
            log_job(_log.JOB_DROPPED, held.job, reason=str(reason))
        else:
            await self.hand_back(held, str(reason))

    def _recorded(self, held: HeldJob, result: JobResult) -> None:
        """The storage has the result."""
        if result.status is AsyncJobStatus.COMPLETED:
            self._counts.completed += 1
        else:
            self._counts.failed += 1
        elapsed = trio.current_time() - held.started
        log_job(_log.JOB_FINISHED, held.job, status=result.status, elapsed=elapsed)
        self._let_go(held)

    @trio.lowlevel.enable_ki_protection
    async def _record_alone(self, held: HeldJob, result: JobResult) -> None:
        """Record a result that was not recorded with others, and ask until it is answered."""
        current_job.set(held.job.id)
        recorded: JobResult | Literal[False] | None = None
        try:
            recorded = await self._recorder.finish(held, result)
            if recorded is False:
                self._counts.dropped += 1
                log_job(_log.JOB_NOT_OURS, held.job)
                # Cancelled or expired meanwhile, the row is still held: the sweep waits for us.
                await self._recorder.release(held, give_back=False)
            elif recorded is None:
                self._counts.unrecorded += 1
        finally:
            if not recorded:
                self._let_go(held)
        if recorded:
            self._recorded(held, recorded)

    async def _drop(self, held: HeldJob, reason: CancelReason) -> None:
        self._counts.dropped += 1
        log_job(_log.JOB_DROPPED, held.job, reason=str(reason))
        await self._recorder.release(held, give_back=False)

    def _result_of(self, held: HeldJob, ending: Ending) -> JobResult:
        try:
            return self._classified(held, ending)
        except Exception as error:  # noqa: BLE001  # values and errors of a handler's run its code
            log_job(_log.JOB_RAISED, held.job, trace=error)
            return JobResult.failed(internal_error_outcome())

    def _classified(self, held: HeldJob, ending: Ending) -> JobResult:
        if ending.manner == "returned":
            return self._completed(held, ending.value)
        error = ending.error
        issues = _issues_of(error)
        if issues:
            if _unexpected(error):
                log_job(_log.JOB_RAISED, held.job, trace=error)
            outcome = fitting_outcome(issues, self._config.outcome_limit)
            return JobResult.failed(outcome, limit=self._config.outcome_limit)
        log_job(_log.JOB_RAISED, held.job, trace=error)
        return JobResult.failed(internal_error_outcome())

    def _completed(self, held: HeldJob, output: object) -> JobResult:
        try:
            if not isinstance(output, JobOutput):
                raise UnstorableValue(  # noqa: TRY301
                    f"the handler returned {type(output).__name__}, not a JobOutput"
                )
            return JobResult.completed(
                output.value, output.content_type, limit=self._config.output_limit
            )
        except UnstorableValue as error:
            log_job(_log.JOB_REJECTED, held.job, error=describe(error))
            return JobResult.failed(unstorable_outcome(str(error)))


def _issues_of(error: BaseException | None) -> tuple[Issue, ...]:
    """The issues of every OperationOutcomeError in `error`, in their order."""
    if isinstance(error, OperationOutcomeError):
        return error.issues
    if isinstance(error, BaseExceptionGroup):
        return tuple(issue for part in error.exceptions for issue in _issues_of(part))
    return ()


def _unexpected(error: BaseException | None) -> bool:
    return error is not None and split(error, OperationOutcomeError)[1] is not None
