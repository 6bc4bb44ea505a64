"""Counts the statements a program sends: a relay that reads PostgreSQL's protocol on its way.

The server's own counters do not answer "how many statements a minute". pg_stat_database counts
transactions, autovacuum's among them; until PostgreSQL 14 an idle session reports its last ones
only with its next statement, from 15 on after up to ten seconds. pg_stat_statements is seldom
loaded, and log_statement is the superuser's. What crosses the wire is exact on every version, takes
no right, and costs the program that is measured nothing: the relay is another process's.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import trio
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from hastetrio.bench._room import session

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

# Query, Execute and FunctionCall: what makes the server run something.
_STATEMENTS: Final = frozenset(b"QEF")

# Requests to encrypt: answered with one byte, and followed by the packet that starts a session.
_ENCRYPTION: Final = frozenset({80877103, 80877104})

_CHUNK: Final = 65536


@attrs.define
class Wire:
    """A way to the server.

    Attributes:
        dsn: The conninfo that leads this way.
        is_counted: Whether statements are counted; not where the connection is encrypted.
        statements: How many have passed.
    """

    dsn: str = attrs.field(repr=False)
    is_counted: bool
    statements: int = 0


class StatementParser:
    """Finds the statements in the bytes of one client; keeps at most a header of them."""

    def __init__(self) -> None:
        self._started = False
        self._header = bytearray()
        self._skip = 0

    def feed(self, data: bytes) -> int:
        """How many statements begin in `data`, the next bytes of the client."""
        found = 0
        at = 0
        while at < len(data):
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
                at += step
                continue
            wanted = (5 if self._started else 8) - len(self._header)
            self._header += data[at : at + wanted]
            at += wanted
            if at <= len(data):
                found += self._read_header()
        return found

    def _read_header(self) -> bool:
        header = bytes(self._header)
        self._header.clear()
        if not self._started:
            # A length and a code; a session's first packet has no type.
            self._skip = int.from_bytes(header[:4]) - 8
            self._started = int.from_bytes(header[4:]) not in _ENCRYPTION
            return False
        self._skip = int.from_bytes(header[1:]) - 4
        return header[0] in _STATEMENTS


@asynccontextmanager
async def counted_wire(dsn: str) -> AsyncGenerator[Wire]:
    """A way to the database at `dsn` on which statements are counted, while the block lasts.

    An encrypted connection cannot be read; then the way is the direct one, and nothing is counted.

    Raises:
        ProviderUnavailable: The database cannot be reached.

    Cancellation: the connections are closed, and the socket is removed.
    """
    async with session(dsn) as connection:
        info = connection.info
        encrypted = bool(connection.pgconn.ssl_in_use)
        host, port = info.hostaddr or info.host, info.port
        # libpq looks it up by the host's name, which is another one here.
        password = info.password
    if encrypted:
        yield Wire(dsn, is_counted=False)
        return
    # Only its owner gets in: whoever does has this program's way past the server's door.
    folder = Path(tempfile.mkdtemp(prefix="hastetrio-wire-"))
    parameters = conninfo_to_dict(dsn)
    parameters.pop("hostaddr", None)
    parameters |= {"host": str(folder), "port": "5432", "sslmode": "disable"}
    parameters |= {"gssencmode": "disable"} | ({"password": password} if password else {})
    wire = Wire(make_conninfo("", **parameters), is_counted=True)

    async def serve(client: trio.SocketStream) -> None:
        with suppress(OSError, trio.BrokenResourceError):
            async with client, await _open(host, port) as server, trio.open_nursery() as nursery:
                nursery.start_soon(_carry, client, server, nursery.cancel_scope, wire)
                nursery.start_soon(_carry, server, client, nursery.cancel_scope)

    try:
        listening = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
        with listening:
            await listening.bind(str(folder / ".s.PGSQL.5432"))
            listening.listen(50)
            async with trio.open_nursery() as nursery:
                listener = trio.SocketListener(listening)
                nursery.start_soon(trio.serve_listeners, serve, [listener])
                yield wire
                nursery.cancel_scope.cancel()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _open(host: str, port: int) -> trio.SocketStream:
    if host.startswith("/"):
        return await trio.open_unix_socket(f"{host}/.s.PGSQL.{port}")
    return await trio.open_tcp_stream(host, port)


async def _carry(
    source: trio.SocketStream,
    sink: trio.SocketStream,
    both: trio.CancelScope,
    wire: Wire | None = None,
) -> None:
    parser = StatementParser()
    with suppress(trio.BrokenResourceError):
        while data := await source.receive_some(_CHUNK):
            if wire is not None:
                wire.statements += parser.feed(bytes(data))
            await sink.send_all(data)
    both.cancel()
