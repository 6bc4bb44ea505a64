"""A result reaches the row exactly once, however long the storage takes to answer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio

from hastetrio import AsyncJobStatus, JobContext, JobLease, JobOutput, UnstorableValue
from hastetrio._provider import JobFinish
from hastetrio.testing import RenewalKilled

from .harness import DONE, HOUR, KIND, LEASE, THIRD, Rig, Runs, handler, returning

COMPLETED, CANCELLED = AsyncJobStatus.COMPLETED, AsyncJobStatus.CANCELLED


async def test_recording_may_take_longer_than_a_lease(rig: Rig) -> None:
    """The row goes on being renewed until its finish was answered: one run, one result."""
    runs = Runs(1)
    broken = rig.provider.fail("finish_job")
    async with rig.running(handler(runs)):
        id = await rig.create()
        await trio.sleep(5 * LEASE)
        assert rig.lease_left(id) > 0
        broken.remove()
        job = await rig.ended(id)
    assert (job.status, job.attempts, len(runs.started)) == (COMPLETED, 1, 1)
    assert len(rig.provider.made("renew_lease", id)) >= 14
    assert rig.log.count("job.record-retried", id) > 10
    assert rig.log.count("job.finished", id) == 1


async def test_a_finish_that_never_answers_is_repeated(rig: Rig) -> None:
    """Each try has a budget; the worker does not wait for ever for one answer."""
    rig.provider.hang("finish_job", times=2)
    job = await rig.outcome_of(returning(DONE))
    assert (job.status, job.attempts) == (COMPLETED, 1)
    assert len(rig.provider.made("finish_job", job.id)) == 3


async def test_a_finish_whose_answer_was_lost_is_recognised(rig: Rig) -> None:
    """The repeat is told that the result is recorded; nothing is called dropped."""
    rig.provider.drop("finish_job", times=2)
    job = await rig.outcome_of(returning(DONE))
    assert job.status is COMPLETED
    await rig.until(lambda: len(rig.provider.made("finish_job")) == 3)
    assert rig.log.count("job.finished", job.id) == 1
    assert rig.log.count("job.not-ours") == 0


async def test_a_result_is_recorded_after_an_outage_longer_than_the_lease(rig: Rig) -> None:
    """Nobody else took the job, so the fence lets the result through, once."""
    runs = Runs(1)
    async with rig.running(handler(runs)):
        id = await rig.create()
        await runs.begun.wait()
        faults = [rig.provider.fail(name) for name in ("finish_job", "renew_lease", "claim_jobs")]
        await trio.sleep(3 * LEASE)
        assert rig.lease_left(id) < 0
        for fault in faults:
            fault.remove()
        job = await rig.ended(id)
    assert (job.status, job.attempts, len(runs.started)) == (COMPLETED, 1, 1)


async def test_a_job_still_being_recorded_is_not_claimed_again_here(rig: Rig) -> None:
    """Its lease lapsed in an outage, and the claim comes back first: its id is left out."""
    runs = Runs(1)
    async with rig.running(handler(runs)):
        id = await rig.create()
        await runs.begun.wait()
        finish = rig.provider.fail("finish_job")
        renew = rig.provider.fail("renew_lease")
        await trio.sleep(3 * LEASE)
        assert id in rig.provider.asked[-1][2]
        finish.remove()
        renew.remove()
        job = await rig.ended(id)
    assert (job.status, job.attempts, len(runs.started)) == (COMPLETED, 1, 1)


async def test_a_result_for_a_job_that_was_taken_over_is_dropped(rig: Rig) -> None:
    """The fence refuses it, and the log says so."""

    async def body(context: JobContext) -> JobOutput:
        rig.take_over(context.job.id)
        return DONE

    async with rig.running(handler(body)) as worker:
        id = await rig.create()
        await rig.until(lambda: rig.log.count("job.not-ours", id))
        assert rig.job(id).status is AsyncJobStatus.IN_PROGRESS
        assert rig.job(id).locked_by == "other/1-zzzzzzzz"
        assert worker.statistics().totals.dropped == 1
    assert rig.log.count("job.finished") == 0


async def test_a_result_for_a_job_cancelled_meanwhile_is_dropped_and_the_row_let_go(
    rig: Rig,
) -> None:
    """The row is still held by the claim, and the sweep waits for it."""

    async def body(context: JobContext) -> JobOutput:
        await rig.cancel_unheard(context.job.id)
        return DONE

    async with rig.running(handler(body)):
        id = await rig.create()
        await rig.until(lambda: rig.job(id).locked_by is None and rig.log.count("job.not-ours", id))
        assert (rig.job(id).status, rig.job(id).output) == (CANCELLED, None)


async def test_a_release_that_fails_is_repeated_until_it_is_answered(rig: Rig) -> None:
    """A cancelled job's row is freed within moments of the storage's return."""
    runs = Runs()
    rig.provider.fail("release_job", times=3)
    async with rig.running(handler(runs)) as worker:
        id = await rig.create()
        await runs.begun.wait()
        await rig.cancel(id)
        await rig.until(lambda: rig.log.count("job.record-retried"))
        assert (worker.statistics().unwinding, worker.statistics().held) == ((), 1)
        await rig.until(lambda: rig.job(id).locked_by is None, HOUR)
    assert len(rig.provider.made("release_job", id)) == 4
    assert rig.log.count("job.record-retried", id) == 3


async def test_what_waits_to_be_recorded_is_repeated_when_notifications_flow_again(
    rig: Rig,
) -> None:
    """That is the first contact after an outage; the back-off has grown to 5 s by then."""
    runs = Runs(1)
    async with rig.running(handler(runs)):
        id = await rig.create()
        await runs.begun.wait()
        with rig.outage():
            await rig.until(lambda: len(rig.provider.made("finish_job")) == 9)
        await trio.sleep(1)
        assert rig.job(id).status is AsyncJobStatus.IN_PROGRESS
        asked = trio.current_time()
        rig.restore_watch()
        await rig.ended(id)
        assert trio.current_time() == pytest.approx(asked)


async def test_a_renewal_that_dies_while_a_result_is_recorded_takes_nobody_along(
    rig: Rig,
) -> None:
    """There is no handler to end; the next renewal comes a third later, and the result too."""
    runs = Runs(1)
    broken = rig.provider.fail("finish_job")
    rig.provider.kill_renewals(times=1)
    async with rig.running(handler(runs)):
        id = await rig.create()
        await trio.sleep(2 * THIRD + 1)
        assert rig.log.count("job.renewal-died", id) == 1
        assert rig.lease_left(id) == pytest.approx(LEASE - 1, abs=0.1)
        broken.remove()
        job = await rig.ended(id)
    assert (job.status, job.attempts, len(runs.started)) == (COMPLETED, 1, 1)


async def test_a_slot_stays_taken_until_the_result_is_recorded(rig: Rig) -> None:
    """Results that wait for the storage are bounded by the slots."""
    runs = Runs(1)
    broken = rig.provider.fail("finish_job")
    async with rig.running(handler(runs), max_concurrent_jobs=1) as worker:
        first, second = await rig.create_many(2)
        await trio.sleep(LEASE)
        assert (len(runs.started), worker.statistics().free) == (1, 0)
        broken.remove()
        await rig.ended(first)
        await rig.ended(second)


async def test_large_results_are_given_more_time(rig: Rig) -> None:
    """A second a MiB more than the 20 that four calls have: a slow network is no outage."""
    rig.provider.delay("finish_job", 22)
    job = await rig.outcome_of(returning(JobOutput.json("x" * 3 * 1024 * 1024)))
    assert job.status is COMPLETED
    assert len(rig.provider.made("finish_job")) == 1


async def test_results_that_come_together_are_recorded_together(rig: Rig) -> None:
    """Twenty jobs that end at once cost one call, or two where one was out already."""
    ids = await rig.create_many(20)
    async with rig.running(handler(Runs(1)), max_concurrent_jobs=20) as worker:
        await rig.until(lambda: worker.statistics().totals.completed == 20)
        assert worker.statistics().free == 20
    assert len(rig.provider.made("finish_jobs")) <= 2
    assert [len(rig.provider.made("finish_job", id)) for id in ids] == [1] * 20
    assert not await rig.memory.claim_jobs([KIND], JobLease("other", LEASE), 20)


@pytest.mark.parametrize("break_it", ["fail", "drop", "hang", "delay_answer"])
async def test_a_call_for_many_results_that_fails_loses_none(rig: Rig, break_it: str) -> None:
    """Each is then asked about alone; the lost answer of one that was recorded is recognised."""
    ids = await rig.create_many(5)
    if break_it == "delay_answer":
        rig.provider.delay_answer("finish_jobs", HOUR, times=1)
    else:
        getattr(rig.provider, break_it)("finish_jobs", times=1)
    async with rig.running(handler(Runs(1)), max_concurrent_jobs=5) as worker:
        await rig.until(lambda: worker.statistics().totals.completed == 5)
        assert worker.statistics().free == 5
    assert {rig.job(id).status for id in ids} == {COMPLETED}
    assert {rig.job(id).attempts for id in ids} == {1}
    assert [rig.log.count("job.finished", id) for id in ids] == [1] * 5
    assert worker.statistics().totals.dropped == 0


async def test_one_result_that_is_refused_holds_up_no_neighbour(rig: Rig) -> None:
    """The neighbours are recorded in the same call, the one fails alone."""
    ids = await rig.create_many(5)
    rig.provider.fail("finish_job", job=ids[2], times=1, error=UnstorableValue("no room"))
    async with rig.running(handler(Runs(1)), max_concurrent_jobs=5) as worker:
        await rig.until(lambda: worker.statistics().held == 0)
    statuses = [rig.job(id).status for id in ids]
    assert statuses == [COMPLETED, COMPLETED, AsyncJobStatus.FAILED, COMPLETED, COMPLETED]
    totals = worker.statistics().totals
    assert (totals.completed, totals.failed, totals.dropped) == (4, 1, 0)


async def test_the_last_progress_goes_with_results_that_are_recorded_together(rig: Rig) -> None:
    """It was reported just before the end, and no renewal carried it."""

    async def body(context: JobContext) -> JobOutput:
        context.report(f"at the end of {context.job.id}")
        return DONE

    ids = await rig.create_many(3)
    async with rig.running(handler(body), max_concurrent_jobs=3) as worker:
        await rig.until(lambda: worker.statistics().totals.completed == 3)
    assert [rig.job(id).progress for id in ids] == [f"at the end of {id}" for id in ids]


async def test_a_worker_that_gives_up_waits_no_longer_for_a_call_for_many(rig: Rig) -> None:
    """Each result is asked about alone once more, after the grace, and `run()` returns."""
    ids = await rig.create_many(3)
    rig.provider.hang("finish_jobs")
    async with rig.running(
        handler(Runs(1)), max_concurrent_jobs=3, drain_timeout=1, cancel_grace=2
    ) as worker:
        await rig.until(lambda: rig.provider.made("finish_jobs"))
        begun = trio.current_time()
        worker.stop()
        await rig.until(lambda: worker.statistics().held == 0)
        assert trio.current_time() - begun == pytest.approx(3, abs=0.1)
    assert {rig.job(id).status for id in ids} == {COMPLETED}


@pytest.mark.parametrize("wrong", ["killed", "short", "long"])
async def test_whatever_a_call_for_many_results_does_no_worker_ends_by_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """An error that is no Exception, or an answer that fits no question: each is asked alone."""

    async def finish_jobs(finishes: Sequence[JobFinish]) -> list[bool]:
        await trio.lowlevel.checkpoint()
        if wrong == "killed":
            raise RenewalKilled
        return [True] * (len(finishes) + (1 if wrong == "long" else -1))

    monkeypatch.setattr(rig.provider, "finish_jobs", finish_jobs)
    ids = await rig.create_many(3)
    async with rig.running(handler(Runs(1)), max_concurrent_jobs=3) as worker:
        await rig.until(lambda: worker.statistics().totals.completed == 3)
        assert (worker.statistics().held, worker.statistics().free) == (0, 3)
    assert {rig.job(id).status for id in ids} == {COMPLETED}
