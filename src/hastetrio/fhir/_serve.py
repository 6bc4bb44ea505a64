"""The HTTP server: hypercorn's protocol on trio, in the caller's nursery.

No other module knows hypercorn. Its accept loop is left out: it has no limit on connections, and
hides KeyboardInterrupt. What it does with one connection is used as it is.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import logging
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from starlette.types import ASGIApp

from hastetrio._errors import ConfigError
from hastetrio._http_config import HttpConfig, show_address
from hastetrio._model import FHIR_JSON
from hastetrio._outcome import Issue, IssueType, outcome_json
from hastetrio.fhir._connections import LimitedListener, Patience, PatientStream
from hastetrio.fhir._exchange import HEAD_LIMIT, guarded

# Seconds from a connection's start, or its last answer, until the head of the next request must be
# complete: against clients that send a byte of it now and then.
_HEAD_SECONDS: Final = 10.0

# Connections that the system keeps until they are accepted.
_BACKLOG: Final = 1024

_logger = logging.getLogger("hastetrio.http")


@contextmanager
def bound_sockets(host: str, port: int, *, loopback_only: bool) -> Iterator[list[socket.socket]]:
    """Sockets that listen on every address of `host`, closed after the block.

    Who connects waits until a server accepts.

    Args:
        host: A name or an address.
        port: The port; 0 for one that is free.
        loopback_only: Refuse a host that other machines can reach.

    Raises:
        ConfigError: It is not to be had, or not allowed; the text says what to do.
    """
    sockets: list[socket.socket] = []
    try:
        for family, address in _resolved(host, port):
            if loopback_only and not ipaddress.ip_address(address[0].split("%")[0]).is_loopback:
                raise ConfigError(
                    f"refusing to listen on {show_address(host, port)}, which other machines can "
                    "reach, while nobody has to prove who they are: give --jwks-file or "
                    "--jwks-url, --token-issuer and --token-audience, or listen on 127.0.0.1"
                )
            sockets.append(_bound(family, address, show_address(host, port)))
            if port == 0:
                # A free port of one address need not be free on the next.
                break
        yield sockets
    finally:
        for one in sockets:
            one.close()


def _resolved(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no host name"
        raise ConfigError(
            f"cannot listen on {show_address(host, port)}: {host} is not known ({reason})"
        ) from None
    return list(dict.fromkeys((entry[0], entry[4]) for entry in found))


def _bound(family: socket.AddressFamily, address: tuple[Any, ...], name: str) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A server that was just stopped leaves its port in TIME_WAIT.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # [::] is every IPv6 address; 0.0.0.0 every other.
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
        # Tells a port that is taken by somebody who listens, which binding alone does not.
        one.listen(_BACKLOG)
    except OSError as error:
        one.close()
        if error.errno == errno.EADDRINUSE:
            reason = "something listens there already; stop it, or give another port with --http"
        elif error.errno == errno.EACCES:
            reason = "this account may not use that port; give one above 1023 with --http"
        elif error.errno == errno.EADDRNOTAVAIL:
            reason = "this machine has no such address"
        else:
            reason = str(error.strerror)
        raise ConfigError(f"cannot listen on {name}: {reason}") from None
    return one


def url_of(sockets: Sequence[socket.socket]) -> str:
    """The address under which the first of the sockets can be reached."""
    host, port = sockets[0].getsockname()[:2]
    return f"http://{show_address(host, port)}"


def is_wildcard(sockets: Iterable[socket.socket]) -> bool:
    """Whether a socket takes every address of this machine, so that its own is none to call."""
    return any(
        ipaddress.ip_address(one.getsockname()[0].split("%")[0]).is_unspecified for one in sockets
    )


class Server:
    """Serves an application on sockets, until told to stop.

    Args:
        app: The application.
        sockets: Where clients connect; `run` closes them.
        config: The limits on bodies and connections.
        drain: Seconds that requests under way may take after a stop.
        patience: How long slow clients are waited for.
    """

    def __init__(
        self,
        app: ASGIApp,
        sockets: Sequence[socket.socket],
        config: HttpConfig,
        *,
        drain: float,
        patience: Patience | None = None,
    ) -> None:
        self._app = ASGIWrapper(guarded(app, config.body_limit))  # type: ignore[arg-type]
        self._sockets = sockets
        self._limit = config.connection_limit
        self._drain = drain
        self._patience = patience or Patience()
        self._config = _hypercorn_config()
        self._context = WorkerContext(None)
        self._open: set[PatientStream] = set()
        self._stopping = trio.Event()
        self._hurrying = trio.Event()

    @property
    def open_connections(self) -> int:
        """How many connections are open."""
        return len(self._open)

    def stop(self) -> None:
        """Stop, and return at once: the first call lets requests finish, the second cuts them."""
        if self._stopping.is_set():
            self._hurrying.set()
        self._stopping.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until stopped; `task_status.started` is called when clients can connect.

        Cancellation: all connections are cut.
        """
        slots = trio.Semaphore(self._limit)
        listeners = [
            LimitedListener(
                # A copy: the caller closes its own.
                trio.SocketListener(trio.socket.from_stdlib_socket(_copy(one))),
                slots,
                self._opened,
            )
            for one in self._sockets
        ]

        async def serve_one(stream: PatientStream) -> None:
            try:
                await self._serve_one(stream)
            finally:
                slots.release()

        async with trio.open_nursery() as connections:
            try:
                async with trio.open_nursery() as accepting:
                    for listener in listeners:
                        accepting.start_soon(_accept, serve_one, listener, connections)
                    task_status.started()
                    await self._stopping.wait()
                    accepting.cancel_scope.cancel("the server is stopping")
                for one in self._sockets:
                    # Connections that wait to be accepted are refused, and so are new ones.
                    one.close()
                await self._context.terminated.set()
                connections.start_soon(self._end, connections.cancel_scope)
            except BaseException:
                # What is shielded would be waited for.
                self._cut()
                raise

    def _opened(self, stream: trio.SocketStream) -> PatientStream:
        patient = PatientStream(stream, self._patience, explained)
        self._open.add(patient)
        return patient

    async def _serve_one(self, stream: PatientStream) -> None:
        try:
            await _Connection(self._app, self._config, self._context, {}, stream)  # type: ignore[arg-type]
        except BaseException as error:
            # What goes wrong with one connection must not end all of them.
            group = BaseExceptionGroup("", [error])
            errors, others = group.split(Exception)
            if errors is not None:
                _logger.debug("A connection broke", exc_info=errors)
            if others is not None:
                raise others from None
        finally:
            self._open.discard(stream)
            if not self._open and self._stopping.is_set():
                self._hurrying.set()

    async def _end(self, connections: trio.CancelScope) -> None:
        try:
            if self._open:
                with trio.move_on_after(self._drain):
                    await self._hurrying.wait()
        finally:
            self._cut()
        connections.cancel("the time for requests under way is over")

    def _cut(self) -> None:
        for stream in list(self._open):
            stream.cut()


