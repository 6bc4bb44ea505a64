"""A measurement that comes to a standstill is given up, with a word on what did not happen."""

from __future__ import annotations

from typing import cast

import attrs
import pytest
import trio
import trio.testing

from hastetrio import AsyncJobWorker, Counts, WorkerStatistics
from hastetrio.bench._plan import BenchError
from hastetrio.bench._throughput import _all_recorded, _NoOp
from hastetrio.bench._worker import happened, until_idle


@attrs.define
class Standing:
    """Stands for a worker that stays as it is."""

    totals: Counts

    def statistics(self) -> WorkerStatistics:
        """As it stands."""
        return WorkerStatistics("w", 4, 3, 1, (), self.totals)


def worker(**totals: int) -> AsyncJobWorker:
    """A worker with these totals that holds a row for ever."""
    return cast(AsyncJobWorker, Standing(Counts(**totals)))


async def test_what_does_not_happen_is_not_waited_for_for_ever(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A notification that is lost, or a job that hangs."""
    with pytest.raises(BenchError, match="a new job did not start within 30 s"):
        await happened(trio.Event(), "a new job did not start")
    with pytest.raises(BenchError, match="did not become idle within 30 s"):
        await until_idle(worker())


async def test_a_round_that_comes_to_a_standstill_is_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Also one whose last handler has run, and whose results are not recorded."""
    told: list[int] = []
    for all_ran in (False, True):
        handler = _NoOp(9)
        if all_ran:
            handler.all_ran.set()
        with pytest.raises(BenchError, match="no job was completed for 30 s, with 2 to go"):
            await _all_recorded(worker(completed=7), handler, 9, told.append)
    assert told == [7, 7]


async def test_a_job_that_fails_ends_the_round(autojump_clock: trio.testing.MockClock) -> None:
    """Failed jobs would be counted as fast ones, or waited for."""
    with pytest.raises(BenchError, match="1 of the no-op jobs failed"):
        await _all_recorded(worker(completed=8, failed=1), _NoOp(9), 9, lambda _: None)
