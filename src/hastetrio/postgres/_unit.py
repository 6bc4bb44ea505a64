"""A unit is one call to the database: shielded, bounded, finished or its connection discarded.

Cancellation lands before the first byte or after the last, so no transaction stays open and no
connection is ever in an unknown state. A unit that outlives its budget costs the connection,
never an invariant.
"""

from __future__ import annotations

import random
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import psycopg
import trio
from psycopg import errors
from psycopg.pq import TransactionStatus
from psycopg.types.json import set_json_loads

from hastetrio._errors import ProviderUnavailable, SchemaError, UnstorableValue
from hastetrio._storable import decode_json
from hastetrio.postgres._connection import TrioConnection, connect
from hastetrio.postgres._rows import job_query, read_jobs

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from hastetrio._model import AsyncJob

# The server answers first, a little before the client would give the connection up.
_SERVER_SHARE: Final = 0.9

# How long a lane that could not connect lets the next attempt wait, growing up to the second.
_RECONNECT_DELAYS: Final = (0.05, 1.0)

# The server refuses this value, whoever sends it again.
_UNSTORABLE: Final = (
    errors.DataError,
    errors.IntegrityError,
    errors.ProgramLimitExceeded,
    errors.StatementTooComplex,
)
_NO_SUCH_SCHEMA: Final = (
    errors.UndefinedTable,
    errors.UndefinedColumn,
    errors.UndefinedObject,
    errors.UndefinedFunction,
)
# What one row alone can cause, and its neighbours need not suffer for: an error raised by a trigger
# of the host's, and a page that is broken.
_OF_ONE_ROW: Final = ("P0", "XX")
# The server is alive but not one to stay with: read-only after a failover, or going down.
_LEAVE: Final = (errors.ReadOnlySqlTransaction, errors.AdminShutdown, errors.CrashShutdown)


class RowAtFault(ProviderUnavailable):
    """The statement failed, and one of its rows may be the only cause."""


def one_line(error: BaseException) -> str:
    """The text of an error on one line; psycopg's texts hold no password."""
    return " ".join(str(error).split()) or type(error).__name__


@asynccontextmanager
async def unit(connection: TrioConnection, budget: float) -> AsyncGenerator[TrioConnection]:
    """Run the block as one unit of at most `budget` seconds.

    Raises:
        ProviderUnavailable: The database did not answer in time, or cannot now.
        UnstorableValue: It refuses a value.
        SchemaError: A table or column is not there.

    Cancellation: takes effect before the unit or after it, never inside.
    """
    await trio.lowlevel.checkpoint_if_cancelled()
    try:
        with trio.move_on_after(budget, shield=True) as scope:
            try:
                yield connection
            finally:
                # KeyboardInterrupt ignores shields: it can land with a query in flight.
                if connection.pgconn.transaction_status == TransactionStatus.ACTIVE:
                    connection.discard()
    except psycopg.Error as error:
        if isinstance(error, _LEAVE):
            connection.discard()
        raise translate(error) from error
    except UnicodeError as error:
        raise UnstorableValue(f"a text cannot be sent to the database: {error}") from error
    if scope.cancelled_caught:
        connection.discard()
        raise ProviderUnavailable(f"the database did not answer within {budget:g} s")


def translate(error: psycopg.Error) -> Exception:
    """The error of the provider protocol that tells the caller what `error` means for it."""
    if isinstance(error, _UNSTORABLE):
        return UnstorableValue(f"the database refuses the value: {one_line(error)}")
    if isinstance(error, _NO_SUCH_SCHEMA):
        return SchemaError(
            f"the database lacks what this program needs ({one_line(error).split(' LINE ')[0]}): "
            "run `hastetrio migrate`"
        )
    kind = RowAtFault if (error.sqlstate or "").startswith(_OF_ONE_ROW) else ProviderUnavailable
    return kind(f"the database is not available: {one_line(error)}")