class _Connection(TCPServer):
    """hypercorn's connection, which ends when its client ends it."""

    async def _read_data(self) -> None:
        await super()._read_data()
        # It would be kept until its time to idle is over, and its slot with it.
        await self.idle_task.stop()


async def _accept(
    serve_one: Any,  # noqa: ANN401  # an async function
    listener: LimitedListener,
    connections: trio.Nursery,
) -> None:
    await trio.serve_listeners(serve_one, [listener], handler_nursery=connections)


def _copy(one: socket.socket) -> socket.socket:
    copy = one.dup()
    copy.setblocking(False)
    return copy


def _hypercorn_config() -> Config:
    config = Config()
    config.accesslog = None
    # Only what the application lets escape is logged there, and it answers its errors itself.
    config.errorlog = _logger
    config.include_server_header = False
    config.keep_alive_timeout = _HEAD_SECONDS
    config.h11_max_incomplete_size = HEAD_LIMIT
    # One connection of HTTP/2 counts as one: it must not carry a crowd.
    config.h2_max_concurrent_streams = 10
    return config


_REFUSALS: Final = {
    b"431": (IssueType.TOO_LONG, f"The request's header has more than {HEAD_LIMIT:,} bytes."),
    b"403": (IssueType.NOT_SUPPORTED, "There are no web sockets here."),
    b"501": (IssueType.NOT_SUPPORTED, "The request uses a transfer coding that is not supported."),
    b"500": (IssueType.EXCEPTION, "The server failed to answer."),
}
_MALFORMED: Final = (IssueType.STRUCTURE, "The request is no HTTP that can be understood.")


def explained(data: bytes) -> bytes:
    """An answer of hypercorn's own with an OperationOutcome; anything else as it is.

    Its refusals have no body; the application's all have one.
    """
    if data[:10] not in (b"HTTP/1.1 4", b"HTTP/1.1 5") or b"\r\ncontent-length: 0\r\n" not in data:
        return data
    code, text = _REFUSALS.get(data[9:12], _MALFORMED)
    body = json.dumps(outcome_json((Issue(code, text),))).encode()
    fields = f"content-type: {FHIR_JSON}\r\ncache-control: no-store\r\ncontent-length: {len(body)}"
    head, separator, rest = data.partition(b"\r\n\r\n")
    head = head.replace(b"content-length: 0", fields.encode(), 1)
    return head + separator + body + rest
