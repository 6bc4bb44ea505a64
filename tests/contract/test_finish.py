"""Finishing: what is recorded, what is refused, and for how long it is kept."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from hastetrio._model import FHIR_JSON, AsyncJobStatus, JobLease, JobResult
from hastetrio._provider import JobFinish

from ._world import DAY, KIND, MINUTE, PROJECT, TENANT, World, new_lease


async def test_a_completed_job_shows_its_output(world: World) -> None:
    """A result is recorded with how it is served and who recorded it, and the job is let go."""
    job, lease = await world.start()
    output = {"resourceType": "Bundle", "entry": [{"n": 1}]}
    result = JobResult.completed(output, FHIR_JSON)
    assert await world.provider.finish_job(job.id, lease, result, DAY) is True
    finished = await world.read(job.id)
    assert finished is not None
    assert finished.status is AsyncJobStatus.COMPLETED
    assert (finished.output, finished.output_content_type) == (output, FHIR_JSON)
    assert (finished.error, finished.attempts) == (None, 1)
    assert finished.finished_at is not None
    assert finished.finished_by == lease.token
    assert (finished.locked_by, finished.lease_expires_at) == (None, None)


async def test_a_failed_job_shows_its_outcome(world: World) -> None:
    """A failure is recorded as an outcome, and not tried again."""
    job, lease = await world.start()
    outcome = {"resourceType": "OperationOutcome", "issue": []}
    assert await world.provider.finish_job(job.id, lease, JobResult.failed(outcome), DAY) is True
    finished = await world.read(job.id)
    assert finished is not None
    assert finished.status is AsyncJobStatus.FAILED
    assert (finished.output, finished.error) == (None, outcome)
    assert await world.claim(new_lease()) == []


@pytest.mark.parametrize(
    "output", [0, False, "", [], {}, 1.5, "ß🦀\\u0000", {"a": [None, {"b": "c"}]}, "x" * 2_000_000]
)
async def test_an_output_comes_back_as_it_was(world: World, output: Any) -> None:  # noqa: ANN401
    """Any JSON is an output, also one that Python holds for false."""
    job, lease = await world.start()
    assert await world.provider.finish_job(job.id, lease, JobResult.completed(output), DAY)
    finished = await world.read(job.id)
    assert finished is not None
    assert finished.output == output
    assert type(finished.output) is type(output)


async def test_a_repeated_finish_is_recognised(world: World) -> None:
    """Who lost the answer to a finish asks again, and hears that the first one was recorded."""
    job, lease = await world.start()
    first, second = JobResult.completed("first"), JobResult.completed("second")
    assert await world.provider.finish_job(job.id, lease, first, DAY) is True
    before = await world.stored(job.id)
    assert await world.provider.finish_job(job.id, lease, second, DAY, "late") is True
    assert await world.stored(job.id) == before


async def test_a_repeated_finish_is_recognised_after_a_cancel(world: World) -> None:
    """It was recorded, even if the client has given the result up since; nothing comes back."""
    job, lease = await world.start()
    assert await world.provider.finish_job(job.id, lease, JobResult.completed(1), DAY)
    await world.cancel(job.id)
    assert await world.provider.finish_job(job.id, lease, JobResult.completed(1), DAY) is True
    row = await world.stored(job.id)
    assert (row["status"], row["output"]) == ("cancelled", None)


async def test_the_result_of_a_taken_over_job_is_refused(world: World) -> None:
    """Of two bodies of a job only the one that holds it is recorded, whichever ends first."""
    job, zombie = await world.start()
    await world.pass_time(2 * MINUTE)
    taker = new_lease(worker=zombie.worker)
    assert await world.claim(taker) == [job.id]
    stale, fresh = JobResult.completed("stale"), JobResult.completed("fresh")
    assert await world.provider.finish_job(job.id, zombie, stale, DAY) is False
    assert await world.provider.finish_job(job.id, taker, fresh, DAY) is True
    assert await world.provider.finish_job(job.id, zombie, stale, DAY) is False
    finished = await world.read(job.id)
    assert finished is not None
    assert (finished.output, finished.finished_by) == ("fresh", taker.token)


async def test_the_result_of_a_handed_back_job_is_refused(world: World) -> None:
    """The attempt number of a hand-back comes again, but its token does not."""
    job, lease = await world.start()
    await world.provider.release_job(job.id, lease)
    result = JobResult.completed(1)
    assert await world.provider.finish_job(job.id, lease, result, DAY) is False
    taker = new_lease()
    (again,) = await world.provider.claim_jobs([KIND], taker, 1)
    assert again.attempts == job.attempts
    assert await world.provider.finish_job(job.id, lease, result, DAY) is False
    assert await world.provider.finish_job(job.id, taker, result, DAY) is True


async def test_a_result_is_recorded_past_the_lease_while_nobody_took_the_job(world: World) -> None:
    """Work that is done is not thrown away because its recording took long."""
    job, lease = await world.start()
    await world.pass_time(5 * MINUTE)
    assert await world.provider.finish_job(job.id, lease, JobResult.completed(1), DAY) is True
    assert await world.claim(new_lease()) == []


async def test_a_cancelled_job_takes_no_result(world: World) -> None:
    """After a cancel nothing is recorded, though its holder still holds it."""
    job, lease = await world.start()
    await world.cancel(job.id)
    before = await world.stored(job.id)
    assert await world.provider.finish_job(job.id, lease, JobResult.completed(1), DAY) is False
    assert await world.stored(job.id) == before


async def test_an_expired_job_takes_no_result(world: World) -> None:
    """A job that clients were told is gone does not come back with a result."""
    job, lease = await world.start(600, retention=300)
    await world.pass_time(400)
    assert await world.provider.finish_job(job.id, lease, JobResult.completed(1), DAY) is False
    assert await world.read(job.id) is None
    assert (await world.stored(job.id))["output"] is None


async def test_a_finish_of_nothing_is_refused(world: World) -> None:
    """A job that is gone, or that nobody started, takes no result."""
    job = await world.create()
    lease = new_lease()
    for id in (job.id, "nowhere"):
        assert await world.provider.finish_job(id, lease, JobResult.completed(1), DAY) is False
    assert (await world.stored(job.id))["status"] == "accepted"


async def test_a_clean_up_cannot_finish_its_job(world: World) -> None:
    """The token of a clean-up holds the row, but the row is not in progress."""
    job = await world.create()
    await world.cancel(job.id)
    lease = new_lease()
    assert await world.sweep(lease) == [job.id]
    assert await world.provider.finish_job(job.id, lease, JobResult.completed(1), DAY) is False


@pytest.mark.parametrize(("last", "seen"), [("all", "all"), (None, "half"), ("\0", "\ufffd")])
async def test_a_finish_records_the_last_progress(
    world: World, last: str | None, seen: str
) -> None:
    """Progress that no renewal carried goes with the result; without any the earlier one stays."""
    job, lease = await world.start()
    await world.provider.renew_lease(job.id, lease, "half")
    await world.provider.finish_job(job.id, lease, JobResult.completed(1), DAY, last)
    assert (await world.stored(job.id))["progress"] == seen


async def test_a_jobs_own_retention_counts_again_from_its_completion(world: World) -> None:
    """A result is kept as long as the kick-off asked, whatever the worker would do."""
    job, lease = await world.start(retention=1000)
    await world.pass_time(600)
    await world.provider.finish_job(job.id, lease, JobResult.completed(1), 9 * DAY)
    await world.pass_time(600)
    assert await world.read(job.id) is not None
    await world.pass_time(600)
    assert await world.read(job.id) is None


async def test_a_job_without_a_retention_is_kept_as_the_worker_says(world: World) -> None:
    """A foreign row says nothing about retention, and then the worker's counts."""
    id = await world.insert_row(tenant=TENANT, project=PROJECT, kind=KIND)
    lease = new_lease()
    await world.claim(lease)
    await world.provider.finish_job(id, lease, JobResult.completed(1), 1000)
    await world.pass_time(600)
    assert await world.read(id) is not None
    await world.pass_time(600)
    assert await world.read(id) is None


