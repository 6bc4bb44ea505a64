"""One no-op handler for each thing that handlers may ask for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import trio

from hastetrio import (
    HandlerOutput,
    JobContext,
    JobHandler,
    JobMiddleware,
    JobOutput,
    JobRun,
    RetryPolicy,
)

KIND: Final = "bench-feature"
PARAMETERS: Final = {"number": 1}

_NOTHING: Final = JobOutput.json({})


@attrs.frozen
class Given:
    """Parameters of a class."""

    number: int
    text: str = ""


@attrs.frozen
class Answered:
    """An output of a class."""

    number: int


class Plain(JobHandler):
    """Asks for nothing.

    Args:
        jobs: After so many, `all_ran` is set.
    """

    kind = KIND

    def __init__(self, jobs: int) -> None:
        self.all_ran = trio.Event()
        self._left = jobs

    async def run(self, context: JobContext) -> HandlerOutput:
        """Run one job, and count it."""
        try:
            return await self.work(context)
        finally:
            self._left -= 1
            if not self._left:
                self.all_ran.set()

    async def work(self, context: JobContext) -> HandlerOutput:  # noqa: ARG002  # for the others
        """Do nothing."""
        return _NOTHING


class _Retries(Plain):
    retries = RetryPolicy()


class _Typed(Plain):
    parameters = Given


class _Answer(Plain):
    async def work(self, context: JobContext) -> HandlerOutput:  # noqa: ARG002
        return Answered(1)


class _Timed(Plain):
    timeout = 60


class _Thread(Plain):
    async def work(self, context: JobContext) -> HandlerOutput:
        await context.run_sync(int)
        return _NOTHING


class _State(Plain):
    async def work(self, context: JobContext) -> HandlerOutput:
        await context.save_state(1)
        return _NOTHING


class _Confirmed(Plain):
    async def work(self, context: JobContext) -> HandlerOutput:
        await context.confirm_lease()
        return _NOTHING


class _Transaction(Plain):
    async def work(self, context: JobContext) -> HandlerOutput:
        async with context.transaction() as connection:
            return await context.finish(connection, _NOTHING)


@contextmanager
def _around(_: JobRun) -> Iterator[None]:
    yield


VARIANTS: Final[dict[str, tuple[type[Plain], tuple[JobMiddleware, ...]]]] = {
    "nothing": (Plain, ()),
    "a retry policy that is not needed": (_Retries, ()),
    "parameters of a class": (_Typed, ()),
    "an output of a class": (_Answer, ()),
    "a timeout": (_Timed, ()),
    "one middleware": (Plain, (_around,)),
    "save_state": (_State, ()),
    "confirm_lease": (_Confirmed, ()),
    "run_sync": (_Thread, ()),
    "a transaction with its finish": (_Transaction, ()),
}
