"""One server a session, one database a test."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

if TYPE_CHECKING:
    from collections.abc import Iterator

# Nothing these tests store need survive a power cut; without fsync they run twice as fast.
SERVER_OPTIONS = (
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "shared_buffers=32MB",
    "jit=off",
    "max_connections=200",
)

# A busy machine is no failure, and a failure prints what replays it.
hypothesis.settings.register_profile("hastetrio", deadline=None, print_blob=True, database=None)
hypothesis.settings.load_profile("hastetrio")

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """A PostgreSQL server of this session's own, or the one HASTETRIO_TEST_SERVER names."""
    if given := os.environ.get("HASTETRIO_TEST_SERVER"):
        yield given
        return
    from hastetrio.embedded import EmbeddedPostgres

    # Not pytest's own folder: root's is closed to the account the server runs as.
    root = Path(tempfile.mkdtemp(prefix="hastetrio-tests-", dir="/tmp"))
    root.chmod(0o755)
    server = EmbeddedPostgres(root, options=SERVER_OPTIONS)
    try:
        yield server.start()
    finally:
        server.stop()
        server.wait_stopped(20)
        shutil.rmtree(root, ignore_errors=True)


def _execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


@pytest.fixture(scope="session")
def template(server_url: str) -> Iterator[str]:
    """The name of a migrated database to copy from."""
    import trio

    from hastetrio.postgres import PostgresJobProvider

    name = f"hastetrio_template_{os.getpid()}"
    _execute(server_url, f"CREATE DATABASE {name}")

    async def migrate() -> None:
        async with PostgresJobProvider.open(make_conninfo(server_url, dbname=name)) as provider:
            await provider.migrate()

    trio.run(migrate)
    yield name
    _execute(server_url, f"DROP DATABASE {name} WITH (FORCE)")


def _database(server_url: str, template: str) -> Iterator[str]:
    name = f"hastetrio_test_{os.getpid()}_{next(_numbers)}"
    _execute(server_url, f"CREATE DATABASE {name} TEMPLATE {template}")
    yield make_conninfo(server_url, dbname=name)
    _execute(server_url, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database_url(server_url: str, template: str) -> Iterator[str]:
    """A migrated database of this test's own."""
    yield from _database(server_url, template)


@pytest.fixture
def empty_database_url(server_url: str) -> Iterator[str]:
    """A database of this test's own without any tables."""
    yield from _database(server_url, "template1")
