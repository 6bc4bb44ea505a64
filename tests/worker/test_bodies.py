"""Handlers and middlewares that could not be run are refused at start."""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any

import pytest

from hastetrio import (
    AsyncJob,
    AsyncJobWorker,
    ConfigError,
    JobContext,
    JobHandler,
    JobOutput,
    JobRun,
    Operation,
    job_handler,
)
from hastetrio._registration import handlers_by_kind
from hastetrio.memory import MemoryJobProvider

from .harness import DONE


def ordinary(context: JobContext) -> JobOutput:
    """A body that somebody forgot to make async."""
    return DONE


async def generator(context: JobContext) -> AsyncIterator[JobOutput]:
    """A body that yields."""
    yield DONE


async def no_argument() -> JobOutput:
    """A body that takes nothing."""
    return DONE


async def nothing(context: JobContext) -> None:
    """A body that says it returns nothing."""


async def a_dict(context: JobContext) -> dict[str, int]:
    """A body that says it returns JSON as it is."""
    return {}


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (
            ordinary,
            "the handler of 'k': ordinary must be an async function that returns its output",
        ),
        (generator, "generator must be an async function that returns its output"),
        (lambda _: DONE, "must be an async function"),
        (no_argument, "no_argument must take one argument, the context"),
        (nothing, "nothing says that it returns None: return a JobOutput"),
        (a_dict, "a_dict says that it returns dict: return a JobOutput"),
    ],
)
def test_a_body_that_cannot_be_run_is_refused_at_start(body: Any, complaint: str) -> None:  # noqa: ANN401
    """Each would fail every job, and its client read only that something went wrong."""
    made = job_handler("k")(body)
    with pytest.raises(ConfigError, match=re.escape(complaint)) as caught:
        handlers_by_kind([made])
    assert "\n" not in str(caught.value)


def test_a_method_that_cannot_be_run_is_refused_at_start() -> None:
    """As a function is."""

    class Ordinary(JobHandler):
        kind = "k"

        def run(self, context: JobContext) -> JobOutput:  # type: ignore[override]
            return DONE

    with pytest.raises(ConfigError, match="run must be an async function"):
        handlers_by_kind([Ordinary()])


def test_a_clean_up_that_cannot_be_run_is_refused_at_start() -> None:
    """It would fail when nobody looks any more."""

    @job_handler("k")
    async def handler(context: JobContext) -> JobOutput:
        return DONE

    @handler.on_expire  # type: ignore[arg-type]
    def remove(job: AsyncJob) -> None:
        """Remove nothing."""

    with pytest.raises(ConfigError, match=r"remove must be an async function .* remove\(job\)"):
        handlers_by_kind([handler])


async def test_what_decorators_and_objects_make_of_a_body_is_taken() -> None:
    """A wrapper is judged by what it wraps; what cannot be judged is taken."""

    async def body(context: JobContext) -> JobOutput:
        return DONE

    @functools.wraps(body)
    def wrapper(context: JobContext) -> Awaitable[JobOutput]:
        return body(context)

    class Called:
        async def __call__(self, context: JobContext) -> JobOutput:
            return DONE

    bodies: list[Any] = [body, wrapper, Called(), functools.partial(body)]
    for one in bodies:
        assert list(handlers_by_kind([job_handler("k")(one)])) == ["k"]


@pytest.mark.parametrize("operation", ["count", 5, Operation])
def test_an_operation_is_one(operation: Any) -> None:  # noqa: ANN401
    """A name alone would end the server that looks at it."""

    @job_handler("k", operation=operation)
    async def handler(context: JobContext) -> JobOutput:
        return DONE

    with pytest.raises(ConfigError, match="operation must be an Operation, not"):
        handlers_by_kind([handler])


def test_a_kind_that_was_forgotten_is_named() -> None:
    """Without the parentheses the function is the kind."""

    async def body(context: JobContext) -> JobOutput:
        return DONE

    with pytest.raises(ConfigError, match=r'write @job_handler\("kind"\) above the function'):
        job_handler(body)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match=r'not a JobHandler: write @job_handler\("kind"\) above'):
        handlers_by_kind([body])  # type: ignore[list-item]
    handler = job_handler("k")(body)
    with pytest.raises(ConfigError, match="not a JobHandler: give the handler, not its method"):
        handlers_by_kind([handler.run])  # type: ignore[list-item]


def test_a_middleware_that_cannot_be_entered_is_refused_at_start() -> None:
    """It would be passed over in each run, with a traceback."""

    def generator(run: JobRun) -> Iterator[None]:
        yield

    async def coroutine(run: JobRun) -> None:
        """Do nothing."""

    @job_handler("k")
    async def handler(context: JobContext) -> JobOutput:
        return DONE

    for one, words in (
        (generator, "the middleware generator is a generator: write @contextlib.contextmanager"),
        (coroutine, "the middleware coroutine must not be async"),
    ):
        middleware: list[Any] = [one]
        with pytest.raises(ConfigError, match=words):
            AsyncJobWorker(MemoryJobProvider(), [handler], middleware=middleware)
