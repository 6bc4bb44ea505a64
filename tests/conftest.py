"""One server a session, one database a test."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import hypothesis
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

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
    from hastetrio.embedded import throw_away_server

    with throw_away_server(SERVER_OPTIONS) as server:
        yield server.start()


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


# What a test may leave behind beside rows; where it did, its database is not used again.
_FINGERPRINT = """
SELECT md5(string_agg(thing, '|' ORDER BY thing)) FROM (
  SELECT concat_ws(' ', 'class', relname, relkind, relacl, reloptions, relowner) FROM pg_class
  WHERE relnamespace = 'public'::regnamespace
  UNION ALL SELECT concat_ws(' ', 'trigger', tgrelid::regclass, tgname, tgenabled) FROM pg_trigger
  UNION ALL SELECT concat_ws(' ', 'check', conname, convalidated) FROM pg_constraint
  UNION ALL SELECT concat_ws(' ', 'column', attrelid::regclass, attname, attnotnull)
    FROM pg_attribute WHERE attrelid IN (SELECT oid FROM pg_class
                                         WHERE relnamespace = 'public'::regnamespace)
  UNION ALL SELECT concat_ws(' ', 'function', oid::regprocedure, md5(prosrc)) FROM pg_proc
  UNION ALL SELECT concat_ws(' ', 'type', typname, typowner) FROM pg_type
  UNION ALL SELECT concat_ws(' ', 'schema', nspname, nspacl) FROM pg_namespace
    WHERE nspname !~ '^pg_(toast_)?temp'
  UNION ALL SELECT concat_ws(' ', 'extension', extname) FROM pg_extension
  UNION ALL SELECT concat_ws(' ', 'database', datacl, datconnlimit, datallowconn)
    FROM pg_database WHERE datname = current_database()
  UNION ALL SELECT concat_ws(' ', 'setting', setrole, setconfig) FROM pg_db_role_setting
    WHERE setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
  UNION ALL SELECT concat_ws(' ', 'migration', m::text) FROM hastetrio_migrations m
) things (thing)
"""


class _Databases:
    """Migrated databases, one a test; making one takes ten times as long as emptying it."""

    def __init__(self, server_url: str, template: str) -> None:
        self._server = server_url
        self._template = template
        self._free: list[str] = []
        self._fingerprint: str | None = None

    def take(self) -> str:
        if self._free:
            return self._free.pop()
        name = f"hastetrio_test_{os.getpid()}_{next(_numbers)}"
        _execute(self._server, f"CREATE DATABASE {name} TEMPLATE {self._template}")
        url = make_conninfo(self._server, dbname=name)
        if self._fingerprint is None:
            self._fingerprint = _fingerprint(url)
        return url

    def give_back(self, url: str) -> None:
        if self._is_reusable(url):
            self._free.append(url)
        else:
            self._drop(url)

    def close(self) -> None:
        for url in self._free:
            self._drop(url)

    def _is_reusable(self, url: str) -> bool:
        try:
            with psycopg.connect(url, autocommit=True) as connection:
                # As dropping it would: whoever is still connected belongs to the test.
                connection.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
                connection.execute("TRUNCATE async_jobs")
        except psycopg.Error:
            return False
        return _fingerprint(url) == self._fingerprint

    def _drop(self, url: str) -> None:
        name = conninfo_to_dict(url)["dbname"]
        _execute(self._server, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def _fingerprint(url: str) -> str | None:
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            row = connection.execute(_FINGERPRINT).fetchone()
    except psycopg.Error:
        return None
    return None if row is None else str(row[0])


@pytest.fixture(scope="session")
def databases(server_url: str, template: str) -> Iterator[_Databases]:
    """The databases of this session's tests."""
    made = _Databases(server_url, template)
    yield made
    made.close()


@pytest.fixture
def database_url(databases: _Databases) -> Iterator[str]:
    """A migrated database without rows, this test's own."""
    url = databases.take()
    yield url
    databases.give_back(url)


@pytest.fixture
def empty_database_url(server_url: str) -> Iterator[str]:
    """A database of this test's own without any tables."""
    name = f"hastetrio_test_{os.getpid()}_{next(_numbers)}"
    _execute(server_url, f"CREATE DATABASE {name}")
    yield make_conninfo(server_url, dbname=name)
    _execute(server_url, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
