"""Expiry: jobs whose time has passed, their clean-up, and jobs that everybody abandoned."""

from __future__ import annotations

import attrs
import trio

from hastetrio._model import AsyncJobStatus, JobResult, LeaseRenewal
from hastetrio._outcome import abandoned_outcome
from hastetrio._provider import AsyncJobProvider

from ._world import DAY, KIND, MINUTE, PROJECT, TENANT, World, new_lease


async def test_an_expired_job_is_gone_for_its_client(world: World) -> None:
    """It is not shown, listed or counted, though nobody has swept it yet."""
    waiting = await world.create(retention=300)
    running, _ = await world.start(600, kind="other", retention=300)
    kept = await world.create(retention=900)
    await world.pass_time(400)
    assert await world.read(waiting.id) is None
    assert await world.read(running.id) is None
    listed = await world.provider.list_jobs(TENANT, PROJECT)
    assert [job.id for job in listed] == [kept.id]
    assert await world.provider.count_live_jobs(TENANT, PROJECT) == 1


async def test_a_sweep_leaves_jobs_alone_whose_time_has_not_passed(world: World) -> None:
    """Nothing is cleaned up early, whatever its state."""
    await world.create()
    await world.start(kind="other")
    assert await world.sweep(new_lease()) == []
    assert await world.sweep(new_lease(), kind="other") == []


async def test_a_swept_job_that_waited_or_ran_becomes_cancelled(world: World) -> None:
    """Once its clean-up begins a job can never run again, even if the clock were to step back."""
    queued = await world.create(retention=300)
    running, _ = await world.start(kind="other", retention=300)
    await world.pass_time(400)
    lease = new_lease()
    jobs = await world.provider.claim_expired_jobs([KIND, "other"], lease, 10)
    assert {job.id for job in jobs} == {queued.id, running.id}
    for job in jobs:
        assert (job.status, job.locked_by) == (AsyncJobStatus.CANCELLED, lease.token)
        assert (await world.stored(job.id))["status"] == "cancelled"


async def test_a_sweep_takes_a_job_on_its_last_attempt_and_adds_none(world: World) -> None:
    """A clean-up is no attempt: a job that spent all of them does not block the sweep."""
    job, _ = await world.start(retention=300, max_attempts=1)
    await world.pass_time(400)
    (swept,) = await world.provider.claim_expired_jobs([KIND], new_lease(), 10)
    assert (swept.id, swept.attempts, swept.max_attempts) == (job.id, 1, 1)


async def test_a_swept_job_shows_what_it_produced(world: World) -> None:
    """The clean-up sees the result, which may say what there is to remove."""
    job, lease = await world.start(retention=300)
    await world.provider.finish_job(job.id, lease, JobResult.completed({"file": "x"}), DAY)
    await world.pass_time(400)
    (swept,) = await world.provider.claim_expired_jobs([KIND], new_lease(), 10)
    assert (swept.status, swept.output) == (AsyncJobStatus.COMPLETED, {"file": "x"})


async def test_a_sweep_never_runs_under_a_living_body(world: World) -> None:
    """An expired job that somebody holds waits until it is let go of, or its lease lapses."""
    held, _ = await world.start(600, retention=300)
    await world.pass_time(400)
    assert await world.sweep(new_lease()) == []
    await world.pass_time(400)
    assert await world.sweep(new_lease()) == [held.id]


async def test_a_job_in_clean_up_is_nobody_elses_until_its_lease_lapses(world: World) -> None:
    """Two workers never clean up after one job at the same time; a dead one is replaced."""
    job = await world.create()
    await world.cancel(job.id)
    assert await world.sweep(new_lease()) == [job.id]
    assert await world.sweep(new_lease()) == []
    await world.pass_time(2 * MINUTE)
    assert await world.sweep(new_lease()) == [job.id]


