"""Right: handlers as functions, as the documentation shows them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, assert_type

import attrs
import trio

from hastetrio import (
    AsyncJob,
    AsyncJobWorker,
    FunctionHandler,
    HandlerOutput,
    JobContext,
    JobHandler,
    JobMiddleware,
    JobOutput,
    JobRun,
    JobTimeout,
    RetryLater,
    RetryPolicy,
    RunOutcome,
    Snooze,
    job_handler,
)
from hastetrio.memory import MemoryJobProvider


@attrs.frozen
class Words:
    """Parameters."""

    text: str
    times: int = 1


@dataclass
class Counted:
    """An output."""

    words: int


@job_handler("plain")
async def plain(context: JobContext) -> JobOutput:
    """A bare context has parameters of any type."""
    assert_type(context, JobContext[Any])
    assert_type(context.parameters, Any)
    assert_type(context.job, AsyncJob)
    context.report("half")
    return JobOutput.json(context.parameters["anything"])


@job_handler("typed", parameters=Words)
async def typed(context: JobContext[Words]) -> Counted:
    """The class is named once for the checker and once for the worker."""
    assert_type(context.parameters, Words)
    assert_type(context.parameters.times, int)
    return Counted(len(context.parameters.text.split()))


@job_handler("annotated")
async def annotated(context: JobContext[Words]) -> JobOutput:
    """The annotation alone will do."""
    return JobOutput.json(context.parameters.text.upper())


@job_handler("untyped-context", parameters=Words)
async def untyped_context(context: JobContext) -> JobOutput:
    """And so will the argument, without the checker's help."""
    return JobOutput.json(context.parameters.text)


@job_handler(
    "again",
    parameters=Words,
    retries=RetryPolicy(attempts=5, on=(ConnectionError, JobTimeout)),
    timeout=60,
)
async def again(context: JobContext[Words]) -> JobOutput | RetryLater | Snooze:
    """Wishes may be returned."""
    if context.attempt == 1:
        return RetryLater(5, reason="busy")
    if not context.parameters.text:
        return Snooze(60)
    return JobOutput.json("done")


@job_handler("any-output")
async def any_output(context: JobContext) -> HandlerOutput:
    """What a handler may return has a name."""
    return Words("x") if context.attempt == 1 else Counted(1)


def repeat(text: str, times: int) -> str:
    """Some blocking work."""
    return text * times


@job_handler("threads", parameters=Words)
async def threads(context: JobContext[Words]) -> JobOutput:
    """A function's arguments and result keep their types."""
    found = await context.run_sync(repeat, context.parameters.text, 2)
    assert_type(found, str)
    await context.run_sync(lambda: None)
    return JobOutput.json(found)


@job_handler("storage")
async def storage(context: JobContext) -> JobOutput:
    """State, guards and a transaction."""
    await context.save_state({"page": 1})
    assert_type(context.state, Any)
    context.check_lease()
    await context.confirm_lease()
    async with context.transaction() as connection:
        cursor = await connection.execute("SELECT 1")
        await cursor.fetchone()
        output = await context.finish(connection, Counted(1))
    assert_type(output, JobOutput)
    return output


@typed.on_expire
async def remove(job: AsyncJob) -> None:
    """Clean-ups take the job."""
    await trio.lowlevel.checkpoint()


@contextmanager
def spans(run: JobRun) -> Iterator[None]:
    """A middleware made of a generator."""
    assert_type(run.context, JobContext[Any])
    yield
    assert_type(run.outcome, RunOutcome | None)
    if run.outcome is not None and run.outcome.status == "failed":
        assert_type(run.outcome.error, BaseException | None)


class Metrics:
    """A middleware made of a class."""

    def __call__(self, run: JobRun) -> AbstractContextManager[object]:
        """Count one run."""
        return spans(run)


@asynccontextmanager
async def running() -> AsyncIterator[AsyncJobWorker]:
    """Handlers of different parameters, and middlewares, in one worker."""
    handlers: list[JobHandler[Any]] = [plain, typed, annotated, again, threads, storage]
    assert_type(typed, FunctionHandler[Words])
    middleware: list[JobMiddleware] = [spans, Metrics()]
    yield AsyncJobWorker(MemoryJobProvider(), handlers, middleware=middleware)
    AsyncJobWorker(MemoryJobProvider(), [typed, annotated], middleware=[spans])
