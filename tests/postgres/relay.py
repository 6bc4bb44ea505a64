"""A relay in front of a server, whose connections can be stalled, resumed and cut."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import trio

from .gateway import open_gateway


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


def open_relay(url: str) -> AbstractAsyncContextManager[Relay]:
    """A relay to the server at `url`, which listens on a Unix socket, while the block lasts."""
    return open_gateway(url, Relay)
