"""Runs one job from kick-off to recorded result, in virtual time."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

import attrs
import sniffio
import trio
import trio.testing

from hastetrio._config import AsyncJobWorkerConfig
from hastetrio._model import AsyncJob, CreateAsyncJob
from hastetrio._nursery import serving_nursery
from hastetrio._worker import AsyncJobWorker
from hastetrio.memory import MemoryJobProvider

if TYPE_CHECKING:
    from hastetrio._handler import JobHandler

# Real seconds between looks at a thread, or a socket, that a handler waits for.
_TICK: Final = 0.01

# Virtual seconds between looks at the job. They cost nothing, but an hour's sleep is jumped through
# from one look to the next.
_LOOK: Final = 30.0

# The wake-up of the memory provider is never lost, so that a poll finds nothing new.
_CONFIG: Final = AsyncJobWorkerConfig(poll_interval=60)


def run_job(
    handler: JobHandler,
    *,
    parameters: Any = None,  # noqa: ANN401  # JSON is any value
    claims: dict[str, Any] | None = None,
    request: str = "",
    config: AsyncJobWorkerConfig | None = None,
) -> AsyncJob:
    """Run one job of `handler` in a worker over a memory provider, and return it as it ended.

    Sleeps of the handler take no time; while it waits for a thread, a process or a socket, time
    passes as it does outside. It is an ordinary function: call it from any test; inside of a
    running trio loop it blocks that loop until the job has ended.

    Args:
        handler: The handler to test.
        parameters: The job's parameters, any JSON; an empty object by default.
        claims: The submitter's claims; `{"sub": "test"}` by default.
        request: The kick-off's URL.
        config: The worker's durations and limits.

    Returns:
        The job, completed or failed, with its output or error.

    Raises:
        ValueError: The claims name nobody.
        UnstorableValue: The parameters or claims are not JSON that can be stored.
        LookupError: The job ended without a result.
    """
    created = CreateAsyncJob(
        kind=handler.kind,
        request=request,
        parameters={} if parameters is None else parameters,
        claims={"sub": "test"} if claims is None else claims,
    )

    def run() -> AsyncJob:
        clock = trio.testing.MockClock()
        return trio.run(_run, handler, created, config or _CONFIG, clock, clock=clock)

    try:
        sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        return run()
    return _in_thread(run)


async def _run(
    handler: JobHandler,
    created: CreateAsyncJob,
    config: AsyncJobWorkerConfig,
    clock: trio.testing.MockClock,
) -> AsyncJob:
    provider = MemoryJobProvider()
    worker = AsyncJobWorker(provider, [handler], config)
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
                await trio.sleep(_LOOK)


async def _pass_time(clock: trio.testing.MockClock, idle: int) -> None:
    """Jump to the next deadline whenever all tasks wait, unless they wait for something real."""
    while True:
        began = time.monotonic()
        await trio.testing.wait_all_tasks_blocked()
        real = _count_real_waits() > idle
        if real:
            await trio.testing.wait_all_tasks_blocked(_TICK)
        left = min(trio.lowlevel.current_statistics().seconds_to_next_deadline, _LOOK)
        clock.jump(max(min(left, time.monotonic() - began) if real else left, 0))


def _count_real_waits() -> int:
    """How many threads and sockets tasks wait for; trio itself waits for one socket."""
    limiter = trio.to_thread.current_default_thread_limiter()
    io = trio.lowlevel.current_statistics().io_statistics
    # The names differ between epoll and kqueue.
    names = ("tasks_waiting_read", "tasks_waiting_write", "tasks_waiting")
    return limiter.borrowed_tokens + sum(getattr(io, name, 0) for name in names)


@attrs.define
class _Outcome:
    value: AsyncJob | None = None
    error: BaseException | None = None


def _in_thread(run: Any) -> AsyncJob:  # noqa: ANN401
    outcome = _Outcome()

    def call() -> None:
        try:
            outcome.value = run()
        except BaseException as error:  # noqa: BLE001  # it is raised again by the caller
            outcome.error = error

    thread = threading.Thread(target=call, name="hastetrio run_job")
    thread.start()
    thread.join()
    if outcome.error is not None:
        raise outcome.error
    assert outcome.value is not None  # noqa: S101
    return outcome.value
