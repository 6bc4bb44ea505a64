"""Cancelling: what the client is told, what is given up, and what the holder keeps."""

from __future__ import annotations

from datetime import timedelta

import pytest
import trio

from hastetrio._model import AsyncJob, AsyncJobStatus, JobResult, LeaseRenewal
from hastetrio._provider import AsyncJobProvider

from ._world import DAY, KIND, MINUTE, PROJECT, TENANT, World, new_lease


async def test_a_cancelled_queued_job_never_runs(world: World) -> None:
    """The answer is the job as it was, and no worker gets it."""
    job = await world.create()
    assert await world.cancel(job.id) == job
    assert await world.claim(new_lease()) == []
    assert (await world.stored(job.id))["status"] == "cancelled"


async def test_a_cancelled_running_job_stays_held(world: World) -> None:
    """Its status says cancelled, and its holder keeps it until it lets go."""
    job, lease = await world.start()
    assert await world.cancel(job.id) == job
    row = await world.stored(job.id)
    assert (row["status"], row["locked_by"]) == ("cancelled", lease.token)
    assert row["lease_expires_at"] is not None
    assert row["finished_at"] is not None


@pytest.mark.parametrize("ending", ["completed", "failed"])
async def test_a_finished_job_gives_up_its_result(world: World, ending: str) -> None:
    """The answer still shows what was recorded; the row holds none of it afterwards."""
    job, lease = await world.start()
    result = JobResult.completed({"a": 1}) if ending == "completed" else JobResult.failed({"b": 2})
    await world.provider.finish_job(job.id, lease, result, DAY, "all")
    await world.pass_time(MINUTE)
    finished = await world.read(job.id)
    assert finished is not None
    assert await world.cancel(job.id) == finished
    assert (finished.output or finished.error, finished.progress) in (
        ({"a": 1}, "all"),
        ({"b": 2}, "all"),
    )
    row = await world.stored(job.id)
    assert row["status"] == "cancelled"
    assert row["expires_at"] - row["finished_at"] >= timedelta(seconds=MINUTE)
    given_up = ("output", "output_content_type", "error", "progress")
    assert [row[column] for column in given_up] == [None] * 4


async def test_a_cancelled_job_is_gone_for_its_client(world: World) -> None:
    """It is not shown, listed or counted any more, and cannot be cancelled again."""
    waiting = await world.create()
    running, _ = await world.start(kind="other")
    for job in (waiting, running):
        assert await world.cancel(job.id) is not None
        assert await world.read(job.id) is None
        assert await world.cancel(job.id) is None
    assert await world.provider.list_jobs(TENANT, PROJECT) == []
    assert await world.provider.count_live_jobs(TENANT, PROJECT) == 0


async def test_a_cancelled_job_that_nobody_holds_is_swept_at_once(world: World) -> None:
    """A cancel makes the job expire now, so its clean-up does not wait for the retention."""
    job = await world.create()
    await world.cancel(job.id)
    assert await world.sweep(new_lease()) == [job.id]


async def test_only_who_may_see_a_job_may_cancel_it(world: World) -> None:
    """Another tenant, project or submitter finds no such job, and changes nothing."""
    job = await world.create(sub="ann")
    cancel = world.provider.cancel_job
    assert await cancel("other", PROJECT, job.id) is None
    assert await cancel(TENANT, "other", job.id) is None
    assert await cancel(TENANT, PROJECT, job.id, submitted_by="bob") is None
    assert await world.read(job.id) == job
    assert await cancel(TENANT, PROJECT, job.id, submitted_by="ann") == job


@pytest.mark.parametrize("id", ["nowhere", "", "a\0b", "\ud800"])
async def test_a_job_that_is_not_there_cannot_be_cancelled(world: World, id: str) -> None:
    """An id from a URL may be anything, and is then simply unknown."""
    assert await world.cancel(id) is None
    assert await world.read(id) is None


async def test_an_expired_job_cannot_be_cancelled(world: World) -> None:
    """For the client it is not there any more, and its result stays for the clean-up."""
    job, lease = await world.start(retention=300)
    await world.provider.finish_job(job.id, lease, JobResult.completed({"a": 1}), DAY)
    await world.pass_time(400)
    assert await world.cancel(job.id) is None
    row = await world.stored(job.id)
    assert (row["status"], row["output"]) == ("completed", {"a": 1})


async def test_a_cancel_by_another_program_counts_as_one(world: World) -> None:
    """A server may cancel by writing the status alone: nothing is recorded after that either."""
    lease = new_lease()
    id = await world.insert_row(
        tenant=TENANT,
        project=PROJECT,
        kind=KIND,
        status="cancelled",
        attempts=1,
        locked_by=lease.token,
        lease_expires_at=timedelta(seconds=MINUTE),
    )
    assert await world.cancel(id) is None
    assert await world.provider.renew_lease(id, lease) is LeaseRenewal.CANCELLED
    assert await world.provider.finish_job(id, lease, JobResult.completed(1), DAY) is False
    assert await world.provider.release_job(id, lease) is True
    shown = await world.read(id)
    assert shown is not None
    assert (shown.status, shown.output) == (AsyncJobStatus.CANCELLED, None)
    assert await world.claim(new_lease()) == []


async def test_of_many_cancels_one_is_answered_with_the_job(world: World) -> None:
    """However many clients cancel at once, the job is cancelled once."""
    jobs = [(await world.start())[0] for _ in range(10)]
    answers: list[AsyncJob] = []

    async def cancel(provider: AsyncJobProvider) -> None:
        for job in jobs:
            answer = await provider.cancel_job(TENANT, PROJECT, job.id)
            if answer is not None:
                answers.append(answer)

    async with world.peers(4) as servers, trio.open_nursery() as nursery:
        for server in servers:
            nursery.start_soon(cancel, server)
    assert sorted(answers, key=lambda job: job.id) == sorted(jobs, key=lambda job: job.id)


async def test_a_cancel_that_meets_a_finish_tells_what_it_replaced(world: World) -> None:
    """Either the result was recorded and the cancel shows it, or neither is the case."""
    jobs = [await world.start() for _ in range(40)]
    seen: dict[str, AsyncJob | None] = {}
    recorded: dict[str, bool] = {}

    async def cancel(server: AsyncJobProvider) -> None:
        for job, _ in jobs:
            seen[job.id] = await server.cancel_job(TENANT, PROJECT, job.id)

    async def finish(worker: AsyncJobProvider) -> None:
        for job, lease in jobs:
            result = JobResult.completed(job.id)
            recorded[job.id] = await worker.finish_job(job.id, lease, result, DAY)

    async with world.peers(2) as (server, worker), trio.open_nursery() as nursery:
        nursery.start_soon(cancel, server)
        nursery.start_soon(finish, worker)
    for job, _ in jobs:
        before = seen[job.id]
        assert before is not None
        if recorded[job.id]:
            assert (before.status, before.output) == (AsyncJobStatus.COMPLETED, job.id)
        else:
            assert before.status is AsyncJobStatus.IN_PROGRESS
        row = await world.stored(job.id)
        assert (row["status"], row["output"]) == ("cancelled", None)
