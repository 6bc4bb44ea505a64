"""Claims: who may take what, in which order, and what a claim leaves in the row."""

from __future__ import annotations

from datetime import timedelta

import attrs
import pytest
import trio

from hastetrio._model import AsyncJobStatus, JobResult
from hastetrio._provider import AsyncJobProvider

from ._world import DAY, KIND, MINUTE, PROJECT, TENANT, World, kick_off, new_lease


async def test_a_claim_takes_a_queued_job_under_its_token(world: World) -> None:
    """A claimed job is in progress, on its first attempt, and held under the claim's token."""
    created = await world.create(parameters={"a": 1})
    lease = new_lease()
    (job,) = await world.provider.claim_jobs([KIND], lease, 10)
    assert job.id == created.id
    assert job.status is AsyncJobStatus.IN_PROGRESS
    assert (job.attempts, job.locked_by, job.parameters) == (1, lease.token, {"a": 1})
    assert job.started_at is not None
    assert job.lease_expires_at is not None
    assert job.expires_at == created.expires_at
    assert await world.read(job.id) == job


async def test_a_claim_takes_the_oldest_jobs_over_all_its_kinds(world: World) -> None:
    """Jobs of several kinds are taken in the order they were created, whatever their kind."""
    jobs = [await world.create(kind) for kind in ("a", "b", "b", "a", "a", "b")]
    claimed = await world.provider.claim_jobs(["b", "a"], new_lease(), 4)
    assert [job.id for job in claimed] == [job.id for job in jobs[:4]]


async def test_a_claim_takes_no_more_than_its_limit(world: World) -> None:
    """What is beyond the limit stays queued for the next claim."""
    jobs = [await world.create() for _ in range(3)]
    assert await world.claim(new_lease(), 2) == [jobs[0].id, jobs[1].id]
    assert await world.claim(new_lease(), 2) == [jobs[2].id]
    assert await world.claim(new_lease(), 2) == []


async def test_a_claim_leaves_other_kinds_alone(world: World) -> None:
    """A worker never gets a job that it has no handler for."""
    await world.create("other")
    assert await world.claim(new_lease()) == []
    assert await world.provider.claim_jobs([], new_lease(), 10) == []


async def test_jobs_of_every_project_are_claimed(world: World) -> None:
    """Workers serve all tenants and projects."""
    first = await world.provider.create_job("one", "x", kick_off())
    second = await world.provider.create_job("two", "y", kick_off())
    assert await world.claim(new_lease()) == [first.id, second.id]


async def test_a_kind_named_twice_is_claimed_once(world: World) -> None:
    """A kind that is given twice does not double what is taken, or its order."""
    jobs = [await world.create() for _ in range(3)]
    claimed = await world.provider.claim_jobs([KIND, KIND], new_lease(), 2)
    assert [job.id for job in claimed] == [jobs[0].id, jobs[1].id]


async def test_a_held_job_is_claimed_by_nobody_until_its_lease_lapses(world: World) -> None:
    """A job is somebody's alone for as long as the lease lasts, and then goes to the next."""
    job, _ = await world.start()
    await world.pass_time(MINUTE - 20)
    assert await world.claim(new_lease()) == []
    await world.pass_time(40)
    taker = new_lease()
    (again,) = await world.provider.claim_jobs([KIND], taker, 10)
    assert (again.id, again.attempts, again.locked_by) == (job.id, 2, taker.token)
    assert again.hand_backs == 0


async def test_each_attempt_starts_without_the_progress_of_the_last(world: World) -> None:
    """Progress never seems to go backwards: a new attempt begins with none."""
    job, lease = await world.start()
    await world.provider.renew_lease(job.id, lease, "90 of 100")
    await world.pass_time(2 * MINUTE)
    (again,) = await world.provider.claim_jobs([KIND], new_lease(), 1)
    assert again.progress is None


async def test_a_second_attempt_keeps_when_the_job_first_started(world: World) -> None:
    """The start of a job is that of its first attempt."""
    await world.start()
    await world.pass_time(2 * MINUTE)
    (again,) = await world.provider.claim_jobs([KIND], new_lease(), 1)
    assert again.started_at is not None
    assert again.updated_at - again.started_at >= timedelta(seconds=2 * MINUTE)


async def test_lapsed_jobs_are_claimed_in_order_with_queued_ones(world: World) -> None:
    """A job whose worker died goes before the younger ones that waited all the time."""
    lapsed, _ = await world.start()
    await world.pass_time(2 * MINUTE)
    queued = await world.create()
    assert await world.claim(new_lease(), 1) == [lapsed.id]
    assert await world.claim(new_lease(), 1) == [queued.id]


