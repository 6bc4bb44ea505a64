"""Databases with a backlog, made by plain SQL: a million rows take a quarter of a minute."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import trio

from benchmarks._server import database
from hastetrio.postgres import PostgresJobProvider

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def migrated(server_url: str, name: str) -> Iterator[str]:
    """The conninfo of a new database with empty tables, dropped afterwards."""
    with database(server_url, name) as url:

        async def migrate() -> None:
            async with PostgresJobProvider.open(url) as provider:
                await provider.migrate()

        trio.run(migrate)
        yield url


def run(url: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:  # noqa: ANN401
    """The rows of one statement on a connection of its own."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []


def kinds(count: int) -> list[str]:
    """The names of so many kinds."""
    return [f"kind-{number}" for number in range(count)]


def queue(url: str, count: int, *, over: int = 1) -> None:
    """Queue so many jobs of so many kinds, the oldest first, and let the planner know."""
    run(url, "ALTER TABLE async_jobs DISABLE TRIGGER USER")
    run(
        url,
        "INSERT INTO async_jobs (id, tenant, project, kind, created_at, expires_at)"
        " SELECT 'job-' || n, 't' || n %% 20, 'p' || n %% 5, 'kind-' || n %% %s,"
        " now() - interval '1 hour' + n * interval '1 millisecond', now() + interval '1 day'"
        " FROM generate_series(1, %s) n",
        over,
        count,
    )
    run(url, "ALTER TABLE async_jobs ENABLE TRIGGER USER")
    run(url, "VACUUM ANALYZE async_jobs")
