"""Migrated databases for tests: one server a session, one database a test."""

from __future__ import annotations

import itertools
import os
import secrets
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Final, Self

import psycopg
import trio
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from hastetrio._settings import TEST_SERVER_VARIABLE
from hastetrio.testing._threads import outside_of_loops

if TYPE_CHECKING:
    from collections.abc import Iterator

"""Names a server to make the databases on, as a URL."""

# Nothing that tests store need survive a power cut; without fsync they run twice as fast.
_SERVER_OPTIONS: Final = (
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "shared_buffers=32MB",
    "jit=off",
    "max_connections=200",
)

# What a test may leave behind beside rows; where it did, its database is not used again.
_FINGERPRINT: Final = """
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


@contextmanager
def database_server() -> Iterator[str]:
    """The URL of the server `HASTETRIO_TEST_SERVER` names, or of one that lives for the block.

    Raises:
        EmbeddedUnavailable: There is no PostgreSQL here to start one from.
    """
    if given := os.environ.get(TEST_SERVER_VARIABLE):
        yield given
        return
    from hastetrio.embedded import throw_away_server

    with throw_away_server(_SERVER_OPTIONS) as server:
        yield server.start()


class Databases:
    """Makes databases on one server, and removes them at the end of the `with` block.

    Making a migrated one is a copy of a template, which takes ten times as long as emptying one;
    so one that a test left as it found it, but for rows, is used again.

    Args:
        server_url: A server whose user may create databases.
    """

    def __init__(self, server_url: str) -> None:
        self._server = server_url
        # Several sessions, on several hosts too, may share a server.
        self._prefix = f"hastetrio_test_{os.getpid()}_{secrets.token_hex(3)}"
        self._numbers = itertools.count(1)
        self._made: set[str] = set()
        self._free: list[str] = []
        self._fingerprint: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._made.copy():
            self._drop(name)

    @cached_property
    def template(self) -> str:
        """The name of a migrated database to copy from."""
        from hastetrio.postgres import PostgresJobProvider

        name = self._create()
        url = make_conninfo(self._server, dbname=name)

        async def migrate() -> None:
            async with PostgresJobProvider.open(url) as provider:
                await provider.migrate()

        outside_of_loops(lambda: trio.run(migrate))
        self._fingerprint = _fingerprint(url)
        return name

    @contextmanager
    def migrated(self) -> Iterator[str]:
        """The URL of a migrated database without rows, the block's own."""
        template = self.template
        url = self._free.pop() if self._free else self._url(self._create(template))
        try:
            yield url
        finally:
            # Dropped at the end otherwise, where somebody's interrupt has come first.
            if self._is_reusable(url):
                self._free.append(url)
            else:
                self._drop(conninfo_to_dict(url)["dbname"])

    @contextmanager
    def empty(self) -> Iterator[str]:
        """The URL of a database without any tables, the block's own."""
        name = self._create()
        try:
            yield self._url(name)
        finally:
            self._drop(name)

    def _create(self, template: str | None = None) -> str:
        name = f"{self._prefix}_{next(self._numbers)}"
        source = f" TEMPLATE {template}" if template else ""
        _execute(self._server, f"CREATE DATABASE {name}{source}")
        self._made.add(name)
        return name

    def _drop(self, name: object) -> None:
        _execute(self._server, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        self._made.discard(str(name))

    def _url(self, name: str) -> str:
        return make_conninfo(self._server, dbname=name)

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


def _execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


def _fingerprint(url: str) -> str | None:
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            row = connection.execute(_FINGERPRINT).fetchone()
    except psycopg.Error:
        return None
    return None if row is None else str(row[0])
