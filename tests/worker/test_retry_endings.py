"""A wish to be run again beside a cancellation, and one that is hard to record."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import trio

from hastetrio import AsyncJobStatus, JobContext, RetryLater, Snooze, UnstorableValue

from .attempts import FLAT, Plan, Returned, asking, go_on, history, retrying
from .harness import DEADLINE, HOUR, LEASE, Rig, Runs, handler, issues

COMPLETED, CANCELLED = AsyncJobStatus.COMPLETED, AsyncJobStatus.CANCELLED
WISHES: list[Callable[[], RetryLater | Snooze]] = [lambda: RetryLater(5), lambda: Snooze(5)]


class Late:
    """A body that asks to be run again only after it was cancelled."""

    def __init__(self, how: str, wish: RetryLater | Snooze) -> None:
        self.begun = trio.Event()
        self.starts = 0
        self._step = asking(how, wish)

    async def __call__(self, context: JobContext) -> object:
        """Wait for the cancellation, once."""
        self.starts += 1
        self.begun.set()
        if self.starts == 1:
            await go_on(1)
        if isinstance(self._step, Returned):
            return self._step.value
        raise self._step


@pytest.fixture(params=["raised", "returned"])
def how(request: pytest.FixtureRequest) -> str:
    """How the handler asks."""
    return str(request.param)


@pytest.fixture(params=WISHES, ids=["retry", "snooze"])
def wish(request: pytest.FixtureRequest) -> RetryLater | Snooze:
    """What it asks for."""
    made: RetryLater | Snooze = request.param()
    return made


async def test_a_wish_after_the_clients_cancel_is_dropped(
    rig: Rig, how: str, wish: RetryLater | Snooze
) -> None:
    """The job is over: it is let go, and not queued again."""
    body = Late(how, wish)
    async with rig.running(retrying(body)) as worker:
        id = await rig.create()
        await body.begun.wait()
        await rig.cancel(id)
        await rig.until(lambda: rig.job(id).locked_by is None)
        totals = worker.statistics().totals
    assert (rig.job(id).status, body.starts) == (CANCELLED, 1)
    assert (totals.dropped, totals.retried, totals.snoozed) == (1, 0, 0)
    assert not rig.provider.made("reschedule_job")
    assert rig.log.fields("job.dropped")[0]["reason"] == "cancelled"


async def test_a_wish_after_the_job_expired_is_dropped(
    rig: Rig, how: str, wish: RetryLater | Snooze
) -> None:
    """Its time is over, and no retry prolongs it."""
    body = Late(how, wish)
    async with rig.running(retrying(body), maintenance_interval=HOUR):
        id = await rig.create(retention=15)
        await rig.until(lambda: rig.log.count("job.dropped"))
        await rig.until(lambda: rig.job(id).locked_by is None)
    assert rig.log.fields("job.dropped")[0]["reason"] == "expired"
    assert not rig.provider.made("reschedule_job")


async def test_a_wish_after_another_worker_took_the_job_is_dropped(
    rig: Rig, how: str, wish: RetryLater | Snooze
) -> None:
    """The row is not touched: it is somebody else's."""
    body = Late(how, wish)
    async with rig.running(retrying(body)) as worker:
        id = await rig.create()
        await body.begun.wait()
        rig.take_over(id)
        await rig.until(lambda: rig.log.count("job.dropped"))
        totals = worker.statistics().totals
    assert rig.job(id).locked_by == "other/1-zzzzzzzz"
    assert not rig.provider.made("reschedule_job")
    assert not rig.provider.made("release_job")
    assert (totals.dropped, totals.retried, totals.snoozed) == (1, 0, 0)


async def test_a_wish_after_the_deadline_hands_the_job_back(
    rig: Rig, how: str, wish: RetryLater | Snooze
) -> None:
    """A lease that lapsed here counts as lost, whatever the handler says; the attempt is free."""
    body = Late(how, wish)
    broken = rig.provider.fail("renew_lease")
    async with rig.running(retrying(body)):
        id = await rig.create()
        await rig.until(lambda: rig.log.count("job.handed-back"))
        broken.remove()
        assert (rig.job(id).hand_backs, rig.job(id).attempt_errors) == (1, None)
    assert rig.log.fields("job.handed-back")[0]["reason"] == "lease-lost"
    assert not rig.provider.made("reschedule_job")


async def test_a_wish_returned_after_a_shutdowns_cancel_counts(
    rig: Rig, wish: RetryLater | Snooze
) -> None:
    """The lease is still ours, and the handler says when to go on: as with a result."""
    body = Late("returned", wish)
    async with rig.running(retrying(body), drain_timeout=1) as worker:
        id = await rig.create()
        await body.begun.wait()
        worker.stop()
        await rig.left(worker)
        totals = worker.statistics().totals
    job = rig.job(id)
    assert (job.status, job.hand_backs) == (AsyncJobStatus.ACCEPTED, 0)
    assert (job.run_at - job.updated_at).total_seconds() == pytest.approx(5)
    assert totals.retried + totals.snoozed == 1
    assert (totals.handed_back, totals.dropped) == (0, 0)


async def test_a_wish_raised_after_a_shutdowns_cancel_is_one_more_error_of_unwinding(
    rig: Rig, wish: RetryLater | Snooze
) -> None:
    """The job is handed back with its attempt, as after any error then."""
    body = Late("raised", wish)
    async with rig.running(retrying(body), drain_timeout=1) as worker:
        id = await rig.create()
        await body.begun.wait()
        worker.stop()
        await rig.left(worker)
    job = rig.job(id)
    assert (job.status, job.attempts, job.hand_backs) == (AsyncJobStatus.ACCEPTED, 0, 1)
    assert job.run_at <= job.updated_at


