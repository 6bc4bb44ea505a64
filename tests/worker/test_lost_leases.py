"""Handlers that outlive their lease: late, blocked, shielded, or raising while they unwind."""

from __future__ import annotations

import pytest
import trio

from hastetrio import AsyncJob, AsyncJobStatus, JobContext, JobOutput, OperationOutcomeError

from .harness import DEADLINE, DONE, HOUR, LEASE, THIRD, Rig, Runs, block, handler

COMPLETED, CANCELLED = AsyncJobStatus.COMPLETED, AsyncJobStatus.CANCELLED


async def swallow(seconds: float, context: JobContext) -> None:
    """Be cancelled, and go on for so long all the same."""
    try:
        await trio.sleep_forever()
    except trio.Cancelled:
        with trio.CancelScope(shield=True):
            await trio.sleep(seconds)


async def test_a_result_after_the_clients_cancel_is_dropped_as_late(rig: Rig) -> None:
    """The handler swallowed its cancellation; the log says for how long it went on."""

    async def body(context: JobContext) -> JobOutput:
        begun.set()
        await swallow(4, context)
        return DONE

    begun = trio.Event()
    async with rig.running(handler(body)):
        id = await rig.create()
        await begun.wait()
        await rig.cancel(id)
        await rig.until(lambda: rig.job(id).locked_by is None)
        assert (rig.job(id).status, rig.job(id).output) == (CANCELLED, None)
    (late,) = rig.log.fields("job.late", id)
    assert late["reason"] == "cancelled"
    assert late["elapsed"] == pytest.approx(4, abs=0.01)
    assert rig.log.count("job.dropped", id) == 1
    assert not rig.provider.made("finish_job", id)


async def test_a_result_after_the_lease_was_lost_to_another_worker_is_dropped(rig: Rig) -> None:
    """No finish and no release is sent: the row is somebody else's."""

    async def body(context: JobContext) -> JobOutput:
        rig.take_over(context.job.id)
        await swallow(2, context)
        return DONE

    async with rig.running(handler(body)):
        id = await rig.create()
        await rig.until(lambda: rig.log.count("job.dropped", id))
        assert rig.log.fields("job.late", id)[0]["reason"] == "lease-lost"
    assert not rig.provider.made("finish_job")
    assert not rig.provider.made("release_job")


async def test_a_result_after_the_deadline_is_not_recorded_and_the_job_is_handed_back(
    rig: Rig,
) -> None:
    """Another worker may have started by then; the attempt is given back."""

    async def body(context: JobContext) -> JobOutput:
        attempts.append(context.attempt)
        if len(attempts) == 1:
            await swallow(1, context)
            return JobOutput.json("late")
        return DONE

    attempts: list[int] = []
    broken = rig.provider.fail("renew_lease")
    async with rig.running(handler(body)):
        id = await rig.create()
        await rig.until(lambda: rig.log.count("job.late", id))
        broken.remove()
        job = await rig.ended(id)
    assert (job.output, attempts, job.hand_backs) == ("done", [1, 1], 1)
    assert rig.log.fields("job.handed-back", id)[0]["reason"] == "lease-lost"


async def test_a_lease_that_was_lost_stays_lost_for_its_body(rig: Rig) -> None:
    """A renewal granted afterwards protects the row; the handler was told to leave, and leaves."""

    async def body(context: JobContext) -> JobOutput:
        if runs:
            return DONE
        runs.append(context)
        await swallow(LEASE, context)
        seen.append((context.is_cancelled, str(context.cancel_reason)))
        return JobOutput.json("late")

    runs, seen = list[JobContext](), list[tuple[bool, str]]()
    broken = rig.provider.fail("renew_lease")
    async with rig.running(handler(body)) as worker:
        id = await rig.create()
        await rig.until(lambda: worker.statistics().unwinding)
        broken.remove()
        await rig.until(lambda: worker.statistics().totals.renewals)
        job = await rig.ended(id)
    assert seen == [(True, "lease-lost")]
    assert (job.output, job.hand_backs) == ("done", 1)


async def test_the_first_reason_stands(rig: Rig) -> None:
    """A job its client cancelled is not handed back because the worker stops meanwhile."""

    async def body(context: JobContext) -> JobOutput:
        begun.set()
        await swallow(5, context)
        reasons.append(str(context.cancel_reason))
        return DONE

    begun, reasons = trio.Event(), list[str]()
    async with rig.running(handler(body)) as worker:
        id = await rig.create()
        await begun.wait()
        await rig.cancel(id)
        await trio.sleep(1)
        worker.stop()
        worker.stop()
        await rig.left(worker)
    assert reasons == ["cancelled"]
    assert rig.log.fields("job.dropped", id)[0]["reason"] == "cancelled"
    assert rig.log.fields("job.late", id)[0]["elapsed"] == pytest.approx(5, abs=0.01)


