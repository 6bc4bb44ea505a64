"""Not yet: a job that is put off costs no attempt, and is no failure."""

from __future__ import annotations

import pytest
import trio

from hastetrio import AsyncJobStatus, JobContext, JobOutput, RetryLater, RetryPolicy, Snooze

from .attempts import FLAT, Plan, Returned, asking, history, in_time, retrying
from .harness import DAY, DONE, HOUR, Rig, gaps, handler, issues

ACCEPTED, COMPLETED = AsyncJobStatus.ACCEPTED, AsyncJobStatus.COMPLETED


@pytest.mark.parametrize("how", ["raised", "returned"])
@pytest.mark.parametrize("seconds", [0.5, 90])
async def test_a_snoozed_job_is_run_again_at_the_time_its_handler_named(
    rig: Rig, how: str, seconds: float
) -> None:
    """Meanwhile it is queued, free, and of no attempt."""
    plan = Plan(asking(how, Snooze(seconds)))
    async with rig.running(retrying(plan)) as worker:
        id = await rig.create()
        await rig.until(lambda: rig.log.count("job.snoozed"))
        job = rig.job(id)
        assert (job.status, job.locked_by, job.attempts) == (ACCEPTED, None, 0)
        assert (job.attempt_errors, job.hand_backs) == (None, 0)
        assert worker.statistics().free == 4
        job = await rig.ended(id)
        totals = worker.statistics().totals
    (waited,) = gaps(plan.started)
    assert in_time(waited, seconds)
    assert (job.status, job.attempts, plan.attempts) == (COMPLETED, 1, [1, 1])
    assert (totals.snoozed, totals.retried, totals.failed, totals.handed_back) == (1, 0, 0, 0)
    (fields,) = rig.log.fields("job.snoozed", id)
    assert (fields["after"], fields["attempt"]) == (seconds, 1)
    assert rig.log.count("job.raised") == 0


async def test_the_worker_that_put_a_job_off_waits_for_no_poll(rig: Rig) -> None:
    """Not the first time and not the next ones, in whatever order the jobs become due."""
    first, second = Plan(Snooze(60), Snooze(90), Snooze(30)), Plan(Snooze(100), Snooze(5))
    async with rig.running(retrying(first), poll_interval=DAY):
        job = await rig.ended(await rig.create())
    async with rig.running(retrying(second), poll_interval=DAY):
        await rig.ended(await rig.create())
    assert job.status is COMPLETED
    assert gaps(first.started) == pytest.approx([60, 90, 30], abs=0.1)
    assert gaps(second.started) == pytest.approx([100, 5], abs=0.1)


async def test_jobs_put_off_together_are_each_run_in_time(rig: Rig) -> None:
    """A shorter wait that begins later is not overslept."""
    plans = {"long": Plan(Snooze(300)), "short": Plan(Snooze(20), Snooze(20))}

    async def body(context: JobContext) -> JobOutput:
        output: JobOutput = await plans[context.job.parameters](context)
        return output

    async with rig.running(handler(body), poll_interval=DAY):
        ids = [await rig.create(parameters=name) for name in plans]
        for id in ids:
            await rig.ended(id)
    assert gaps(plans["long"].started) == pytest.approx([300], abs=0.1)
    assert gaps(plans["short"].started) == pytest.approx([20, 20], abs=0.1)


@pytest.mark.parametrize("most", [1, 3])
async def test_a_job_may_be_put_off_again_and_again(rig: Rig, most: int) -> None:
    """Also on its last attempt: far more often than it may fail, or be handed back."""
    plan = Plan(*[Snooze(60)] * 50)
    async with rig.running(retrying(plan), poll_interval=30) as worker:
        job = await rig.ended(await rig.create(max_attempts=most))
        totals = worker.statistics().totals
    assert (job.status, job.attempts, job.hand_backs) == (COMPLETED, 1, 0)
    assert plan.attempts == [1] * 51
    assert (totals.snoozed, totals.dropped, totals.failed) == (50, 0, 0)


