"""One claimed job, from its claim to its recorded result.

    nursery, its scope's deadline = the lease { handler ; renewals } -> classify -> record -> slot

The handler's outcome is data: no exception of a handler crosses the job's nursery. Only when the
nursery has closed, so that no task of the job is left, is the row touched. Each job ends in
exactly one of: recorded; queued for later, because it asked for that; dropped because lost;
released because cancelled or expired; handed back. The one exception is a handler that records its
result in a transaction of its own, and goes on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal

import attrs
import trio

from hastetrio import _log
from hastetrio._asyncio_hints import add_asyncio_hint
from hastetrio._body import body_of
from hastetrio._context import CancelReason, JobContext
from hastetrio._errors import LeaseLost
from hastetrio._finishing import Finishing
from hastetrio._log import current_job, describe, log_job
from hastetrio._model import AsyncJobStatus, JobResult
from hastetrio._outcome import internal_error_outcome, unsupported_outcome
from hastetrio._verdict import failure_of, split, verdict_of_error, verdict_of_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hastetrio._config import AsyncJobWorkerConfig
    from hastetrio._desk import LeaseDesk
    from hastetrio._handler import JobHandler
    from hastetrio._held import HeldJob
    from hastetrio._middleware import JobMiddleware
    from hastetrio._provider import AsyncJobProvider
    from hastetrio._record import Recorder
    from hastetrio._renewals import Renewals
    from hastetrio._statistics import Counts
    from hastetrio._verdict import Later


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
        add_asyncio_hint(others)
        return Ending("raised", error=others)


class JobRunner:
    """Runs claimed jobs to their ends.

    Args:
        provider: The storage.
        handlers: The handlers by kind.
        config: The worker's durations and limits.
        recorder: Records how they ended.
        renewals: Knows what is held.
        counts: What the worker counts.
        desk: Serves what running handlers ask of the storage.
        middleware: Goes around each run of a handler.
        interrupt: Called with a KeyboardInterrupt that a handler raised or was hit by.
        ended: Called once for each job that was run, when its end is recorded or given up.
        postponed: Called with the seconds after which a job is to be run again.
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
        desk: LeaseDesk,
        middleware: Sequence[JobMiddleware],
        interrupt: Callable[[BaseException], None],
        ended: Callable[[HeldJob], None],
        postponed: Callable[[float], None],
        start: Callable[..., None],
    ) -> None:
        self._handlers = handlers
        self._bodies = {kind: body_of(one, middleware) for kind, one in handlers.items()}
        self._desk = desk
        self._config = config
        self._recorder = recorder
        self._renewals = renewals
        self._counts = counts
        self._interrupt = interrupt
        self._ended = ended
        self._postponed = postponed
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
        body = self._bodies.get(held.job.kind)
        if body is None:
            # Only registered kinds are claimed; if one slips through, it must not sit in
            # progress until its lease lapses.
            return JobResult.failed(unsupported_outcome(held.job.kind))
        reason = held.cancel_reason
        if reason is not None:
            # Over before it began: even its first step might meet another worker's.
            ending = Ending("cancelled", reason)
        else:
            context: JobContext[Any] = JobContext(held, self._desk)
            ending = await run_body(held, lambda: body(context))
            reason = ending.reason
        if held.settled is not None:
            self._settled(held, held.settled, ending)
            return None
        # After a shutdown's cancellation the lease is still ours, so a result counts.
        counts = reason is None or (reason is CancelReason.SHUTDOWN and ending.manner == "returned")
        if counts and ending.manner != "interrupted":
            verdict = self._judge(held, ending)
            if isinstance(verdict, JobResult):
                return verdict
            await self._reschedule(held, verdict, ending)
            return None
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
        if ending.error is not None and split(ending.error, LeaseLost)[1] is not None:
            log_job(_log.JOB_RAISED, held.job, trace=ending.error)
        if reason is CancelReason.CANCELLED or reason is CancelReason.EXPIRED:
            await self._drop(held, reason)
        elif held.lost:
            self._counts.dropped += 1
            log_job(_log.JOB_DROPPED, held.job, reason=str(reason))
        else:
            await self.hand_back(held, str(reason))

    def _settled(self, held: HeldJob, result: JobResult, ending: Ending) -> None:
        """The handler recorded its result itself; what it did after that changes nothing."""
        if ending.error is not None:
            log_job(_log.JOB_RAISED, held.job, trace=ending.error)
            if ending.manner == "interrupted":
                self._interrupt(ending.error)
        self._count(held, result)

    async def _reschedule(self, held: HeldJob, later: Later, ending: Ending) -> None:
        recorded = await self._recorder.reschedule(held, later)
        if recorded:
            self._postponed(later.after)
        if recorded is False:
            await self._not_ours(held)
        elif recorded is None:
            self._counts.unrecorded += 1
        elif later.give_back:
            self._counts.snoozed += 1
            log_job(_log.JOB_SNOOZED, held.job, after=later.after)
        else:
            self._counts.retried += 1
            error = ending.error if isinstance(ending.error, BaseException) else ending.value
            text = describe(error) if isinstance(error, BaseException) else ""
            log_job(_log.JOB_RETRIED, held.job, after=later.after, error=text)

    async def _not_ours(self, held: HeldJob) -> None:
        self._counts.dropped += 1
        log_job(_log.JOB_NOT_OURS, held.job)
        # Cancelled or expired meanwhile, the row is still held: the sweep waits for us.
        await self._recorder.release(held, give_back=False)

    def _recorded(self, held: HeldJob, result: JobResult) -> None:
        """The storage has the result."""
        self._count(held, result)
        self._let_go(held)

    def _count(self, held: HeldJob, result: JobResult) -> None:
        if result.status is AsyncJobStatus.COMPLETED:
            self._counts.completed += 1
        else:
            self._counts.failed += 1
        elapsed = trio.current_time() - held.started
        log_job(_log.JOB_FINISHED, held.job, status=result.status, elapsed=elapsed)

    @trio.lowlevel.enable_ki_protection
    async def _record_alone(self, held: HeldJob, result: JobResult) -> None:
        """Record a result that was not recorded with others, and ask until it is answered."""
        current_job.set(held.job.id)
        recorded: JobResult | Literal[False] | None = None
        try:
            recorded = await self._recorder.finish(held, result)
            if recorded is False:
                await self._not_ours(held)
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

    def _judge(self, held: HeldJob, ending: Ending) -> JobResult | Later:
        """What the end of a run comes to."""
        handler = self._handlers[held.job.kind]
        try:
            if ending.manner == "returned":
                return verdict_of_value(
                    ending.value,
                    held.job,
                    handler,
                    output_limit=self._config.output_limit,
                    outcome_limit=self._config.outcome_limit,
                )
            # A cancellation that was nobody's: the handler kept one, and raised it again.
            error = ending.error
            if error is None:
                error = RuntimeError("the handler raised a cancellation of its own")
            return verdict_of_error(
                error, held.job, handler, outcome_limit=self._config.outcome_limit
            )
        except Exception as error:  # noqa: BLE001  # values and errors of a handler's run its code
            log_job(_log.JOB_RAISED, held.job, trace=error)
            return JobResult.failed(internal_error_outcome(), failure=failure_of(error))
