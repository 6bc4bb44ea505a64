"""Right: handlers as classes."""

from __future__ import annotations

from typing import Any, assert_type

import attrs

from hastetrio import (
    AsyncJob,
    AsyncJobWorker,
    HandlerOutput,
    JobContext,
    JobHandler,
    JobOutput,
    RetryLater,
    RetryPolicy,
)
from hastetrio.memory import MemoryJobProvider
from hastetrio.testing import assert_completed, run_job


@attrs.frozen
class Words:
    """Parameters."""

    text: str


@attrs.frozen
class Counted:
    """An output."""

    words: int


class Plain(JobHandler):
    """Without a class of parameters."""

    kind = "plain"

    async def run(self, context: JobContext) -> JobOutput:
        """Return what was given."""
        assert_type(context.parameters, Any)
        return JobOutput.json(context.parameters)


class Typed(JobHandler[Words]):
    """With one, and everything else that can be declared."""

    kind = "typed"
    retries = RetryPolicy(on=(OSError,))
    timeout = 60

    def __init__(self, folder: str) -> None:
        self.folder = folder

    async def run(self, context: JobContext[Words]) -> Counted | RetryLater:
        """Count, in the end."""
        if context.attempt == 1:
            return RetryLater()
        return Counted(len(context.parameters.text))

    def check_parameters(self, parameters: Any, /) -> None:  # noqa: ANN401
        """Judge what the class cannot."""

    async def expire(self, job: AsyncJob) -> None:
        """Clean up."""


class Raw(JobHandler[Any]):
    """With the checker told that there is none."""

    kind = "any"

    async def run(self, context: JobContext[Any]) -> HandlerOutput:
        """Return what was given."""
        return JobOutput.json(context.parameters)


def registers() -> None:
    """All of them go into one worker, and into a test."""
    AsyncJobWorker(MemoryJobProvider(), [Plain(), Typed("/tmp"), Raw()])  # noqa: S108
    assert_completed(run_job(Typed("/tmp"), parameters=Words("a")), output={"words": 1})  # noqa: S108
    assert_type(Typed("/tmp").parameters, type[Words] | None)  # noqa: S108
