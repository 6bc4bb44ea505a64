"""`context.run_sync`: threads of handlers, which are waited for whatever happens.

Time passes as it does outside, and is moved on by hand: a clock that jumps whenever all tasks wait
would jump through hours while one thread runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import ContextVar

import pytest
import trio
from trio.testing import MockClock

from hastetrio import AsyncJobStatus, ConfigError, JobContext, JobOutput, LeaseLost, RetryPolicy
from hastetrio._config import AsyncJobWorkerConfig
from hastetrio._log import current_job

from .attempts import retrying
from .harness import DONE, LEASE, Rig, handler, issues

COMPLETED, CANCELLED = AsyncJobStatus.COMPLETED, AsyncJobStatus.CANCELLED

# Real seconds after which a thread that waits for a test that failed gives up.
PATIENCE = 20

word: ContextVar[str] = ContextVar("word", default="nothing")


@pytest.fixture
def clock() -> MockClock:
    """A clock that runs as the real one does, and can be moved on."""
    return MockClock(rate=1)


class Thread:
    """A function that begins, and goes on until it is let go or told to stop.

    Args:
        heeds: Whether it asks from time to time whether it is to stop.
    """

    def __init__(self, *, heeds: bool) -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()
        self.ended: list[str] = []
        self._heeds = heeds

    def __call__(self) -> str:
        """Run."""
        self.begun.set()
        end = time.monotonic() + PATIENCE
        while not self.let_go.wait(0.002) and time.monotonic() < end:
            if self._heeds:
                try:
                    trio.from_thread.check_cancelled()
                except trio.Cancelled:
                    self.ended.append("stopped")
                    raise
        self.ended.append("done")
        return "from the thread"

    async def has_begun(self) -> None:
        """Wait for it."""
        await trio.to_thread.run_sync(self.begun.wait, PATIENCE)


async def test_a_function_runs_in_a_thread_and_its_result_comes_back(
    rig: Rig, clock: MockClock
) -> None:
    """With its arguments; the loop goes on meanwhile."""

    async def body(context: JobContext) -> JobOutput:
        def add(a: int, b: int) -> list[int]:
            return [a + b, threading.get_ident()]

        return JobOutput.json(await context.run_sync(add, 20, 22))

    job = await rig.outcome_of(body)
    assert job.output[0] == 42
    assert job.output[1] != threading.get_ident()


async def test_what_a_function_raises_is_the_handlers_error(rig: Rig, clock: MockClock) -> None:
    """With its own traceback; a policy covers it as any other."""

    async def body(context: JobContext) -> JobOutput:
        def connect() -> None:
            raise ConnectionError(f"attempt {context.attempt}")

        await context.run_sync(connect)
        return DONE

    retries = RetryPolicy(attempts=2, first=0, on=(ConnectionError,))
    async with rig.running(retrying(body, retries), poll_interval=0.01):
        job = await rig.ended(await rig.create())
    assert (job.attempts, issues(job)[0][1]) == (2, "exception")
    (record,) = rig.log.of("job.raised")
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "attempt 2"


async def test_a_function_sees_the_context_variables_of_its_handler(
    rig: Rig, clock: MockClock
) -> None:
    """The job's id for its log lines, and the handler's own."""

    async def body(context: JobContext) -> JobOutput:
        word.set("mine")
        return JobOutput.json(await context.run_sync(lambda: [word.get(), current_job.get()]))

    job = await rig.outcome_of(body)
    assert job.output == ["mine", job.id]


async def test_a_thread_may_report_and_look_at_its_lease(rig: Rig, clock: MockClock) -> None:
    """What is said to be safe from a thread is."""

    async def body(context: JobContext) -> JobOutput:
        def work() -> float:
            context.report("half")
            context.check_lease()
            return context.lease_deadline

        return JobOutput.json(await context.run_sync(work) > trio.current_time())

    job = await rig.outcome_of(body)
    assert (job.output, job.progress) == (True, "half")


async def test_a_thread_that_asks_is_stopped_with_its_job(rig: Rig, clock: MockClock) -> None:
    """`check_cancelled` raises once the job is no longer to be run."""
    thread = Thread(heeds=True)

    async def body(context: JobContext) -> JobOutput:
        await context.run_sync(thread)
        return DONE

    async with rig.running(handler(body)):
        id = await rig.create()
        await thread.has_begun()
        await rig.cancel(id)
        await rig.until(lambda: rig.job(id).locked_by is None)
    assert thread.ended == ["stopped"]
    assert rig.log.fields("job.dropped")[0]["reason"] == "cancelled"
    assert rig.log.count("job.late") == 0


async def test_a_thread_is_stopped_by_its_handlers_timeout(rig: Rig, clock: MockClock) -> None:
    """Which is a cancellation too."""
    thread = Thread(heeds=True)

    async def body(context: JobContext) -> JobOutput:
        await context.run_sync(thread)
        return DONE

    async with rig.running(retrying(body, timeout=9)):
        id = await rig.create()
        await thread.has_begun()
        clock.jump(9)
        job = await rig.ended(id)
    assert (issues(job)[0][1], thread.ended) == ("timeout", ["stopped"])


async def test_a_thread_that_goes_on_is_waited_for_and_called_late(
    rig: Rig, clock: MockClock
) -> None:
    """Its slot stays taken, its row stays held, and its result comes too late."""
    thread = Thread(heeds=False)

    async def renewed(id: str, before: int) -> None:
        await rig.until(lambda: len(rig.provider.made("renew_lease", id)) > before)

    async def body(context: JobContext) -> JobOutput:
        return JobOutput.json(await context.run_sync(thread))

    async with rig.running(handler(body)) as worker:
        id = await rig.create()
        await thread.has_begun()
        await rig.cancel(id)
        await rig.until(lambda: worker.statistics().unwinding == (id,))
        for _ in range(4):
            clock.jump(LEASE / 2)
            before = len(rig.provider.made("renew_lease", id))
            await renewed(id, before)
        assert (worker.statistics().free, rig.job(id).locked_by is None) == (3, False)
        assert thread.ended == []
        thread.let_go.set()
        await rig.until(lambda: rig.job(id).locked_by is None)
    assert (rig.job(id).status, rig.job(id).output, thread.ended) == (CANCELLED, None, ["done"])
    (late,) = rig.log.fields("job.late", id)
    assert late["reason"] == "cancelled"
    assert late["elapsed"] == pytest.approx(2 * LEASE, abs=10)


async def test_a_worker_does_not_stop_before_its_threads(rig: Rig, clock: MockClock) -> None:
    """None is abandoned: `run()` returns after the last one."""
    thread = Thread(heeds=False)

    async def body(context: JobContext) -> JobOutput:
        await context.run_sync(thread)
        return DONE

    async with rig.running(handler(body), drain_timeout=1, cancel_grace=1) as worker:
        await rig.create()
        await thread.has_begun()
        worker.stop()
        await trio.testing.wait_all_tasks_blocked()
        clock.jump(1)
        await rig.until(lambda: worker.statistics().unwinding)
        clock.jump(5)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not rig.has_left(worker)
        thread.let_go.set()
        await rig.left(worker)
    assert thread.ended == ["done"]


async def test_threads_of_handlers_are_counted_by_a_limit_of_their_own(
    rig: Rig, clock: MockClock
) -> None:
    """One at a time here; that none of trio's own is free does not matter."""
    running: list[int] = []
    most: list[int] = []

    def work() -> None:
        running.append(1)
        most.append(len(running))
        time.sleep(0.005)
        running.pop()

    async def body(context: JobContext) -> JobOutput:
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(context.run_sync, work)
        return DONE

    limiter = trio.to_thread.current_default_thread_limiter()
    limiter.total_tokens = 1
    with trio.fail_after(PATIENCE):
        async with limiter, rig.running(handler(body), thread_limit=1):
            for id in await rig.create_many(3):
                assert (await rig.ended(id)).status is COMPLETED
    assert (len(most), max(most)) == (12, 1)


