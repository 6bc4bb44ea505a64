"""Renewals: what they extend, what they record, and what their answers mean."""

from __future__ import annotations

import attrs
import trio

from hastetrio._model import JobLease, JobResult, LeaseRenewal

from ._world import DAY, KIND, MINUTE, World, new_lease


async def test_a_renewal_extends_the_lease(world: World) -> None:
    """A job that is renewed in time is nobody else's, however long it runs."""
    job, lease = await world.start()
    for _ in range(3):
        await world.pass_time(MINUTE * 2 / 3)
        assert await world.provider.renew_lease(job.id, lease) is LeaseRenewal.RENEWED
    await world.pass_time(MINUTE * 2 / 3)
    assert await world.claim(new_lease()) == []
    await world.pass_time(MINUTE * 2 / 3)
    assert await world.claim(new_lease()) == [job.id]


async def test_a_lease_only_grows(world: World) -> None:
    """A renewal that was held up, or asks for less, never takes back what was promised."""
    job, lease = await world.start(600)
    short = attrs.evolve(lease, duration=1.0)
    assert await world.provider.renew_lease(job.id, short) is LeaseRenewal.RENEWED
    await world.pass_time(500)
    assert await world.claim(new_lease()) == []


async def test_a_lapsed_lease_nobody_took_is_renewed(world: World) -> None:
    """The token decides, not the time: a late renewal makes the job safe again."""
    job, lease = await world.start()
    await world.pass_time(2 * MINUTE)
    assert await world.provider.renew_lease(job.id, lease) is LeaseRenewal.RENEWED
    assert await world.claim(new_lease()) == []


async def test_a_renewal_records_progress(world: World) -> None:
    """The latest progress is what a client sees, and a renewal without any leaves it."""
    job, lease = await world.start()
    for progress, seen in (("1 of 2", "1 of 2"), (None, "1 of 2"), ("2 of 2", "2 of 2")):
        await world.provider.renew_lease(job.id, lease, progress)
        shown = await world.read(job.id)
        assert shown is not None
        assert shown.progress == seen


async def test_progress_that_no_column_can_hold_is_recorded_as_far_as_it_can(world: World) -> None:
    """A strange character in a progress text costs the character, not the lease."""
    job, lease = await world.start()
    renewal = await world.provider.renew_lease(job.id, lease, "a\0b\ud800c")
    assert renewal is LeaseRenewal.RENEWED
    assert (await world.stored(job.id))["progress"] == "a\ufffdb\ufffdc"


async def test_a_job_taken_over_is_lost_to_its_first_holder(world: World) -> None:
    """The renewal of a worker that slept too long changes nothing for the one that took over."""
    job, zombie = await world.start()
    await world.pass_time(2 * MINUTE)
    taker = new_lease()
    await world.claim(taker)
    await world.provider.renew_lease(job.id, taker, "mine")
    before = await world.stored(job.id)
    assert await world.provider.renew_lease(job.id, zombie, "no, mine") is LeaseRenewal.LOST
    assert await world.stored(job.id) == before


async def test_two_holders_of_one_job_who_renew_at_once_are_told_apart(world: World) -> None:
    """The answer goes by the token: one of them goes on, the other one stops."""
    job, zombie = await world.start()
    await world.pass_time(2 * MINUTE)
    taker = new_lease()
    await world.claim(taker)
    answers: dict[str, LeaseRenewal] = {}

    async def renew(lease: JobLease) -> None:
        answers[lease.token] = await world.provider.renew_lease(job.id, lease)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.provider.renew_lease, "elsewhere", zombie)
        nursery.start_soon(renew, zombie)
        nursery.start_soon(renew, taker)
    assert answers == {zombie.token: LeaseRenewal.LOST, taker.token: LeaseRenewal.RENEWED}


async def test_a_worker_id_alone_renews_nothing(world: World) -> None:
    """A claim is matched with its own token: a worker cannot renew what it claimed before."""
    job, first = await world.start()
    await world.pass_time(2 * MINUTE)
    second = new_lease(worker=first.worker)
    await world.claim(second)
    assert await world.provider.renew_lease(job.id, first) is LeaseRenewal.LOST
    assert await world.provider.renew_lease(job.id, second) is LeaseRenewal.RENEWED


