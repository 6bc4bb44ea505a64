"""The databases of tests: each test's own, as good as new, and gone afterwards."""

from __future__ import annotations

import contextlib

import psycopg
import pytest

from hastetrio.testing._databases import Databases


def value(url: str, query: str) -> object:
    """The one value that a query answers."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
        return None if row is None else row[0]


def run(url: str, statement: str) -> None:
    """Execute one statement."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


INSERT = "INSERT INTO async_jobs (tenant, project, kind) VALUES ('t', 'p', 'k')"
COUNT = "SELECT count(*) FROM async_jobs"
NAME = "SELECT current_database()"


def test_one_that_only_has_rows_is_emptied_and_used_again(databases: Databases) -> None:
    """Making one takes longer than most tests."""
    with databases.migrated() as first:
        run(first, INSERT)
    with databases.migrated() as again:
        assert again == first
        assert value(again, COUNT) == 0


def test_one_that_a_test_changed_is_not_used_again(databases: Databases) -> None:
    """The next test finds the tables as the migrations make them."""
    with databases.migrated() as url:
        run(url, "ALTER TABLE async_jobs DISABLE TRIGGER USER")
    with databases.migrated() as other:
        assert other != url
        assert value(other, COUNT) == 0
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        value(url, NAME)


async def test_all_are_gone_at_the_end(server_url: str) -> None:
    """Also one that is in use, when a session is interrupted; and inside of a loop."""
    with Databases(server_url) as made, contextlib.ExitStack() as never_left:
        url = never_left.enter_context(made.migrated())
        names = [value(url, NAME), made.template]
        kept = never_left.pop_all()
    existing = "SELECT count(*) FROM pg_database WHERE datname = ANY(%s)"
    with psycopg.connect(server_url) as connection:
        assert connection.execute(existing, [names]).fetchone() == (0,)
    kept.close()