async def test_snoozes_and_failures_are_counted_apart(rig: Rig) -> None:
    """The number of an attempt comes back after a snooze; what failed is in the history."""
    plan = Plan(RetryLater(1, "a"), Snooze(1), ConnectionError("b"), Snooze(1), Snooze(1))
    async with rig.running(retrying(plan, FLAT)) as worker:
        job = await rig.ended(await rig.create(max_attempts=3))
        totals = worker.statistics().totals
    assert plan.attempts == [1, 2, 2, 3, 3, 3]
    assert (job.status, job.attempts) == (COMPLETED, 3)
    assert history(job) == [(1, ["a"]), (2, ["ConnectionError: b"])]
    assert (totals.retried, totals.snoozed) == (2, 3)


async def test_after_a_snooze_on_the_last_attempt_an_error_fails_the_job(rig: Rig) -> None:
    """It was put off, and not given one attempt more."""
    plan = Plan(Snooze(1), RetryLater(1, "busy"))
    async with rig.running(retrying(plan)):
        job = await rig.ended(await rig.create(max_attempts=1))
    text = "The job was given up after 1 attempts: busy"
    assert issues(job) == [("error", "transient", text)]


async def test_a_policy_for_every_error_makes_no_failure_of_a_snooze(rig: Rig) -> None:
    """It is an exception only so that it can be raised from deep inside."""
    plan = Plan(Snooze(7))
    async with rig.running(retrying(plan, RetryPolicy(attempts=2, first=500, on=(Exception,)))):
        job = await rig.ended(await rig.create())
    assert (job.status, job.attempts) == (COMPLETED, 1)
    assert in_time(gaps(plan.started)[0], 7)


async def test_a_snooze_from_within_a_nursery_counts(rig: Rig) -> None:
    """The nursery wraps it in a group of one."""

    async def body(context: JobContext) -> object:
        async def look() -> None:
            runs.append(trio.current_time())
            if len(runs) == 1:
                raise Snooze(20)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
        return DONE

    runs: list[float] = []
    async with rig.running(retrying(body)):
        job = await rig.ended(await rig.create())
    assert (job.status, job.attempts) == (COMPLETED, 1)
    assert in_time(gaps(runs)[0], 20)


async def test_a_snooze_beside_an_error_is_an_error(rig: Rig) -> None:
    """Something went wrong; that the other child would wait does not mend it."""
    group = ExceptionGroup("both", [Snooze(5), ValueError("odd")])
    async with rig.running(retrying(Plan(group))):
        job = await rig.ended(await rig.create())
    assert (issues(job)[0][1], job.attempts) == ("exception", 1)


async def test_a_snoozed_job_does_not_expire_while_it_waits(rig: Rig) -> None:
    """Its time counts from when it is to run again."""
    async with rig.running(retrying(Plan(Snooze(DAY))), poll_interval=HOUR):
        id = await rig.create(retention=60)
        await rig.until(lambda: not rig.job(id).status.is_live, 2 * DAY)
        assert rig.job(id).status is COMPLETED


async def test_a_snoozed_job_can_be_cancelled(rig: Rig) -> None:
    """It is never run again."""
    plan = Plan(Snooze(100))
    async with rig.running(retrying(plan), poll_interval=30):
        id = await rig.create()
        await rig.until(lambda: rig.log.count("job.snoozed"))
        await rig.cancel(id)
        await trio.sleep(1000)
    assert plan.attempts == [1]


async def test_progress_and_state_go_with_a_snooze(rig: Rig) -> None:
    """The next run finds what this one saved, and the client reads what it said."""

    async def body(context: JobContext) -> object:
        if context.state is None:
            await context.save_state({"polled": 1})
            context.report("waiting for the lab")
            return Snooze(30)
        states.append(context.state)
        return DONE

    states: list[object] = []
    async with rig.running(retrying(body)):
        id = await rig.create()
        await rig.until(lambda: rig.log.count("job.snoozed"))
        assert rig.job(id).progress == "waiting for the lab"
        await rig.ended(id)
    assert states == [{"polled": 1}]


async def test_the_class_of_a_wish_is_no_wish(rig: Rig) -> None:
    """`return Snooze` without seconds is a mistake, and told as one."""
    async with rig.running(retrying(Plan(Returned(Snooze)))):
        job = await rig.ended(await rig.create())
    assert issues(job)[0][1] == "processing"
