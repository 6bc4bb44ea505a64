"""Timeouts: a run that takes too long is cancelled, and its job fails with code timeout."""

from __future__ import annotations

import pytest
import trio

from hastetrio import (
    AsyncJob,
    AsyncJobStatus,
    JobContext,
    JobTimeout,
    OperationOutcomeError,
    RetryLater,
    RetryPolicy,
)

from .attempts import go_on, history, in_time, retrying
from .harness import DEADLINE, DONE, LEASE, Rig, Runs, block, gaps, handler, issues, sleeping

COMPLETED, CANCELLED = AsyncJobStatus.COMPLETED, AsyncJobStatus.CANCELLED


def outcome(seconds: str) -> tuple[str, str, str]:
    """The issue of a job that was stopped after so many seconds."""
    return ("error", "timeout", f"The job was stopped: it may run for {seconds} s at a time.")


async def timed(rig: Rig, body: object, timeout: float) -> AsyncJob:
    """Run one job of a handler with a timeout to its end."""
    async with rig.running(retrying(body, timeout=timeout)):
        return await rig.ended(await rig.create())


@pytest.mark.parametrize("timeout", [0.25, 5, 200])
async def test_a_run_that_takes_too_long_is_stopped_and_fails_with_code_timeout(
    rig: Rig, timeout: float
) -> None:
    """Shorter than a lease, or longer: the lease is renewed, and the timeout is not."""
    runs = Runs()
    job = await timed(rig, runs, timeout)
    assert issues(job) == [outcome(f"{timeout:g}")]
    assert runs.cancelled[0] - runs.started[0] == pytest.approx(timeout, abs=0.01)
    assert (job.attempts, runs.reasons) == (1, ["None"])
    assert history(job) == [(1, [f"JobTimeout: timeout: {outcome(f'{timeout:g}')[2]}"])]
    (fields,) = rig.log.fields("job.timed-out", job.id)
    assert fields["timeout"] == timeout
    assert rig.log.count("job.late") == rig.log.count("job.raised") == 0


async def test_a_run_that_ends_in_time_knows_nothing_of_it(rig: Rig) -> None:
    """At the last moment too."""
    job = await timed(rig, sleeping(9.99), 10)
    assert (job.status, job.attempt_errors) == (COMPLETED, None)


async def test_each_run_has_its_whole_time(rig: Rig) -> None:
    """Neither the wait in the queue nor an attempt before counts."""

    async def body(context: JobContext) -> object:
        await trio.sleep(8)
        return DONE if context.attempt == 3 else RetryLater(20)

    async with rig.running(retrying(body, timeout=10), max_concurrent_jobs=1):
        first, second = await rig.create(), await rig.create()
        assert (await rig.ended(first)).status is COMPLETED
        assert (await rig.ended(second)).status is COMPLETED


@pytest.mark.parametrize(
    "on", [(Exception,), (OSError, TimeoutError, trio.TooSlowError)], ids=["all", "alike"]
)
async def test_a_timeout_is_not_tried_again_by_a_policy_that_does_not_name_it(
    rig: Rig, on: tuple[type[Exception], ...]
) -> None:
    """Most of what takes too long once takes too long again."""
    runs = Runs()
    async with rig.running(retrying(runs, RetryPolicy(on=on), timeout=5)):
        job = await rig.ended(await rig.create())
    assert (issues(job), job.attempts) == ([outcome("5")], 1)


async def test_a_timeout_that_a_policy_names_is_tried_again(rig: Rig) -> None:
    """With its own wait; when the attempts are spent the job fails with code timeout."""
    runs = Runs()
    retries = RetryPolicy(attempts=2, first=20, jitter=0, on=(JobTimeout,))
    async with rig.running(retrying(runs, retries, timeout=5)) as worker:
        job = await rig.ended(await rig.create())
        assert worker.statistics().totals.retried == 1
    assert (issues(job), job.attempts) == ([outcome("5")], 2)
    assert in_time(gaps(runs.started)[0], 25)
    assert rig.log.count("job.timed-out") == 1
    assert rig.log.fields("job.retried")[0]["error"].startswith("JobTimeout: timeout")


@pytest.mark.parametrize(
    "error",
    [OSError("disk"), OperationOutcomeError("value", "odd"), ExceptionGroup("g", [OSError()])],
    ids=lambda error: type(error).__name__,
)
async def test_what_a_handler_raises_while_it_unwinds_from_its_timeout_is_no_other_end(
    rig: Rig, error: Exception
) -> None:
    """A connection that breaks because it was cut is no reason; the log has it whole."""

    async def body(context: JobContext) -> object:
        try:
            await trio.sleep_forever()
        finally:
            raise error

    job = await timed(rig, body, 5)
    assert issues(job) == [outcome("5")]
    (record,) = rig.log.of("job.timed-out", job.id)
    assert record.exc_info is not None
    assert repr(record.exc_info[1]) == repr(error)


async def test_an_error_before_the_timeout_is_its_own_end(rig: Rig) -> None:
    """Only from the timeout on it counts."""

    async def body(context: JobContext) -> object:
        await trio.sleep(4.9)
        raise OperationOutcomeError("value", "odd")

    assert issues(await timed(rig, body, 5)) == [("error", "value", "odd")]


