"""Runs one job from kick-off to recorded result, in virtual time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import trio
import trio.testing

from hastetrio._config import AsyncJobWorkerConfig
from hastetrio._handler import attempts_of
from hastetrio._model import DAY, AsyncJob, CreateAsyncJob
from hastetrio._nursery import serving_nursery
from hastetrio._registration import handlers_by_kind
from hastetrio._strict import is_structured
from hastetrio._typed import unstructure
from hastetrio._worker import AsyncJobWorker
from hastetrio.memory import MemoryJobProvider
from hastetrio.testing._logs import collected, log_lines
from hastetrio.testing._seen import Seen
from hastetrio.testing._threads import outside_of_loops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastetrio._handler import JobHandler
    from hastetrio._middleware import JobMiddleware
    from hastetrio.testing._finished import FinishedJob

# Real seconds between looks at a thread, or a socket, that a handler waits for.
_TICK: Final = 0.01

# Virtual seconds between looks at the job. They cost nothing, but an hour's sleep is jumped through
# from one look to the next.
_LOOK: Final = 30.0

# The wake-up of the memory provider is never lost, and a worker knows when the jobs are due that it
# put off: a poll or a sweep finds nothing new, and each would be one more moment to jump to.
_CONFIG: Final = AsyncJobWorkerConfig(poll_interval=DAY, maintenance_interval=DAY)

# Runs of one job. A snooze costs no attempt, so that nothing else would end a handler that always
# snoozes.
_MOST_RUNS: Final = 100

# What a task is in while it waits for a thread.
_IN_THREAD: Final = trio.to_thread.run_sync.__code__


def run_job(
    handler: JobHandler,
    *,
    parameters: Any = None,  # noqa: ANN401  # JSON is any value
    claims: dict[str, Any] | None = None,
    request: str = "",
    config: AsyncJobWorkerConfig | None = None,
    max_attempts: int | None = None,
    middleware: Sequence[JobMiddleware] = (),
) -> FinishedJob:
    """Run one job of `handler` in a worker over a memory provider, and return it as it ended.

    Sleeps of the handler take no time; while it waits for a thread, a process or a socket, time
    passes as it does outside. A job that is to be retried or was snoozed is run again when its time
    has come, until it has ended. It is an ordinary function: call it from any test; inside of a
    running trio loop it blocks that loop until the job has ended.

    Args:
        handler: The handler to test.
        parameters: The job's parameters, any JSON; an empty object by default. An instance of an
            attrs class or dataclass becomes JSON.
        claims: The submitter's claims; `{"sub": "test"}` by default.
        request: The kick-off's URL.
        config: The worker's durations and limits.
        max_attempts: How often the job may be started; by default what a kick-off would say: the
            attempts of the handler's retry policy, or 3 without one.
        middleware: What goes around each run, as in a worker.

    Returns:
        The job, completed or failed, with its output or error, every progress text and the logs.

    Raises:
        ValueError: The claims name nobody, or `max_attempts` is out of range.
        UnstorableValue: The parameters or claims are not JSON that can be stored.
        ConfigError: `handler` is none, or declares what cannot be.
        LookupError: The job ended without a result, or is put off again and again; a note holds
            what was logged.
    """
    handlers_by_kind([handler])
    if parameters is None:
        parameters = {}
    elif is_structured(type(parameters)):
        parameters = unstructure(parameters)
    created = CreateAsyncJob(
        kind=handler.kind,
        request=request,
        parameters=parameters,
        claims={"sub": "test"} if claims is None else claims,
        max_attempts=attempts_of(handler) if max_attempts is None else max_attempts,
    )

    settings = config or _CONFIG

    def run() -> FinishedJob:
        clock = trio.testing.MockClock()
        seen = Seen(settings.progress_limit)
        with collected(clock) as records:
            try:
                job = trio.run(
                    _run, handler, created, settings, seen, middleware, clock, clock=clock
                )
            except LookupError as error:
                error.add_note(log_lines(records))
                raise
        return seen.finished(job, records)

    return outside_of_loops(run)


async def _run(
    handler: JobHandler,
    created: CreateAsyncJob,
    config: AsyncJobWorkerConfig,
    seen: Seen,
    middleware: Sequence[JobMiddleware],
    clock: trio.testing.MockClock,
) -> AsyncJob:
    provider = MemoryJobProvider()
    worker = AsyncJobWorker(provider, [handler], config, middleware=[seen, *middleware])
    job = await provider.create_job("test", "test", created)
    await trio.testing.wait_all_tasks_blocked()
    idle = _count_real_waits()
    async with serving_nursery() as serving:
        serving.start_soon(_pass_time, clock, idle)
        async with serving_nursery() as nursery:
            await nursery.start(worker.run)
            while True:
                current = await provider.read_job("test", "test", job.id)
                if current is None:
                    raise LookupError("the job ended without a result: it was cancelled or expired")
                if not current.status.is_live:
                    return current
                if seen.runs > max(_MOST_RUNS, created.max_attempts):
                    raise LookupError(
                        f"the job was run {seen.runs} times, and asks to be run again each time"
                    )
                await trio.sleep(max(_LOOK, provider.seconds_until(current.run_at)))


async def _pass_time(clock: trio.testing.MockClock, idle: int) -> None:
    """Jump to the next deadline whenever all tasks wait, unless they wait for something real."""
    while True:
        began = time.monotonic()
        await trio.testing.wait_all_tasks_blocked()
        real = _count_real_waits() > idle
        if real:
            await trio.testing.wait_all_tasks_blocked(_TICK)
        left = min(trio.lowlevel.current_statistics().seconds_to_next_deadline, DAY)
        clock.jump(max(min(left, time.monotonic() - began) if real else left, 0))


def _count_real_waits() -> int:
    """How many threads and sockets tasks wait for; trio itself waits for one socket."""
    # Of threads that nobody waits for any more, only trio's own limiter knows.
    threads = trio.to_thread.current_default_thread_limiter().borrowed_tokens
    io = trio.lowlevel.current_statistics().io_statistics
    # The names differ between epoll and kqueue.
    names = ("tasks_waiting_read", "tasks_waiting_write", "tasks_waiting")
    return threads + _count_tasks_in_threads() + sum(getattr(io, name, 0) for name in names)


def _count_tasks_in_threads() -> int:
    """How many tasks wait for a thread, by whatever limiter: `context.run_sync` has its own."""
    root = trio.lowlevel.current_root_task()
    tasks, count = [] if root is None else [root], 0
    while tasks:
        task = tasks.pop()
        count += any(frame.f_code is _IN_THREAD for frame, _ in task.iter_await_frames())
        for nursery in task.child_nurseries:
            tasks += nursery.child_tasks
    return count
