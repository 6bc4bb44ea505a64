"""One job that kills its process must not use up its neighbours' attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from hastetrio import (
    AsyncJobStatus,
    AsyncJobWorker,
    AsyncJobWorkerConfig,
    CreateAsyncJob,
    JobContext,
    JobLease,
    JobOutput,
    job_handler,
)
from hastetrio.memory import MemoryJobProvider
from hastetrio.testing import CallName, FaultyProvider

if TYPE_CHECKING:
    from trio.testing import MockClock

KIND: Final = "neighbour"
CALLS: Final[tuple[CallName, ...]] = (
    "claim_jobs",
    "forget_claim",
    "renew_lease",
    "finish_job",
    "finish_jobs",
    "release_job",
    "fail_abandoned_jobs",
    "claim_expired_jobs",
    "discard_expired_jobs",
    "delete_orphans",
)


async def test_a_job_that_kills_its_process_fails_alone(autojump_clock: MockClock) -> None:
    """Three neighbours that died with it twice complete; it alone is abandoned."""
    storage = MemoryJobProvider()
    claims = {"sub": "somebody"}
    created = await storage.create_jobs(
        "t",
        "p",
        [CreateAsyncJob(kind=KIND, claims=claims, parameters=n == 1) for n in range(4)],
    )
    deadly = trio.Event()

    @job_handler(KIND)
    async def run(context: JobContext) -> JobOutput:
        await trio.sleep(5)
        if context.job.parameters:
            deadly.set()
            await trio.sleep_forever()
        # The neighbours take longer, so that they are always there when it strikes.
        await trio.sleep(5)
        return JobOutput.json({})

    config = AsyncJobWorkerConfig(
        lease_duration=10, drain_timeout=0, cancel_grace=0, maintenance_interval=5
    )
    deaths = 0
    live = True
    with trio.fail_after(3600):
        while live:
            deadly = trio.Event()
            process = FaultyProvider(storage)
            worker = AsyncJobWorker(process, [run], config)
            async with trio.open_nursery() as nursery:
                await nursery.start(worker.run)
                while live and not deadly.is_set():
                    await trio.sleep(0.5)
                    jobs = await storage.list_jobs("t", "p")
                    live = any(job.status.is_live for job in jobs)
                if deadly.is_set():
                    deaths += 1
                    # A dead process tells its storage nothing: no hand-back, no renewal.
                    for call in CALLS:
                        process.fail(call)
                worker.stop()
                worker.stop()
    ended = {job.id: job for job in await storage.list_jobs("t", "p")}
    statuses = [ended[job.id].status for job in created]
    assert statuses == [
        AsyncJobStatus.COMPLETED,
        AsyncJobStatus.FAILED,
        AsyncJobStatus.COMPLETED,
        AsyncJobStatus.COMPLETED,
    ]
    assert deaths == 3


async def test_a_long_job_on_its_last_attempt_keeps_no_other_waiting(
    autojump_clock: MockClock,
) -> None:
    """One that has outlived a lease did not kill its process; the next suspect may start."""
    storage = MemoryJobProvider()
    for _ in range(2):
        await storage.create_job("t", "p", CreateAsyncJob(kind=KIND, claims={"sub": "s"}))
    for _ in range(2):
        assert len(await storage.claim_jobs([KIND], JobLease("dead", 1), 9)) == 2
        await trio.sleep(2)
    started: list[float] = []

    @job_handler(KIND)
    async def run(context: JobContext) -> JobOutput:
        started.append(trio.current_time())
        await trio.sleep(1000)
        return JobOutput.json({})

    config = AsyncJobWorkerConfig(lease_duration=10, drain_timeout=0)
    worker = AsyncJobWorker(storage, [run], config)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await trio.sleep(500)
        worker.stop()
    first, second = started
    assert config.lease_duration <= second - first <= 2 * config.lease_duration
