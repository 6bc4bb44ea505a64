"""Turns the calls that wait while a statement is in flight into the next statement.

An idle worker waits for nothing, since its one call goes out at once, and a busy one pays one
round trip for hundreds. There is no timer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

import attrs
import outcome
import trio

from hastetrio._errors import ProviderUnavailable, UnstorableValue
from hastetrio.postgres._unit import RowAtFault

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# Rows in one statement. 1,000 renewals take about 40 ms; more would make the others wait longer.
_MOST_ROWS: Final = 1000

# Bytes of results in one statement, so that it stays well inside one call's budget.
_MOST_BYTES: Final = 4 * 1024 * 1024


def split(items: Sequence[Item], size: Callable[[Item], int]) -> Iterator[Sequence[Item]]:
    """The items in parts that each fit one statement: in rows, and in bytes where one fits."""
    begin = total = 0
    for place, item in enumerate(items):
        total += size(item)
        if place > begin and (place - begin >= _MOST_ROWS or total > _MOST_BYTES):
            yield items[begin:place]
            begin, total = place, size(item)
    if begin < len(items):
        yield items[begin:]


@attrs.define(eq=False)
class _Call(Generic[Item]):
    """One caller and what it asks; without a task once it was answered or has left."""

    item: Item
    task: trio.lowlevel.Task | None

    def answer(self, answer: outcome.Outcome[Any]) -> None:
        if self.task is not None:
            trio.lowlevel.reschedule(self.task, answer)
            self.task = None


class Batcher(Generic[Item, Answer]):
    """Sends items in batches; `run` must be running in somebody's nursery.

    Args:
        send: Runs one statement for several items, and returns their answers in the same order.
            When it raises `UnstorableValue` or `RowAtFault`, the batch is halved until the item
            at fault is alone, so that its neighbours go through in the same round.
        size: How many bytes an item adds to the statement.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
        size: Callable[[Item], int] = lambda _: 0,
    ) -> None:
        self._send = send
        self._size = size
        self._waiting: deque[_Call[Item]] = deque()
        self._idle = trio.lowlevel.ParkingLot()
        self._closed = False

    async def ask(self, item: Item) -> Answer:
        """Send `item` with the next batch, and return its answer.

        Raises:
            ProviderUnavailable: The database did not answer, or the provider is closed.
            UnstorableValue: The database refuses this item.

        Cancellation: the caller leaves at once; a statement under way may still be applied.
        """
        if self._closed:
            raise ProviderUnavailable("the provider is closed")
        call = _Call(item, trio.lowlevel.current_task())
        self._waiting.append(call)
        if self._idle:
            self._idle.unpark()

        def abort(_: object) -> trio.lowlevel.Abort:
            call.task = None
            return trio.lowlevel.Abort.SUCCEEDED

        # No event object: at thousands of jobs a second each of them would be noticed.
        answer: Answer = await trio.lowlevel.wait_task_rescheduled(abort)
        return answer

    @trio.lowlevel.enable_ki_protection
    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send what waits, for ever.

        Cancellation: a statement under way is finished and answered; other callers are told that
        the provider is closed.
        """
        calls: list[_Call[Item]] = []
        try:
            task_status.started()
            while True:
                if not self._waiting:
                    await self._idle.park()
                calls = self._next()
                if calls:
                    await self._deliver(calls)
        finally:
            self._closed = True
            for call in (*calls, *self._waiting):
                call.answer(outcome.Error(ProviderUnavailable("the provider is closed")))

    def _next(self) -> list[_Call[Item]]:
        calls: list[_Call[Item]] = []
        size = 0
        while self._waiting and len(calls) < _MOST_ROWS:
            call = self._waiting[0]
            size += self._size(call.item)
            if calls and size > _MOST_BYTES:
                break
            self._waiting.popleft()
            if call.task is not None:
                calls.append(call)
        return calls

    async def _deliver(self, calls: Sequence[_Call[Item]]) -> None:
        try:
            answers = await self._send([call.item for call in calls])
        except (UnstorableValue, RowAtFault) as error:
            if len(calls) == 1:
                calls[0].answer(outcome.Error(error))
                return
            middle = len(calls) // 2
            await self._deliver(calls[:middle])
            await self._deliver(calls[middle:])
        except Exception as error:  # noqa: BLE001  # whatever it is, the callers must hear of it
            for call in calls:
                call.answer(outcome.Error(error))
        else:
            for call, answer in zip(calls, answers, strict=True):
                call.answer(outcome.Value(answer))