async def test_a_handler_that_waits_for_a_thread_can_be_cancelled(
    rig: Rig, clock: MockClock
) -> None:
    """Its function never begins."""
    thread = Thread(heeds=False)
    ran: list[str] = []

    async def body(context: JobContext) -> JobOutput:
        function: Callable[[], object] = thread
        if context.job.parameters == "second":
            function = lambda: ran.append("second")  # noqa: E731
        await context.run_sync(function)
        return DONE

    async with rig.running(handler(body), thread_limit=1):
        first = await rig.create(parameters="first")
        await thread.has_begun()
        second = await rig.create(parameters="second")
        await rig.until(lambda: rig.job(second).status is AsyncJobStatus.IN_PROGRESS)
        await rig.cancel(second)
        await rig.until(lambda: rig.job(second).locked_by is None)
        thread.let_go.set()
        assert (await rig.ended(first)).status is COMPLETED
    assert ran == []


async def test_no_thread_is_begun_for_a_job_that_is_lost(rig: Rig, clock: MockClock) -> None:
    """A deadline that passed while the loop was blocked is noticed before."""
    ran: list[str] = []

    async def body(context: JobContext) -> JobOutput:
        if context.job.hand_backs:
            return DONE
        clock.jump(LEASE)
        await context.run_sync(lambda: ran.append("late"))
        return DONE

    async with rig.running(handler(body)):
        assert (await rig.ended(await rig.create())).status is COMPLETED
    assert ran == []


async def test_a_thread_may_guard_its_side_effects(rig: Rig, clock: MockClock) -> None:
    """A function that cannot be cancelled finds out that it is to end."""
    begun, go = threading.Event(), threading.Event()
    told: list[str] = []

    async def body(context: JobContext) -> JobOutput:
        def work() -> None:
            begun.set()
            go.wait(PATIENCE)
            try:
                context.check_lease()
            except LeaseLost as error:
                told.append(str(error))
                raise

        await context.run_sync(work)
        return DONE

    async with rig.running(handler(body)) as worker:
        id = await rig.create()
        await trio.to_thread.run_sync(begun.wait, PATIENCE)
        await rig.cancel(id)
        await rig.until(lambda: worker.statistics().unwinding)
        go.set()
        await rig.until(lambda: rig.job(id).locked_by is None)
    assert told == ["the job is no longer to be run here: cancelled"]


@pytest.mark.parametrize("limit", [0, -1, 1.5, "4", True, 100_000])
def test_a_limit_that_makes_no_sense_is_refused(limit: object) -> None:
    """By its name."""
    with pytest.raises(ConfigError, match=r"^thread_limit must be a whole number from 1 to 10,000"):
        AsyncJobWorkerConfig(thread_limit=limit)  # type: ignore[arg-type]
