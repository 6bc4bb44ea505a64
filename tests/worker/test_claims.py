"""When the worker asks for jobs, for how many, and what wakes it."""

from __future__ import annotations

import pytest
import trio

from hastetrio import AsyncJobStatus

from .harness import DAY, DONE, KIND, LEASE, Rig, Runs, block, gaps, handler, never, returning

COMPLETED = AsyncJobStatus.COMPLETED


async def test_only_registered_kinds_are_claimed(rig: Rig) -> None:
    """Jobs of other kinds wait for the workers that have handlers for them."""
    async with rig.running(handler(returning(DONE), "a"), handler(returning(DONE), "b")):
        ids = [await rig.create(kind) for kind in ("a", "other", "b")]
        await rig.ended(ids[0])
        await rig.ended(ids[2])
        await trio.sleep(LEASE)
    assert rig.job(ids[1]).status is AsyncJobStatus.ACCEPTED
    assert {tuple(kinds) for _, kinds, _ in rig.provider.asked} == {("a", "b")}


async def test_all_free_slots_are_filled_by_one_claim(rig: Rig) -> None:
    """Oldest first; the rest waits."""
    ids = await rig.create_many(6)
    async with rig.running(handler(Runs()), max_concurrent_jobs=4):
        await rig.until(lambda: rig.provider.claimed)
    assert (rig.provider.claimed[0].limit, rig.provider.claimed[0].ids) == (4, ids[:4])


@pytest.mark.parametrize(
    ("slots", "limits"),
    [(25, [25]), (26, [25, 1]), (100, [50, 50]), (101, [50, 50, 1]), (2500, [1000, 1000, 500])],
)
async def test_a_large_worker_claims_half_of_its_slots_at_a_time(
    rig: Rig, slots: int, limits: list[int]
) -> None:
    """So that while the one half's results are recorded, the other half runs."""
    await rig.create_many(slots)
    async with rig.running(handler(Runs()), max_concurrent_jobs=slots) as worker:
        await rig.until(lambda: worker.statistics().free == 0)
    assert [claim.limit for claim in rig.provider.claimed] == limits


async def test_no_more_jobs_run_at_once_than_there_are_slots(rig: Rig) -> None:
    """And a freed slot is filled at once, for as many as are free."""
    runs = Runs(5)
    ids = await rig.create_many(10)
    async with rig.running(handler(runs), max_concurrent_jobs=3, poll_interval=DAY) as worker:
        for id in ids:
            await rig.ended(id)
        await rig.until(lambda: worker.statistics().free == 3)
        assert trio.current_time() == pytest.approx(20, abs=0.1)
    assert runs.most == 3
    assert all(claim.limit >= len(claim.ids) for claim in rig.provider.claimed)


async def test_nothing_is_claimed_while_all_slots_are_taken(rig: Rig) -> None:
    """A claimed job never waits for a slot while its lease runs down."""
    runs = Runs(LEASE)
    async with rig.running(handler(runs), max_concurrent_jobs=1):
        first = await rig.create()
        await runs.begun.wait()
        before = len(rig.provider.made("claim_jobs"))
        second = await rig.create()
        await trio.sleep(LEASE - 1)
        assert len(rig.provider.made("claim_jobs")) == before
        await rig.ended(first)
        await rig.ended(second)
    assert runs.started[1] - runs.started[0] == pytest.approx(LEASE, abs=0.01)


async def test_an_idle_worker_polls_on_its_interval(rig: Rig) -> None:
    """Not oftener."""
    async with rig.running(handler(returning(DONE)), poll_interval=7):
        await trio.sleep(100)
    times = rig.provider.times("claim_jobs")
    assert gaps(times)[-12:] == pytest.approx([7] * 12)


async def test_a_worker_with_free_slots_polls_while_jobs_run(rig: Rig) -> None:
    """One long job does not make it deaf."""
    runs = Runs(50)
    rig.provider.drop_wakeups()
    async with rig.running(handler(runs), handler(returning(DONE), "short"), poll_interval=7):
        await rig.create()
        await runs.begun.wait()
        asked = trio.current_time()
        await rig.ended(await rig.create("short"))
        assert trio.current_time() - asked <= 7.01


async def test_a_notification_wakes_the_worker_at_once(rig: Rig) -> None:
    """Within the two milliseconds over which the workers that hear it spread."""
    async with rig.running(handler(returning(DONE)), poll_interval=DAY):
        await trio.sleep(100)
        for _ in range(5):
            asked = trio.current_time()
            await rig.ended(await rig.create())
            assert trio.current_time() - asked <= 0.0021


async def test_a_lost_notification_costs_one_poll_interval(rig: Rig) -> None:
    """The poll stands behind every hint."""
    rig.provider.drop_wakeups()
    async with rig.running(handler(returning(DONE)), poll_interval=7):
        await trio.sleep(100)
        asked = trio.current_time()
        await rig.ended(await rig.create())
        assert 1 < trio.current_time() - asked <= 7.01


