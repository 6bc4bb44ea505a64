"""Jobs that are to be run again later: their time, their attempts, and what went wrong before."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hastetrio._model import AsyncJob, AsyncJobStatus, JobLease, JobResult, LeaseRenewal
from hastetrio._outcome import abandoned_outcome
from hastetrio._provider import JobQueued, WatchRestored
from hastetrio._retry import RetryLater
from hastetrio._storable import REPLACEMENT
from hastetrio._verdict import failure_of

from ._world import DAY, KIND, MINUTE, PROJECT, TENANT, World, new_lease

# Failed attempts that a job remembers.
HISTORY = 10


async def retry(
    world: World, id: str, lease: JobLease, after: float = 100, failure: str | None = '["no"]'
) -> bool:
    """A failed attempt asks for another one."""
    return await world.provider.reschedule_job(
        id, lease, after, give_back=False, retention=DAY, failure=failure
    )


async def snooze(world: World, id: str, lease: JobLease, after: float = 100) -> bool:
    """An attempt that does not count asks for another one."""
    return await world.provider.reschedule_job(id, lease, after, give_back=True, retention=DAY)


Ask = Callable[[World, str, JobLease, float], Any]
both_ways = pytest.mark.parametrize("ask", [retry, snooze])


async def fail_attempts(world: World, id: str, errors: list[str]) -> None:
    """So many attempts of a job fail, one after the other."""
    for error in errors:
        lease = new_lease()
        assert await world.claim(lease) == [id]
        assert await retry(world, id, lease, 0, error)


def errors_of(row: dict[str, Any]) -> list[list[str]]:
    """The errors a row remembers, an attempt each."""
    return [entry["errors"] for entry in row["attempt_errors"]]


async def test_a_retried_job_waits_for_its_time(world: World) -> None:
    """It is queued without a holder, its attempt counted, and what went wrong is kept with it."""
    job, lease = await world.start(max_attempts=3)
    assert await retry(world, job.id, lease, 100, '["the line is busy"]') is True
    waiting = await world.read(job.id)
    assert waiting is not None
    assert (waiting.status, waiting.attempts) == (AsyncJobStatus.ACCEPTED, 1)
    assert (waiting.locked_by, waiting.lease_expires_at, waiting.finished_at) == (None,) * 3
    assert (waiting.error, waiting.hand_backs) == (None, 0)
    moment = await world.moment(100)
    assert abs((waiting.run_at - moment).total_seconds()) < 10
    (entry,) = waiting.attempt_errors
    assert (entry["attempt"], entry["errors"]) == (1, ["the line is busy"])
    at = datetime.fromisoformat(entry["at"])
    assert abs((at - waiting.updated_at).total_seconds()) < 1
    assert await world.claim(new_lease()) == []
    await world.pass_time(50)
    assert await world.claim(new_lease()) == []
    await world.pass_time(60)
    (again,) = await world.provider.claim_jobs([KIND], new_lease(), 10)
    assert (again.id, again.attempts) == (job.id, 2)
    assert again.attempt_errors == waiting.attempt_errors


async def test_a_snooze_costs_no_attempt(world: World) -> None:
    """However often, also more often than a hand-back gives an attempt back; nothing has failed."""
    job = await world.create(max_attempts=1)
    for _ in range(12):
        lease = new_lease()
        (claimed,) = await world.provider.claim_jobs([KIND], lease, 10)
        assert (claimed.id, claimed.attempts) == (job.id, 1)
        assert await snooze(world, job.id, lease)
        assert await world.claim(new_lease()) == []
        await world.pass_time(110)
    row = await world.stored(job.id)
    assert (row["status"], row["attempts"], row["hand_backs"]) == ("accepted", 0, 0)
    assert row["attempt_errors"] is None


@both_ways
async def test_without_a_delay_a_job_is_claimable_at_once(world: World, ask: Ask) -> None:
    """And goes behind those that have been due for longer."""
    job, lease = await world.start()
    other = await world.create()
    await world.pass_time(1)
    assert await ask(world, job.id, lease, 0)
    claimed = await world.provider.claim_jobs([KIND], new_lease(), 10)
    assert [one.id for one in claimed] == [other.id, job.id]


@both_ways
async def test_a_job_does_not_expire_before_its_time(world: World, ask: Ask) -> None:
    """It has its own retention from then on."""
    job, lease = await world.start(retention=300)
    assert await ask(world, job.id, lease, 1000)
    await world.pass_time(1200)
    assert await world.sweep(new_lease()) == []
    assert await world.read(job.id) is not None
    await world.pass_time(200)
    assert await world.read(job.id) is None
    assert await world.claim(new_lease()) == []


@both_ways
async def test_a_job_is_never_over_sooner_for_it(world: World, ask: Ask) -> None:
    """What its kick-off asked for is kept."""
    id = await world.insert_row(
        tenant=TENANT,
        project=PROJECT,
        kind=KIND,
        retention=100,
        expires_at=await world.moment(5000),
    )
    lease = new_lease()
    assert await world.claim(lease) == [id]
    before = await world.stored(id)
    assert await ask(world, id, lease, 10)
    assert (await world.stored(id))["expires_at"] == before["expires_at"]


async def test_a_job_without_a_retention_has_the_workers(world: World) -> None:
    """A foreign row that waits beyond its own time is kept for the worker's retention."""
    id = await world.insert_row(
        tenant=TENANT, project=PROJECT, kind=KIND, expires_at=await world.moment(300)
    )
    lease = new_lease()
    await world.claim(lease)
    assert await world.provider.reschedule_job(id, lease, 1000, give_back=False, retention=500)
    await world.pass_time(1400)
    assert await world.read(id) is not None
    await world.pass_time(200)
    assert await world.read(id) is None