async def test_a_job_without_attempts_left_is_not_claimed(world: World) -> None:
    """A job that failed every worker it was given is not given to another."""
    job, _ = await world.start(max_attempts=2)
    await world.pass_time(2 * MINUTE)
    assert await world.claim(new_lease()) == [job.id]
    await world.pass_time(2 * MINUTE)
    assert await world.claim(new_lease()) == []


async def test_excluded_jobs_are_left_alone(world: World) -> None:
    """A process never starts a job whose earlier body still unwinds in it, queued or lapsed."""
    lapsed, _ = await world.start()
    await world.pass_time(2 * MINUTE)
    queued = await world.create()
    free = await world.create()
    exclude = {lapsed.id, queued.id}
    claimed = await world.provider.claim_jobs([KIND], new_lease(), 1, exclude=exclude)
    assert [job.id for job in claimed] == [free.id]
    assert await world.claim(new_lease()) == [lapsed.id, queued.id]


async def test_an_expired_job_is_not_claimed(world: World) -> None:
    """A job whose time has passed does not run (again), whether it waited or its lease lapsed."""
    await world.start(retention=300)
    await world.create(retention=300)
    await world.pass_time(400)
    assert await world.claim(new_lease()) == []


@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled"])
async def test_a_job_that_ended_is_not_claimed(world: World, ending: str) -> None:
    """No ending leads back into the queue, however long ago it was."""
    job, lease = await world.start(retention=DAY)
    if ending == "cancelled":
        await world.cancel(job.id)
    else:
        result = JobResult.completed(1) if ending == "completed" else JobResult.failed({})
        assert await world.provider.finish_job(job.id, lease, result, DAY)
    await world.pass_time(2 * MINUTE)
    assert await world.claim(new_lease()) == []


async def test_claims_at_the_same_moment_never_take_the_same_job(world: World) -> None:
    """However many workers ask at once, each job goes to one of them, and none is left."""
    jobs = await world.provider.create_jobs(
        TENANT, PROJECT, [kick_off(kind) for kind in ("a", "b", "c") * 20]
    )
    taken: list[str] = []

    async def work(provider: AsyncJobProvider) -> None:
        while claimed := await provider.claim_jobs(["a", "b", "c"], new_lease(), 3):
            taken.extend(job.id for job in claimed)

    async with world.peers(5) as workers, trio.open_nursery() as nursery:
        for worker in workers:
            nursery.start_soon(work, worker)
    assert sorted(taken) == sorted(job.id for job in jobs)


async def test_a_row_with_the_least_columns_is_claimed(world: World) -> None:
    """A foreign program names tenant, project and kind; the table knows the rest."""
    id = await world.insert_row(tenant=TENANT, project=PROJECT, kind=KIND)
    (job,) = await world.provider.claim_jobs([KIND], new_lease(), 1)
    assert job.id == id
    assert (job.parameters, job.claims, job.submitted_by, job.request) == ({}, {}, "", "")
    assert (job.attempts, job.max_attempts, job.hand_backs) == (1, 3, 0)


@pytest.mark.parametrize("id", ["-n", "a b/c?%", "Ünïcødé 🦀", "'; --", '{x,"y"}\\'])
async def test_ids_may_be_any_text(world: World, id: str) -> None:
    """A foreign program chooses its own ids, and every call finds the job by them."""
    await world.insert_row(id=id, tenant=TENANT, project=PROJECT, kind=KIND)
    first, second = new_lease(), new_lease()
    assert await world.claim(first) == [id]
    assert await world.provider.release_job(id, first)
    claimed = await world.provider.claim_jobs([KIND], second, 1, exclude=["x", id])
    assert claimed == []
    assert await world.claim(second) == [id]
    assert await world.provider.finish_job(id, second, JobResult.completed("done"), DAY)
    job = await world.read(id)
    assert job is not None
    assert job.output == "done"


async def test_a_forgotten_claim_is_handed_back_with_its_attempts(world: World) -> None:
    """A claim whose answer was lost costs its jobs nothing: no attempt, no hand-back, no wait."""
    jobs = [await world.create(kind, max_attempts=1) for kind in ("a", "b")]
    lost = new_lease()
    assert len(await world.provider.claim_jobs(["a", "b"], lost, 10)) == 2
    assert await world.provider.forget_claim(lost) == 2
    for job in jobs:
        row = await world.stored(job.id)
        assert (row["status"], row["attempts"], row["hand_backs"]) == ("accepted", 0, 0)
        assert (row["locked_by"], row["lease_expires_at"]) == (None, None)
    claimed = await world.provider.claim_jobs(["a", "b"], new_lease(), 10)
    assert [job.id for job in claimed] == [job.id for job in jobs]


