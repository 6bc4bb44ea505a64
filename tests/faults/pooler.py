"""A pooler in transaction mode: each transaction gets any connection, and no session lasts.

Stricter than PgBouncer: after each transaction everything that belongs to a session is discarded,
prepared statements, settings and LISTEN among it.
"""

from __future__ import annotations

import struct
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import trio
from tests.postgres.gateway import open_gateway

_DISCARD = b"Q" + struct.pack("!I", 16) + b"DISCARD ALL\0"
_SYNC, _QUERY, _TERMINATE, _READY, _ERROR = b"S", b"Q", b"X", b"Z", b"E"


class _Messages:
    """Reads a stream message by message."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._buffer = bytearray()

    async def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = await self.stream.receive_some()
            if not data:
                raise trio.BrokenResourceError
            self._buffer += data
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    async def startup(self) -> bytes:
        """The first message of a client, which has no type."""
        head = await self._take(4)
        return head + await self._take(struct.unpack("!I", head)[0] - 4)

    async def next(self) -> tuple[bytes, bytes]:
        """The type of the next message, and all of it."""
        head = await self._take(5)
        return head[:1], head + await self._take(struct.unpack("!I", head[1:])[0] - 4)


class Pooler:
    """Carries transactions between many clients and a few connections; made by `open_pooler`.

    Attributes:
        url: How to reach the server through it.
        transactions: How many there have been.
        switched: How many went over another connection than their client's last.
    """

    def __init__(self, url: str, target: Path) -> None:
        self.url = url
        self.transactions = 0
        self.switched = 0
        self._target = target
        self._greeting = b""
        self._servers: list[_Messages] = []
        self._send, self._receive = trio.open_memory_channel[_Messages](100)

    async def connect(self, startup: bytes, connections: int) -> None:
        """Open the pool, as the first client asked."""
        for _ in range(connections):
            server = _Messages(await trio.open_unix_socket(str(self._target)))
            await server.stream.send_all(startup)
            self._servers.append(server)
            self._greeting = await self._answer(server)
            self._send.send_nowait(server)

    async def close(self) -> None:
        """Close the pool."""
        for server in self._servers:
            await server.stream.aclose()

    async def _answer(self, server: _Messages) -> bytes:
        answer = b""
        kind = b""
        while kind != _READY:
            kind, message = await server.next()
            # A key to cancel statements by would be another client's.
            answer += b"" if kind == b"K" else message
        return answer

    async def serve(self, stream: trio.SocketStream) -> None:
        """Carry one client's transactions."""
        client = _Messages(stream)
        last: _Messages | None = None
        async with stream:
            try:
                startup = await client.startup()
                if not self._greeting:
                    await self.connect(startup, 3)
                await stream.send_all(self._greeting)
                while True:
                    server, state = None, b"I"
                    requests = b""
                    while server is None or state != b"I":
                        kind, message = await client.next()
                        if kind == _TERMINATE:
                            return
                        requests += message
                        if kind not in (_SYNC, _QUERY):
                            continue
                        server = server or await self._receive.receive()
                        with trio.CancelScope(shield=True):
                            await server.stream.send_all(requests)
                            answer = await self._answer(server)
                        requests, state = b"", answer[-1:]
                        await stream.send_all(answer)
                    await server.stream.send_all(_DISCARD)
                    await self._answer(server)
                    self._send.send_nowait(server)
                    self.transactions += 1
                    self.switched += last is not None and last is not server
                    last = server
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return


def open_pooler(url: str) -> AbstractAsyncContextManager[Pooler]:
    """A pooler before the server at `url`, which listens on a Unix socket."""
    return open_gateway(url, Pooler, close=Pooler.close, sslmode="disable", gssencmode="disable")