@both_ways
async def test_a_repeat_after_a_lost_answer_is_recognised(world: World, ask: Ask) -> None:
    """It was recorded, and is not recorded again: not while it waits, nor while it runs again."""
    job, lease = await world.start()
    assert await ask(world, job.id, lease, 100)
    before = await world.stored(job.id)
    assert await ask(world, job.id, lease, 5000) is True
    assert await world.stored(job.id) == before
    await world.pass_time(200)
    assert await world.claim(new_lease()) == [job.id]
    before = await world.stored(job.id)
    assert await ask(world, job.id, lease, 5000) is True
    assert await world.stored(job.id) == before


@both_ways
async def test_another_claims_job_is_not_moved(world: World, ask: Ask) -> None:
    """Neither by a stranger, nor by the one it was taken from, nor one that is nowhere."""
    job, zombie = await world.start()
    stranger = new_lease()
    before = await world.stored(job.id)
    assert await ask(world, job.id, stranger, 100) is False
    assert await world.stored(job.id) == before
    await world.pass_time(2 * MINUTE)
    await world.claim(new_lease(worker=zombie.worker))
    before = await world.stored(job.id)
    assert await ask(world, job.id, zombie, 100) is False
    assert await world.stored(job.id) == before
    assert await ask(world, "nowhere", zombie, 100) is False
    queued = await world.create()
    assert await ask(world, queued.id, zombie, 100) is False


@both_ways
@pytest.mark.parametrize("end", ["cancelled", "expired"])
async def test_a_job_that_is_over_is_not_run_again(world: World, ask: Ask, end: str) -> None:
    """The row stays the holder's until it is released, and then goes to the clean-up."""
    job, lease = await world.start(600, retention=300)
    if end == "cancelled":
        await world.cancel(job.id)
    else:
        await world.pass_time(400)
    before = await world.stored(job.id)
    assert await ask(world, job.id, lease, 5000) is False
    assert await world.stored(job.id) == before
    assert await world.provider.release_job(job.id, lease)
    assert await world.claim(new_lease()) == []
    assert await world.sweep(new_lease()) == [job.id]


@both_ways
async def test_a_lapsed_claim_moves_its_job_as_long_as_nobody_took_it(
    world: World, ask: Ask
) -> None:
    """As it could finish it: nobody else has run it meanwhile."""
    job, lease = await world.start()
    await world.pass_time(5 * MINUTE)
    assert await ask(world, job.id, lease, 100) is True
    assert await world.claim(new_lease()) == []
    await world.pass_time(110)
    assert await world.claim(new_lease()) == [job.id]


