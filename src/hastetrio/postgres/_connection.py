"""psycopg's asynchronous connection, driven by trio.

psycopg's protocol code is generators that yield "wait for this descriptor"; `wait` is the only
place that blocks, so overriding it and the lock is the whole port. Cursors, transactions and
pipelines then work as documented for asyncio, inside a unit (see `_unit`): outside of one, a
cancelled scope would leave a transaction open.
"""

from __future__ import annotations

import select
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
import trio
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row

from hastetrio._errors import ConfigError

if TYPE_CHECKING:
    from psycopg.abc import PQGen
    from psycopg.pq.abc import PGconn

T = TypeVar("T")

_READ: Final = 1
_WRITE: Final = 2

# libpq's own defaults would notice a dead network after two hours, or never.
_CONNECTION_DEFAULTS: Final = {
    "application_name": "hastetrio",
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
    # After a failover the old primary is read-only: go on to the next host, or fail to connect.
    "target_session_attrs": "read-write",
}


class TrioConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """A psycopg connection whose waits are trio's. Made by `connect`; use it inside `unit`."""

    def __init__(self, pgconn: PGconn, donor: psycopg.Connection[Any] | None = None) -> None:
        super().__init__(pgconn, tuple_row)
        self.lock = trio.Lock()  # type: ignore[assignment]  # used only as `async with`
        # Kept, because its finaliser would warn about a connection that is still in use.
        self._donor = donor

    async def wait(
        self,
        gen: PQGen[T],
        interval: float = 0.0,  # noqa: ARG002  # moot: the descriptor wakes us
        timeout: float | None = None,  # noqa: ARG002  # the unit's budget bounds every wait
    ) -> T:
        """Drive a psycopg generator to its result.

        Raises:
            psycopg.OperationalError: The socket was closed meanwhile.
        """
        descriptor = self.pgconn.socket
        try:
            wanted = next(gen)
            while True:
                wanted = gen.send(await _ready(descriptor, int(wanted)))
        except StopIteration as done:
            result: T = done.value
            return result
        except (OSError, trio.ClosedResourceError) as error:
            raise psycopg.OperationalError("the connection's socket was closed") from error

    def discard(self) -> None:
        """Drop the connection without a word to the server, waking whoever waits on its socket."""
        if not self.closed:
            self._closed = True
            # epoll forgets a closed descriptor silently, and its waiter would hang.
            trio.lowlevel.notify_closing(self.pgconn.socket)
            self.pgconn.finish()


async def connect(conninfo: str, *, timeout: float = 5.0) -> TrioConnection:
    """Open a connection in autocommit mode.

    It is opened in a thread, because names are resolved on the way, and by `psycopg.connect`,
    because libpq's own blocking connect would hold the GIL.

    Args:
        conninfo: A libpq connection string or URL.
        timeout: Seconds the attempt may take.

    Raises:
        psycopg.OperationalError: It could not be opened in time.

    Cancellation: nothing is left; a connection that arrives later is closed by its thread.
    """
    attempt = _Attempt(conninfo, timeout)
    donor = None
    try:
        with trio.move_on_after(timeout):
            donor = await trio.to_thread.run_sync(
                attempt.run,
                abandon_on_cancel=True,
                # Its own limiter: handlers' threads must not keep the worker from reconnecting.
                limiter=trio.CapacityLimiter(1),
            )
    finally:
        if donor is None:
            attempt.abandon()
    if donor is None:
        raise psycopg.OperationalError(f"no connection within {timeout:g} s")
    connection = TrioConnection(donor.pgconn, donor)
    # The public setter would wait for the lock, outside of a unit.
    connection._autocommit = True  # noqa: SLF001
    return connection


class _Attempt:
    """One connection attempt in a thread, which closes what nobody waits for any more."""

    def __init__(self, conninfo: str, timeout: float) -> None:
        try:
            parameters = conninfo_to_dict(conninfo)
        except psycopg.Error:
            # libpq's own text quotes the part it does not understand: a password with a space.
            raise psycopg.OperationalError("it is not a PostgreSQL connection string") from None
        if not _is_port(parameters.get("port")):
            # What stands there may be a password: one with a slash, in a URL.
            raise psycopg.OperationalError("the port is not a number")
        defaults = {k: v for k, v in _CONNECTION_DEFAULTS.items() if k not in parameters}
        # psycopg takes whole seconds, two at least; the caller's own timeout is the sharper one.
        parameters.setdefault("connect_timeout", max(2, round(timeout)))
        self._connect = partial(
            psycopg.connect,
            make_conninfo("", **parameters | defaults, client_encoding="utf8"),
            autocommit=True,
        )
        self._lock = threading.Lock()
        self._abandoned = False

    def run(self) -> psycopg.Connection[Any] | None:
        connection = self._connect()
        with self._lock:
            if not self._abandoned:
                return connection
        connection.close()
        return None

    def abandon(self) -> None:
        with self._lock:
            self._abandoned = True


async def _ready(descriptor: int, wanted: int) -> int:
    """Wait until the socket is readable or writable, whichever is wanted; says which it is."""
    if wanted & _WRITE and (now := _poll(descriptor, wanted)):
        # A socket is nearly always writable, and asking costs less than going through the loop.
        return now
    if wanted == _READ:
        await trio.lowlevel.wait_readable(descriptor)
        return _READ
    if wanted == _WRITE:
        await trio.lowlevel.wait_writable(descriptor)
        return _WRITE
    ready = 0
    async with trio.open_nursery() as nursery:

        async def first(direction: int) -> None:
            nonlocal ready
            wait = (
                trio.lowlevel.wait_readable if direction == _READ else trio.lowlevel.wait_writable
            )
            # The nursery would wrap it; libpq reports the closed socket on the next call.
            with suppress(OSError, trio.ClosedResourceError):
                await wait(descriptor)
            ready |= direction
            nursery.cancel_scope.cancel()

        nursery.start_soon(first, _READ)
        nursery.start_soon(first, _WRITE)
    return ready


def _poll(descriptor: int, wanted: int) -> int:
    poller = select.poll()
    poller.register(descriptor, (select.POLLIN if wanted & _READ else 0) | select.POLLOUT)
    ready = 0
    for _, event in poller.poll(0):
        if event & (select.POLLHUP | select.POLLERR):
            return wanted
        if event & select.POLLIN:
            ready |= _READ
        if event & select.POLLOUT:
            ready |= _WRITE
    return ready


def _is_port(port: object) -> bool:
    # Several hosts may have a port each, or none.
    return port is None or str(port).replace(",", "").isdecimal() or not str(port).strip(",")


def check_dsn(dsn: str) -> str:
    """`dsn` itself, when libpq can understand it.

    Raises:
        ConfigError: It cannot.
    """
    try:
        conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # What libpq says of it may quote the password.
        raise ConfigError(
            "the database URL cannot be understood; "
            "it looks like postgresql://user:password@host:5432/database"
        ) from None
    return dsn


def display_dsn(dsn: str) -> str:
    """`dsn` for people and logs: its parts without password, certificate and service files."""
    try:
        parameters = conninfo_to_dict(dsn)
    except psycopg.Error:
        return "(not a PostgreSQL connection string)"
    shown = {
        key: value
        for key in ("host", "hostaddr", "port", "dbname", "user", "service")
        if (value := parameters.get(key)) and (key != "port" or _is_port(value))
    }
    return make_conninfo("", **shown) or "(libpq's defaults)"
