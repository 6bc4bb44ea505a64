"""`run_job` goes through all attempts, with the parameters and outputs a handler types."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import attrs
import pytest
import trio

from hastetrio import (
    AsyncJobStatus,
    AsyncJobWorkerConfig,
    ConfigError,
    JobContext,
    JobHandler,
    JobOutput,
    JobRun,
    RetryLater,
    RetryPolicy,
    Snooze,
    job_handler,
)
from hastetrio.testing import assert_completed, assert_failed, assert_retried, run_job

HOUR = 3600.0
DONE = JobOutput.json("done")


def busy_until(attempt: int, after: float = HOUR) -> JobHandler:
    """A handler that asks to be run later, until an attempt."""

    @job_handler("busy")
    async def busy(context: JobContext) -> JobOutput:
        context.report(f"attempt {context.attempt}")
        if context.attempt < attempt:
            raise RetryLater(after, "the line is busy")
        return DONE

    return busy


def test_a_job_is_run_again_when_its_time_has_come() -> None:
    """In virtual time: hours between two attempts are jumped through."""
    job = run_job(busy_until(3))
    assert_completed(job, output="done")
    assert_retried(job, times=2, text="the line is busy")
    assert job.progress_texts == ("attempt 1", "attempt 2", "attempt 3")
    times = [r.__dict__["run_time"] for r in job.logs if r.__dict__["event"] == "job.running"]
    assert times == pytest.approx([0, HOUR, 2 * HOUR], abs=3 * 60)


def test_the_attempts_of_a_test_are_bounded() -> None:
    """By what it says, else as a kick-off would: by the policy, else three."""
    job = run_job(busy_until(1000))
    assert_failed(job)
    assert job.attempts == 3
    assert run_job(busy_until(1000), max_attempts=1).attempts == 1
    assert_completed(run_job(busy_until(5), max_attempts=5))


@pytest.mark.parametrize("attempts", [0, 1001])
def test_a_number_of_attempts_out_of_range_is_an_error(attempts: int) -> None:
    """As at a kick-off."""
    with pytest.raises(ValueError, match="max_attempts"):
        run_job(busy_until(1), max_attempts=attempts)


def test_a_retry_policy_is_followed_to_its_end() -> None:
    """All its attempts, with what went wrong in each."""

    @job_handler("flaky", retries=RetryPolicy(attempts=5, first=60, on=(ConnectionError,)))
    async def flaky(context: JobContext) -> JobOutput:
        if context.attempt < 5 or context.job.parameters:
            raise ConnectionError(f"refused at {context.attempt}")
        return DONE

    job = run_job(flaky)
    assert_completed(job)
    assert_retried(job, times=4, text="refused at 4")
    failed = run_job(flaky, parameters=[1])
    assert_failed(failed)
    assert_retried(failed, times=4, text="refused at 5")
    assert "attempt 5 of 5" in repr(failed)


def test_a_snoozed_job_is_run_again() -> None:
    """At no cost of attempts."""
    begun: list[float] = []

    @job_handler("sleepy")
    async def sleepy(context: JobContext) -> JobOutput:
        begun.append(trio.current_time())
        if len(begun) < 6:
            raise Snooze(HOUR)
        return DONE

    job = run_job(sleepy, config=AsyncJobWorkerConfig(poll_interval=600))
    assert_completed(job)
    assert job.attempts == 1
    assert begun[-1] >= 5 * HOUR
    assert_retried(job, times=0)


def test_a_saved_state_is_there_at_the_next_attempt() -> None:
    """As with a real database."""

    @job_handler("stateful")
    async def stateful(context: JobContext) -> JobOutput:
        done = context.state or []
        if len(done) < 2:
            await context.save_state([*done, context.attempt])
            raise RetryLater
        return JobOutput.json(done)

    assert_completed(run_job(stateful), output=[1, 2])


@attrs.frozen
class Order:
    """What a handler is given."""

    item: str
    count: int = 1


@dataclass
class Receipt:
    """What it returns."""

    item: str
    price: float


@job_handler("order", parameters=Order)
async def order(context: JobContext[Order]) -> Receipt:
    """Sell something."""
    context.report(f"{context.parameters.count} of {context.parameters.item}")
    return Receipt(context.parameters.item, 2.5 * context.parameters.count)


def test_typed_parameters_and_outputs_are_given_as_they_are() -> None:
    """Or as the JSON they become."""
    job = run_job(order, parameters=Order("tea", 2))
    assert_completed(job, output=Receipt("tea", 5.0))
    assert_completed(job, output={"item": "tea", "price": 5.0})
    assert job.parameters == {"item": "tea", "count": 2}
    assert_completed(run_job(order, parameters={"item": "tea"}), output=Receipt("tea", 2.5))


def test_parameters_that_do_not_fit_fail_the_job() -> None:
    """With an issue for each path, after the only attempt."""
    job = run_job(order, parameters={"count": "two"})
    assert_failed(job, code="required", expression="item")
    assert_failed(job, code="structure", expression="count")
    assert job.attempts == 1


def test_a_timeout_is_a_failure_with_its_code() -> None:
    """At the virtual second."""

    @job_handler("slow", timeout=90)
    async def slow(context: JobContext) -> JobOutput:
        await trio.sleep(HOUR)
        return DONE

    job = run_job(slow)
    assert_failed(job, code="timeout")
    assert job.logs[-1].__dict__["run_time"] == pytest.approx(90, abs=1)


def test_time_waits_for_a_handlers_thread() -> None:
    """Of `context.run_sync`: its threads are not trio's own."""

    @job_handler("threads")
    async def threads(context: JobContext) -> JobOutput:
        before = trio.current_time()
        await context.run_sync(threading.Event().wait, 0.1)
        return JobOutput.json(trio.current_time() - before)

    assert run_job(threads).output < 20


