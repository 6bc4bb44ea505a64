"""Guards of side effects: what a handler can know of its lease, and how it is told of its loss."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from hastetrio import AsyncJobStatus, CancelReason, HastetrioError, JobContext, JobOutput, LeaseLost
from hastetrio.testing import silence_renewals

from .attempts import go_on
from .harness import DEADLINE, DONE, HOUR, LEASE, Rig, block, handler

Lose = Callable[[Rig, str], None]


def expire(rig: Rig, id: str) -> None:
    """Let the job's time pass."""
    rig.memory._table.rows[id].expires_at = rig.memory._now()


async def test_a_lease_that_is_held_is_confirmed_and_checked(rig: Rig) -> None:
    """Neither says anything; asking the storage renews the lease, so that the deadline moves."""

    async def body(context: JobContext) -> JobOutput:
        context.check_lease()
        before = context.lease_deadline
        await trio.sleep(4)
        assert context.lease_deadline == before
        await context.confirm_lease()
        context.check_lease()
        moved.append(context.lease_deadline - before)
        left.append(rig.lease_left(context.job.id))
        return DONE

    moved: list[float] = []
    left: list[float] = []
    job = await rig.outcome_of(body)
    assert job.status is AsyncJobStatus.COMPLETED
    assert moved == [pytest.approx(4, abs=0.01)]
    assert left == [pytest.approx(LEASE, abs=0.01)]
    assert len(rig.provider.made("renew_lease")) == 1


async def test_progress_goes_with_a_confirmation(rig: Rig) -> None:
    """It is a renewal."""

    async def body(context: JobContext) -> JobOutput:
        context.report("about to pay")
        await context.confirm_lease()
        return JobOutput.json(rig.job(context.job.id).progress)

    assert (await rig.outcome_of(body)).output == "about to pay"


@pytest.mark.parametrize(
    ("lose", "reason"),
    [(expire, "expired"), (Rig.take_over, "lease-lost"), (None, "cancelled")],
    ids=["expired", "taken", "cancelled"],
)
async def test_a_loss_that_nobody_heard_of_is_found_out_by_asking(
    rig: Rig, lose: Lose | None, reason: str
) -> None:
    """By the local clock all is well; the storage knows better, and the scope is cancelled."""

    async def body(context: JobContext) -> JobOutput:
        if lose is None:
            await rig.cancel_unheard(context.job.id)
        else:
            lose(rig, context.job.id)
        context.check_lease()
        try:
            await context.confirm_lease()
        except LeaseLost as error:
            told.append(str(error))
        with pytest.raises(LeaseLost):
            context.check_lease()
        reasons.append(context.cancel_reason)
        await trio.sleep_forever()

    told: list[str] = []
    reasons: list[CancelReason | None] = []
    async with rig.running(handler(body), maintenance_interval=HOUR):
        await rig.create()
        await rig.until(lambda: rig.log.count("job.dropped"))
        assert trio.current_time() < 1
    assert told == [f"the job is no longer to be run here: {reason}"]
    assert reasons == [CancelReason(reason)]
    assert rig.log.fields("job.dropped")[0]["reason"] == reason


async def test_a_handler_that_lets_the_loss_through_is_dropped_without_a_result(rig: Rig) -> None:
    """`LeaseLost` is an error of this package's, and no failure of the job's."""

    async def body(context: JobContext) -> JobOutput:
        rig.take_over(context.job.id)
        await context.confirm_lease()
        return DONE

    async with rig.running(handler(body)) as worker:
        id = await rig.create()
        await rig.until(lambda: rig.log.count("job.dropped"))
        assert worker.statistics().totals.failed == 0
    assert rig.job(id).error is None
    assert not rig.provider.made("finish_job")
    assert not rig.provider.made("release_job")
    assert issubclass(LeaseLost, HastetrioError)
    # Nobody is paged for what the handler was told to let through.
    assert rig.log.count("job.raised") == 0