async def test_forgetting_twice_hands_back_once(world: World) -> None:
    """Forgetting is safe to repeat: the second time nothing is held under the token."""
    job, lease = await world.start()
    assert await world.provider.forget_claim(lease) == 1
    await world.claim(new_lease())
    assert await world.provider.forget_claim(lease) == 0
    assert (await world.stored(job.id))["attempts"] == 1


async def test_forgetting_leaves_other_claims_alone(world: World) -> None:
    """Only the token counts: another claim, a successor and a result are not touched."""
    lost = new_lease()
    jobs = [await world.create() for _ in range(2)]
    await world.claim(lost)
    assert await world.provider.finish_job(jobs[0].id, lost, JobResult.completed(1), DAY)
    await world.pass_time(2 * MINUTE)
    taker = new_lease()
    assert await world.claim(taker) == [jobs[1].id]
    neighbour, _ = await world.start()
    before = [await world.stored(job.id) for job in (*jobs, neighbour)]
    assert await world.provider.forget_claim(lost) == 0
    assert [await world.stored(job.id) for job in (*jobs, neighbour)] == before


async def test_a_forgotten_claim_that_arrived_late_is_still_handed_back(world: World) -> None:
    """Forgetting a token that holds nothing yet does no harm, and may be done again later."""
    late = new_lease()
    assert await world.provider.forget_claim(late) == 0
    job = await world.create()
    await world.claim(late)
    assert await world.provider.forget_claim(attrs.evolve(late, duration=1.0)) == 1
    assert await world.claim(new_lease()) == [job.id]


async def test_a_lapsed_foreign_row_is_taken_over(world: World) -> None:
    """A row that another kind of worker held under a name of its own is claimed once it lapses."""
    id = await world.insert_row(
        tenant=TENANT,
        project=PROJECT,
        kind=KIND,
        status="in-progress",
        attempts=1,
        locked_by="haste-worker",
        lease_expires_at=timedelta(seconds=MINUTE),
    )
    assert await world.claim(new_lease()) == []
    await world.pass_time(2 * MINUTE)
    assert await world.claim(new_lease()) == [id]


async def _lapsed(world: World, *, attempts: int, kind: str = KIND) -> str:
    """A job whose claim lapsed, of a worker that died, after so many of three attempts."""
    job = await world.create(kind=kind)
    for attempt in range(attempts):
        claimed = await world.provider.claim_jobs([kind], new_lease(1), 100)
        assert job.id in [one.id for one in claimed]
        if attempt < attempts - 1:
            await world.pass_time(2)
    return job.id


@pytest.mark.parametrize("kinds", [[KIND], [KIND, "other"]], ids=["one kind", "two kinds"])
async def test_last_chances_are_given_to_so_many_lapsed_jobs(
    world: World, kinds: list[str]
) -> None:
    """Jobs that died together get their last attempt apart, whatever else there is to claim."""
    for kind in kinds * 2:
        await world.create(kind=kind)
    for _ in range(2):
        assert len(await world.provider.claim_jobs(kinds, new_lease(1), 100)) == 2 * len(kinds)
        await world.pass_time(2)
    fresh = await world.create()
    first = await world.provider.claim_jobs(kinds, new_lease(60), 100, last_chances=1)
    assert sorted(job.attempts for job in first) == [1, 3]
    assert fresh.id in [job.id for job in first]
    assert await world.provider.claim_jobs(kinds, new_lease(60), 100, last_chances=0) == []
    rest = await world.provider.claim_jobs(kinds, new_lease(60), 100)
    assert len(rest) == 2 * len(kinds) - 1


async def test_a_lapsed_job_with_attempts_to_spare_is_no_last_chance(world: World) -> None:
    """Only the last attempt is rationed: what may be tried again is claimed as ever."""
    id = await _lapsed(world, attempts=1)
    await world.pass_time(2)
    (job,) = await world.provider.claim_jobs([KIND], new_lease(60), 100, last_chances=0)
    assert (job.id, job.attempts) == (id, 2)


async def test_a_queued_job_on_its_last_attempt_is_claimed_as_ever(world: World) -> None:
    """A job that was handed back, or that has one attempt only, died with nobody."""
    job = await world.create(max_attempts=1)
    (claimed,) = await world.provider.claim_jobs([KIND], new_lease(60), 100, last_chances=0)
    assert claimed.id == job.id
