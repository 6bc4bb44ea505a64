"""Releases: handing back an attempt, and letting go of a job that is over."""

from __future__ import annotations

import pytest
import trio

from hastetrio._model import AsyncJobStatus, JobResult
from hastetrio._outcome import abandoned_outcome

from ._world import DAY, KIND, MINUTE, PROJECT, TENANT, World, new_lease


async def test_a_handed_back_job_is_queued_again_with_its_attempt(world: World) -> None:
    """A worker that stops costs its job nothing: the next one starts it at once."""
    job, lease = await world.start(max_attempts=1)
    assert await world.provider.release_job(job.id, lease) is True
    row = await world.stored(job.id)
    assert (row["status"], row["attempts"], row["hand_backs"]) == ("accepted", 0, 1)
    assert (row["locked_by"], row["lease_expires_at"]) == (None, None)
    assert await world.claim(new_lease()) == [job.id]


async def test_a_released_job_may_keep_its_attempt_spent(world: World) -> None:
    """Without giving back, the job is queued again with one attempt less."""
    job, lease = await world.start()
    assert await world.provider.release_job(job.id, lease, give_back=False) is True
    row = await world.stored(job.id)
    assert (row["status"], row["attempts"], row["hand_backs"]) == ("accepted", 1, 0)


async def test_a_handed_back_job_keeps_its_place_in_the_queue(world: World) -> None:
    """It goes before the younger jobs that came after it."""
    job, lease = await world.start()
    await world.pass_time(10)
    younger = await world.create()
    await world.pass_time(10)
    await world.provider.release_job(job.id, lease)
    assert await world.claim(new_lease()) == [job.id, younger.id]


async def test_a_job_whose_lease_lapsed_is_handed_back_on_the_first_contact(world: World) -> None:
    """An outage longer than a lease spends no attempt, as long as nobody took the job."""
    job, lease = await world.start(max_attempts=1)
    await world.pass_time(5 * MINUTE)
    assert await world.provider.release_job(job.id, lease) is True
    assert await world.claim(new_lease()) == [job.id]


async def test_a_repeated_release_gives_back_once(world: World) -> None:
    """A retried release finds its token gone, also when the job runs elsewhere by then."""
    job, lease = await world.start()
    assert await world.provider.release_job(job.id, lease) is True
    assert await world.provider.release_job(job.id, lease) is False
    taker = new_lease()
    await world.claim(taker)
    before = await world.stored(job.id)
    assert await world.provider.release_job(job.id, lease) is False
    assert await world.stored(job.id) == before


async def test_releases_at_the_same_moment_give_back_once(world: World) -> None:
    """However often a release is asked for at once, and by whom, one attempt comes back."""
    job, zombie = await world.start()
    await world.pass_time(2 * MINUTE)
    taker = new_lease()
    await world.claim(taker)
    stale: list[bool] = []

    async def release() -> None:
        stale.append(await world.provider.release_job(job.id, zombie))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(release)
            nursery.start_soon(world.provider.release_job, job.id, taker)
    assert stale == [False] * 3
    row = await world.stored(job.id)
    assert (row["status"], row["attempts"], row["hand_backs"]) == ("accepted", 1, 1)


async def test_a_taken_over_job_is_not_released_by_its_first_holder(world: World) -> None:
    """A worker that woke up late cannot take the job from the one that has it now."""
    job, zombie = await world.start()
    await world.pass_time(2 * MINUTE)
    await world.claim(new_lease(worker=zombie.worker))
    before = await world.stored(job.id)
    assert await world.provider.release_job(job.id, zombie) is False
    assert await world.stored(job.id) == before


async def test_a_release_of_nothing_is_answered_so(world: World) -> None:
    """Neither a job that waits, nor one that was recorded, nor one that is gone is let go of."""
    job, lease = await world.start()
    await world.provider.finish_job(job.id, lease, JobResult.completed(1), DAY)
    queued = await world.create()
    for id in (job.id, queued.id, "nowhere"):
        assert await world.provider.release_job(id, lease) is False


