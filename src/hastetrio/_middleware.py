"""A hook around each run of a handler: for tracing, metrics and error reporters.

A middleware is called with the run and returns a context manager. That is entered before the
handler begins, in its task, so that context variables it sets are the handler's too; and left when
the handler has left and `run.outcome` is known. What a middleware raises is logged, and changes
nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from hastetrio import _log
from hastetrio._errors import ConfigError
from hastetrio._log import describe, log_job

if TYPE_CHECKING:
    from hastetrio._context import CancelReason, JobContext
    from hastetrio._model import AsyncJob


@attrs.frozen
class RunOutcome:
    """How one run of a handler ended, before that is recorded.

    Attributes:
        status: Completed or failed; retried or snoozed, to be run again later; or cancelled: the
            run does not count. That an output cannot be stored is found out after this.
        error: What the handler raised, if it did; a `RetryLater` or `Snooze` it returned.
        reason: Why the run was cancelled, if it was.
    """

    status: Literal["completed", "failed", "retried", "snoozed", "cancelled"]
    error: BaseException | None = None
    reason: CancelReason | None = None


class JobRun:
    """One run of a handler, as a middleware sees it."""

    def __init__(self, context: JobContext[Any]) -> None:
        self._context = context
        self.outcome: RunOutcome | None = None

    @property
    def context(self) -> JobContext[Any]:
        """The handler's context."""
        return self._context

    @property
    def job(self) -> AsyncJob:
        """The job, as it was claimed."""
        return self._context.job


JobMiddleware: TypeAlias = Callable[[JobRun], AbstractContextManager[object]]


def check_middleware(middleware: object) -> tuple[JobMiddleware, ...]:
    """The middlewares as a tuple.

    Raises:
        ConfigError: They are no list of callables.
    """
    if isinstance(middleware, (str, bytes)) or not isinstance(middleware, Sequence):
        raise ConfigError(f"middleware must be a list, not {type(middleware).__name__}")
    for one in middleware:
        if not callable(one):
            raise ConfigError(f"{one!r} is no middleware: it cannot be called with a run")
        if inspect.isgeneratorfunction(one):
            raise ConfigError(
                f"the middleware {one.__name__} is a generator: write @contextlib.contextmanager "
                "above it"
            )
        if inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one):
            raise ConfigError(f"the middleware {one.__name__} must not be async")
    return tuple(middleware)


async def run_within(
    middleware: Sequence[JobMiddleware],
    body: Callable[[JobContext[Any]], Awaitable[object]],
    judge: Callable[[JobContext[Any], object, BaseException | None], RunOutcome],
    context: JobContext[Any],
) -> object:
    """Run a handler's body with every middleware around it, the first outermost."""
    run = JobRun(context)
    entered: list[AbstractContextManager[object]] = []
    value: object = None
    failure: BaseException | None = None
    try:
        for one in middleware:
            try:
                manager = one(run)
                manager.__enter__()
            except Exception as error:  # noqa: BLE001  # a middleware must not fail the job
                _failed(run, error)
            else:
                entered.append(manager)
        value = await body(context)
    except BaseException as error:
        failure = error
        raise
    finally:
        run.outcome = judge(context, value, failure)
        for manager in reversed(entered):
            try:
                manager.__exit__(None, None, None)
            except Exception as error:  # noqa: BLE001  # as above
                _failed(run, error)
    return value


def _failed(run: JobRun, error: BaseException) -> None:
    log_job(_log.JOB_MIDDLEWARE_FAILED, run.job, trace=error, error=describe(error))
