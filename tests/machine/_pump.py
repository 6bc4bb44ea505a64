"""Runs trio one step at a time, for a test that is not asynchronous itself.

Hypothesis calls the rules of a state machine as plain functions. The pump is trio's host (guest
mode): trio moves only while a step runs, in the same thread, so that a failing step has a plain
traceback. Virtual time stands still until somebody jumps.
"""

from __future__ import annotations

import queue
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import outcome
import trio
from trio.testing import MockClock

Result = TypeVar("Result")

# Seconds to wait for a step, which takes milliseconds. Then it waits for virtual time, to ask again
# or to give up: each time it is given a second, so that it fails with an error of its own.
_PATIENCE: Final = 2.0
_JUMPS: Final = 10


class Pump:
    """A trio run on a clock that stands still, moved on by whoever needs an answer."""

    def __init__(self) -> None:
        self.clock = MockClock()
        self._callbacks: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._nursery: trio.Nursery | None = None
        self._ended: outcome.Outcome[None] | None = None

    def __enter__(self) -> Self:
        trio.lowlevel.start_guest_run(
            self._main,
            run_sync_soon_threadsafe=self._callbacks.put,
            done_callback=self._end,
            clock=self.clock,
        )
        self._turn_until(lambda: self._nursery is not None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._token.run_sync_soon(self._serving.cancel_scope.cancel)
        self._turn_until(lambda: self._ended is not None)
        if error is None and self._ended is not None:
            self._ended.unwrap()

    def run(self, function: Callable[[], Awaitable[Result]]) -> Result:
        """What `function` returns or raises, run inside trio."""
        results: list[outcome.Outcome[Result]] = []

        async def step() -> None:
            results.append(await outcome.acapture(function))

        self._token.run_sync_soon(self._serving.start_soon, step)
        self._turn_until(lambda: results)
        return results[0].unwrap()

    def enter(self, manager: AbstractAsyncContextManager[Result]) -> Result:
        """Enter an asynchronous context manager, which is left when the pump is."""

        async def hold(*, task_status: trio.TaskStatus[Result]) -> None:
            async with manager as value:
                task_status.started(value)
                await trio.sleep_forever()

        async def start() -> Any:  # noqa: ANN401  # trio's own type for what was started
            return await self._serving.start(hold)

        value: Result = self.run(start)
        return value

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    @property
    def _serving(self) -> trio.Nursery:
        if self._nursery is None or self._ended is not None:
            raise RuntimeError("the pump is not running")
        return self._nursery

    def _end(self, ended: outcome.Outcome[None]) -> None:
        self._ended = ended

    def _turn_until(self, ready: Callable[[], object]) -> None:
        jumps = 0
        while not ready():
            try:
                callback = self._callbacks.get(timeout=_PATIENCE)
            except queue.Empty:
                if jumps == _JUMPS:
                    raise TimeoutError("a step of the test never ends") from None
                jumps += 1
                self.clock.jump(1.0)
                self._token.run_sync_soon(lambda: None)
            else:
                callback()
