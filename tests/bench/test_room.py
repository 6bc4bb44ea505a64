"""The benchmark's own database or schema: made, used, and gone afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psycopg
import pytest
import trio
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from hastetrio import CreateAsyncJob
from hastetrio.bench._plan import BenchError
from hastetrio.bench._room import Room, own_room
from hastetrio.postgres import PostgresJobProvider

ROLE = f"bench_{os.getpid()}"


def execute(url: str, statement: str) -> None:
    """Run one statement."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


def exists(url: str, room: Room) -> bool:
    """Whether a database or schema of that name is there."""
    query = "SELECT datname FROM pg_database UNION SELECT nspname FROM pg_namespace"
    with psycopg.connect(url, autocommit=True) as connection:
        return (room.name,) in connection.execute(query.encode()).fetchall()


@pytest.fixture
def role(empty_database_url: str) -> Iterator[str]:
    """A conninfo whose sessions have a role without any right, in a database of the test's."""
    execute(empty_database_url, f"CREATE ROLE {ROLE}")
    yield make_conninfo(empty_database_url, options=f"-c role={ROLE}")
    execute(empty_database_url, f"DROP OWNED BY {ROLE} CASCADE")
    execute(empty_database_url, f"DROP ROLE {ROLE}")


async def use(room: Room) -> None:
    """Migrate the room, and queue, claim and show a job in it."""
    from hastetrio import JobLease

    async with PostgresJobProvider.open(room.dsn) as provider:
        await provider.migrate()
        await provider.check_schema()
        job = await provider.create_job("t", "p", CreateAsyncJob(kind="k", claims={"sub": "s"}))
        assert [one.id for one in await provider.claim_jobs(["k"], JobLease("w", 60), 1)] == [
            job.id
        ]


async def test_a_database_is_made_and_dropped(server_url: str) -> None:
    """The benchmark's rows are in nobody's way, and no name is used twice."""
    async with own_room(server_url) as room, own_room(server_url) as other:
        assert (room.kind, other.kind) == ("database", "database")
        assert room.name != other.name
        assert conninfo_to_dict(room.dsn)["dbname"] == room.name
        await use(room)
        assert exists(server_url, room)
    assert not exists(server_url, room)
    assert not exists(server_url, other)


async def test_a_role_that_may_create_databases_owns_and_drops_its_own(role: str) -> None:
    """CREATEDB is enough; no superuser is needed to send the last session away."""
    execute(make_conninfo(role, options=""), f"ALTER ROLE {ROLE} CREATEDB")
    async with own_room(role) as room:
        assert room.kind == "database"
        await use(room)
    assert not exists(role, room)


async def test_a_role_that_may_not_create_databases_gets_a_schema(role: str) -> None:
    """The whole protocol works there, the session's own options stay, and it is dropped."""
    name = conninfo_to_dict(role)["dbname"]
    execute(make_conninfo(role, options=""), f"GRANT CREATE ON DATABASE {name} TO {ROLE}")
    async with own_room(role) as room:
        assert room.kind == "schema"
        await use(room)
        with psycopg.connect(room.dsn) as connection:
            query = "SELECT current_user, 'async_jobs'::regclass::oid::regclass::text, schemaname"
            row = connection.execute(f"{query} FROM pg_tables WHERE tablename = 'async_jobs'")
            assert row.fetchall() == [(ROLE, "async_jobs", room.name)]
        assert exists(role, room)
    assert not exists(role, room)


async def test_a_role_that_may_do_neither_is_told_what_it_needs(role: str) -> None:
    """The error names the role, the database and the two rights, either of which will do."""
    with pytest.raises(BenchError) as caught:
        async with own_room(role):
            raise AssertionError
    text = str(caught.value)
    assert f"ALTER ROLE {ROLE} CREATEDB" in text
    assert f"GRANT CREATE ON DATABASE {conninfo_to_dict(role)['dbname']} TO {ROLE}" in text


@pytest.mark.parametrize("kind", ["database", "schema"])
async def test_it_is_dropped_whatever_ends_the_block(kind: str, role: str, server_url: str) -> None:
    """An error, and a cancel, while a session is still open in it."""
    name = conninfo_to_dict(role)["dbname"]
    execute(make_conninfo(role, options=""), f"GRANT CREATE ON DATABASE {name} TO {ROLE}")
    where = server_url if kind == "database" else role
    rooms: list[Room] = []

    async def fail() -> None:
        async with own_room(where) as room:
            rooms.append(room)
            await use(room)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    with trio.CancelScope() as scope:
        async with own_room(where) as room:
            rooms.append(room)
            await use(room)
            left_open = psycopg.connect(room.dsn, autocommit=True)
            scope.cancel()
            await trio.sleep_forever()
    left_open.close()
    assert scope.cancelled_caught
    assert [room.kind for room in rooms] == [kind, kind]
    assert not [room for room in rooms if exists(where, room)]


async def test_what_cannot_be_dropped_is_named(
    server_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Alone it is the error; next to another error it is a warning and hides nothing."""

    async def spoil(error: Exception | None) -> str:
        async with own_room(server_url) as room:
            execute(server_url, f"DROP DATABASE {room.name}")
            names.append(room.name)
            if error is not None:
                raise error
        return room.name

    names: list[str] = []
    with pytest.raises(BenchError, match="could not be dropped") as caught:
        await spoil(None)
    assert names[0] in str(caught.value)
    assert caplog.records == []

    with pytest.raises(ZeroDivisionError):
        await spoil(ZeroDivisionError())
    [record] = caplog.records
    assert names[1] in record.getMessage()