async def test_a_handler_that_blocked_past_its_lease_is_not_recorded(rig: Rig) -> None:
    """It never met a checkpoint; its result is late all the same, and another run gives it."""

    async def body(context: JobContext) -> JobOutput:
        attempts.append(context.attempt)
        if len(attempts) == 1:
            block(LEASE + 10)
            return JobOutput.json("late")
        return DONE

    attempts: list[int] = []
    async with rig.running(handler(body)):
        id = await rig.create()
        job = await rig.ended(id)
    assert (job.output, len(attempts)) == ("done", 2)
    (late,) = rig.log.fields("job.late", id)
    assert late["elapsed"] == pytest.approx(LEASE + 10 - DEADLINE, abs=0.01)


async def test_a_blocked_handler_whose_job_was_taken_over_gives_no_second_result(
    rig: Rig,
) -> None:
    """The paused worker finds out from the fence, drops, and touches nothing."""

    async def body(context: JobContext) -> JobOutput:
        block(LEASE + 10)
        rig.take_over(context.job.id)
        await trio.sleep(1)
        return JobOutput.json("late")

    async with rig.running(handler(body)):
        id = await rig.create()
        await rig.until(lambda: rig.log.count("job.dropped", id))
        assert rig.job(id).locked_by == "other/1-zzzzzzzz"
        assert rig.job(id).hand_backs == 0


async def test_a_short_block_costs_nothing(rig: Rig) -> None:
    """One that ends before the deadline is a slow job like any other."""

    async def body(context: JobContext) -> JobOutput:
        block(DEADLINE - 1)
        await trio.sleep(LEASE)
        return DONE

    job = await rig.outcome_of(body)
    assert (job.status, job.attempts, job.hand_backs) == (COMPLETED, 1, 0)


async def test_a_neighbour_that_blocks_the_loop_loses_everybodys_lease_but_no_job(
    rig: Rig,
) -> None:
    """All are handed back and run again, each with one result."""
    blocked: list[bool] = []

    async def body(context: JobContext) -> JobOutput:
        if context.job.parameters == "block" and not blocked:
            blocked.append(True)
            await trio.sleep(1)
            block(LEASE + 1)
        await trio.sleep(3)
        return DONE

    async with rig.running(handler(body)):
        ids = [await rig.create(parameters=name) for name in ("one", "block", "two")]
        jobs = [await rig.ended(id) for id in ids]
    assert [job.status for job in jobs] == [COMPLETED] * 3
    assert [len(rig.provider.made("finish_job", id)) for id in ids] == [1, 1, 1]
    assert [job.hand_backs for job in jobs] == [1, 1, 1]


@pytest.mark.parametrize("reason", ["cancelled", "lease-lost"])
@pytest.mark.parametrize(
    "error", [ValueError("while unwinding"), OperationOutcomeError("value", "x")], ids=["any", "oo"]
)
async def test_an_error_raised_while_unwinding_is_logged_and_not_recorded(
    rig: Rig, reason: str, error: Exception
) -> None:
    """It leaves the handler's own nursery in a group with the cancellation, two deep."""

    async def body(context: JobContext) -> JobOutput:
        if len(begun) > 1:
            return DONE
        async with trio.open_nursery() as outer:
            outer.start_soon(trio.sleep_forever)
            async with trio.open_nursery() as inner:
                inner.start_soon(trio.sleep_forever)
                try:
                    begun[0].set()
                    await trio.sleep_forever()
                finally:
                    begun.append(trio.Event())
                    raise error

    begun = [trio.Event()]
    async with rig.running(handler(body)):
        id = await rig.create()
        await begun[0].wait()
        if reason == "cancelled":
            await rig.cancel(id)
            await rig.until(lambda: rig.job(id).locked_by is None)
            assert (rig.job(id).status, rig.job(id).error) == (CANCELLED, None)
        else:
            broken = rig.provider.fail("renew_lease")
            await rig.until(lambda: rig.log.count("job.handed-back", id))
            broken.remove()
            assert (await rig.ended(id)).status is COMPLETED
    (record,) = rig.log.of("job.raised", id)
    assert record.exc_info is not None
    assert repr(error) in repr(record.exc_info[1])
    assert rig.log.fields("job.late", id)[0]["reason"] == reason


async def test_renewals_go_on_while_a_cancelled_handler_unwinds(rig: Rig) -> None:
    """So no clean-up runs under a living body; it runs once the body has left."""
    running: list[str] = []

    async def body(context: JobContext) -> JobOutput:
        running.append("run")
        begun.set()
        await swallow(4 * LEASE, context)
        running.remove("run")
        return DONE

    async def expire(job: AsyncJob) -> None:
        together.append(list(running))

    begun, together = trio.Event(), list[list[str]]()
    async with rig.running(handler(body, expire=expire), maintenance_interval=5) as worker:
        id = await rig.create()
        await begun.wait()
        await rig.cancel(id)
        await trio.sleep(3 * LEASE)
        assert rig.lease_left(id) > 0
        assert worker.statistics().unwinding == (id,)
        await rig.removed(id)
    assert together == [[]]


