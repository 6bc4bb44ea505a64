"""Where clients connect instead of to the server: a Unix socket before its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import trio
from psycopg.conninfo import conninfo_to_dict, make_conninfo


class _Serves(Protocol):
    async def serve(self, client: trio.SocketStream) -> None: ...


Gateway = TypeVar("Gateway", bound=_Serves)


async def _nothing(_: object) -> None:
    await trio.lowlevel.checkpoint()


@asynccontextmanager
async def open_gateway(
    url: str,
    make: Callable[[str, Path], Gateway],
    *,
    close: Callable[[Gateway], Awaitable[None]] = _nothing,
    **parameters: str,
) -> AsyncIterator[Gateway]:
    """A gateway to the server at `url`, which listens on a Unix socket, while the block lasts.

    Args:
        url: The server.
        make: Makes the gateway, of the URL its clients use and the server's socket.
        close: Called with it at the end, when no connection is served any more.
        parameters: More for the clients' URL.
    """
    given = conninfo_to_dict(url)
    port = given.get("port") or "5432"
    name = f".s.PGSQL.{port}"
    # A short path: a Unix socket's has 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="gateway-", dir="/tmp"))
    gateway = make(
        make_conninfo(url, **{"host": str(folder), "port": str(port), **parameters}),
        Path(str(given["host"])) / name,
    )
    try:
        listening = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
        await listening.bind(str(folder / name))
        listening.listen(50)
        async with trio.open_nursery() as nursery:
            listener = trio.SocketListener(listening)
            nursery.start_soon(trio.serve_listeners, gateway.serve, [listener])
            yield gateway
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await close(gateway)
        shutil.rmtree(folder)
