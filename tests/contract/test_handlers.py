"""What a handler may ask for, through a worker, on every storage."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import attrs
import pytest
import trio

from hastetrio import (
    AsyncJob,
    AsyncJobStatus,
    AsyncJobWorker,
    AsyncJobWorkerConfig,
    CancelReason,
    HandlerOutput,
    JobContext,
    JobHandler,
    JobMiddleware,
    JobOutput,
    JobRun,
    LeaseLost,
    RetryLater,
    RetryPolicy,
    Snooze,
    job_handler,
)
from hastetrio._nursery import serving_nursery
from hastetrio.testing import assert_completed, assert_failed, assert_retried

from ._world import KIND, World

CONFIG = AsyncJobWorkerConfig(poll_interval=0.05, drain_timeout=0, cancel_grace=5)
DONE = JobOutput.json("done")
AGAIN = RetryPolicy(attempts=3, first=0.01, jitter=0, on=(OSError,))


@asynccontextmanager
async def working(
    world: World, handler: JobHandler, middleware: Sequence[JobMiddleware] = ()
) -> AsyncIterator[AsyncJobWorker]:
    """A worker, while the block lasts."""
    worker = AsyncJobWorker(world.provider, [handler], CONFIG, middleware=middleware)
    async with serving_nursery() as nursery:
        await nursery.start(worker.run)
        yield worker


async def ended(world: World, id: str) -> AsyncJob:
    """The job, once it has a result."""
    while True:
        job = await world.read(id)
        assert job is not None
        if not job.status.is_live:
            return job
        await trio.sleep(0.01)


async def outcome(world: World, handler: JobHandler, **values: Any) -> AsyncJob:  # noqa: ANN401
    """How one job of the handler ends."""
    async with working(world, handler):
        return await ended(world, (await world.create(**values)).id)


async def test_an_error_that_a_policy_covers_is_tried_again(world: World) -> None:
    """Until an attempt succeeds; the errors of those before stay with the job."""

    @job_handler(KIND, retries=AGAIN)
    async def handler(context: JobContext) -> JobOutput:
        if context.attempt < 3:
            raise ExceptionGroup("both", [OSError("no \x00 disk"), OSError("no net")])
        return DONE

    job = await outcome(world, handler)
    assert_completed(job, output="done")
    assert_retried(job, times=2, text="OSError: no \ufffd disk")
    assert [entry["attempt"] for entry in job.attempt_errors] == [1, 2]
    assert job.attempt_errors[0]["errors"][1] == "OSError: no net"


async def test_the_last_attempts_error_fails_the_job(world: World) -> None:
    """As it would without a policy, with all three in the history."""

    @job_handler(KIND, retries=AGAIN)
    async def handler(context: JobContext) -> JobOutput:
        raise OSError("no disk")

    job = await outcome(world, handler)
    assert_failed(job, code="exception", text="internal error")
    assert (job.attempts, len(job.attempt_errors)) == (3, 3)


async def test_a_handler_asks_for_another_attempt(world: World) -> None:
    """By hand; without one left the client reads why it was given up."""

    @job_handler(KIND)
    async def handler(context: JobContext) -> JobOutput | RetryLater:
        return RetryLater(0.01, "the printer is off")

    job = await outcome(world, handler, max_attempts=2)
    assert_failed(job, code="transient", text="after 2 attempts: the printer is off")


async def test_a_snooze_costs_no_attempt(world: World) -> None:
    """However many there are, on a job that may be started once."""
    runs = []

    @job_handler(KIND)
    async def handler(context: JobContext) -> JobOutput | Snooze:
        runs.append(context.attempt)
        return DONE if len(runs) > 4 else Snooze(0.01)

    job = await outcome(world, handler, max_attempts=1)
    assert_completed(job, output="done")
    assert (runs, job.attempts, job.attempt_errors) == ([1] * 5, 1, None)


async def test_a_run_that_takes_too_long_is_stopped(world: World) -> None:
    """The job fails with a code of its own."""

    @job_handler(KIND, timeout=0.05)
    async def handler(context: JobContext) -> JobOutput:
        await trio.sleep_forever()

    assert_failed(await outcome(world, handler), code="timeout")


@attrs.frozen
class Words:
    """Parameters."""

    text: str
    times: int = 1


async def test_parameters_and_output_are_classes(world: World) -> None:
    """What fits is given as an instance; what does not is an issue for each path."""

    @job_handler(KIND, parameters=Words, retries=RetryPolicy())
    async def handler(context: JobContext[Words]) -> Words:
        return attrs.evolve(context.parameters, times=context.parameters.times + 1)

    async with working(world, handler):
        good = await world.create(parameters={"text": "a"})
        bad = await world.create(parameters={"times": "2"})
        assert_completed(await ended(world, good.id), output={"text": "a", "times": 2})
        job = await ended(world, bad.id)
    assert job.attempts == 1
    assert [(issue["code"], issue["expression"]) for issue in job.error["issue"]] == [
        ("required", ["text"]),
        ("structure", ["times"]),
    ]


async def test_the_next_attempt_finds_what_the_last_one_saved(world: World) -> None:
    """Also on another worker, after the first one was stopped and handed the job back."""
    begun = trio.Event()

    @job_handler(KIND)
    async def first(context: JobContext) -> JobOutput:
        await context.save_state({"page": 7})
        begun.set()
        await trio.sleep_forever()

    @job_handler(KIND)
    async def second(context: JobContext) -> JobOutput:
        return JobOutput.json(context.state)

    job = await world.create()
    async with working(world, first):
        await begun.wait()
    async with working(world, second):
        assert_completed(await ended(world, job.id), output={"page": 7})
    assert (await world.stored(job.id))["state"] is None


async def test_a_thread_ends_with_its_job(world: World) -> None:
    """It is asked whether to go on, and is gone when the job's row is let go."""
    begun = trio.Event()
    left = threading.Event()

    def work(token: trio.lowlevel.TrioToken) -> None:
        token.run_sync_soon(begun.set)
        try:
            while True:
                trio.from_thread.check_cancelled()
        finally:
            left.set()

    @job_handler(KIND)
    async def handler(context: JobContext) -> JobOutput:
        await context.run_sync(work, trio.lowlevel.current_trio_token())
        return DONE

    async with working(world, handler):
        job = await world.create()
        await begun.wait()
        await world.cancel(job.id)
        while (await world.stored(job.id))["locked_by"] is not None:  # noqa: ASYNC110  # of a row
            await trio.sleep(0.01)
        assert left.is_set()