async def test_sweeps_at_the_same_moment_never_take_the_same_job(world: World) -> None:
    """However many workers sweep at once, each expired job goes to one of them."""
    jobs = [await world.create(retention=300) for _ in range(30)]
    await world.pass_time(400)
    taken: list[str] = []

    async def sweep(provider: AsyncJobProvider) -> None:
        while swept := await provider.claim_expired_jobs([KIND], new_lease(), 1):
            taken.extend(job.id for job in swept)

    async with world.peers(5) as workers, trio.open_nursery() as nursery:
        for worker in workers:
            nursery.start_soon(sweep, worker)
    assert sorted(taken) == sorted(job.id for job in jobs)


async def test_a_sweep_takes_only_its_kinds_and_no_more_than_its_limit(world: World) -> None:
    """A worker cleans up only after kinds it has handlers for, a few at a time, oldest first."""
    first = await world.create(retention=300)
    second = await world.create(retention=301)
    await world.create("other", retention=300)
    await world.pass_time(400)
    assert await world.sweep(new_lease(), 1) == [first.id]
    assert await world.sweep(new_lease(), 10) == [second.id]
    assert await world.provider.claim_expired_jobs([], new_lease(), 10) == []


async def test_a_row_is_deleted_only_by_who_cleaned_up(world: World) -> None:
    """A slow sweeper's success does not delete the row under its successor's running clean-up."""
    job = await world.create()
    await world.cancel(job.id)
    slow, taker = new_lease(), new_lease()
    await world.sweep(slow)
    await world.pass_time(2 * MINUTE)
    assert await world.sweep(taker) == [job.id]
    assert await world.provider.delete_expired_job(job.id, slow) is False
    assert await world.row(job.id) is not None
    assert await world.provider.delete_expired_job(job.id, taker) is True
    assert await world.row(job.id) is None
    assert await world.provider.delete_expired_job(job.id, taker) is False


async def test_a_job_that_has_not_expired_is_not_deleted(world: World) -> None:
    """The token of a running job deletes nothing."""
    job, lease = await world.start()
    assert await world.provider.delete_expired_job(job.id, lease) is False
    assert await world.row(job.id) is not None


async def test_a_failed_clean_up_holds_up_nobody(world: World) -> None:
    """A row that cannot be cleaned up keeps its lease, so the next round takes those behind it."""
    stubborn = await world.create(retention=300)
    behind = await world.create(retention=301)
    await world.pass_time(400)
    lease = new_lease()
    assert await world.sweep(lease, 1) == [stubborn.id]
    retry = attrs.evolve(lease, duration=600.0)
    assert await world.provider.renew_lease(stubborn.id, retry) is LeaseRenewal.CANCELLED
    assert await world.sweep(new_lease(), 1) == [behind.id]
    await world.pass_time(500)
    assert stubborn.id not in await world.sweep(new_lease())
    await world.pass_time(200)
    assert stubborn.id in await world.sweep(new_lease())


async def test_rows_that_need_no_clean_up_are_deleted_at_once(world: World) -> None:
    """Expired rows of those kinds go, a limited number at a time; all others stay."""
    gone = [await world.create("a", retention=300 + n) for n in range(3)]
    waiting = await world.create("a", retention=9 * DAY)
    other = await world.create("b", retention=300)
    assert await world.provider.discard_expired_jobs(["a"], 100) == 0
    await world.pass_time(400)
    assert await world.provider.discard_expired_jobs(["a"], 2) == 2
    assert await world.row(gone[2].id) is not None
    assert await world.provider.discard_expired_jobs(["a"], 100) == 1
    assert await world.provider.discard_expired_jobs(["a"], 100) == 0
    assert [await world.row(job.id) for job in gone] == [None] * 3
    assert await world.row(waiting.id) is not None
    assert await world.row(other.id) is not None


async def test_an_expired_job_that_somebody_holds_is_not_discarded(world: World) -> None:
    """Its holder is told that it expired, and lets go; a holder that died lets it lapse."""
    running, lease = await world.start(retention=300)
    await world.provider.renew_lease(running.id, attrs.evolve(lease, duration=600.0))
    await world.pass_time(400)
    assert await world.provider.discard_expired_jobs([KIND], 100) == 0
    assert await world.provider.renew_lease(running.id, lease) is LeaseRenewal.EXPIRED
    await world.pass_time(400)
    assert await world.provider.discard_expired_jobs([KIND], 100) == 1
    assert await world.provider.renew_lease(running.id, lease) is LeaseRenewal.LOST