async def test_finishes_at_the_same_moment_each_get_their_own_answer(world: World) -> None:
    """Results that travel together are recorded each for its own job, and stale ones refused."""
    jobs = [await world.start() for _ in range(30)]
    stale = {job.id for job, _ in jobs[::3]}
    for job, lease in jobs[::3]:
        await world.provider.release_job(job.id, lease)
    answers: dict[str, bool] = {}

    async def finish(index: int) -> None:
        job, lease = jobs[index]
        result = (
            JobResult.completed({"of": job.id}) if index % 2 else JobResult.failed({"of": job.id})
        )
        answers[job.id] = await world.provider.finish_job(job.id, lease, result, DAY)

    async with trio.open_nursery() as nursery:
        for index in range(len(jobs)):
            nursery.start_soon(finish, index)
    assert {id for id, recorded in answers.items() if not recorded} == stale
    for index, (job, _) in enumerate(jobs):
        if job.id not in stale:
            row = await world.stored(job.id)
            assert row["output" if index % 2 else "error"] == {"of": job.id}


async def test_a_stale_and_a_fresh_result_at_the_same_moment_are_told_apart(world: World) -> None:
    """Two bodies of one job that end together are answered by their tokens, not by the job's id."""
    job, zombie = await world.start()
    await world.pass_time(2 * MINUTE)
    taker = new_lease()
    await world.claim(taker)
    answers: dict[str, bool] = {}

    async def finish(lease: JobLease, output: str) -> None:
        result = JobResult.completed(output)
        answers[output] = await world.provider.finish_job(job.id, lease, result, DAY)

    async with trio.open_nursery() as nursery:
        # The neighbour's finish is under way first, so that the two may travel together.
        neighbour, lease = await world.start(kind="other")
        nursery.start_soon(
            world.provider.finish_job, neighbour.id, lease, JobResult.failed({}), DAY
        )
        nursery.start_soon(finish, zombie, "stale")
        nursery.start_soon(finish, taker, "fresh")
        nursery.start_soon(finish, zombie, "stale again")
    assert answers == {"stale": False, "fresh": True, "stale again": False}
    assert (await world.stored(job.id))["output"] == "fresh"