async def test_a_job_that_is_not_held_is_lost(world: World) -> None:
    """Nothing is held any more of a job that was recorded, handed back, or never there."""
    finished, lease = await world.start()
    await world.provider.finish_job(finished.id, lease, JobResult.completed(1), DAY)
    assert await world.provider.renew_lease(finished.id, lease) is LeaseRenewal.LOST
    released, lease = await world.start()
    await world.provider.release_job(released.id, lease)
    assert await world.provider.renew_lease(released.id, lease) is LeaseRenewal.LOST
    assert await world.provider.renew_lease("nowhere", lease) is LeaseRenewal.LOST


async def test_a_cancelled_job_stays_its_holders_until_it_lets_go(world: World) -> None:
    """While a cancelled handler unwinds its renewals hold the row, so no clean-up runs under it."""
    job, lease = await world.start()
    await world.cancel(job.id)
    for _ in range(3):
        await world.pass_time(MINUTE * 2 / 3)
        assert await world.provider.renew_lease(job.id, lease) is LeaseRenewal.CANCELLED
        assert await world.sweep(new_lease()) == []
    await world.pass_time(2 * MINUTE)
    assert await world.sweep(new_lease()) == [job.id]


async def test_an_expired_job_stays_its_holders_until_it_lets_go(world: World) -> None:
    """A handler learns that its job's time has passed, and the row is held while it unwinds."""
    job, lease = await world.start(600, retention=300)
    await world.pass_time(400)
    for _ in range(3):
        assert await world.provider.renew_lease(job.id, lease) is LeaseRenewal.EXPIRED
        await world.pass_time(400)
        assert await world.sweep(new_lease()) == []
    await world.pass_time(400)
    assert await world.sweep(new_lease()) == [job.id]


async def test_a_cancelled_job_takes_no_progress(world: World) -> None:
    """A cancelled job has given up its progress, and a late report does not bring it back."""
    job, lease = await world.start()
    await world.provider.renew_lease(job.id, lease, "half")
    await world.cancel(job.id)
    await world.provider.renew_lease(job.id, lease, "more")
    assert (await world.stored(job.id))["progress"] is None


async def test_a_clean_up_is_renewed_like_a_job(world: World) -> None:
    """A clean-up that takes long stays the only one, as long as it is renewed."""
    job = await world.create()
    await world.cancel(job.id)
    lease = new_lease()
    assert await world.sweep(lease) == [job.id]
    for _ in range(3):
        await world.pass_time(MINUTE * 2 / 3)
        assert await world.provider.renew_lease(job.id, lease) is LeaseRenewal.CANCELLED
        assert await world.sweep(new_lease()) == []
    assert await world.provider.delete_expired_job(job.id, lease)


async def test_renewals_at_the_same_moment_each_get_their_own_answer(world: World) -> None:
    """Calls that travel together do not share a fate: each learns about its own job."""
    jobs = [await world.start(600) for _ in range(12)]
    expired, expired_lease = await world.start(600, retention=100)
    await world.pass_time(200)
    cancelled = {job.id for job, _ in jobs[:3]}
    released = {job.id for job, _ in jobs[3:6]}
    for job, _ in jobs[:3]:
        await world.cancel(job.id)
    for job, lease in jobs[3:6]:
        await world.provider.release_job(job.id, lease)
    answers: dict[str, LeaseRenewal] = {}

    async def renew(id: str, lease_index: int) -> None:
        lease = expired_lease if lease_index < 0 else jobs[lease_index][1]
        answers[id] = await world.provider.renew_lease(id, lease, f"progress of {id}")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(renew, expired.id, -1)
        for index, (job, _) in enumerate(jobs):
            nursery.start_soon(renew, job.id, index)
    assert answers.pop(expired.id) is LeaseRenewal.EXPIRED
    for id, answer in answers.items():
        if id in cancelled:
            assert answer is LeaseRenewal.CANCELLED
        elif id in released:
            assert answer is LeaseRenewal.LOST
        else:
            assert answer is LeaseRenewal.RENEWED
            assert (await world.stored(id))["progress"] == f"progress of {id}"


async def test_a_renewal_leaves_the_neighbours_of_its_claim_alone(world: World) -> None:
    """Jobs of one claim share a token, and are still renewed one by one."""
    jobs = [await world.create() for _ in range(2)]
    lease = new_lease()
    await world.claim(lease)
    await world.pass_time(MINUTE * 2 / 3)
    await world.provider.renew_lease(jobs[0].id, lease)
    await world.pass_time(MINUTE * 2 / 3)
    claimed = await world.provider.claim_jobs([KIND], new_lease(), 10)
    assert [job.id for job in claimed] == [jobs[1].id]