async def test_a_notification_during_a_claim_is_kept(rig: Rig) -> None:
    """The claim under way may not have seen the job; another follows at once."""
    async with rig.running(handler(returning(DONE)), poll_interval=60):
        await trio.sleep(30)
        rig.provider.delay_answer("claim_jobs", 3, times=1)
        before = len(rig.provider.made("claim_jobs"))
        await rig.until(lambda: len(rig.provider.made("claim_jobs")) > before)
        await trio.sleep(1)
        asked = trio.current_time()
        await rig.ended(await rig.create())
        assert trio.current_time() - asked <= 2.2


async def test_notifications_that_lead_to_nothing_cost_ten_claims_a_second(rig: Rig) -> None:
    """Other workers were faster, a thousand times."""
    async with rig.running(handler(returning(DONE)), poll_interval=DAY):
        await trio.sleep(10)
        before = len(rig.provider.made("claim_jobs"))
        for _ in range(1000):
            rig.memory._watchers.queued(KIND)
            await trio.sleep(0.001)
        made = len(rig.provider.made("claim_jobs")) - before
        assert 9 <= made <= 12


async def test_a_burst_of_notifications_does_not_delay_a_job_that_is_there(rig: Rig) -> None:
    """It waits out the pause at most, and then all free slots are filled."""
    async with rig.running(handler(returning(DONE)), poll_interval=DAY):
        await trio.sleep(10)
        rig.memory._watchers.queued(KIND)
        await trio.sleep(0.01)
        asked = trio.current_time()
        await rig.ended(await rig.create())
        assert trio.current_time() - asked <= 0.11


@pytest.mark.parametrize("error", [None, OSError("gone"), ValueError("odd")], ids=str)
async def test_after_a_claim_that_failed_the_worker_waits_about_five_seconds(
    rig: Rig, error: Exception | None
) -> None:
    """With jitter, whatever was raised, and for as long as it takes."""
    rig.provider.fail("claim_jobs", times=6, error=error)
    async with rig.running(handler(returning(DONE))) as worker:
        await rig.ended(await rig.create())
        assert worker.statistics().totals.claims_failed == 6
    times = rig.provider.times("claim_jobs")[:7]
    # The first may be cut short by the notifications that begin to flow.
    pauses = gaps(times[1:])
    assert all(2.5 <= pause <= 5.01 for pause in pauses)
    assert len(set(pauses)) == 5
    assert rig.log.count("claim.failed") == 6


async def test_the_wait_ends_when_notifications_flow_again(rig: Rig) -> None:
    """The storage is back; jobs have waited long enough. A mere wake-up does not end it."""
    async with rig.running(handler(returning(DONE)), poll_interval=20):
        broken = rig.provider.fail("claim_jobs")
        await rig.until(lambda: rig.log.count("claim.failed"))
        broken.remove()
        await trio.sleep(1)
        id = await rig.create()
        await trio.sleep(1)
        assert rig.job(id).status is AsyncJobStatus.ACCEPTED
        asked = trio.current_time()
        rig.restore_watch()
        await rig.ended(id)
        assert trio.current_time() - asked < 0.01


async def test_a_claim_whose_answer_was_lost_costs_nothing(rig: Rig) -> None:
    """What it took is handed back before the next claim, with its attempt."""
    runs = Runs(1)
    ids = await rig.create_many(3)
    rig.provider.drop("claim_jobs", times=2)
    async with rig.running(handler(runs)):
        for id in ids:
            job = await rig.ended(id)
            assert (job.status, job.attempts, job.hand_backs) == (COMPLETED, 1, 0)
        assert trio.current_time() < 12
    assert len(runs.started) == 3


async def test_an_unanswered_claim_is_remembered_for_one_lease(rig: Rig) -> None:
    """It may be applied late, so it is forgotten again before each claim; then it has lapsed."""
    rig.provider.drop("claim_jobs", times=1)
    async with rig.running(handler(returning(DONE)), poll_interval=3):
        await trio.sleep(3 * LEASE)
    forgotten = rig.provider.times("forget_claim")
    (lost,) = [call.time for call in rig.provider.made("claim_jobs") if call.fault]
    assert len(forgotten) >= 7
    assert max(forgotten) < lost + LEASE
    for time in forgotten:
        claims = [claim for claim in rig.provider.times("claim_jobs") if claim >= time]
        assert claims[0] == time


async def test_a_claim_that_never_answers_is_given_up_after_half_a_lease(rig: Rig) -> None:
    """And forgotten before the next."""
    rig.provider.hang("claim_jobs", times=1)
    id = await rig.create()
    async with rig.running(handler(returning(DONE))):
        await rig.ended(id)
        assert LEASE / 2 <= trio.current_time() <= LEASE / 2 + 5.01
    assert len(rig.provider.made("forget_claim")) >= 1


