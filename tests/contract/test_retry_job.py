"""Retrying a failed job by hand: a new job is made, and the failed one stays as it is."""

from __future__ import annotations

from datetime import timedelta

import pytest

from hastetrio._model import AsyncJob, AsyncJobStatus, JobResult

from ._world import DAY, KIND, MINUTE, PROJECT, TENANT, World, new_lease

OUTCOME = {"resourceType": "OperationOutcome", "issue": []}


async def failed_job(world: World, **values: object) -> AsyncJob:
    """A job that has failed."""
    job, lease = await world.start(**values)  # type: ignore[arg-type]
    result = JobResult.failed(OUTCOME, failure='["it broke"]')
    assert await world.provider.save_state(job.id, lease, '{"page": 7}')
    assert await world.provider.finish_job(job.id, lease, result, DAY)
    failed = await world.read(job.id)
    assert failed is not None
    return failed


async def retried(world: World, id: str, submitted_by: str | None = None) -> AsyncJob | None:
    """What a retry of the project's job returns."""
    return await world.provider.retry_job(TENANT, PROJECT, id, submitted_by=submitted_by)


async def test_a_failed_job_is_queued_anew(world: World) -> None:
    """The new one asks for the same, as the same, with all its attempts; the old one stays."""
    failed = await failed_job(
        world,
        kind="export",
        sub="bob",
        request="https://fhir.example.org/$export",
        parameters={"_type": ["Patient"]},
        retention=1000,
        max_attempts=5,
        run_at=await world.moment(-500),
        unique_key="nightly",
    )
    before = await world.stored(failed.id)
    job = await retried(world, failed.id)
    assert job is not None
    assert job.id != failed.id
    for name in ("tenant", "project", "kind", "request", "parameters", "claims", "submitted_by"):
        assert getattr(job, name) == getattr(failed, name), name
    assert (job.status, job.attempts, job.max_attempts) == (AsyncJobStatus.ACCEPTED, 0, 5)
    nothing = (job.error, job.state, job.attempt_errors, job.unique_key, job.finished_by)
    assert nothing == (None,) * 5
    assert (job.locked_by, job.started_at, job.finished_at) == (None,) * 3
    assert job.run_at > failed.run_at
    assert (job.expires_at - job.run_at).total_seconds() == pytest.approx(1000, abs=1)
    assert await world.read(job.id) == job
    assert await world.stored(failed.id) == before


async def test_the_new_job_runs_at_once_and_is_kept_as_the_old_one_was(world: World) -> None:
    """It has its own result, for the retention the first kick-off asked for."""
    failed = await failed_job(world, retention=1000)
    job = await retried(world, failed.id)
    assert job is not None
    lease = new_lease()
    assert await world.claim(lease) == [job.id]
    await world.pass_time(50)
    assert await world.provider.finish_job(job.id, lease, JobResult.completed(1), DAY)
    await world.pass_time(980)
    assert await world.read(job.id) is not None
    await world.pass_time(40)
    assert await world.read(job.id) is None


async def test_each_retry_makes_a_job_of_its_own(world: World) -> None:
    """Nothing holds a client to one; the new job can be retried too, once it has failed."""
    failed = await failed_job(world)
    first, second = await retried(world, failed.id), await retried(world, failed.id)
    assert first is not None
    assert second is not None
    assert len({failed.id, first.id, second.id}) == 3
    assert await retried(world, first.id) is None
    lease = new_lease()
    await world.claim(lease)
    assert await world.provider.finish_job(first.id, lease, JobResult.failed(OUTCOME), DAY)
    third = await retried(world, first.id)
    assert third is not None
    assert third.parameters == failed.parameters


@pytest.mark.parametrize("status", ["waiting", "accepted", "in-progress", "completed", "cancelled"])
async def test_a_job_that_has_not_failed_is_not_retried(world: World, status: str) -> None:
    """Nothing is queued, and the job is not touched."""
    if status == "waiting":
        job = await world.create(run_at=await world.moment(600))
    elif status == "accepted":
        job = await world.create()
    else:
        job, lease = await world.start()
        if status == "completed":
            await world.provider.finish_job(job.id, lease, JobResult.completed(1), DAY)
        elif status == "cancelled":
            await world.cancel(job.id)
    before = await world.stored(job.id)
    live = await world.provider.count_live_jobs(TENANT, PROJECT)
    assert await retried(world, job.id) is None
    assert await world.provider.count_live_jobs(TENANT, PROJECT) == live
    assert await world.stored(job.id) == before


async def test_a_failed_job_that_has_expired_or_was_cancelled_is_not_retried(world: World) -> None:
    """What is not shown any more cannot be asked for again."""
    cancelled = await failed_job(world)
    await world.cancel(cancelled.id)
    expired = await failed_job(world, retention=300)
    await world.pass_time(400)
    assert await retried(world, cancelled.id) is None
    assert await retried(world, expired.id) is None
    assert await world.provider.count_live_jobs(TENANT, PROJECT) == 0


async def test_a_job_is_retried_only_where_it_belongs(world: World) -> None:
    """Another tenant, project or submitter finds no such job."""
    failed = await failed_job(world, sub="ann")
    retry = world.provider.retry_job
    assert await retry("other", PROJECT, failed.id) is None
    assert await retry(TENANT, "other", failed.id) is None
    assert await retry(TENANT, PROJECT, "nowhere") is None
    assert await retry(TENANT, PROJECT, failed.id, submitted_by="bob") is None
    for bad in ("a\0b", "a\ud800b"):
        assert await retry(bad, PROJECT, failed.id) is None
        assert await retry(TENANT, bad, failed.id) is None
        assert await retry(TENANT, PROJECT, bad) is None
    assert await world.provider.count_live_jobs(TENANT, PROJECT) == 0
    assert await retry(TENANT, PROJECT, failed.id, submitted_by="ann") is not None
    assert await world.provider.count_live_jobs("other", PROJECT) == 0
    assert await world.provider.count_live_jobs(TENANT, "other") == 0


async def test_a_retry_leaves_a_unique_key_to_whoever_has_it(world: World) -> None:
    """The key is for kick-offs: a retry neither takes it nor is kept off by its holder."""
    failed = await failed_job(world, unique_key="nightly")
    holder = await world.create(unique_key="nightly")
    job = await retried(world, failed.id)
    assert job is not None
    assert job.unique_key is None
    assert (await world.create(unique_key="nightly")).id == holder.id


async def test_an_abandoned_job_can_be_retried(world: World) -> None:
    """Also one that failed because every worker it was given died."""
    job, _ = await world.start(max_attempts=1)
    await world.pass_time(2 * MINUTE)
    assert await world.provider.fail_abandoned_jobs(OUTCOME, DAY, 10) == 1
    again = await retried(world, job.id)
    assert again is not None
    assert (again.attempts, again.max_attempts) == (0, 1)
    assert await world.claim(new_lease()) == [again.id]


async def test_a_foreign_failed_row_without_attempts_is_retried_once(world: World) -> None:
    """A row that was never to run may fail, and asked for again it has one attempt, and a day."""
    id = await world.insert_row(
        tenant=TENANT,
        project=PROJECT,
        kind=KIND,
        status="failed",
        max_attempts=0,
        error=OUTCOME,
        expires_at=timedelta(seconds=600),
    )
    job = await retried(world, id)
    assert job is not None
    assert (job.attempts, job.max_attempts) == (0, 1)
    assert (job.expires_at - job.run_at).total_seconds() == pytest.approx(DAY, abs=1)
    assert (await world.stored(job.id))["retention"] is None
    assert await world.claim(new_lease()) == [job.id]
