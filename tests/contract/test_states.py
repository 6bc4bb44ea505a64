"""Saved states: what an attempt leaves to the next one, and who may leave it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hastetrio._errors import UnstorableValue
from hastetrio._model import JobLease, JobResult
from hastetrio._provider import AsyncJobProvider

from ._world import DAY, KIND, MINUTE, World, new_lease

# What a handler's state may have, in bytes of JSON.
LIMIT = 64 * 1024


def of_size(size: int, start: str = "") -> str:
    """JSON text of so many bytes, in characters of two."""
    room = size - len(json.dumps(start, ensure_ascii=False))
    return json.dumps(start + "é" * (room // 2) + "e" * (room % 2), ensure_ascii=False)


@pytest.mark.parametrize("state", [{"page": 7, "of": [1, None]}, [], 0, False, "ü🦀\\u0000", None])
@pytest.mark.parametrize("ending", ["lapses", "is handed back", "is to be run later"])
async def test_the_next_attempt_finds_what_was_saved(
    world: World, ending: str, state: object
) -> None:
    """However an attempt ends without a result, the next one goes on from any JSON it left."""
    job, lease = await world.start()
    assert job.state is None
    assert await world.provider.save_state(job.id, lease, json.dumps(state)) is True
    if ending == "lapses":
        await world.pass_time(2 * MINUTE)
    elif ending == "is handed back":
        assert await world.provider.release_job(job.id, lease)
    else:
        assert await world.provider.reschedule_job(job.id, lease, 0, give_back=False, retention=DAY)
    (again,) = await world.provider.claim_jobs([KIND], new_lease(), 1)
    assert again.state == state
    assert type(again.state) is type(state)


async def test_the_latest_state_wins(world: World) -> None:
    """Also over that of an earlier attempt; a client reads none older."""
    job, lease = await world.start()
    for number in range(3):
        assert await world.provider.save_state(job.id, lease, str(number))
    await world.pass_time(2 * MINUTE)
    taker = new_lease()
    (again,) = await world.provider.claim_jobs([KIND], taker, 1)
    assert again.state == 2
    assert await world.provider.save_state(job.id, taker, '"of the second"')
    read = await world.read(job.id)
    assert read is not None
    assert read.state == "of the second"


@pytest.mark.parametrize("ending", ["completed", "failed"])
async def test_a_job_with_a_result_has_no_state(world: World, ending: str) -> None:
    """It was for the next attempt, and there is none."""
    job, lease = await world.start()
    assert await world.provider.save_state(job.id, lease, '{"secret": 1}')
    result = JobResult.completed(1) if ending == "completed" else JobResult.failed({})
    assert await world.provider.finish_job(job.id, lease, result, DAY)
    row = await world.stored(job.id)
    assert (row["status"], row["state"]) == (ending, None)


@pytest.mark.parametrize("ending", ["cancelled", "expired", "abandoned"])
async def test_a_clean_up_finds_the_state(world: World, ending: str) -> None:
    """Without a result only the state says what an attempt has left behind."""
    job, lease = await world.start(retention=DAY, max_attempts=1)
    assert await world.provider.save_state(job.id, lease, '{"upload": 1}')
    if ending == "cancelled":
        before = await world.cancel(job.id)
        assert before is not None
        assert before.state == {"upload": 1}
        assert await world.provider.release_job(job.id, lease, give_back=False)
    elif ending == "abandoned":
        await world.pass_time(2 * MINUTE)
        assert await world.provider.fail_abandoned_jobs({}, MINUTE, 10) == 1
    await world.pass_time(2 * DAY)
    (expired,) = await world.provider.claim_expired_jobs([KIND], new_lease(), 10)
    assert (expired.id, expired.state) == (job.id, {"upload": 1})


async def test_only_the_holder_of_a_running_job_saves(world: World) -> None:
    """Neither a stranger, nor a claim whose job was taken, recorded, let go of, nor of none."""
    job, zombie = await world.start()
    assert await world.provider.save_state(job.id, new_lease(), "1") is False
    await world.pass_time(2 * MINUTE)
    taker = new_lease()
    await world.claim(taker)
    assert await world.provider.save_state(job.id, taker, '"mine"')
    before = await world.stored(job.id)
    assert await world.provider.save_state(job.id, zombie, '"late"') is False
    assert await world.provider.save_state("nowhere", taker, '"lost"') is False
    assert await world.stored(job.id) == before
    assert await world.provider.finish_job(job.id, taker, JobResult.completed(1), DAY)
    assert await world.provider.save_state(job.id, taker, '"late"') is False
    assert (await world.stored(job.id))["state"] is None
    later, lease = await world.start()
    assert await world.provider.reschedule_job(later.id, lease, 9, give_back=True, retention=DAY)
    assert await world.provider.save_state(later.id, lease, '"late"') is False
    assert (await world.stored(later.id))["state"] is None


@pytest.mark.parametrize("end", ["cancelled", "expired"])
async def test_a_job_that_is_over_saves_nothing(world: World, end: str) -> None:
    """Its body still unwinds and holds the row; what it saves now is for nobody."""
    job, lease = await world.start(600, retention=300)
    if end == "cancelled":
        await world.cancel(job.id)
    else:
        await world.pass_time(400)
    before = await world.stored(job.id)
    assert before["locked_by"] == lease.token
    assert await world.provider.save_state(job.id, lease, "1") is False
    assert await world.stored(job.id) == before


async def test_a_lapsed_claim_saves_as_long_as_nobody_took_its_job(world: World) -> None:
    """As it could renew or finish; the token decides, not the hour."""
    job, lease = await world.start()
    await world.pass_time(5 * MINUTE)
    assert await world.provider.save_state(job.id, lease, '"still here"') is True
    (again,) = await world.provider.claim_jobs([KIND], new_lease(), 1)
    assert again.state == "still here"


async def test_saving_changes_nothing_else(world: World) -> None:
    """Neither lease nor progress nor attempts."""
    job, lease = await world.start()
    await world.provider.renew_lease(job.id, lease, "half")
    before = await world.stored(job.id)
    assert await world.provider.save_state(job.id, lease, '{"n": 1}')
    assert await world.stored(job.id) == before | {"state": {"n": 1}}


async def test_large_states_saved_at_the_same_moment_are_each_kept(world: World) -> None:
    """More of them than one statement carries, with stale ones among them, each for its own job."""
    jobs = [await world.start() for _ in range(70)]
    stale = {job.id for job, _ in jobs[::9]}
    for job, lease in jobs[::9]:
        await world.provider.release_job(job.id, lease)
    answers: dict[str, bool] = {}

    async def save(id: str, lease: JobLease) -> None:
        answers[id] = await world.provider.save_state(id, lease, of_size(LIMIT, id))

    async with trio.open_nursery() as nursery:
        for job, lease in jobs:
            nursery.start_soon(save, job.id, lease)
    assert {id for id, saved in answers.items() if not saved} == stale
    for job, _ in jobs:
        state = (await world.stored(job.id))["state"]
        assert state == (None if job.id in stale else json.loads(of_size(LIMIT, job.id)))


async def test_a_state_that_the_storage_refuses_costs_its_neighbours_nothing(world: World) -> None:
    """It fails alone, or is kept; whichever it is, the answer says true of what is kept."""
    good, lease = await world.start()
    bad, other = await world.start()
    poison = '{"a": "\\u0000"}'
    answers: dict[str, Any] = {}

    async def save(id: str, lease: JobLease, state: str) -> None:
        try:
            answers[id] = await world.provider.save_state(id, lease, state)
        except UnstorableValue:
            answers[id] = "refused"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(save, bad.id, other, poison)
        nursery.start_soon(save, good.id, lease, "1")
        nursery.start_soon(save, bad.id, other, poison)
    assert answers[good.id] is True
    assert (await world.stored(good.id))["state"] == 1
    assert ((await world.stored(bad.id))["state"] is None) == (answers[bad.id] == "refused")


async def test_a_row_that_somebody_has_locked_is_saved_when_it_is_free(world: World) -> None:
    """Its neighbours do not wait for it."""
    locked, lease = await world.start()
    free, other = await world.start()
    provider: AsyncJobProvider = world.provider
    saved: list[str] = []
    async with trio.open_nursery() as nursery:

        async def save(id: str, lease: JobLease) -> None:
            assert await provider.save_state(id, lease, f'"{id}"') is True
            saved.append(id)

        with trio.fail_after(20):
            async with world.locked(locked.id):
                nursery.start_soon(save, locked.id, lease)
                # It is under way, and what follows would wait for its answer.
                await wait_all_tasks_blocked(0.01)
                await save(free.id, other)
    assert set(saved) == {locked.id, free.id}
    assert (await world.stored(locked.id))["state"] == locked.id
