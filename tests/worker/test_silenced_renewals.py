"""The hook that ends renewals quietly, and what is left then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from hastetrio import (
    AsyncJobWorker,
    AsyncJobWorkerConfig,
    CancelReason,
    CreateAsyncJob,
    JobContext,
    JobOutput,
    job_handler,
)
from hastetrio.memory import MemoryJobProvider
from hastetrio.testing import silence_renewals

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_renewals_that_end_quietly_leave_the_job_to_its_deadline(
    autojump_clock: MockClock,
) -> None:
    """Nothing depends on a watcher: the deadline ends the handler, and the job runs again."""
    storage = MemoryJobProvider()
    await storage.create_job("t", "p", CreateAsyncJob(kind="k", claims={"sub": "s"}))
    config = AsyncJobWorkerConfig(lease_duration=30)
    ended: list[float] = []
    started: list[float] = []

    @job_handler("k")
    async def run(context: JobContext) -> JobOutput:
        started.append(trio.current_time())
        try:
            await trio.sleep(45)
        except trio.Cancelled:
            assert context.cancel_reason is CancelReason.LEASE_LOST
            ended.append(trio.current_time())
            # It would claim the job again, and renew it as little as before.
            silent.stop()
            raise
        return JobOutput.json({})

    silent = AsyncJobWorker(storage, [run], config)
    healthy = AsyncJobWorker(storage, [run], config)
    async with trio.open_nursery() as nursery:
        await nursery.start(silent.run)
        await trio.sleep(12)
        silence_renewals(silent)
        await nursery.start(healthy.run)
        # By then the deadline has spoken, and the other worker has run the job to its end.
        await trio.sleep(120)
        healthy.stop()
    # Renewed once, a third into the lease; nothing moved the deadline after that.
    assert ended == [started[0] + 10 + 30 - config.margin]
    assert len(started) == 2
    assert silent.statistics().totals.handed_back == 1
    assert healthy.statistics().totals.completed == 1
