"""A relay in front of a server, whose connections can be stalled, resumed and cut."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from psycopg.conninfo import conninfo_to_dict, make_conninfo


class Relay:
    """Carries bytes between clients and the server; made by `open_relay`.

    Attributes:
        url: How to reach the server through this relay.
        accepted: How many connections there have been.
        open: How many connections there are.
        blocked: Bytes wait at the stalled relay, so that a client's request is known to be held.
    """

    def __init__(self, url: str, target: Path) -> None:
        self.url = url
        self.accepted = 0
        self.open = 0
        self.blocked = trio.Event()
        self._target = target
        self._flowing = trio.Event()
        self._flowing.set()
        self._scopes: set[trio.CancelScope] = set()

    def stall(self) -> None:
        """Carry nothing from now on; what arrives waits."""
        self._flowing = trio.Event()
        self.blocked = trio.Event()

    def resume(self) -> None:
        """Carry on."""
        self._flowing.set()

    def cut(self) -> None:
        """Close every connection."""
        for scope in self._scopes:
            scope.cancel()

    async def serve(self, client: trio.SocketStream) -> None:
        """Carry the bytes of one client until either side closes."""
        self.accepted += 1
        self.open += 1
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                server = await trio.open_unix_socket(str(self._target))
                async with client, server, trio.open_nursery() as nursery:
                    for source, sink in ((client, server), (server, client)):
                        nursery.start_soon(self._carry, source, sink, scope)
            finally:
                self._scopes.discard(scope)
                self.open -= 1

    async def _carry(
        self, source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope
    ) -> None:
        try:
            async for data in source:
                if not self._flowing.is_set():
                    self.blocked.set()
                await self._flowing.wait()
                await sink.send_all(data)
        except trio.BrokenResourceError:
            pass
        # As a closed socket does: the other side hears of it even while the relay is stalled.
        scope.cancel()


@asynccontextmanager
async def open_relay(url: str) -> AsyncIterator[Relay]:
    """A relay to the server at `url`, which listens on a Unix socket, while the block lasts."""
    parameters = conninfo_to_dict(url)
    port = parameters.get("port") or "5432"
    # A short path: a Unix socket's has 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="relay-", dir="/tmp"))
    name = f".s.PGSQL.{port}"
    relay = Relay(
        make_conninfo(url, host=str(folder), port=port), Path(str(parameters["host"])) / name
    )
    try:
        listening = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
        await listening.bind(str(folder / name))
        listening.listen(50)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, relay.serve, [trio.SocketListener(listening)])
            yield relay
            nursery.cancel_scope.cancel()
    finally:
        shutil.rmtree(folder)
