"""What these tests share: plain SQL beside the provider, and waiting for what it shows.

Statements of a test run at once, in trio's thread: they take a millisecond, and never wait for
anything that the code under test holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import trio

from hastetrio._model import CreateAsyncJob, JobLease

TENANT = "acme"
PROJECT = "main"
KIND = "work"


def kick_off(kind: str = KIND, **values: Any) -> CreateAsyncJob:  # noqa: ANN401
    """A job to create."""
    return CreateAsyncJob(kind=kind, claims={"sub": "ann"}, **values)


def new_lease(duration: float = 60.0, worker: str = "worker-1") -> JobLease:
    """A lease with a token of its own."""
    return JobLease(worker, duration)


def run(url: str, statement: str, values: Any = None) -> list[tuple[Any, ...]]:  # noqa: ANN401
    """The rows of one statement on a connection of its own."""
    with psycopg.connect(url, autocommit=True, application_name="bystander") as connection:
        cursor = connection.execute(statement.encode(), values)
        return cursor.fetchall() if cursor.description else []


def value(url: str, statement: str, values: Any = None) -> Any:  # noqa: ANN401
    """The one value that one statement returns."""
    ((found,),) = run(url, statement, values)
    return found


def insert(url: str, kind: str = KIND, **columns: str) -> str:
    """Insert a row as a foreign program would; columns are SQL expressions. Returns its id."""
    columns = {"tenant": f"'{TENANT}'", "project": f"'{PROJECT}'", "kind": f"'{kind}'", **columns}
    names, expressions = ", ".join(columns), ", ".join(columns.values())
    statement = f"INSERT INTO async_jobs ({names}) VALUES ({expressions}) RETURNING id"  # noqa: S608
    return str(value(url, statement))


def column(url: str, id: str, name: str) -> Any:  # noqa: ANN401
    """One column of a row, as text where Python could not load it."""
    return value(url, f"SELECT {name} FROM async_jobs WHERE id = %s", [id])  # noqa: S608


def statuses(url: str, ids: Sequence[str]) -> list[str]:
    """The statuses of these rows, in the same order; a row that is gone is called so."""
    found = dict(run(url, "SELECT id, status::text FROM async_jobs"))
    return [found.get(id, "gone") for id in ids]


def sessions(url: str) -> list[tuple[int, str]]:
    """Process and state of each connection of the code under test to this database."""
    rows = run(
        url,
        "SELECT pid, coalesce(state, 'starting') FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'hastetrio'",
    )
    return [(int(pid), str(state)) for pid, state in rows]


async def until(condition: Callable[[], object], seconds: float = 15.0) -> None:
    """Wait for something that announces itself to nobody."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110  # there is no event to wait for
            await trio.sleep(0.01)


@contextmanager
def locked(url: str, *ids: str) -> Iterator[None]:
    """These rows are locked by somebody else's transaction while the block lasts."""
    with psycopg.connect(url) as connection:
        statement = "SELECT id FROM async_jobs WHERE id = ANY(%s) ORDER BY id FOR UPDATE"
        cursor = connection.execute(statement, [list(ids)])
        if len(cursor.fetchall()) != len(ids):
            raise AssertionError("a row to lock is not there")
        yield
