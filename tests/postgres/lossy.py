"""A gateway that loses a COMMIT, or the answer to one, and can turn clients away."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Literal

import trio

from .gateway import open_gateway

Loss = Literal["request", "answer", "silence", "delay"]

_COMMIT = b"COMMIT\0"


class Lossy:
    """Carries bytes between clients and the server; made by `open_lossy`.

    Attributes:
        url: How to reach the server through it.
        loss: What becomes of the next COMMIT: the request is lost with its connection; or the
            answer is; or the answer is, and the client is not told; or the client's connection is
            lost, and the request arrives when `arrive` is set.
        lost: It has been lost; where the request arrived, it has been carried out.
        is_closed: New clients are turned away.
        turned_away: How many were.
    """

    def __init__(self, url: str, target: Path) -> None:
        self.url = url
        self.loss: Loss | None = None
        self.lost = trio.Event()
        self.arrive = trio.Event()
        self.is_closed = False
        self.turned_away = 0
        self._target = target

    async def serve(self, client: trio.SocketStream) -> None:
        """Carry the bytes of one client until either side closes."""
        if self.is_closed:
            self.turned_away += 1
            await client.aclose()
            return
        server = await trio.open_unix_socket(str(self._target))
        async with client, server, trio.open_nursery() as nursery:
            answers = trio.CancelScope()
            stopped = trio.Event()

            async def carry_answers() -> None:
                with answers, suppress(trio.BrokenResourceError):
                    async for data in server:
                        await client.send_all(data)
                stopped.set()
                if not answers.cancel_called:
                    nursery.cancel_scope.cancel()

            nursery.start_soon(carry_answers)
            with suppress(trio.BrokenResourceError):
                async for data in client:
                    loss = self.loss if _COMMIT in data else None
                    if loss is None:
                        await server.send_all(data)
                        continue
                    self.loss = None
                    answers.cancel()
                    await stopped.wait()
                    await self._lose(loss, bytes(data), client, server)
                    if loss != "silence":
                        break
            nursery.cancel_scope.cancel()

    async def _lose(
        self, loss: Loss, data: bytes, client: trio.SocketStream, server: trio.SocketStream
    ) -> None:
        if loss == "delay":
            await client.aclose()
            self.lost.set()
            await self.arrive.wait()
        if loss != "request":
            await server.send_all(data)
            # It answers when it is done.
            await server.receive_some()
        self.lost.set()


def open_lossy(url: str) -> AbstractAsyncContextManager[Lossy]:
    """A gateway to the server at `url`, which listens on a Unix socket."""
    return open_gateway(url, Lossy)
