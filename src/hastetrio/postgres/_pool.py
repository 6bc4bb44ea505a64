"""A few connections that clients' calls share, apart from those that leases depend on."""

from __future__ import annotations

from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

from hastetrio._errors import ProviderUnavailable
from hastetrio.postgres._unit import Lane

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from hastetrio._model import AsyncJob
    from hastetrio.postgres._connection import TrioConnection


class LanePool:
    """Lanes of which each unit takes a free one; with none free it waits its turn.

    A lane connects when it is first needed, so that a process with few calls has one connection.

    Args:
        dsn: Where the database is.
        size: The most lanes, and so the most units at once.
        budget: Seconds one unit may take, waiting for its turn included.
        prepared: Whether statements are prepared.
    """

    def __init__(self, dsn: str, *, size: int, budget: float, prepared: bool) -> None:
        self._lanes = [Lane(dsn, budget=budget, prepared=prepared) for _ in range(size)]
        # The one used last first: the others' connections are opened only under load.
        self._free = deque(self._lanes)
        self._turns = trio.Semaphore(size)
        self._budget = budget

    @asynccontextmanager
    async def unit(self) -> AsyncGenerator[TrioConnection]:
        """Run the block as one unit on a free lane's connection; see `Lane.unit`.

        Raises:
            ProviderUnavailable: No connection, no turn, or no answer in time.
        """
        async with self._lane() as lane, lane.unit() as connection:
            yield connection

    async def fetch(self, sql: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run one statement as one unit, and return its rows."""
        async with self._lane() as lane:
            return await lane.fetch(sql, parameters)

    async def fetch_jobs(
        self, name: str, parameters: Mapping[str, Any]
    ) -> tuple[list[AsyncJob], list[str]]:
        """Run one statement as one unit; its jobs, and the ids of rows that cannot be read."""
        async with self._lane() as lane:
            return await lane.fetch_jobs(name, parameters)

    def close(self) -> None:
        """Close the connections that are open; no unit may be under way."""
        for lane in self._lanes:
            lane.close()

    @asynccontextmanager
    async def _lane(self) -> AsyncGenerator[Lane]:
        with trio.move_on_after(self._budget) as waiting:
            await self._turns.acquire()
        if waiting.cancelled_caught:
            raise ProviderUnavailable(
                f"all {len(self._lanes)} connections for clients were busy for {self._budget:g} s"
            )
        lane = self._free.popleft()
        try:
            yield lane
        finally:
            self._free.appendleft(lane)
            self._turns.release()
