"""Every asynchronous test of this folder runs in virtual time, on a memory provider."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.abc import Clock, Instrument
from trio.testing import MockClock

from .harness import EventLog, Rig


def run_virtually(
    function: Callable[[], Awaitable[Any]],
    *,
    clock: Clock | None = None,
    instruments: list[Instrument],
) -> Any:  # noqa: ANN401  # whatever the test returns
    """Run a test on a clock that stands still, and jumps when everybody waits."""
    clock = clock or MockClock(autojump_threshold=0)
    return trio.run(function, clock=clock, instruments=instruments)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that forgot to ask for the clock would wait for real leases."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and inspect.iscoroutinefunction(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.trio(run=run_virtually))


@pytest.fixture
def event_log() -> Iterator[EventLog]:
    """All that the package logs, from DEBUG on, each record held to its declaration."""
    logger = logging.getLogger("hastetrio")
    log = EventLog()
    level = logger.level
    logger.addHandler(log)
    logger.setLevel(logging.DEBUG)
    yield log
    logger.removeHandler(log)
    logger.setLevel(level)
    log.check()


@pytest.fixture
async def rig(event_log: EventLog) -> AsyncIterator[Rig]:
    """A provider without jobs, whose calls can be broken, and what a test does around it."""
    rig = Rig(event_log)
    yield rig
    rig.let_go.set()
