"""Each test of the contract runs once on every provider."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest
import trio
from psycopg import sql
from psycopg.conninfo import make_conninfo
from trio.abc import Clock, Instrument
from trio.testing import MockClock

from ._world import World, open_world


def run_virtually(
    function: Callable[[], Awaitable[Any]],
    *,
    clock: Clock | None = None,
    instruments: list[Instrument],
) -> Any:  # noqa: ANN401  # whatever the test returns
    """Run a test on a clock of its own that stands still, and jumps when everybody waits."""
    clock = clock or MockClock(autojump_threshold=0)
    return trio.run(function, clock=clock, instruments=instruments)


@pytest.fixture(scope="session")
def contract_database(server_url: str, template: str) -> Iterator[str]:
    """One migrated database for the whole suite: to make one a test would take 0.3 s each."""
    name = sql.Identifier(f"hastetrio_contract_{os.getpid()}")
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(name, sql.Identifier(template))
        )
    yield make_conninfo(server_url, dbname=f"hastetrio_contract_{os.getpid()}")
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.fixture(
    params=[pytest.param("memory", marks=pytest.mark.trio(run=run_virtually)), "postgres"]
)
def storage(request: pytest.FixtureRequest) -> str | None:
    """Where the provider keeps its rows: the URL of a database without any, or None for memory."""
    if request.param == "memory":
        return None
    url: str = request.getfixturevalue("contract_database")
    with psycopg.connect(url) as connection:
        connection.execute("TRUNCATE async_jobs")
    return url


@pytest.fixture
async def world(storage: str | None) -> AsyncIterator[World]:
    """A provider without jobs."""
    async with open_world(storage) as world:
        yield world
