"""A network between a worker and its database that stalls, loses, delays, cuts and refuses."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

import attrs
import trio
from tests.postgres.gateway import open_gateway


@attrs.define(eq=False)
class _Connection:
    client: trio.SocketStream
    server: trio.SocketStream
    scope: trio.CancelScope
    stalled: set[str] = attrs.field(factory=set)
    half_open: bool = False


class Network:
    """Carries bytes between clients and a server; made by `open_network`.

    Attributes:
        url: How to reach the server through it.
        latency: Seconds each piece takes, in each direction.
        accepted: How many connections there have been.
        refused: How many were refused.
    """

    def __init__(self, url: str, target: Path) -> None:
        self.url = url
        self.latency = 0.0
        self.accepted = 0
        self.refused = 0
        self._target = target
        self._refusing = False
        self._silent = False
        self._flowing = trio.Event()
        self._connections: set[_Connection] = set()

    def stall(self, *directions: str, new: bool = False) -> None:
        """Carry nothing more in these directions ("up" is to the server), without any error.

        Only the connections there are stall, unless `new` is given.
        """
        for connection in self._connections:
            connection.stalled |= set(directions or ("up", "down"))
        self._silent = new

    def half_open(self) -> None:
        """The server's side of each connection is gone, and its client never hears of it."""
        for connection in self._connections:
            connection.half_open = True
            connection.scope.cancel()

    def cut(self) -> None:
        """Close every connection."""
        for connection in self._connections:
            connection.scope.cancel()

    def refuse(self) -> None:
        """Cut everything, and close each new connection at once."""
        self._refusing = True
        self.cut()

    def heal(self) -> None:
        """Carry everything again; what waits is carried first."""
        self._refusing = self._silent = False
        for connection in self._connections:
            connection.stalled.clear()
        self._flowing.set()
        self._flowing = trio.Event()

    async def serve(self, client: trio.SocketStream) -> None:
        """Carry the bytes of one client until either side closes."""
        async with client:
            if self._refusing:
                self.refused += 1
                return
            self.accepted += 1
            server = await trio.open_unix_socket(str(self._target))
            connection = _Connection(client, server, trio.CancelScope())
            if self._silent:
                connection.stalled = {"up", "down"}
            self._connections.add(connection)
            async with server:
                with connection.scope:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._carry, connection, "up", client, server)
                        nursery.start_soon(self._carry, connection, "down", server, client)
            self._connections.discard(connection)
            if connection.half_open:
                # Whatever the client sends is lost, until it gives up.
                with suppress(trio.BrokenResourceError):
                    async for _ in client:
                        pass

    async def _carry(
        self,
        connection: _Connection,
        direction: str,
        source: trio.SocketStream,
        sink: trio.SocketStream,
    ) -> None:
        try:
            async for data in source:
                while direction in connection.stalled:
                    await self._flowing.wait()
                if self.latency:
                    await trio.sleep(self.latency)
                await sink.send_all(data)
        except trio.BrokenResourceError:
            pass
        # As a closed socket does: the other side hears of it even while the network is stalled.
        connection.scope.cancel()


def open_network(url: str) -> AbstractAsyncContextManager[Network]:
    """A network before the server at `url`, which listens on a Unix socket."""
    return open_gateway(url, Network)
