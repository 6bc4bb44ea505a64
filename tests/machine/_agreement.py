"""Asks every provider the same, compares what they say and hold, and checks the promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, ClassVar, TypeVar

import attrs
import trio
from hypothesis.stateful import RuleBasedStateMachine

from hastetrio._model import AsyncJob
from hastetrio._provider import AsyncJobProvider

from ._ledger import Ledger, promise
from ._pump import Pump
from ._sides import TENANT, Side, View, without_times

Answer = TypeVar("Answer")
Call = Callable[[AsyncJobProvider], Awaitable[Answer]]


class Agreement(RuleBasedStateMachine):
    """One provider, or several that must agree after each step.

    Attributes:
        pump: Runs trio.
        sides: The providers.
        tally: Counts what came about, over all histories.
    """

    pump: ClassVar[Pump]
    sides: ClassVar[Sequence[Side]]
    tally: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        for side in self.sides:
            side.clear()
        self.ledger = Ledger()
        self.ids: list[str] = []
        self._settled = 0

    def _ask(self, call: Call[Answer]) -> Answer:
        """The answer of every provider, which must be the same."""
        answers = [side.ask(call) for side in self.sides]
        said = [comparable(answer) for answer in answers]
        for side, what in zip(self.sides, said, strict=True):
            promise(
                what == said[0],
                f"{side.name} answers as {self.sides[0].name} does",
                what,
                said[0],
            )
        return answers[0]

    def _ask_each(self, calls: Sequence[Call[Answer]]) -> list[Answer]:
        """The answers to calls made at once, as many jobs of a worker make them."""

        async def all_at_once(provider: AsyncJobProvider) -> list[Answer]:
            answers: dict[int, Answer] = {}

            async def ask(place: int, call: Call[Answer]) -> None:
                answers[place] = await call(provider)

            async with trio.open_nursery() as nursery:
                for place, call in enumerate(calls):
                    nursery.start_soon(ask, place, call)
            return [answers[place] for place in range(len(calls))]

        return self._ask(all_at_once)

    def _settle(self, touched: Collection[str]) -> None:
        """Compare and check the rows after a step that may have changed these; and look at them."""
        tables = [side.views() for side in self.sides]
        for side, views in zip(self.sides, tables, strict=True):
            if views != tables[0]:
                promise(
                    False,
                    f"{side.name} holds the rows that {self.sides[0].name} does",
                    [view for view in views if view not in tables[0]],
                    [view for view in tables[0] if view not in views],
                )
        self.ledger.check(tables[0], touched)
        self._settled += 1
        self._count("steps")
        self._read_as_client(["main", "side"][self._settled % 2])

    def _read_as_client(self, project: str) -> None:
        shown = list(self._shown(project))
        id = self.ids[self._settled // 2 % len(self.ids)] if self.ids else ""

        async def read(provider: AsyncJobProvider) -> tuple[list[AsyncJob], int, AsyncJob | None]:
            jobs = await provider.list_jobs(TENANT, project)
            count = await provider.count_live_jobs(TENANT, project)
            return jobs, count, await provider.read_job(TENANT, project, id)

        jobs, count, job = self._ask(read)
        promise(
            [job.id for job in jobs] == [view.id for view in shown],
            "no expired row is served, and each other one is",
            jobs,
            shown,
        )
        live = sum(view.is_live for view in shown)
        promise(count == live, "live jobs are counted, expired ones not", count, live)
        served = next((view for view in shown if view.id == id), None)
        promise(
            (job and (job.status.value, job.output, job.error, job.attempts))
            == (served and (served.status, served.output, served.error, served.attempts)),
            "a job is read as it is stored, until it expires",
            job,
            served,
        )

    def _shown(self, project: str) -> list[View]:
        """What clients of a project may see, newest first."""
        rows = reversed(self.ledger.views.values())
        return [view for view in rows if view.project == project and not view.expired]

    def _count(self, what: str, number: int = 1) -> None:
        self.tally[what] += number


def comparable(answer: object) -> object:
    """An answer in a form that is equal on two providers when it means the same."""
    if isinstance(answer, (list, tuple)):
        return [comparable(item) for item in answer]
    if not isinstance(answer, AsyncJob):
        return answer
    columns: dict[str, Any] = attrs.asdict(answer)
    for name in ("created_at", "updated_at", "expires_at", "run_at"):
        del columns[name]
    for name in ("started_at", "finished_at", "lease_expires_at"):
        columns[name] = columns[name] is not None
    columns["attempt_errors"] = without_times(columns["attempt_errors"])
    return columns