async def test_an_attempt_is_given_back_at_most_ten_times(world: World) -> None:
    """A job that brings down every host it runs on does not go round for ever."""
    job = await world.create(max_attempts=2)
    for _ in range(10):
        lease = new_lease()
        assert await world.claim(lease) == [job.id]
        assert await world.provider.release_job(job.id, lease) is True
    row = await world.stored(job.id)
    assert (row["attempts"], row["hand_backs"]) == (0, 10)
    for left in ("accepted", "failed"):
        lease = new_lease()
        assert await world.claim(lease) == [job.id]
        assert await world.provider.release_job(job.id, lease) is True
        row = await world.stored(job.id)
        assert (row["status"], row["hand_backs"]) == (left, 10)
    assert row["error"] == abandoned_outcome()


async def test_a_job_released_without_attempts_left_fails_as_abandoned(world: World) -> None:
    """A job that nobody may start again does not wait in the queue: its client is told."""
    job, lease = await world.start(max_attempts=1, retention=1000)
    await world.pass_time(600)
    assert await world.provider.release_job(job.id, lease, give_back=False) is True
    failed = await world.read(job.id)
    assert failed is not None
    assert failed.status is AsyncJobStatus.FAILED
    assert failed.error == abandoned_outcome()
    assert failed.finished_at is not None
    assert (failed.locked_by, failed.lease_expires_at) == (None, None)
    await world.pass_time(600)
    assert await world.read(job.id) is not None
    await world.pass_time(600)
    assert await world.read(job.id) is None


async def test_an_abandoned_job_without_a_retention_is_kept_a_day(world: World) -> None:
    """A foreign row that is released without attempts left can be read for a day."""
    id = await world.insert_row(tenant=TENANT, project=PROJECT, kind=KIND, max_attempts=1)
    lease = new_lease()
    await world.claim(lease)
    await world.pass_time(DAY / 2)
    assert await world.provider.release_job(id, lease, give_back=False) is True
    await world.pass_time(DAY * 0.9)
    assert await world.read(id) is not None
    await world.pass_time(DAY * 0.2)
    assert await world.read(id) is None


async def test_a_cancelled_job_is_released_for_its_clean_up(world: World) -> None:
    """Once the handler has unwound, the row need not wait for its lease to run out."""
    job, lease = await world.start()
    await world.cancel(job.id)
    assert await world.sweep(new_lease()) == []
    assert await world.provider.release_job(job.id, lease) is True
    row = await world.stored(job.id)
    assert (row["status"], row["attempts"], row["hand_backs"]) == ("cancelled", 1, 0)
    assert await world.claim(new_lease()) == []
    assert await world.sweep(new_lease()) == [job.id]


@pytest.mark.parametrize("give_back", [True, False])
@pytest.mark.parametrize("max_attempts", [1, 3])
async def test_an_expired_job_is_released_for_its_clean_up(
    world: World, max_attempts: int, give_back: bool
) -> None:
    """A job whose time has passed is let go of on any attempt, and is swept, not run or failed."""
    job, lease = await world.start(600, retention=300, max_attempts=max_attempts)
    await world.pass_time(400)
    assert await world.provider.release_job(job.id, lease, give_back=give_back) is True
    assert await world.claim(new_lease()) == []
    assert await world.read(job.id) is None
    row = await world.stored(job.id)
    assert (row["status"], row["locked_by"], row["error"]) == ("cancelled", None, None)
    assert await world.sweep(new_lease()) == [job.id]


async def test_a_clean_up_that_is_let_go_is_the_next_sweepers(world: World) -> None:
    """A worker that stops in the middle of a clean-up leaves it to the next one at once."""
    job = await world.create()
    await world.cancel(job.id)
    lease = new_lease()
    await world.sweep(lease)
    assert await world.provider.release_job(job.id, lease) is True
    assert await world.sweep(new_lease()) == [job.id]