async def test_a_wish_for_a_job_taken_over_meanwhile_is_refused_by_the_fence(rig: Rig) -> None:
    """Nothing was known of it here; the other worker's claim stays as it is."""

    async def body(context: JobContext) -> object:
        rig.take_over(context.job.id)
        return RetryLater(5)

    async with rig.running(retrying(body)) as worker:
        id = await rig.create()
        await rig.until(lambda: rig.log.count("job.not-ours", id))
        totals = worker.statistics().totals
    assert rig.job(id).locked_by == "other/1-zzzzzzzz"
    assert (totals.dropped, totals.retried) == (1, 0)
    assert rig.log.count("job.retried") == 0


async def test_a_wish_for_a_job_cancelled_meanwhile_lets_the_row_go(rig: Rig) -> None:
    """The cancel was not heard of yet: the fence refuses, and the sweep must not wait."""

    async def body(context: JobContext) -> object:
        await rig.cancel_unheard(context.job.id)
        raise ConnectionError

    async with rig.running(retrying(body, FLAT)):
        id = await rig.create()
        await rig.until(lambda: rig.job(id).locked_by is None and rig.log.count("job.not-ours", id))
    assert (rig.job(id).status, rig.job(id).attempt_errors) == (CANCELLED, None)


async def test_a_wish_is_recorded_after_an_outage_however_long(rig: Rig) -> None:
    """The row goes on being renewed until it was answered; no other attempt begins before."""
    plan = Plan(RetryLater(5, "busy"))
    broken = rig.provider.fail("reschedule_job")
    async with rig.running(retrying(plan)) as worker:
        id = await rig.create()
        await trio.sleep(3 * LEASE)
        assert rig.lease_left(id) > 0
        assert worker.statistics().held == 1
        broken.remove()
        job = await rig.ended(id)
        assert worker.statistics().totals.retried == 1
    assert (job.status, job.attempts, history(job)) == (COMPLETED, 2, [(1, ["busy"])])
    assert rig.log.count("job.record-retried", id) > 5


@pytest.mark.parametrize("wish", [RetryLater(0, "busy"), RetryLater(5, "busy"), Snooze(5)], ids=str)
@pytest.mark.parametrize("lose", ["drop", "delay_answer"])
async def test_a_wish_whose_answer_was_lost_is_recognised(
    rig: Rig, wish: RetryLater | Snooze, lose: str
) -> None:
    """It is in the history once, costs what it costs once, and nothing is called dropped."""
    if lose == "drop":
        rig.provider.drop("reschedule_job", times=2)
    else:
        rig.provider.delay_answer("reschedule_job", HOUR, times=1)
    plan = Plan(wish)
    async with rig.running(retrying(plan)) as worker:
        id = await rig.create()
        job = await rig.ended(id)
        await rig.until(lambda: worker.statistics().held == 0)
        totals = worker.statistics().totals
    assert (job.status, len(plan.started)) == (COMPLETED, 2)
    assert (totals.retried + totals.snoozed, totals.dropped, totals.unrecorded) == (1, 0, 0)
    assert history(job) == ([] if isinstance(wish, Snooze) else [(1, ["busy"])])
    assert job.attempts == (1 if isinstance(wish, Snooze) else 2)
    assert rig.log.count("job.not-ours") == 0


async def test_a_wish_that_never_is_answered_is_repeated(rig: Rig) -> None:
    """Each try has a budget."""
    rig.provider.hang("reschedule_job", times=2)
    async with rig.running(retrying(Plan(Snooze(5)))):
        job = await rig.ended(await rig.create())
    assert (job.status, job.attempts) == (COMPLETED, 1)
    assert len(rig.provider.made("reschedule_job")) == 3


async def test_a_job_whose_every_wish_is_refused_is_let_go_and_ends_no_worker(rig: Rig) -> None:
    """Its attempts count, so that it ends as abandoned and not in a circle."""
    rig.provider.fail("reschedule_job", error=UnstorableValue("never"))
    async with rig.running(
        retrying(Plan(*[RetryLater(1)] * 9)), handler(Runs(1), "other")
    ) as worker:
        id = await rig.create(max_attempts=2)
        job = await rig.ended(id)
        await rig.until(lambda: worker.statistics().held == 0)
        assert worker.statistics().free == 4
        assert (await rig.ended(await rig.create("other"))).status is COMPLETED
    assert job.attempts == 2
    assert issues(job)[0][1] == "transient"


async def test_a_worker_that_gives_up_leaves_the_wish_to_the_lease(rig: Rig) -> None:
    """`run()` returns within the grace, and the count says that it is not known how it ended."""
    rig.provider.hang("reschedule_job")
    async with rig.running(
        retrying(Plan(RetryLater(5))), drain_timeout=1, cancel_grace=2
    ) as worker:
        id = await rig.create()
        await rig.until(lambda: rig.provider.made("reschedule_job"))
        worker.stop()
        begun = trio.current_time()
        await rig.left(worker)
        assert trio.current_time() - begun < DEADLINE
        totals = worker.statistics().totals
    assert (totals.retried, totals.unrecorded) == (0, 1)
    assert rig.job(id).status is AsyncJobStatus.IN_PROGRESS


async def test_an_interrupted_storage_does_not_lose_the_time_of_a_retry(rig: Rig) -> None:
    """The wait counts from when it was recorded."""
    plan = Plan(RetryLater(50))
    rig.provider.fail("reschedule_job", times=4)
    async with rig.running(retrying(plan)):
        id = await rig.create()
        await rig.until(lambda: rig.log.count("job.retried"))
        left = rig.job(id).run_at - rig.memory._now()
        assert left == pytest.approx(timedelta(seconds=50), abs=timedelta(seconds=0.1))
        await rig.ended(id)
