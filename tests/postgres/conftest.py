"""One database for most tests, emptied before each; a schema for each test of migrations."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator

import pytest
from psycopg.conninfo import make_conninfo

from hastetrio.postgres import PostgresJobProvider

from .harness import run, sessions
from .relay import Relay, open_relay

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def shared_database(server_url: str, template: str) -> Iterator[str]:
    """A migrated database for the whole folder: to make one a test would take 0.3 s each."""
    name = f"hastetrio_shared_{os.getpid()}"
    run(server_url, f"CREATE DATABASE {name} TEMPLATE {template}")
    yield make_conninfo(server_url, dbname=name)
    run(server_url, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def url(shared_database: str) -> str:
    """A migrated database without jobs, and without connections that a failed test left."""
    for pid, _ in sessions(shared_database):
        run(shared_database, "SELECT pg_terminate_backend(%s, 5000)", [pid])
    run(shared_database, "TRUNCATE async_jobs")
    return shared_database


@pytest.fixture
async def provider(url: str) -> AsyncIterator[PostgresJobProvider]:
    """A provider on `url`."""
    async with PostgresJobProvider.open(url) as provider:
        yield provider


@pytest.fixture
def schema_url(shared_database: str) -> Iterator[str]:
    """A schema of this test's own without any tables."""
    name = f"test_{next(_numbers)}"
    run(shared_database, f"CREATE SCHEMA {name}")
    yield make_conninfo(shared_database, options=f"-c search_path={name}")
    run(shared_database, f"DROP SCHEMA {name} CASCADE")


@pytest.fixture
async def relay(url: str) -> AsyncIterator[Relay]:
    """The way to `url` through a relay that can be cut and stalled."""
    async with open_relay(url) as relay:
        yield relay
