"""Runs one job from kick-off to recorded result, in virtual time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import attrs
import sniffio
import trio
import trio.testing

from hastetrio._config import AsyncJobWorkerConfig
from hastetrio._model import AsyncJob, CreateAsyncJob
from hastetrio._worker import AsyncJobWorker
from hastetrio.memory import MemoryJobProvider

if TYPE_CHECKING:
    from hastetrio._handler import JobHandler

# The clock jumps when nothing ran for this many real seconds. With 0 it would also jump while a
# handler's thread works, through one renewal after another until the job has expired.
_AUTOJUMP: Final = 0.01


def run_job(
    handler: JobHandler,
    *,
    parameters: Any = None,  # noqa: ANN401  # JSON is any value
    claims: dict[str, Any] | None = None,
    request: str = "",
    config: AsyncJobWorkerConfig | None = None,
) -> AsyncJob:
    """Run one job of `handler` in a worker over a memory provider, and return it as it ended.

    Sleeps of the handler take no time. It is an ordinary function: call it from any test; inside
    of a running trio loop it blocks that loop until the job has ended.

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
        clock = trio.testing.MockClock(autojump_threshold=_AUTOJUMP)
        return trio.run(_run, handler, created, config, clock=clock)

    try:
        sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        return run()
    return _in_thread(run)


async def _run(
    handler: JobHandler, created: CreateAsyncJob, config: AsyncJobWorkerConfig | None
) -> AsyncJob:
    provider = MemoryJobProvider()
    worker = AsyncJobWorker(provider, [handler], config)
    job = await provider.create_job("test", "test", created)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        while True:
            current = await provider.read_job("test", "test", job.id)
            if current is None:
                worker.stop()
                raise LookupError("the job ended without a result: it was cancelled or expired")
            if not current.status.is_live:
                worker.stop()
                return current
            await trio.sleep(1)


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