async def test_before_an_effect_the_storage_is_asked(world: World) -> None:
    """It renews the lease while the job is this claim's, and says so when it is not."""
    told: list[CancelReason | None] = []
    let_go = trio.Event()

    @job_handler(KIND)
    async def handler(context: JobContext) -> JobOutput:
        before = context.lease_deadline
        await trio.sleep(0.01)
        await context.confirm_lease()
        assert context.lease_deadline > before
        context.check_lease()
        await world.cancel(context.job.id)
        # A notification may have come first, and cancelled the scope.
        with trio.CancelScope(shield=True), pytest.raises(LeaseLost):
            await context.confirm_lease()
        told.append(context.cancel_reason)
        let_go.set()
        return DONE

    async with working(world, handler):
        await world.create()
        await let_go.wait()
    assert told == [CancelReason.CANCELLED]


async def test_a_middleware_sees_how_each_run_ended(world: World) -> None:
    """Around every attempt, with what the handler asked for."""
    seen: list[str] = []

    @contextmanager
    def watch(run: JobRun) -> Iterator[None]:
        yield
        assert run.outcome is not None
        seen.append(run.outcome.status)

    @job_handler(KIND, retries=AGAIN)
    async def handler(context: JobContext) -> HandlerOutput:
        if not seen:
            return Snooze(0.01)
        if len(seen) == 1:
            raise OSError("no disk")
        return DONE

    async with working(world, handler, [watch]):
        await ended(world, (await world.create()).id)
    assert seen == ["snoozed", "retried", "completed"]


async def test_a_key_is_taken_while_its_job_lives(world: World) -> None:
    """Queued, running and waiting for its next attempt it is one job; then there may be another."""
    gate = trio.Event()

    @job_handler(KIND, retries=AGAIN)
    async def handler(context: JobContext) -> JobOutput:
        if context.attempt == 1:
            raise OSError("no disk")
        await gate.wait()
        return DONE

    first = await world.create(unique_key="once")
    async with working(world, handler) as worker:
        while worker.statistics().totals.claimed < 2:
            assert (await world.create(unique_key="once")).id == first.id
            await trio.sleep(0.01)
        gate.set()
        job = await ended(world, first.id)
        assert job.status is AsyncJobStatus.COMPLETED
        assert (await world.create(unique_key="once")).id != first.id
