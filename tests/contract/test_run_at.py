"""Jobs that wait for their time: when they run, in which order, and when they are over."""

from __future__ import annotations

from datetime import timedelta, timezone

import pytest
import trio

from hastetrio._errors import LiveJobLimit
from hastetrio._model import AsyncJobStatus
from hastetrio._provider import JobQueued, WatchRestored

from ._world import DAY, KIND, MINUTE, PROJECT, TENANT, World, kick_off, new_lease


async def test_a_job_is_not_claimed_before_its_time(world: World) -> None:
    """It is queued as ever, shows its time, and goes to the first claim after it."""
    run_at = await world.moment(600)
    job = await world.create(run_at=run_at)
    assert (job.run_at, job.status) == (run_at, AsyncJobStatus.ACCEPTED)
    assert await world.read(job.id) == job
    assert await world.claim(new_lease()) == []
    await world.pass_time(500)
    assert await world.claim(new_lease()) == []
    await world.pass_time(200)
    (claimed,) = await world.provider.claim_jobs([KIND], new_lease(), 10)
    assert (claimed.id, claimed.attempts) == (job.id, 1)


async def test_without_a_time_a_job_runs_at_once(world: World) -> None:
    """What is stored then is the moment of the kick-off."""
    before = await world.moment()
    job = await world.create()
    assert before <= job.run_at <= await world.moment()
    assert await world.claim(new_lease()) == [job.id]


async def test_a_time_is_the_same_in_any_zone(world: World) -> None:
    """Only the moment counts, however the kick-off wrote it down."""
    run_at = await world.moment(300)
    far_away = run_at.astimezone(timezone(timedelta(hours=11, minutes=30)))
    job = await world.create(run_at=far_away)
    assert job.run_at == run_at
    await world.pass_time(200)
    assert await world.claim(new_lease()) == []
    await world.pass_time(200)
    assert await world.claim(new_lease()) == [job.id]


async def test_a_time_that_has_passed_is_at_once(world: World) -> None:
    """It goes before what was queued earlier: it has been due for longer."""
    earlier = await world.create()
    overdue = await world.create(run_at=await world.moment(-1000))
    claimed = await world.provider.claim_jobs([KIND], new_lease(), 10)
    assert [job.id for job in claimed] == [overdue.id, earlier.id]


async def test_jobs_are_claimed_in_the_order_they_became_due(world: World) -> None:
    """Not in the order they were made, in one claim as over several, and over kinds."""
    late = await world.create("a", run_at=await world.moment(300))
    early = await world.create("b", run_at=await world.moment(100))
    at_once = await world.create("a")
    await world.pass_time(200)
    new = await world.create("b")
    await world.pass_time(200)
    order = [at_once.id, early.id, new.id, late.id]

    async def claim(limit: int) -> list[str]:
        lease = new_lease()
        jobs = await world.provider.claim_jobs(["a", "b"], lease, limit)
        for job in jobs:
            assert await world.provider.release_job(job.id, lease)
        return [job.id for job in jobs]

    assert await claim(10) == order
    assert await claim(3) == order[:3]
    taken = [await world.provider.claim_jobs(["a", "b"], new_lease(), 1) for _ in order]
    assert [job.id for jobs in taken for job in jobs] == order


async def test_a_lapsed_job_keeps_its_place_by_when_it_was_due(world: World) -> None:
    """A worker's death makes a job neither older nor younger than those that wait."""
    waited = await world.create(run_at=await world.moment(100))
    await world.pass_time(50)
    other = await world.create()
    await world.pass_time(100)
    lease = new_lease(30)
    assert await world.claim(lease) == [other.id, waited.id]
    await world.pass_time(60)
    claimed = await world.provider.claim_jobs([KIND], new_lease(), 10)
    assert [job.id for job in claimed] == [other.id, waited.id]


async def test_jobs_that_wait_take_no_place_of_those_that_are_due(world: World) -> None:
    """However many wait for their time, a claim is filled with what may run."""
    soon = await world.moment(600)
    await world.provider.create_jobs(TENANT, PROJECT, [kick_off(run_at=soon)] * 20)
    due = [await world.create() for _ in range(3)]
    assert await world.claim(new_lease(), 2) == [due[0].id, due[1].id]
    assert await world.claim(new_lease(), 2) == [due[2].id]


