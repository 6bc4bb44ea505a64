"""A claim and a desk that only keep what a handler asks of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import attrs
import trio

from hastetrio import AsyncJob, CancelReason, JobContext, JobOutput


@attrs.define
class FakeClaim:
    """What a context looks through to."""

    job: AsyncJob
    name: str = "abcd1234"
    cancel_reason: CancelReason | None = None
    deadline: float = math.inf
    state: Any = None
    is_settled: bool = False
    on_report: Callable[[str], None] | None = None
    on_save: Callable[[Any], None] | None = None
    reports: list[str] = attrs.field(factory=list)

    def report(self, text: str, /) -> None:
        """Keep what was said."""
        self.reports.append(text)
        if self.on_report is not None:
            self.on_report(text)


class FakeDesk:
    """Keeps states on the claim, and has threads; what else is asked, the test did not mean."""

    async def save_state(self, held: FakeClaim, state: object) -> None:
        """Keep a state."""
        held.state = state
        if held.on_save is not None:
            held.on_save(state)

    async def confirm(self, held: FakeClaim) -> None:
        """Refuse."""
        raise NotImplementedError

    def transaction(self, held: FakeClaim) -> AbstractAsyncContextManager[Any]:
        """Refuse."""
        raise NotImplementedError

    async def finish(self, held: FakeClaim, connection: object, output: object) -> JobOutput:
        """Refuse."""
        raise NotImplementedError

    async def run_sync(self, function: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401
        """Call a function in a thread, as a worker does."""
        await trio.lowlevel.checkpoint()
        return await trio.to_thread.run_sync(function, *args)


def make_context(claim: FakeClaim) -> JobContext:
    """A context of that claim."""
    return JobContext(claim, FakeDesk())
