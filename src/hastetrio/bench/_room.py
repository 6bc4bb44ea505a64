"""Where the benchmark runs: a server, and on it a database or a schema that is dropped afterwards.

A database of its own is best: nobody else's rows, notifications or vacuums are measured along. A
role that may not create one gets a schema, found by the search path of each session.
"""

from __future__ import annotations

import logging
import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Literal

import attrs
import psycopg
import trio
from psycopg import errors, sql
from psycopg.conninfo import make_conninfo

from hastetrio import ProviderUnavailable
from hastetrio.bench._plan import BenchError, Plan
from hastetrio.embedded import EmbeddedPostgres, throw_away_server
from hastetrio.postgres import check_dsn, connect

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from hastetrio.postgres import TrioConnection

# The benchmark is about programs, not about the disk: without --fsync no commit waits for it. A
# checkpoint in the middle of a round of two seconds would be noise either way.
_ALWAYS: Final = (
    "shared_buffers=256MB",
    "max_wal_size=8GB",
    "checkpoint_timeout=1h",
)
_NO_FSYNC: Final = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")

# Seconds that creating or dropping may take; a server that is overloaded copies a template slowly.
_PATIENCE: Final = 60.0

_log = logging.getLogger("hastetrio.bench")


@attrs.frozen
class Room:
    """The benchmark's own database or schema, and the conninfo whose sessions are in it."""

    dsn: str = attrs.field(repr=False)
    kind: Literal["database", "schema"]
    name: str


@asynccontextmanager
async def open_server(plan: Plan) -> AsyncGenerator[str]:
    """The conninfo of the server that the plan names, while the block lasts.

    Raises:
        ConfigError: The database URL cannot be understood.
        EmbeddedUnavailable: There is no embedded server to be had.

    Cancellation: an embedded server is let go; one of our own is stopped, and its folder removed.
    """
    if plan.database_url is not None:
        yield check_dsn(plan.database_url)
        return
    if plan.data_dir is not None:
        server = EmbeddedPostgres(plan.data_dir)
        try:
            yield await trio.to_thread.run_sync(server.start)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(server.stop)
        return
    options = _ALWAYS if plan.fsync else (*_ALWAYS, *_NO_FSYNC)
    server_of_our_own = throw_away_server(options)
    server = await trio.to_thread.run_sync(server_of_our_own.__enter__)
    try:
        yield await trio.to_thread.run_sync(server.start)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(server_of_our_own.__exit__, None, None, None)


@asynccontextmanager
async def session(dsn: str) -> AsyncGenerator[TrioConnection]:
    """A connection for a statement or two, in autocommit mode.

    Raises:
        ProviderUnavailable: There is no connection, or no answer.

    Cancellation: before the connection is open; what the block does is finished first.
    """
    try:
        connection = await connect(dsn, timeout=10.0)
    except psycopg.Error as error:
        raise ProviderUnavailable(f"the database cannot be reached: {_one_line(error)}") from None
    try:
        with trio.move_on_after(_PATIENCE, shield=True) as scope:
            yield connection
        if scope.cancelled_caught:
            raise ProviderUnavailable(f"the database did not answer within {_PATIENCE:g} s")
    except psycopg.Error as error:
        raise ProviderUnavailable(f"the database is not available: {_one_line(error)}") from None
    finally:
        connection.discard()


@asynccontextmanager
async def own_room(server: str) -> AsyncGenerator[Room]:
    """A database or schema of the benchmark's own, without tables, dropped afterwards.

    Raises:
        BenchError: The role may create neither, or what was created could not be dropped.
        ProviderUnavailable: The server cannot be reached.

    Cancellation: it is dropped.
    """
    room = await _create(server)
    try:
        yield room
    except BaseException:
        try:
            await _drop(server, room)
        except BenchError as error:
            # What ended the block is the news; this must not hide it.
            _log.warning("%s", error)
        raise
    await _drop(server, room)


async def _create(server: str) -> Room:
    name = f"hastetrio_bench_{secrets.token_hex(4)}"
    own = sql.Identifier(name)
    async with session(server) as connection:
        try:
            # Not template1: a session in it would be in the way, and what is in it is not ours.
            await connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(own))
            return Room(make_conninfo(server, dbname=name), "database", name)
        except errors.InsufficientPrivilege:
            pass
        try:
            await connection.execute(sql.SQL("CREATE SCHEMA {}").format(own))
        except errors.InsufficientPrivilege:
            cursor = await connection.execute("SELECT current_user, current_database()")
            [(role, database)] = await cursor.fetchall()
            raise BenchError(
                f"the role {role} may create neither a database nor a schema for the benchmark: "
                f"run ALTER ROLE {role} CREATEDB or GRANT CREATE ON DATABASE {database} TO {role}, "
                "or leave the database out to use an embedded server"
            ) from None
        # The session's own options come along: they may be what makes it this role.
        options = f"{connection.info.options} -c search_path={name}".strip()
        return Room(make_conninfo(server, options=options), "schema", name)


async def _drop(server: str, room: Room) -> None:
    own = sql.Identifier(room.name)
    with trio.CancelScope(shield=True):
        try:
            async with session(server) as connection:
                if room.kind == "schema":
                    await connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(own))
                    return
                try:
                    await connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(own))
                except errors.InsufficientPrivilege:
                    # It may not end the session of another role, such as autovacuum's; the plain
                    # form sends autovacuum away and waits five seconds for others to leave.
                    await connection.execute(sql.SQL("DROP DATABASE {}").format(own))
        except ProviderUnavailable as error:
            raise BenchError(
                f"the benchmark's {room.kind} {room.name} could not be dropped ({error}): "
                "drop it by hand"
            ) from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