def test_a_handler_that_declares_what_cannot_be_is_refused() -> None:
    """As by a worker, at once."""

    @job_handler("never", timeout=0)
    async def never(context: JobContext) -> JobOutput:
        return DONE

    with pytest.raises(ConfigError, match="timeout"):
        run_job(never)


def test_a_job_without_attempts_left_is_failed() -> None:
    """And says what was tried last."""
    job = run_job(busy_until(1000), max_attempts=2)
    assert job.status is AsyncJobStatus.FAILED
    assert_retried(job, times=1)
    assert_failed(job, text="the line is busy")


def test_a_handler_that_always_snoozes_is_an_error() -> None:
    """No attempt is spent and nothing expires, so that the test would never end."""

    @job_handler("snoozing")
    async def snoozing(context: JobContext) -> Snooze:
        logging.getLogger("mine").warning("not yet")
        return Snooze(60)

    with pytest.raises(
        LookupError, match="the job was run 101 times, and asks to be run"
    ) as caught:
        run_job(snoozing)
    assert "not yet" in "".join(caught.value.__notes__)


def test_a_job_may_be_put_off_for_long() -> None:
    """Weeks of it, as long as it ends some day."""
    runs = []

    @job_handler("snoozing")
    async def snoozing(context: JobContext) -> JobOutput | Snooze:
        runs.append(trio.current_time())
        return DONE if len(runs) == 4 else Snooze(7 * 24 * HOUR)

    assert_completed(run_job(snoozing), output="done")


def test_a_middleware_goes_around_each_run() -> None:
    """As in a worker, so that it can be tested with the handler it is for."""
    seen = []

    @contextmanager
    def watch(run: JobRun) -> Iterator[None]:
        yield
        seen.append(run.outcome and run.outcome.status)

    run_job(busy_until(3), middleware=[watch])
    assert seen == ["retried", "retried", "completed"]


def test_what_is_no_handler_is_refused_as_a_worker_refuses_it() -> None:
    """In one line that says what to give instead."""
    with pytest.raises(ConfigError, match="give the handler, not its method"):
        run_job(busy_until(1).run)  # type: ignore[arg-type]
