"""Handlers that do something else in each attempt, and what is to be seen of the attempts."""

from __future__ import annotations

from typing import Any

import attrs
import trio

from hastetrio import (
    AsyncJob,
    FunctionHandler,
    JobContext,
    JobOutput,
    RetryLater,
    RetryPolicy,
    Snooze,
    job_handler,
)

from .harness import DONE, KIND

FLAT = RetryPolicy(attempts=5, first=10, factor=3, jitter=0, on=(ConnectionError,))
"""Waits of 10, 30, 90 and 270 s, without a jitter."""

POLL = 1.1
"""How late an attempt may begin: a poll, and the moments around it."""

# Times are floats here and whole microseconds in the storage.
_ROUNDING = 1e-4


def in_time(waited: float, wait: float, most: float | None = None) -> bool:
    """Whether an attempt began after its wait (of at most `most`), and soon."""
    return wait - _ROUNDING <= waited <= (wait if most is None else most) + POLL


@attrs.define
class Returned:
    """A step that returns what another one would raise."""

    value: object


class Plan:
    """A body that takes one step after the other, one in each attempt, and then completes.

    Args:
        steps: Errors, which are raised; and `Returned` values.
    """

    def __init__(self, *steps: BaseException | Returned) -> None:
        self.steps = list(steps)
        self.contexts: list[JobContext] = []
        self.attempts: list[int] = []
        self.started: list[float] = []

    async def __call__(self, context: JobContext) -> Any:  # noqa: ANN401
        """Take the next step."""
        self.contexts.append(context)
        self.attempts.append(context.attempt)
        self.started.append(trio.current_time())
        if not self.steps:
            return DONE
        step = self.steps.pop(0)
        if isinstance(step, Returned):
            return step.value
        raise step


def asking(how: str, wish: RetryLater | Snooze) -> BaseException | Returned:
    """A step that asks to be run again, "raised" or "returned"."""
    return wish if how == "raised" else Returned(wish)


def retrying(
    body: Any,  # noqa: ANN401
    retries: RetryPolicy | None = None,
    *,
    kind: str = KIND,
    timeout: float | None = None,
) -> FunctionHandler:
    """A handler with a policy, or a timeout."""
    return job_handler(kind, retries=retries, timeout=timeout)(body)


def history(job: AsyncJob) -> list[tuple[int, list[str]]]:
    """Which attempts failed, and what with."""
    return [(entry["attempt"], entry["errors"]) for entry in job.attempt_errors or []]


async def go_on(seconds: float) -> JobOutput:
    """Wait to be cancelled, and then go on for so long all the same."""
    try:
        await trio.sleep_forever()
    except trio.Cancelled:
        with trio.CancelScope(shield=True):
            await trio.sleep(seconds)
    return DONE