class Lane:
    """One connection for one purpose, opened when first needed and replaced when it breaks.

    Units run one at a time. Lanes are apart so that one purpose never waits for another: a claim
    that stalls delays no renewal.

    Args:
        dsn: Where the database is.
        budget: Seconds one unit may take, waiting for its turn and connecting included.
        prepared: Whether statements are prepared; not behind a pooler without session state.
    """

    def __init__(self, dsn: str, *, budget: float, prepared: bool) -> None:
        self._dsn = dsn
        self._budget = budget
        self._prepared = prepared
        self._connection: TrioConnection | None = None
        self._turn = trio.Lock()
        self._failures = 0

    @asynccontextmanager
    async def unit(self, budget: float | None = None) -> AsyncGenerator[TrioConnection]:
        """Run the block as one unit on this lane's connection.

        Args:
            budget: Seconds for the block itself, where the lane's own are too few or too many.

        Raises:
            ProviderUnavailable: No connection, no turn, or no answer in time.
        """
        budget = self._budget if budget is None else budget
        with trio.move_on_after(self._budget) as waiting:
            await self._turn.acquire()
        if waiting.cancelled_caught:
            raise ProviderUnavailable(f"the connection was busy for {self._budget:g} s")
        try:
            async with unit(await self._open(), budget) as connection:
                yield connection
        finally:
            self._turn.release()

    async def fetch(
        self, sql: str, parameters: Mapping[str, Any], budget: float | None = None
    ) -> list[tuple[Any, ...]]:
        """Run one statement as one unit, and return its rows."""
        async with self.unit(budget) as connection:
            cursor = await connection.execute(sql, parameters, prepare=self._prepared)
            return await cursor.fetchall()

    async def fetch_jobs(
        self, name: str, parameters: Mapping[str, Any], budget: float | None = None
    ) -> tuple[list[AsyncJob], list[str]]:
        """Run one statement as one unit; its jobs, and the ids of rows that cannot be read."""
        async with self.unit(budget) as connection:
            cursor = await connection.execute(job_query(name), parameters, prepare=self._prepared)
            return await read_jobs(cursor)

    def close(self) -> None:
        """Close the connection, if one is open; no unit may be under way."""
        if self._connection is not None:
            self._connection.discard()
            self._connection = None

    async def _open(self) -> TrioConnection:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        if self._failures:
            # Hundreds of jobs may be asking at once: a server that is coming up again is not to
            # be met by all of them, and not by every worker at the same moment.
            least, most = _RECONNECT_DELAYS
            delay = min(most, least * 2**self._failures)
            await trio.sleep(random.uniform(delay / 2, delay))  # noqa: S311
        self._failures += 1
        try:
            self._connection = await open_session(self._dsn, self._budget, prepared=self._prepared)
        except psycopg.Error as error:
            raise ProviderUnavailable(
                f"the database cannot be reached: {one_line(error)}"
            ) from None
        self._failures = 0
        return self._connection


async def open_session(dsn: str, budget: float, *, prepared: bool = True) -> TrioConnection:
    """Connect, and set for the session what the statements rely on.

    Raises:
        psycopg.Error: There is no connection, or the server refuses the settings.
        ProviderUnavailable: The server did not answer in time.
    """
    connection = await connect(dsn, timeout=budget)
    # Several jobs' JSON comes with each claim; psycopg's own way guesses the encoding each time.
    set_json_loads(decode_json, connection)
    if not prepared:
        connection.prepare_threshold = None
    settings = {
        "statement_timeout": f"{budget * _SERVER_SHARE * 1000:.0f}",
        "idle_in_transaction_session_timeout": f"{budget * 2 * 1000:.0f}",
        "default_transaction_isolation": "read committed",
        "timezone": "UTC",
        "datestyle": "ISO",
        "intervalstyle": "postgres",
        # The statements are short; compiling one costs more than running it.
        "jit": "off",
        # Each statement has one good plan. Making it anew for each claim takes 0.5 ms, as long as
        # the claim itself.
        "plan_cache_mode": "force_generic_plan",
        # Rows come in an index's order, and a LIMIT ends the walk. With no statistics, or old ones,
        # as after a bulk load, the planner would sort a bitmap of all (2.5 s a claim at 1M queued)
        # or read the table.
        "enable_bitmapscan": "off",
        "enable_seqscan": "off",
    }
    calls = ", ".join(f"set_config('{name}', %({name})s, false)" for name in settings)
    try:
        async with unit(connection, budget):
            await connection.execute(f"SELECT {calls}", settings)  # our own names
            # A query whose client has gone is stopped (PostgreSQL 14 and later, on Linux).
            with suppress(errors.UndefinedObject, errors.InvalidParameterValue):
                await connection.execute("SET client_connection_check_interval = 500")
    except BaseException:
        connection.discard()
        raise
    return connection
