"""Transactions of handlers, on connections of their own: effects and result, both or neither.

Unlike a unit, a transaction is as long as the handler makes it and ends with the handler's scope:
what is cancelled is rolled back. Only its beginning and its end are units. Between a finish and the
commit the row is locked, so that no claim can take the job; a commit without a finish asks first
whether the claim still stands, and locks the row likewise.
"""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import psycopg
import trio
from psycopg import errors
from psycopg.pq import PipelineStatus, TransactionStatus

from hastetrio._errors import LeaseLost, ProviderUnavailable
from hastetrio._sql import query
from hastetrio.postgres._connection import TrioConnection, connect
from hastetrio.postgres._held import finish_parameters
from hastetrio.postgres._unit import one_line, unit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from psycopg.abc import PQGen

    from hastetrio._model import JobLease
    from hastetrio._provider import JobFinish

T = TypeVar("T")

# A cancelled handler has a tenth of its lease to unwind, 0.2 s at least; a rollback is one round
# trip, and what takes longer costs the connection.
_ROLLBACK_BUDGET: Final = 0.15

# Seconds between looks at a row that a renewal has locked, and between attempts to find out what
# became of a commit.
_LOCKED_ROW_PAUSE: Final = (0.005, 0.02)
_UNKNOWN_PAUSE: Final = (0.1, 0.3)

# A result's share of a call's budget: a slow network carries 1 MiB in this many seconds.
_SECONDS_PER_MEBIBYTE: Final = 0.5
_MEBIBYTE: Final = 1024 * 1024

_ENDED: Final = (
    "the transaction was ended inside the block: neither commit nor roll back, leave the block"
)
_REASONS: Final = {
    TransactionStatus.IDLE: _ENDED,
    TransactionStatus.INERROR: (
        "a statement of the transaction failed, so nothing of it is kept: leave the block, or put "
        "what may fail into `async with connection.transaction()`"
    ),
    TransactionStatus.ACTIVE: (
        "a statement of the transaction was cancelled, or still runs in another task: nothing of "
        "it is kept"
    ),
    TransactionStatus.UNKNOWN: "the transaction's connection was closed: nothing of it is kept",
}
_UNDONE: Final = (
    "the finish was rolled back inside the block, with its savepoint: nothing of it is kept"
)

_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"
# What the last handler set for the session (who it is, which tenant's rows it sees) is not the
# next one's.
_RESET: Final = "RESET ROLE; RESET ALL"
# A worker that stands still holds its locks no longer than its lease; a statement whose client has
# gone is stopped, and its locks with it (PostgreSQL 14 and later, not on every system).
_IDLE: Final = "SET LOCAL idle_in_transaction_session_timeout = {idle:.0f}"
_WATCH: Final = (
    "SELECT set_config('client_connection_check_interval', '500', true)"
    " WHERE current_setting('client_connection_check_interval', true) IS NOT NULL"
)