async def test_a_job_without_attempts_left_fails_as_abandoned(world: World) -> None:
    """It cannot wait in the queue, where nobody may start it: its client is told."""
    job, lease = await world.start(max_attempts=1, retention=1000)
    assert await retry(world, job.id, lease, 100, '["the last"]') is True
    failed = await world.read(job.id)
    assert failed is not None
    assert (failed.status, failed.attempts) == (AsyncJobStatus.FAILED, 1)
    assert failed.error == abandoned_outcome()
    assert failed.finished_at is not None
    assert (failed.locked_by, failed.lease_expires_at) == (None, None)
    assert [entry["errors"] for entry in failed.attempt_errors] == [["the last"]]
    await world.pass_time(900)
    assert await world.claim(new_lease()) == []
    assert await world.read(job.id) is not None


@both_ways
async def test_no_other_call_of_that_claim_moves_the_job_any_more(world: World, ask: Ask) -> None:
    """The claim has ended: what it recorded stands, a late result included."""
    job, lease = await world.start()
    assert await ask(world, job.id, lease, 100)
    before = await world.stored(job.id)
    # As for a repeated finish: the end of this claim is recorded, whichever it was.
    assert await world.provider.finish_job(job.id, lease, JobResult.completed(1), DAY) is True
    assert await world.provider.release_job(job.id, lease) is False
    assert await world.provider.renew_lease(job.id, lease, "late") is LeaseRenewal.LOST
    assert await world.provider.forget_claim(lease) == 0
    assert await world.provider.delete_expired_job(job.id, lease) is False
    assert await world.provider.fail_abandoned_jobs({"late": 1}, DAY, 10) == 0
    assert await world.stored(job.id) == before


@pytest.mark.parametrize("ending", ["completed", "failed"])
async def test_a_recorded_job_is_not_run_again(world: World, ending: str) -> None:
    """Who finished it may ask, and hears that its end is recorded; nobody moves the result."""
    job, lease = await world.start()
    result = JobResult.completed(1) if ending == "completed" else JobResult.failed({"a": 1})
    assert await world.provider.finish_job(job.id, lease, result, DAY)
    before = await world.stored(job.id)
    assert await retry(world, job.id, lease) is True
    assert await retry(world, job.id, new_lease()) is False
    assert await world.stored(job.id) == before
    await world.pass_time(200)
    assert await world.claim(new_lease()) == []


async def test_an_older_claims_repeat_is_refused_after_its_successors_end(world: World) -> None:
    """Only the last end of a claim is remembered; who comes so late moves nothing."""
    job, first = await world.start()
    assert await retry(world, job.id, first, 0)
    second = new_lease()
    assert await world.claim(second) == [job.id]
    assert await retry(world, job.id, second, 0)
    before = await world.stored(job.id)
    assert await retry(world, job.id, first, 0) is False
    assert await retry(world, job.id, second, 0) is True
    assert await world.stored(job.id) == before


async def test_the_last_progress_goes_along(world: World) -> None:
    """The client reads it while the job waits; the next attempt begins without."""
    job, lease = await world.start()
    assert await world.provider.reschedule_job(
        job.id, lease, 0, give_back=False, retention=DAY, progress="half\0\ud800"
    )
    assert (await world.stored(job.id))["progress"] == f"half{REPLACEMENT}{REPLACEMENT}"
    (again,) = await world.provider.claim_jobs([KIND], new_lease(), 1)
    assert again.progress is None
    other, lease = await world.start(kind="other")
    assert await world.provider.renew_lease(other.id, lease, "most") is LeaseRenewal.RENEWED
    assert await snooze(world, other.id, lease)
    assert (await world.stored(other.id))["progress"] == "most"