async def test_a_finish_asked_twice_at_the_same_moment_is_recorded_once(world: World) -> None:
    """A repeat that overtakes its first call is no different from one that follows it."""
    job, lease = await world.start()
    answers: list[bool] = []

    async def finish() -> None:
        result = JobResult.completed("done")
        answers.append(await world.provider.finish_job(job.id, lease, result, DAY))

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(finish)
    assert answers == [True] * 4
    assert (await world.stored(job.id))["output"] == "done"


@pytest.mark.parametrize("ending", ["completed", "failed"])
async def test_a_recorded_job_changes_only_by_cancel_and_expiry(world: World, ending: str) -> None:
    """No late call of anybody touches a recorded result."""
    job, lease = await world.start(max_attempts=1)
    result = JobResult.completed("done") if ending == "completed" else JobResult.failed({"a": 1})
    await world.provider.finish_job(job.id, lease, result, DAY, "all")
    await world.pass_time(2 * MINUTE)
    before = await world.stored(job.id)
    for token in (lease, new_lease()):
        await world.provider.renew_lease(job.id, token, "late")
        await world.provider.release_job(job.id, token)
        await world.provider.release_job(job.id, token, give_back=False)
        await world.provider.forget_claim(token)
        await world.provider.finish_job(job.id, token, JobResult.completed("late"), 1.0, "late")
        await world.provider.delete_expired_job(job.id, token)
        assert await world.claim(token) == []
        assert await world.sweep(token) == []
    assert await world.provider.fail_abandoned_jobs({"late": 1}, 1.0, 10) == 0
    assert await world.provider.delete_orphans(10) == {}
    assert await world.stored(job.id) == before


async def test_several_results_are_recorded_in_one_call(world: World) -> None:
    """Each as if it were alone: what is another's, over, or refused says so, and stops nobody."""
    first, lease = await world.start()
    second, other = await world.start()
    stolen, _ = await world.start()
    cancelled, held = await world.start()
    await world.provider.cancel_job(cancelled.tenant, cancelled.project, cancelled.id)
    finishes = [
        JobFinish(first.id, lease, JobResult.completed({"n": 1}), DAY, "the end"),
        JobFinish(stolen.id, new_lease(), JobResult.completed({"n": 2}), DAY),
        JobFinish(second.id, other, JobResult.failed({"resourceType": "OperationOutcome"}), 60),
        JobFinish(cancelled.id, held, JobResult.completed({"n": 3}), DAY),
        JobFinish("no-such-job", lease, JobResult.completed({"n": 4}), DAY),
    ]
    assert await world.provider.finish_jobs(finishes) == [True, False, True, False, False]
    done, failed = await world.read(first.id), await world.read(second.id)
    assert done is not None
    assert done.status is AsyncJobStatus.COMPLETED
    assert (done.output, done.progress) == ({"n": 1}, "the end")
    assert done.finished_by == lease.token
    assert failed is not None
    assert (failed.status, failed.error) == (
        AsyncJobStatus.FAILED,
        {"resourceType": "OperationOutcome"},
    )
    assert await world.provider.finish_job(first.id, lease, JobResult.completed({"n": 1}), DAY)
    assert await world.provider.finish_jobs([]) == []


async def test_a_refused_result_leaves_its_neighbours_to_be_asked_alone(world: World) -> None:
    """Or records them; whichever it is, the answer says true only of what is recorded."""
    good, lease = await world.start()
    bad, other = await world.start()
    poison = JobResult(
        AsyncJobStatus.COMPLETED, output_json='"\\u0000"', content_type="application/json"
    )
    answers = await world.provider.finish_jobs(
        [
            JobFinish(good.id, lease, JobResult.completed({}), DAY),
            JobFinish(bad.id, other, poison, DAY),
        ]
    )
    for job, recorded in zip((good, bad), answers, strict=True):
        row = await world.read(job.id)
        assert row is not None
        assert (row.status is AsyncJobStatus.COMPLETED) == recorded
    assert await world.provider.finish_job(good.id, lease, JobResult.completed({}), DAY)