async def test_a_timeout_within_a_nursery_of_the_handlers_is_one_issue(rig: Rig) -> None:
    """All its children are cancelled together."""

    async def body(context: JobContext) -> object:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(trio.sleep_forever)
        return DONE

    assert issues(await timed(rig, body, 5)) == [outcome("5")]


async def test_a_timeout_of_the_handlers_own_is_its_own(rig: Rig) -> None:
    """`trio.fail_after` inside of a handler raises an error like any other."""

    async def body(context: JobContext) -> object:
        with trio.fail_after(3):
            await trio.sleep_forever()

    job = await timed(rig, body, 5)
    assert issues(job)[0][1] == "exception"
    assert rig.log.count("job.timed-out") == 0


async def test_a_result_returned_after_the_timeout_counts(rig: Rig) -> None:
    """The lease is held, so what the handler brings home all the same is not thrown away."""

    async def late(context: JobContext) -> object:
        return await go_on(2)

    job = await timed(rig, late, 5)
    assert (job.status, job.output) == (COMPLETED, "done")
    assert rig.log.count("job.timed-out") == 0


async def test_a_handler_that_does_not_leave_is_waited_for_under_its_lease(rig: Rig) -> None:
    """A timeout frees no slot before the handler has left; the row stays this claim's."""

    async def body(context: JobContext) -> object:
        await go_on(3 * LEASE)
        raise trio.TooSlowError

    async with rig.running(retrying(body, timeout=5)) as worker:
        id = await rig.create()
        await trio.sleep(2 * LEASE)
        assert rig.lease_left(id) > 0
        assert worker.statistics().free == 3
        assert issues(await rig.ended(id)) == [outcome("5")]


@pytest.mark.parametrize("ends", ["cancelled", "raised"])
async def test_a_lease_lost_at_the_moment_of_the_timeout_is_lost(rig: Rig, ends: str) -> None:
    """Nobody knows who runs the job by then: it is handed back, and not failed."""

    async def body(context: JobContext) -> object:
        try:
            await trio.sleep_forever()
        finally:
            if ends == "raised":
                raise OSError("disk")

    broken = rig.provider.fail("renew_lease")
    async with rig.running(retrying(body, timeout=DEADLINE)):
        id = await rig.create()
        await rig.until(lambda: rig.log.count("job.handed-back"))
        broken.remove()
        assert rig.job(id).error is None
    assert rig.log.fields("job.handed-back")[0]["reason"] == "lease-lost"
    assert rig.log.count("job.timed-out") == 0
    raised = [record.exc_info[1] for record in rig.log.of("job.raised") if record.exc_info]
    assert list(map(type, raised)) == ([OSError] if ends == "raised" else [])


async def test_a_lease_that_lapsed_while_the_loop_was_blocked_is_lost_though_the_timeout_passed(
    rig: Rig,
) -> None:
    """Both were noticed late, and together."""

    async def body(context: JobContext) -> object:
        if not context.job.hand_backs:
            block(LEASE)
            await trio.sleep_forever()
        return DONE

    job = await timed(rig, body, 5)
    assert (job.status, job.hand_backs) == (COMPLETED, 1)
    assert rig.log.count("job.timed-out") == 0


async def test_a_cancel_by_the_client_while_the_handler_unwinds_from_its_timeout_stands(
    rig: Rig,
) -> None:
    """The job is over; there is nothing to fail."""

    async def body(context: JobContext) -> object:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            begun.set()
            with trio.CancelScope(shield=True):
                await trio.sleep(20)
            raise

    begun = trio.Event()
    async with rig.running(retrying(body, timeout=5)):
        id = await rig.create()
        await begun.wait()
        await rig.cancel(id)
        await rig.until(lambda: rig.job(id).locked_by is None)
    assert rig.job(id).status is CANCELLED
    assert rig.log.fields("job.dropped")[0]["reason"] == "cancelled"
    assert not rig.provider.made("finish_job")


async def test_a_shutdown_before_the_timeout_hands_the_job_back(rig: Rig) -> None:
    """A worker that stops is no handler that is slow."""
    async with rig.running(retrying(sleeping(), timeout=1000), drain_timeout=1) as worker:
        id = await rig.create()
        await rig.until(lambda: rig.job(id).status is AsyncJobStatus.IN_PROGRESS)
        worker.stop()
        await rig.left(worker)
    assert (rig.job(id).status, rig.job(id).hand_backs) == (AsyncJobStatus.ACCEPTED, 1)


@pytest.mark.parametrize("how", ["raised", "returned"])
async def test_a_wish_to_be_run_again_after_the_timeout_counts_however_it_is_said(
    rig: Rig, how: str
) -> None:
    """A handler that catches its own timeout may know better when to go on."""

    async def body(context: JobContext) -> object:
        if context.attempt == 2:
            return DONE
        await go_on(1)
        if how == "raised":
            raise RetryLater(20, "the lab is slow")
        return RetryLater(20, "the lab is slow")

    job = await timed(rig, body, 5)
    assert (job.status, history(job)) == (COMPLETED, [(1, ["the lab is slow"])])


async def test_a_neighbour_without_a_timeout_goes_on(rig: Rig) -> None:
    """A timeout is its handler's alone."""
    async with rig.running(retrying(sleeping(), timeout=5, kind="short"), handler(sleeping(50))):
        short, long = await rig.create("short"), await rig.create()
        assert issues(await rig.ended(short)) == [outcome("5")]
        assert (await rig.ended(long)).status is COMPLETED