async def test_each_attempts_errors_are_kept_in_order(world: World) -> None:
    """Of groups the leaves, one text each, whatever characters they hold."""
    job = await world.create(max_attempts=5)
    group = BaseExceptionGroup(
        "two", [ValueError("nul\0"), ExceptionGroup("one", [KeyError("lone \ud800")])]
    )
    errors = [failure_of(group), failure_of(RetryLater(reason="busy")), failure_of(OSError("ü🦀"))]
    await fail_attempts(world, job.id, errors)
    row = await world.stored(job.id)
    assert [entry["attempt"] for entry in row["attempt_errors"]] == [1, 2, 3]
    first, second, third = errors_of(row)
    assert first[0].endswith(f"nul{REPLACEMENT}")
    assert f"lone {REPLACEMENT}" in first[1] or "ud800" in first[1]
    assert second == ["busy"]
    assert third[0].endswith("ü🦀")
    read = await world.read(job.id)
    assert read is not None
    assert read.attempt_errors == row["attempt_errors"]


@pytest.mark.parametrize("ending", ["completed", "failed"])
async def test_a_finished_job_keeps_its_history(world: World, ending: str) -> None:
    """With the last attempt's errors at its end, if that failed."""
    job = await world.create()
    await fail_attempts(world, job.id, ['["one"]'])
    lease = new_lease()
    await world.claim(lease)
    result = (
        JobResult.completed(1)
        if ending == "completed"
        else JobResult.failed({}, failure='["two", "three"]')
    )
    assert await world.provider.finish_job(job.id, lease, result, DAY)
    row = await world.stored(job.id)
    assert errors_of(row) == [["one"], ["two", "three"]][: 1 + (ending == "failed")]
    assert [entry["attempt"] for entry in row["attempt_errors"]] == [1, 2][: len(errors_of(row))]


async def test_a_job_remembers_its_last_ten_failed_attempts(world: World) -> None:
    """The oldest go first, and the numbers say how many there were."""
    job = await world.create(max_attempts=100)
    await fail_attempts(world, job.id, [f'["{n}"]' for n in range(1, HISTORY + 4)])
    row = await world.stored(job.id)
    kept = list(range(4, HISTORY + 4))
    assert [entry["attempt"] for entry in row["attempt_errors"]] == kept
    assert errors_of(row) == [[str(n)] for n in kept]


@pytest.mark.parametrize("history", [{"not": "a list"}, "a text", 7, True, []], ids=repr)
async def test_what_is_no_history_is_put_right(world: World, history: object) -> None:
    """A column that another program filled with something else keeps no job from its next turn."""
    id = await world.insert_row(tenant=TENANT, project=PROJECT, kind=KIND, attempt_errors=history)
    await fail_attempts(world, id, ['["mine"]'])
    assert errors_of(await world.stored(id)) == [["mine"]]
    lease = new_lease()
    await world.claim(lease)
    assert await world.provider.finish_job(
        id, lease, JobResult.failed({}, failure='["the end"]'), DAY
    )
    assert errors_of(await world.stored(id)) == [["mine"], ["the end"]]


@pytest.mark.parametrize("length", [9, 10, 11, 15])
async def test_a_history_that_is_too_long_is_cut(world: World, length: int) -> None:
    """Whoever made it so long; what else it holds is left as it is."""
    history = [*range(length - 1), "the newest"]
    id = await world.insert_row(tenant=TENANT, project=PROJECT, kind=KIND, attempt_errors=history)
    await fail_attempts(world, id, ['["mine"]'])
    stored = (await world.stored(id))["attempt_errors"]
    assert stored[:-1] == history[-(HISTORY - 1) :]
    assert stored[-1]["errors"] == ["mine"]


async def test_a_history_that_is_cut_off_by_nothing_stays(world: World) -> None:
    """A snooze, a hand-back and a completed result leave what is there alone."""
    id = await world.insert_row(
        tenant=TENANT, project=PROJECT, kind=KIND, attempt_errors={"not": "a list"}
    )
    lease = new_lease()
    await world.claim(lease)
    assert await snooze(world, id, lease, 0)
    lease = new_lease()
    await world.claim(lease)
    assert await world.provider.finish_job(id, lease, JobResult.completed(1), DAY)
    assert (await world.stored(id))["attempt_errors"] == {"not": "a list"}