async def test_the_storage_decides_when_a_foreign_row_is_due(world: World) -> None:
    """A row of another program may name a time too; without one it is due at once."""
    waiting = await world.insert_row(
        tenant=TENANT, project=PROJECT, kind=KIND, run_at=timedelta(seconds=100)
    )
    at_once = await world.insert_row(tenant=TENANT, project=PROJECT, kind=KIND)
    assert await world.claim(new_lease(200)) == [at_once]
    await world.pass_time(150)
    assert await world.claim(new_lease()) == [waiting]


async def test_a_job_is_kept_from_its_time_on(world: World) -> None:
    """Its retention begins when it may start, so that none is over before it could run."""
    job = await world.create(run_at=await world.moment(1000), retention=300)
    assert (job.expires_at - job.run_at).total_seconds() == 300
    await world.pass_time(1200)
    assert await world.read(job.id) is not None
    assert await world.sweep(new_lease()) == []
    assert await world.claim(new_lease()) == [job.id]
    await world.pass_time(200)
    assert await world.read(job.id) is None


async def test_a_time_that_has_passed_does_not_shorten_the_retention(world: World) -> None:
    """The client has its whole retention from the kick-off."""
    job = await world.create(run_at=await world.moment(-1000), retention=300)
    await world.pass_time(200)
    assert await world.read(job.id) is not None
    await world.pass_time(200)
    assert await world.read(job.id) is None


async def test_a_job_that_waits_is_live(world: World) -> None:
    """It is listed and counted, and takes its place under the project's limit."""
    job = await world.create(run_at=await world.moment(DAY))
    assert await world.provider.count_live_jobs(TENANT, PROJECT) == 1
    listed = await world.provider.list_jobs(TENANT, PROJECT, status=AsyncJobStatus.ACCEPTED)
    assert listed == [job]
    with pytest.raises(LiveJobLimit):
        await world.provider.create_job(TENANT, PROJECT, kick_off(), live_limit=1)


async def test_a_job_that_waits_can_be_cancelled(world: World) -> None:
    """It then never runs, also when its time has come."""
    job = await world.create(run_at=await world.moment(100))
    before = await world.cancel(job.id)
    assert before is not None
    assert before.status is AsyncJobStatus.ACCEPTED
    await world.pass_time(200)
    assert await world.claim(new_lease()) == []
    assert await world.sweep(new_lease()) == [job.id]


async def test_a_job_whose_time_had_come_does_not_wait_again(world: World) -> None:
    """Handed back, forgotten or lapsed, it is claimable at once."""
    job = await world.create(run_at=await world.moment(100))
    await world.pass_time(150)
    lease = new_lease()
    assert await world.claim(lease) == [job.id]
    assert await world.provider.release_job(job.id, lease)
    lease = new_lease()
    assert await world.claim(lease) == [job.id]
    assert await world.provider.forget_claim(lease) == 1
    assert await world.claim(new_lease()) == [job.id]
    await world.pass_time(2 * MINUTE)
    assert await world.claim(new_lease()) == [job.id]


async def test_only_jobs_that_are_due_wake_anybody(world: World) -> None:
    """A kick-off for later is no event; one for a time that has passed is."""
    async with world.provider.watch([KIND, "the end"]) as events:
        with trio.fail_after(20):
            assert await events.receive() == WatchRestored()
            later = kick_off(run_at=await world.moment(300))
            await world.provider.create_job(TENANT, PROJECT, later)
            await world.provider.create_jobs(TENANT, PROJECT, [later, later])
            await world.create("the end")
            assert await events.receive() == JobQueued("the end")
            await world.provider.create_jobs(TENANT, PROJECT, [later, kick_off()])
            assert await events.receive() == JobQueued(KIND)
            await world.create(run_at=await world.moment(-1))
            assert await events.receive() == JobQueued(KIND)