async def test_rows_nobody_cleans_up_after_go_a_week_later(world: World) -> None:
    """Rows of kinds that no worker registers do not stay for ever, and are counted by kind."""
    await world.create("a", retention=300)
    await world.create("a", retention=300)
    await world.create("b", retention=300)
    kept = await world.create("a", retention=9 * DAY)
    await world.pass_time(6 * DAY)
    assert await world.provider.delete_orphans(100) == {}
    await world.pass_time(DAY + 400)
    assert await world.provider.delete_orphans(2) == {"a": 2}
    assert await world.provider.delete_orphans(100) == {"b": 1}
    assert await world.provider.delete_orphans(100) == {}
    assert await world.read(kept.id) is not None


async def test_an_orphan_that_somebody_holds_is_left_alone(world: World) -> None:
    """A job that still runs, or is just being cleaned up, is not deleted under its holder."""
    running, _ = await world.start(9 * DAY, retention=300)
    swept = await world.create("other", retention=300)
    await world.pass_time(8 * DAY)
    await world.sweep(new_lease(), kind="other")
    assert await world.provider.delete_orphans(100) == {}
    assert await world.row(running.id) is not None
    assert await world.row(swept.id) is not None
    await world.pass_time(2 * DAY)
    assert await world.provider.delete_orphans(100) == {KIND: 1, "other": 1}


async def test_a_job_abandoned_on_its_last_attempt_fails(world: World) -> None:
    """A client is told when every worker that ran its job died, and can read that for a while."""
    job, zombie = await world.start(max_attempts=1, retention=1000)
    await world.pass_time(2 * MINUTE)
    assert await world.provider.fail_abandoned_jobs(abandoned_outcome(), 9 * DAY, 10) == 1
    failed = await world.read(job.id)
    assert failed is not None
    assert (failed.status, failed.error) == (AsyncJobStatus.FAILED, abandoned_outcome())
    assert (failed.locked_by, failed.lease_expires_at) == (None, None)
    assert failed.finished_at is not None
    result = JobResult.completed("late")
    assert await world.provider.finish_job(job.id, zombie, result, DAY) is False
    assert await world.provider.renew_lease(job.id, zombie) is LeaseRenewal.LOST
    await world.pass_time(950)
    assert await world.read(job.id) is not None
    await world.pass_time(100)
    assert await world.read(job.id) is None


async def test_an_abandoned_foreign_job_is_kept_as_the_worker_says(world: World) -> None:
    """Without a retention of its own, the job's failure is kept for the worker's."""
    id = await world.insert_row(tenant=TENANT, project=PROJECT, kind=KIND, max_attempts=1)
    await world.claim(new_lease())
    await world.pass_time(2 * MINUTE)
    assert await world.provider.fail_abandoned_jobs({"gone": 1}, 1000, 10) == 1
    await world.pass_time(900)
    assert await world.read(id) is not None
    await world.pass_time(200)
    assert await world.read(id) is None


async def test_only_abandoned_jobs_are_failed(world: World) -> None:
    """Not one whose lease lasts, that has attempts left, that waits, or whose time has passed."""
    lasting, _ = await world.start(600, max_attempts=1)
    left, _ = await world.start(max_attempts=2)
    expired, _ = await world.start(max_attempts=1, retention=100)
    waiting = await world.create()
    await world.pass_time(2 * MINUTE)
    ids = [job.id for job in (lasting, left, expired, waiting)]
    before = [await world.stored(id) for id in ids]
    assert await world.provider.fail_abandoned_jobs({"gone": 1}, DAY, 10) == 0
    assert [await world.stored(id) for id in ids] == before
    assert await world.read(expired.id) is None


async def test_abandoned_jobs_are_failed_in_bounded_steps(world: World) -> None:
    """One statement fails no more than it was asked to, and the next one goes on."""
    for _ in range(5):
        await world.start(max_attempts=1)
    await world.pass_time(2 * MINUTE)
    steps = [await world.provider.fail_abandoned_jobs({"gone": 1}, DAY, 3) for _ in range(3)]
    assert steps == [3, 2, 0]