async def test_a_claim_applied_after_it_was_given_up_is_handed_back(rig: Rig) -> None:
    """It takes the job in the storage while nobody here knows; the next look finds it."""
    id = await rig.create()
    claim_jobs, late = rig.memory.claim_jobs, list[int]()

    async def applied_late(*args: object, **options: object) -> object:
        if not late:
            late.append(1)
            try:
                await trio.sleep_forever()
            finally:
                # As a statement that a server goes on with after its client has left.
                nursery.start_soon(lambda: claim_jobs(*args, **options))  # type: ignore[arg-type]
        return await claim_jobs(*args, **options)  # type: ignore[arg-type]

    rig.memory.claim_jobs = applied_late  # type: ignore[method-assign, assignment]
    async with trio.open_nursery() as nursery, rig.running(handler(returning(DONE))):
        job = await rig.ended(id)
        assert (job.status, job.attempts) == (COMPLETED, 1)
        assert trio.current_time() < LEASE


@pytest.mark.parametrize("fault", ["fail", "hang"])
async def test_nothing_is_claimed_before_an_unanswered_claim_is_forgotten(
    rig: Rig, fault: str
) -> None:
    """Nor does a call that never answers stop the loop."""
    rig.provider.drop("claim_jobs", times=1)
    if fault == "fail":
        rig.provider.fail("forget_claim", times=2)
    else:
        rig.provider.hang("forget_claim", times=1)
    id = await rig.create()
    async with rig.running(handler(returning(DONE))):
        job = await rig.ended(id)
    assert (job.status, job.attempts) == (COMPLETED, 1)
    claims = rig.provider.times("claim_jobs")
    lost = rig.provider.made("claim_jobs")[0].time
    answered = [call.time for call in rig.provider.made("forget_claim") if not call.fault]
    assert not [time for time in claims if lost < time < answered[0]]


async def test_a_claim_answered_after_its_own_deadline_starts_nothing(rig: Rig) -> None:
    """The loop was blocked; what it took is handed back, and its attempt with it."""
    claim_jobs, blocked = rig.memory.claim_jobs, list[int]()

    async def slow(*args: object, **options: object) -> object:
        jobs = await claim_jobs(*args, **options)  # type: ignore[arg-type]
        if jobs and not blocked:
            blocked.append(1)
            block(LEASE - 1)
        return jobs

    rig.memory.claim_jobs = slow  # type: ignore[method-assign, assignment]
    runs = Runs(1)
    id = await rig.create(max_attempts=1)
    async with rig.running(handler(runs)) as worker:
        job = await rig.ended(id)
        await rig.until(lambda: worker.statistics().free == 4)
    assert (job.status, job.attempts, job.hand_backs) == (COMPLETED, 1, 1)
    assert (len(runs.started), runs.cancelled) == (1, [])
    assert rig.log.count("job.handed-back", id) == 1


async def test_two_workers_share_a_queue_and_run_each_job_once(rig: Rig) -> None:
    """Any number of workers may run over one storage."""
    runs = Runs(1)
    ids = await rig.create_many(40)
    async with (
        rig.running(handler(runs), worker_id="one"),
        rig.running(handler(runs), worker_id="two"),
    ):
        jobs = [await rig.ended(id) for id in ids]
    assert len(runs.started) == 40
    assert {str(job.finished_by).partition("/")[0] for job in jobs} == {"one", "two"}


async def test_a_job_cancelled_while_it_waits_never_runs(rig: Rig) -> None:
    """Nor does one that expired."""
    cancelled = await rig.create()
    await rig.create(retention=1)
    await rig.cancel(cancelled)
    await trio.sleep(2)
    async with rig.running(handler(never)):
        await trio.sleep(LEASE)
    assert rig.provider.claimed == []


async def test_statistics_say_how_the_worker_stands(rig: Rig) -> None:
    """Slots, what is held, and what was counted."""
    runs = Runs(5)
    async with rig.running(handler(runs), worker_id="me", max_concurrent_jobs=3) as worker:
        ids = await rig.create_many(2)
        await rig.until(lambda: len(runs.started) == 2)
        now = worker.statistics()
        assert (now.worker, now.slots, now.free, now.held, now.unwinding) == ("me", 3, 1, 2, ())
        for id in ids:
            await rig.ended(id)
        await rig.until(lambda: worker.statistics().held == 0)
        totals = worker.statistics().totals
    assert (totals.claimed, totals.completed, totals.failed) == (2, 2, 0)
    assert now.totals.completed == 0


async def test_the_look_after_a_reconnect_delays_no_wake_up(rig: Rig) -> None:
    """It is no answer to a notification, so the next one is followed at once, found or not."""
    async with rig.running(handler(returning(DONE)), poll_interval=DAY):
        await rig.until(lambda: len(rig.provider.made("claim_jobs")) >= 1)
        begun = trio.current_time()
        await rig.ended(await rig.create())
        assert trio.current_time() - begun <= 0.01