async def test_no_clean_up_starts_under_a_late_body_whose_lease_was_lost(rig: Rig) -> None:
    """An outage took the lease, the job expired, and its body still runs in this process."""
    running: list[str] = []

    async def body(context: JobContext) -> JobOutput:
        running.append("run")
        begun.set()
        await swallow(10 * LEASE, context)
        running.remove("run")
        return DONE

    async def expire(job: AsyncJob) -> None:
        together.append(list(running))

    begun, together = trio.Event(), list[list[str]]()
    async with rig.running(handler(body, expire=expire), maintenance_interval=5):
        id = await rig.create(retention=THIRD)
        await begun.wait()
        rig.provider.fail("renew_lease")
        await rig.removed(id)
    assert together == [[]]


async def test_jobs_that_still_unwind_here_are_left_out_of_claims(rig: Rig) -> None:
    """Their lease lapsed in an outage; a second body beside the first would be ours alone."""

    async def body(context: JobContext) -> JobOutput:
        runs.append(context.attempt)
        if len(runs) == 1:
            await swallow(10 * LEASE, context)
        return DONE

    runs: list[int] = []
    outage = rig.provider.fail("renew_lease")
    async with rig.running(handler(body)) as worker:
        id = await rig.create()
        await rig.until(lambda: worker.statistics().unwinding)
        await trio.sleep(5 * LEASE)
        assert (len(runs), rig.provider.asked[-1][2]) == (1, [id])
        assert rig.lease_left(id) < 0
        outage.remove()
        job = await rig.ended(id)
    assert (job.status, len(runs)) == (COMPLETED, 2)


async def test_a_job_that_is_claimed_a_second_time_here_is_handed_back(rig: Rig) -> None:
    """The storage's clock jumped: the claim took a job whose body runs. There is never a second."""
    runs = Runs(2 * THIRD)
    async with rig.running(handler(runs)):
        id = await rig.create()
        await runs.begun.wait()
        rig.lapse(id)
        lapsed = trio.current_time()
        await rig.until(lambda: runs.reasons)
        assert runs.cancelled[0] - lapsed < 1.1  # at the next claim, not at the next renewal
        job = await rig.ended(id)
    assert (job.status, job.attempts, job.hand_backs) == (COMPLETED, 2, 1)
    assert (runs.reasons, len(runs.started), runs.most) == (["lease-lost"], 2, 1)


async def test_a_job_claimed_a_second_time_here_goes_to_nobody_while_its_first_body_is_here(
    rig: Rig,
) -> None:
    """The second claim keeps it from other workers until the first body has left."""
    runs = Runs(1)

    async def body(context: JobContext) -> JobOutput:
        if not runs.started:
            runs.running, runs.most = 1, 1
            runs.started.append(trio.current_time())
            await swallow(5, context)
            runs.running = 0
            return DONE
        return await runs(context)

    async with rig.running(handler(body)):
        id = await rig.create()
        await rig.until(lambda: runs.started)
        rig.lapse(id)
        await rig.until(lambda: rig.job(id).attempts == 2)
        async with rig.running(handler(body), worker_id="other"):
            job = await rig.ended(id)
    assert (job.status, len(runs.started), runs.most) == (COMPLETED, 2, 1)


async def test_a_job_lost_in_an_outage_is_handed_back_on_the_first_contact(rig: Rig) -> None:
    """Its attempt is given back: three outages do not make it abandoned."""
    runs = Runs(LEASE)
    # A sweep that comes between the storage's return and the hand-back may call it abandoned.
    async with rig.running(handler(runs), maintenance_interval=HOUR):
        id = await rig.create(max_attempts=1)
        for _ in range(3):
            await rig.until(lambda: runs.running)
            with rig.outage():
                await trio.sleep(2 * LEASE)
            await rig.until(lambda: rig.job(id).status is AsyncJobStatus.ACCEPTED)
        job = await rig.ended(id)
    assert (job.status, job.attempts, job.hand_backs) == (COMPLETED, 1, 3)
    assert (len(runs.started), runs.most) == (4, 1)


async def test_a_job_that_never_keeps_its_lease_ends_after_ten_hand_backs(rig: Rig) -> None:
    """Attempts given back are bounded, so that no job goes round for ever."""
    runs = Runs()
    rig.provider.fail("renew_lease")
    async with rig.running(handler(runs)):
        id = await rig.create(max_attempts=2)
        job = await rig.ended(id)
    assert job.status is AsyncJobStatus.FAILED
    assert (job.hand_backs, len(runs.started)) == (10, 12)