@pytest.mark.parametrize("reason", CancelReason)
async def test_after_a_cancellation_both_guards_say_why(rig: Rig, reason: CancelReason) -> None:
    """Also to a handler that goes on; nothing is asked any more."""

    async def body(context: JobContext) -> JobOutput:
        if told:
            return DONE
        begun.set()
        await go_on(0)
        asked = len(rig.provider.made("renew_lease"))
        with trio.CancelScope(shield=True):
            for guard in (context.check_lease, context.confirm_lease):
                try:
                    answer = guard()
                    if answer is not None:
                        await answer
                except LeaseLost as error:
                    told.append(str(error))
        assert len(rig.provider.made("renew_lease")) == asked
        raise OSError("late")

    told: list[str] = []
    begun = trio.Event()
    async with rig.running(handler(body), drain_timeout=1, maintenance_interval=HOUR) as worker:
        id = await rig.create(retention=15 if reason is CancelReason.EXPIRED else HOUR)
        await begun.wait()
        if reason is CancelReason.CANCELLED:
            await rig.cancel(id)
        elif reason is CancelReason.LEASE_LOST:
            rig.take_over(id)
        elif reason is CancelReason.SHUTDOWN:
            worker.stop()
        await rig.until(lambda: len(told) == 2)
    assert told == [f"the job is no longer to be run here: {reason}"] * 2


async def test_a_deadline_that_passed_while_the_loop_was_blocked_is_noticed_by_both(
    rig: Rig,
) -> None:
    """By the clock, before any task could say so; an answer that comes now proves nothing."""

    async def body(context: JobContext) -> JobOutput:
        if told:
            return DONE
        block(LEASE)
        for guard in (context.check_lease, context.confirm_lease):
            try:
                answer = guard()
                if answer is not None:
                    with trio.CancelScope(shield=True):
                        await answer
            except LeaseLost as error:
                told.append(str(error))
        return DONE

    told: list[str] = []
    async with rig.running(handler(body)):
        job = await rig.ended(await rig.create())
    assert told == ["the job is no longer to be run here: lease-lost"] * 2
    assert job.hand_backs == 1


@pytest.mark.parametrize("fault", ["fail", "drop", "hang"])
async def test_a_storage_that_is_away_for_a_while_is_asked_until_it_answers(
    rig: Rig, fault: str
) -> None:
    """Nothing is known before."""

    async def body(context: JobContext) -> JobOutput:
        await context.confirm_lease()
        return DONE

    getattr(rig.provider, fault)("renew_lease", times=2)
    job = await rig.outcome_of(body)
    assert job.status is AsyncJobStatus.COMPLETED
    assert len(rig.provider.made("renew_lease", job.id)) >= 3
    assert rig.log.count("job.renew-failed", job.id) == 2


async def test_a_storage_that_stays_away_ends_the_asking_with_the_lease(rig: Rig) -> None:
    """The handler is cancelled at its deadline, without an answer."""

    async def body(context: JobContext) -> JobOutput:
        if context.job.hand_backs:
            return DONE
        try:
            await context.confirm_lease()
        finally:
            ended.append((trio.current_time(), context.cancel_reason))
        return DONE

    ended: list[tuple[float, CancelReason | None]] = []
    broken = rig.provider.fail("renew_lease")
    async with rig.running(handler(body)):
        id = await rig.create()
        await rig.until(lambda: rig.log.count("job.handed-back"))
        broken.remove()
        await rig.ended(id)
    ((when, why),) = ended
    assert when == pytest.approx(DEADLINE, abs=0.1)
    assert why is CancelReason.LEASE_LOST


async def test_of_a_silenced_job_no_answer_is_believed(rig: Rig) -> None:
    """What a chaos test took away, a confirmation does not bring back."""

    async def body(context: JobContext) -> JobOutput:
        if told:
            return DONE
        silence_renewals(workers[0], job=context.job.id)
        try:
            await context.confirm_lease()
        except LeaseLost as error:
            told.append(str(error))
            raise
        return DONE

    told: list[str] = []
    workers = []
    async with rig.running(handler(body)) as worker:
        workers.append(worker)
        await rig.create()
        await rig.until(lambda: rig.log.count("job.handed-back"))
    assert told == ["the job is no longer to be run here: lease-lost"]


async def test_confirming_is_a_checkpoint(rig: Rig) -> None:
    """A loop of nothing but confirmations can be cancelled."""

    async def body(context: JobContext) -> JobOutput:
        with trio.CancelScope() as scope:
            scope.cancel()
            await context.confirm_lease()
        return JobOutput.json(scope.cancelled_caught)

    assert (await rig.outcome_of(body)).output is True
    assert not rig.provider.made("renew_lease")


async def test_several_tasks_of_a_handler_may_ask_at_once(rig: Rig) -> None:
    """Also while a renewal is under way."""

    async def body(context: JobContext) -> JobOutput:
        await trio.sleep(LEASE / 3 - 1)
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(context.confirm_lease)
        return DONE

    rig.provider.delay_answer("renew_lease", 3)
    assert (await rig.outcome_of(body)).status is AsyncJobStatus.COMPLETED
