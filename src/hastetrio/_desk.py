"""What a running handler asks of the storage, under its claim: states, transactions, certainty.

Each call is asked until it is answered, however long the storage is away: the handler's scope,
whose deadline is the lease, ends the waiting.
"""

from __future__ import annotations

import random
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

import attrs
import trio

from hastetrio import _log
from hastetrio._budget import within
from hastetrio._errors import (
    LeaseLost,
    ProviderUnavailable,
    UnstorableOutput,
    UnstorableValue,
)
from hastetrio._log import describe, log_job
from hastetrio._model import JobOutput, JobResult
from hastetrio._provider import JobFinish
from hastetrio._storable import encode_json
from hastetrio._verdict import output_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from hastetrio._config import AsyncJobWorkerConfig
    from hastetrio._held import HeldJob
    from hastetrio._provider import AsyncJobProvider, JobTransaction
    from hastetrio._renewals import Renewals

STATE_LIMIT: Final = 64 * 1024

# Seconds between two attempts to reach the storage, jittered.
_RETRY: Final = (0.1, 0.5)


@attrs.define(eq=False)
class _Open:
    held: HeldJob
    transaction: JobTransaction
    result: JobResult | None = None
    progress: list[str] = attrs.Factory(list)
    owners: list[trio.lowlevel.Task] = attrs.Factory(lambda: [trio.lowlevel.current_task()])
    ended: trio.Event = attrs.Factory(trio.Event)


class LeaseDesk:
    """Serves the handlers of one worker.

    Args:
        provider: The storage.
        config: The worker's limits.
        renewals: Knows what is held, and what a renewal's answer means.
    """

    def __init__(
        self, provider: AsyncJobProvider, config: AsyncJobWorkerConfig, renewals: Renewals
    ) -> None:
        self._provider = provider
        self._config = config
        self._renewals = renewals
        self._open: dict[int, _Open] = {}
        # Between their finish and their commit.
        self._finishing: dict[HeldJob, _Open] = {}
        self._threads = trio.CapacityLimiter(config.thread_limit)

    async def confirm(self, held: HeldJob) -> None:
        """See that the storage still has the job as this claim's; `JobContext.confirm_lease`."""
        await self._until_unlocked(held, "confirm_lease()")
        await trio.lowlevel.checkpoint()
        if held.cancel_reason is None and held.settled is None:
            await self._renewals.confirm(held)
        if held.cancel_reason is not None or held.settled is not None:
            _lost(held)

    async def save_state(self, held: HeldJob, state: object) -> None:
        """Keep a state with the job; see `JobContext.save_state`."""
        text = encode_json(state, STATE_LIMIT, "the state")
        await self._until_unlocked(held, "save_state()")
        await trio.lowlevel.checkpoint()
        while held.cancel_reason is None and held.settled is None:
            try:
                saved = await within(
                    self._config.call_budget,
                    self._provider.save_state(held.job.id, held.lease, text),
                )
            except ProviderUnavailable as error:
                log_job(_log.JOB_CALL_RETRIED, held.job, error=describe(error))
                await trio.sleep(random.uniform(*_RETRY))  # noqa: S311
                continue
            if saved:
                held.save(text)
                return
            # Why, the renewal tells: cancelled, expired, or taken over.
            await self._renewals.confirm(held)
        _lost(held)

    @asynccontextmanager
    async def transaction(self, held: HeldJob) -> AsyncGenerator[Any]:
        """A connection in an open transaction; see `JobContext.transaction`."""
        if held.settled is not None:
            raise RuntimeError("the job's result is recorded already: there is no claim any more")
        entry: _Open | None = None
        try:
            async with AsyncExitStack() as stack:
                entry = _Open(held, await self._enter(stack, held))
                place = id(entry.transaction.connection)
                self._open[place] = entry
                try:
                    yield entry.transaction.connection
                finally:
                    del self._open[place]
        except BaseException as error:
            if entry is not None and self._leave(entry):
                held.lost = False
                self._renewals.due_now(held.job.id)
            # Why, the renewal tells: cancelled, expired, or taken over; and it ends the handler.
            if isinstance(error, LeaseLost) and held.cancel_reason is None:
                await self._renewals.confirm(held)
            raise
        if self._leave(entry) and entry.result is not None:
            held.acknowledge(entry.progress)
            held.settle(entry.result)

    async def finish(self, held: HeldJob, connection: object, output: object) -> JobOutput:
        """Record a result in an open transaction; see `JobContext.finish`."""
        entry = self._open.get(id(connection))
        if entry is None or entry.held is not held:
            raise RuntimeError(
                "finish() takes the connection that this job's context.transaction() gave, inside "
                "of its block"
            )
        if held.settled is not None or held in self._finishing:
            raise RuntimeError("the job has a result already: finish() was called before")
        try:
            given = output_of(output)
            result = JobResult.completed(
                given.value, given.content_type, limit=self._config.output_limit
            )
        except UnstorableValue as error:
            raise UnstorableOutput(str(error)) from None
        progress = held.pending_progress()
        recorded = await entry.transaction.finish(
            JobFinish(
                held.job.id,
                held.lease,
                result,
                self._config.retention,
                progress[0] if progress else None,
            )
        )
        if not recorded:
            await self._renewals.confirm(held)
            _lost(held)
        entry.result, entry.progress = result, progress
        entry.owners.append(trio.lowlevel.current_task())
        self._finishing[held] = entry
        # The row is locked, so that a renewal could only fail; or find the claim ended by this very
        # commit, before its answer is here, and take it for lost.
        held.lost = True
        return JobOutput(result.output, given.content_type)

    async def _enter(self, stack: AsyncExitStack, held: HeldJob) -> JobTransaction:
        """Open a transaction, which `stack` ends; nothing has been done yet, so ask again."""
        while True:
            opening = self._provider.transaction(held.job.id, held.lease)
            try:
                return await stack.enter_async_context(opening)
            except ProviderUnavailable as error:
                log_job(_log.JOB_CALL_RETRIED, held.job, error=describe(error))
                await trio.sleep(random.uniform(*_RETRY))  # noqa: S311

    def _leave(self, entry: _Open) -> bool:
        """A transaction has ended; whether it was the one with the job's result."""
        if self._finishing.get(entry.held) is not entry:
            return False
        del self._finishing[entry.held]
        entry.ended.set()
        return True

    async def _until_unlocked(self, held: HeldJob, call: str) -> None:
        """Wait for a commit of another task's that has the job's row locked."""
        entry = self._finishing.get(held)
        if entry is None:
            return
        if trio.lowlevel.current_task() in entry.owners:
            raise RuntimeError(
                f"finish() has locked the job's row until the block ends: call {call} before it"
            )
        await entry.ended.wait()

    async def run_sync(self, function: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401
        """Call a function in a thread; see `JobContext.run_sync`."""
        # A deadline that passed while the process stood still is noticed before the thread starts.
        await trio.lowlevel.checkpoint()
        return await trio.to_thread.run_sync(function, *args, limiter=self._threads)


def _lost(held: HeldJob) -> NoReturn:
    if held.settled is not None:
        raise LeaseLost("the job's result is recorded: there is no claim any more")
    reason = held.cancel_reason or "it is another claim's"
    raise LeaseLost(f"the job is no longer to be run here: {reason}")