async def test_requests_at_the_same_moment_each_get_their_own_answer(world: World) -> None:
    """Each is recorded with its own delay, errors and attempt, and stale ones are refused."""
    jobs = [await world.start() for _ in range(30)]
    stale = {job.id for job, _ in jobs[::3]}
    for job, lease in jobs[::3]:
        await world.provider.release_job(job.id, lease)
    answers: dict[str, bool] = {}

    async def ask(number: int, job: AsyncJob, lease: JobLease) -> None:
        answers[job.id] = await world.provider.reschedule_job(
            job.id,
            lease,
            100 * number,
            give_back=number % 2 == 0,
            retention=DAY,
            failure=f'["{job.id}"]' if number % 2 else None,
        )

    async with trio.open_nursery() as nursery:
        for number, (job, lease) in enumerate(jobs):
            nursery.start_soon(ask, number, job, lease)
    assert {id for id, recorded in answers.items() if not recorded} == stale
    moment = await world.moment()
    for number, (job, lease) in enumerate(jobs):
        row = await world.stored(job.id)
        if job.id in stale:
            assert (row["finished_by"], row["attempts"]) == (None, 0)
            continue
        assert (row["finished_by"], row["attempts"]) == (lease.token, number % 2)
        assert (row["attempt_errors"] is not None) == (number % 2 == 1)
        if number % 2:
            assert errors_of(row) == [[job.id]]
        assert abs((row["run_at"] - moment).total_seconds() - 100 * number) < 50


async def test_a_request_made_twice_at_the_same_moment_counts_once(world: World) -> None:
    """One attempt is given back, or one failure kept, however the two travel."""
    job, lease = await world.start()
    other, second = await world.start()
    answers: list[bool] = []

    async def ask(ask: Ask, id: str, lease: JobLease) -> None:
        answers.append(await ask(world, id, lease, 100))

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(ask, snooze, job.id, lease)
            nursery.start_soon(ask, retry, other.id, second)
    assert answers == [True] * 8
    assert (await world.stored(job.id))["attempts"] == 0
    row = await world.stored(other.id)
    assert (row["attempts"], errors_of(row)) == (1, [["no"]])


async def test_a_stale_and_a_fresh_request_at_the_same_moment_are_told_apart(world: World) -> None:
    """Two bodies of one job that end together are answered by their tokens, not by the job's id."""
    job, zombie = await world.start()
    await world.pass_time(2 * MINUTE)
    taker = new_lease()
    await world.claim(taker)
    answers: dict[str, bool] = {}

    async def ask(what: str, lease: JobLease) -> None:
        answers[what] = await retry(world, job.id, lease, 0, f'["{what}"]')

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, "stale", zombie)
        nursery.start_soon(ask, "fresh", taker)
        nursery.start_soon(ask, "stale again", zombie)
    assert answers == {"stale": False, "fresh": True, "stale again": False}
    assert errors_of(await world.stored(job.id)) == [["fresh"]]


async def test_a_row_that_somebody_has_locked_is_moved_when_it_is_free(world: World) -> None:
    """Its neighbours do not wait for it."""
    locked, lease = await world.start()
    free, other = await world.start()
    moved: list[str] = []
    async with trio.open_nursery() as nursery:

        async def ask(id: str, lease: JobLease) -> None:
            assert await retry(world, id, lease) is True
            moved.append(id)

        with trio.fail_after(20):
            async with world.locked(locked.id):
                nursery.start_soon(ask, locked.id, lease)
                # It is under way, and what follows would wait for its answer.
                await wait_all_tasks_blocked(0.01)
                await ask(free.id, other)
    assert set(moved) == {locked.id, free.id}
    row = await world.stored(locked.id)
    assert (row["status"], errors_of(row)) == ("accepted", [["no"]])


async def test_only_a_job_that_is_due_again_wakes_anybody(world: World) -> None:
    """One that waits for its time is no event, one that may run at once is."""
    job, lease = await world.start()
    other, second = await world.start()
    async with world.provider.watch([KIND, "the end"]) as events:
        with trio.fail_after(20):
            assert await events.receive() == WatchRestored()
            assert await retry(world, job.id, lease)
            await world.create("the end")
            assert await events.receive() == JobQueued("the end")
            assert await snooze(world, other.id, second, 0)
            assert await events.receive() == JobQueued(KIND)