class HandlerConnection(TrioConnection):
    """What a handler has of a connection, for one transaction.

    What it sets here, such as a row factory, is gone with the block; and what is kept beyond the
    block reaches no other job's transaction.
    """

    def __init__(self, owner: TrioConnection, budget: float) -> None:
        super().__init__(owner.pgconn)
        self._owner = owner
        self._budget = budget
        self._is_over = False
        self.lock = owner.lock
        # One session has one set of names for its prepared statements.
        self._prepared = owner._prepared  # noqa: SLF001
        self._autocommit = True

    def __del__(self, _warn: object = None, /) -> None:
        """Nothing to close, and nothing to warn of: the owner has the session."""

    def end(self) -> None:
        """The block has been left: nothing more is sent."""
        self._is_over = True

    async def wait(self, gen: PQGen[T], interval: float = 0.0, timeout: float | None = None) -> T:
        """Drive a psycopg generator to its result; see `TrioConnection.wait`.

        Raises:
            RuntimeError: The block has been left.
        """
        if self._is_over:
            raise RuntimeError("the connection belongs to its context.transaction() block only")
        return await super().wait(gen, interval, timeout)

    async def commit(self) -> NoReturn:
        """Refuse: the block commits."""
        raise RuntimeError("do not commit: leave the block, which commits if the lease stands")

    async def rollback(self) -> NoReturn:
        """Refuse: an error rolls back."""
        raise RuntimeError("do not roll back: raise out of the block, which rolls back")

    @asynccontextmanager
    async def transaction(
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> AsyncIterator[psycopg.AsyncTransaction]:
        """A savepoint, as psycopg makes it.

        Cancellation: what was done in it is rolled back, as after any error.
        """
        block = super().transaction(savepoint_name, force_rollback)
        savepoint = await block.__aenter__()
        try:
            yield savepoint
        except BaseException as error:
            if not await self._leave(block, error):
                raise
        else:
            await self._leave(block, None)

    async def _leave(
        self, block: AbstractAsyncContextManager[Any], error: BaseException | None
    ) -> bool:
        # A cancelled scope would leave the savepoint open, and the commit would keep what is in it.
        with trio.move_on_after(self._budget, shield=True):
            trace = None if error is None else error.__traceback__
            return bool(await block.__aexit__(type(error) if error else None, error, trace))
        self.discard()
        if error is None:
            raise psycopg.OperationalError(f"no answer within {self._budget:g} s")
        return False


class HandlerTransaction:
    """An open transaction of a handler's; see `JobTransaction`."""

    def __init__(self, session: TrioConnection, id: str, lease: JobLease, budget: float) -> None:
        self._session = session
        self._connection = HandlerConnection(session, budget)
        self._id = id
        self._lease = lease
        self._budget = budget
        self.has_finished = False

    @property
    def session(self) -> TrioConnection:
        """The connection that the transaction is on, for whoever owns it."""
        return self._session

    @property
    def connection(self) -> TrioConnection:
        """The handler's connection, in the transaction."""
        return self._connection

    async def begin(self, *, reset: bool) -> None:
        """Open the transaction.

        Args:
            reset: Whether somebody else has used the session before.
        """
        idle = _IDLE.format(idle=max(self._lease.duration * 1000, 1))
        opening = f"{_BEGIN}; {_RESET}; {idle}" if reset else f"{_BEGIN}; {idle}"
        async with unit(self._session, self._budget):
            try:
                await self._session.execute(f"{opening}; {_WATCH}".encode())
            except errors.InvalidParameterValue:
                await self._session.execute(f"ROLLBACK; {opening}".encode())

    async def finish(self, finish: JobFinish) -> bool:
        """Record a result in the transaction; see `JobTransaction.finish`."""
        parameters = finish_parameters([finish])
        where = {"ids": [finish.id], "tokens": [finish.token]}
        budget = self._budget + finish.size / _MEBIBYTE * _SECONDS_PER_MEBIBYTE
        while True:
            self._check_open()
            async with unit(self._session, budget):
                cursor = await self._session.execute(query("finish_jobs"), parameters)
                if await cursor.fetchall():
                    self.has_finished = True
                    return True
                cursor = await self._session.execute(query("state_of_jobs"), where)
                rows = await cursor.fetchall()
            if rows[0][2] != "again":
                return False
            # A renewal has the row, for a moment.
            await trio.sleep(random.uniform(*_LOCKED_ROW_PAUSE))  # noqa: S311

    async def commit(self) -> None:
        """Commit, if the claim still stands.

        Raises:
            LeaseLost: It does not.
            RuntimeError: A statement in the block failed, or the block ended the transaction, or
                rolled the finish back.
            ProviderUnavailable: The commit was not answered.
        """
        self._check_open()
        where = {"id": self._id, "token": self._lease.token}
        name = "was_recorded" if self.has_finished else "keep_claim"
        async with unit(self._session, self._budget):
            cursor = await self._session.execute(query(name), where)
            rows = await cursor.fetchall()
            if not (rows and rows[0][0]):
                if self.has_finished:
                    raise RuntimeError(_UNDONE)
                raise LeaseLost("the job is no longer this claim's: the transaction is undone")
            await self._session.execute("COMMIT")

    async def roll_back(self) -> None:
        """Undo what was not committed; the connection is dropped where that takes long."""
        self._connection.end()
        pgconn = self._session.pgconn
        status = pgconn.transaction_status
        if status == TransactionStatus.IDLE and pgconn.pipeline_status == PipelineStatus.OFF:
            return
        if (
            status not in (TransactionStatus.INTRANS, TransactionStatus.INERROR)
            or pgconn.pipeline_status != PipelineStatus.OFF
        ):
            # A statement is in flight: without its client the server rolls back.
            self._session.discard()
            return
        with trio.CancelScope(shield=True):
            try:
                async with unit(self._session, _ROLLBACK_BUDGET):
                    await self._session.execute("ROLLBACK")
            except Exception:  # noqa: BLE001  # a dropped connection is rolled back too
                self._session.discard()

    def _check_open(self) -> None:
        """See that the server is in the transaction, and that nothing of it has failed."""
        if self._session.pgconn.pipeline_status != PipelineStatus.OFF:
            raise RuntimeError("a pipeline of the connection is open: leave it first")
        status = self._session.pgconn.transaction_status
        if status != TransactionStatus.INTRANS:
            raise RuntimeError(_REASONS[TransactionStatus(status)])


class Transactions:
    """The connections for handlers' transactions, each opened when first needed.

    Args:
        dsn: Where the database is.
        size: The most transactions at once; further ones wait.
        budget: Seconds the beginning, the finish and the end of one may take each.
        prepared: Whether statements are prepared.
    """

    def __init__(self, dsn: str, *, size: int, budget: float, prepared: bool) -> None:
        self._dsn = dsn
        self._budget = budget
        self._prepared = prepared
        self._turns = trio.Semaphore(size)
        self._free: list[TrioConnection] = []

    @asynccontextmanager
    async def open(self, id: str, lease: JobLease) -> AsyncGenerator[HandlerTransaction]:
        """A transaction of the job's handler; see `AsyncJobProvider.transaction`."""
        async with self._turns:
            transaction = await self._begin(id, lease)
            session = transaction.session
            try:
                yield transaction
                try:
                    await transaction.commit()
                except ProviderUnavailable:
                    if not transaction.has_finished:
                        raise
                    session.discard()
                    if not await self._was_recorded(id, lease):
                        raise
            finally:
                await self._end(transaction)

    def close(self) -> None:
        """Close the connections; no transaction may be open."""
        while self._free:
            self._free.pop().discard()

    async def _begin(self, id: str, lease: JobLease) -> HandlerTransaction:
        while True:
            session = self._take()
            reused = session is not None
            if session is None:
                session = await self._connect()
            transaction = HandlerTransaction(session, id, lease, self._budget)
            try:
                await transaction.begin(reset=reused)
            except BaseException as error:
                await self._end(transaction)
                if not (reused and isinstance(error, ProviderUnavailable)):
                    raise
                # Whatever broke it while nobody used it broke the others too.
                self.close()
            else:
                return transaction

    async def _end(self, transaction: HandlerTransaction) -> None:
        try:
            await transaction.roll_back()
        finally:
            self._put_back(transaction.session)

    def _take(self) -> TrioConnection | None:
        while self._free:
            session = self._free.pop()
            if not session.closed:
                return session
        return None

    async def _connect(self) -> TrioConnection:
        try:
            session = await connect(self._dsn, timeout=self._budget)
        except psycopg.Error as error:
            raise ProviderUnavailable(
                f"the database cannot be reached: {one_line(error)}"
            ) from None
        if not self._prepared:
            session.prepare_threshold = None
        return session

    def _put_back(self, session: TrioConnection) -> None:
        if session.closed:
            return
        if session.pgconn.transaction_status == TransactionStatus.IDLE:
            self._free.append(session)
        else:
            session.discard()

    async def _was_recorded(self, id: str, lease: JobLease) -> bool:
        """What became of a commit that was not answered; asks until it knows.

        Cancellation: it stays unknown here. The row knows, and whoever finishes it learns.
        """
        where = {"id": id, "token": lease.token}
        while True:
            try:
                rows = await self._ask("was_recorded", where)
            except ProviderUnavailable:
                await trio.sleep(random.uniform(*_UNKNOWN_PAUSE))  # noqa: S311
            else:
                return bool(rows and rows[0][0])

    async def _ask(self, name: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        session = self._take() or await self._connect()
        try:
            async with unit(session, self._budget):
                cursor = await session.execute(query(name), parameters)
                return await cursor.fetchall()
        finally:
            self._put_back(session)
