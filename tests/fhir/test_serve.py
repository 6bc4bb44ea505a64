"""The server: how many connections, how long clients may dawdle, and how it stops."""

from __future__ import annotations

import functools
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeAlias

import attrs
import pytest
import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from trio.testing import MockClock, memory_stream_pair

from hastetrio import ConfigError
from hastetrio._http_config import HttpConfig, parse_address
from hastetrio.fhir._connections import Patience, PatientStream
from hastetrio.fhir._exchange import guarded
from hastetrio.fhir._serve import Server, bound_sockets, is_wildcard, url_of

Connect: TypeAlias = Callable[[], Awaitable[trio.SocketStream]]

GET = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"

WEB_SOCKET = (
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@attrs.define
class App:
    """An application that answers 200, once it may."""

    gate: trio.Event = attrs.field(factory=trio.Event)
    begun: trio.Event = attrs.field(factory=trio.Event)
    body: bytes = b"done"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; `/slow` waits for the gate, `/big` sends without an end, `/crash` fails."""
        if scope["path"] == "/crash":
            raise RuntimeError("a bug")
        if scope["path"] == "/slow":
            self.begun.set()
            await self.gate.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while scope["path"] == "/big":
            self.begun.set()
            await send(
                {"type": "http.response.body", "body": bytes(1024 * 1024), "more_body": True}
            )
        await send({"type": "http.response.body", "body": self.body})


@asynccontextmanager
async def serving(
    app: ASGIApp,
    *,
    drain: float = 600,
    patience: Patience | None = None,
    connection_limit: int = 100,
) -> AsyncIterator[tuple[Server, Connect]]:
    """A server on a free port, and what connects to it; it has stopped after the block."""
    config = HttpConfig(connection_limit=connection_limit)
    with bound_sockets("127.0.0.1", 0, loopback_only=True) as sockets, trio.fail_after(60):
        port = sockets[0].getsockname()[1]
        server = Server(app, sockets, config, drain=drain, patience=patience)
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            yield server, functools.partial(trio.open_tcp_stream, "127.0.0.1", port)
            server.stop()
            server.stop()


async def answer_of(stream: trio.SocketStream) -> tuple[int, dict[str, str], bytes]:
    """Read one answer with a length: its status, fields and body."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = await stream.receive_some(65536)
        assert more, f"the connection ended after {data!r}"
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    fields = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    if fields.get("transfer-encoding") == "chunked":
        while not body.endswith(b"0\r\n\r\n"):
            body += await stream.receive_some(65536)
    while len(body) < int(fields.get("content-length", 0)):
        more = await stream.receive_some(65536)
        assert more, "the connection ended within the body"
        body += more
    return int(status.split(" ")[1]), fields, body


async def ask(stream: trio.SocketStream, request: bytes = GET) -> int:
    """Send a request and read its answer; the status."""
    await stream.send_all(request)
    return (await answer_of(stream))[0]


async def until_open(server: Server, count: int) -> None:
    """Wait until so many connections are open; on no clock, so that no time limit brings it."""
    for _ in range(300):
        if server.open_connections == count:
            return
        await trio.testing.wait_all_tasks_blocked(0.01)
    raise AssertionError(f"{server.open_connections} connections are open, not {count}")


async def is_over(stream: trio.SocketStream) -> bool:
    """Wait until the server closes a connection that it owes nothing."""
    try:
        return await stream.receive_some(1) == b""
    except trio.BrokenResourceError:
        return True


async def test_connections_beyond_the_limit_wait() -> None:
    """They are not refused: one that ends makes room for the next."""
    async with serving(App(), connection_limit=2) as (server, connect):
        first, second = await connect(), await connect()
        assert [await ask(first), await ask(second)] == [200, 200]
        third = await connect()
        await third.send_all(GET)
        # The server has been round its loop; what it could accept, it would have accepted.
        assert [await ask(first), await ask(second)] == [200, 200]
        assert server.open_connections == 2
        await first.aclose()
        assert (await answer_of(third))[0] == 200
        await second.aclose()
        await third.aclose()


async def test_a_connection_ends_with_its_client(mock_clock: MockClock) -> None:
    """Its slot is free at once; the clock stands still, so that no time limit can help."""
    async with serving(App()) as (server, connect):
        stream = await connect()
        assert await ask(stream) == 200
        await stream.aclose()
        await until_open(server, 0)


async def test_a_head_that_comes_in_drops_is_not_waited_for(mock_clock: MockClock) -> None:
    """However often a byte of it arrives."""
    async with serving(App()) as (_, connect):
        slow = await connect()
        await slow.send_all(b"GET / HTTP/1.1\r\n")
        for _ in range(3):
            other = await connect()
            assert await ask(other) == 200
            await other.aclose()
            mock_clock.jump(4)
            await slow.send_all(b"X")
        assert await is_over(slow)
        await slow.aclose()


async def test_a_client_that_idles_within_a_body_is_cut(mock_clock: MockClock) -> None:
    """A length that is never filled must not hold a connection."""
    over = trio.Event()

    async def reading(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] == "http.request":
            begun.set()
        over.set()

    begun = trio.Event()
    async with serving(reading) as (_, connect):
        slow = await connect()
        await slow.send_all(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\nx")
        await begun.wait()
        mock_clock.jump(31)
        await over.wait()
        await slow.aclose()


async def test_a_body_has_a_time_limit_and_an_answer_none(autojump_clock: MockClock) -> None:
    """A byte every second is no idling; a long download's end is told by its client only."""
    messages: list[str] = []
    pieces, incoming = trio.open_memory_channel[Message](0)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            messages.append(message["type"])
            if message["type"] == "http.disconnect" or not message["more_body"]:
                break
        if message["type"] == "http.request":
            with trio.move_on_after(3600):
                messages.append((await receive())["type"])

    async def drip(count: int) -> None:
        for _ in range(count):
            await pieces.send({"type": "http.request", "body": b"x", "more_body": True})
            await trio.sleep(1)
        await pieces.send({"type": "http.request", "body": b"", "more_body": False})

    async def no_answer(message: Message) -> None:
        raise AssertionError(message)

    guard = guarded(app, 1024)
    scope = {"type": "http", "headers": [], "raw_path": b"/", "query_string": b""}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(drip, 100)
        await guard(scope, incoming.receive, no_answer)
        nursery.cancel_scope.cancel()
    assert 29 <= messages.count("http.request") <= 31
    assert messages[-1] == "http.disconnect"

    messages.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(drip, 3)
        await guard(scope, incoming.receive, no_answer)
    assert messages == ["http.request"] * 4


async def test_an_answer_given_before_the_body_came_is_read_and_holds_nothing() -> None:
    """A client that sends too much learns why, and its connection ends."""

    async def refusing(scope: Scope, receive: Receive, send: Send) -> None:
        # Until no more of the body has room on its way here.
        await trio.testing.wait_all_tasks_blocked(0.05)
        fields = [(b"content-length", b"3")]
        await send({"type": "http.response.start", "status": 413, "headers": fields})
        await send({"type": "http.response.body", "body": b"no!"})

    async def pour(stream: trio.SocketStream) -> None:
        for _ in range(64):
            await stream.send_all(bytes(64 * 1024))

    async with serving(refusing) as (server, connect):
        stream = await connect()
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pour, stream)
            status, _, body = await answer_of(stream)
            assert (status, body) == (413, b"no!")
        # Not reset: that could have cost a client the answer.
        assert await stream.receive_some(1) == b""
        await stream.aclose()
        await until_open(server, 0)


async def test_a_client_that_takes_nothing_is_cut(autojump_clock: MockClock) -> None:
    """A piece may take a minute, whatever hypercorn shields."""
    ours, theirs = memory_stream_pair()

    async def never() -> None:
        await trio.sleep_forever()

    ours.send_stream.send_all_hook = never
    stream = PatientStream(ours, Patience(piece=60))  # type: ignore[arg-type]
    began = trio.current_time()
    with trio.CancelScope(shield=True), pytest.raises(trio.BrokenResourceError):
        await stream.send_all(b"x")
    assert trio.current_time() - began == pytest.approx(60)
    with pytest.raises(trio.BrokenResourceError):
        await stream.send_all(b"more")
    await theirs.aclose()


async def test_a_slow_but_steady_reader_is_not_cut(autojump_clock: MockClock) -> None:
    """Each piece has its own time, and sending keeps the other direction from idling."""
    ours, theirs = memory_stream_pair()

    async def slowly() -> None:
        await trio.sleep(50)

    ours.send_stream.send_all_hook = slowly
    stream = PatientStream(ours, Patience(idle=30, piece=60))  # type: ignore[arg-type]

    async def read() -> None:
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await stream.send_all(bytes(5 * 64 * 1024))
        assert trio.current_time() - began == pytest.approx(250)
    # From then on nothing moved any more.
    assert trio.current_time() - began == pytest.approx(280)
    await theirs.aclose()


async def test_requests_under_way_finish_after_a_stop(mock_clock: MockClock) -> None:
    """Idle connections end at once, new ones are refused, and the answer still comes."""
    app = App()
    async with serving(app) as (server, connect):
        idle, busy = await connect(), await connect()
        assert await ask(idle) == 200
        await busy.send_all(GET.replace(b"/ ", b"/slow "))
        await app.begun.wait()
        server.stop()
        await until_open(server, 1)
        assert await is_over(idle)
        with pytest.raises(OSError, match=r"127\.0\.0\.1"):
            await connect()
        app.gate.set()
        status, _, body = await answer_of(busy)
        assert (status, b"done" in body) == (200, True)
        assert await is_over(busy)
        await idle.aclose()
        await busy.aclose()


@pytest.mark.parametrize("again", [True, False])
async def test_a_stop_has_an_end(again: bool, mock_clock: MockClock) -> None:
    """The second stop cuts what is under way, and so does the end of the time for it."""
    app = App()
    async with serving(app, drain=20) as (server, connect):
        stuck = await connect()
        await stuck.send_all(GET.replace(b"/ ", b"/slow "))
        await app.begun.wait()
        server.stop()
        if again:
            server.stop()
        else:
            await trio.testing.wait_all_tasks_blocked(0.01)
            mock_clock.jump(21)
        assert await is_over(stuck)
        await stuck.aclose()


async def test_a_reader_that_stalls_cannot_hold_up_a_stop() -> None:
    """Sends are shielded: only closing the connection ends one."""
    app = App()
    async with serving(app) as (server, connect):
        stalled = await connect()
        await stalled.send_all(GET.replace(b"/ ", b"/big "))
        await app.begun.wait()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert server.open_connections == 1
    assert server.open_connections == 0
    await stalled.aclose()


async def test_a_cancelled_server_leaves_no_connection() -> None:
    """Whatever is under way."""
    slow, big = App(), App()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (slow if scope["path"] == "/slow" else big)(scope, receive, send)

    with bound_sockets("127.0.0.1", 0, loopback_only=True) as sockets, trio.fail_after(60):
        server = Server(app, sockets, HttpConfig(), drain=600)
        # The clients stay: nothing but the server can end their connections.
        async with AsyncExitStack() as clients:
            async with trio.open_nursery() as nursery:
                await nursery.start(server.run)
                for path, begun in ((b"/slow", slow.begun), (b"/big", big.begun)):
                    stream = await trio.open_tcp_stream(*sockets[0].getsockname())
                    await clients.enter_async_context(stream)
                    await stream.send_all(GET.replace(b"/ ", path + b" "))
                    await begun.wait()
                await trio.testing.wait_all_tasks_blocked(0.01)
                assert server.open_connections == 2
                nursery.cancel_scope.cancel()
            assert server.open_connections == 0


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\nno field\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 200_000 + b"\r\n\r\n", 431),
        (b"\x16\x03\x01 hello", 400),
        (WEB_SOCKET, 403),
        (b"GET /crash HTTP/1.1\r\nHost: x\r\n\r\n", 500),
    ],
)
async def test_what_the_server_itself_refuses_is_an_outcome(request_: bytes, status: int) -> None:
    """Not an empty body; and the server goes on."""
    async with serving(App()) as (_, connect):
        stream = await connect()
        await stream.send_all(request_)
        found, fields, body = await answer_of(stream)
        assert found == status
        assert fields["content-type"] == "application/fhir+json"
        assert "server" not in fields
        assert json.loads(body)["resourceType"] == "OperationOutcome"
        await stream.aclose()
        other = await connect()
        assert await ask(other) == 200
        await other.aclose()


async def test_several_requests_share_a_connection() -> None:
    """Each poll would otherwise pay for a connection; no answer names the server."""
    async with serving(App()) as (server, connect):
        stream = await connect()
        for _ in range(3):
            await stream.send_all(GET)
            status, fields, _ = await answer_of(stream)
            assert status == 200
            assert "server" not in fields
        assert server.open_connections == 1
        await stream.aclose()


def test_a_port_in_use_is_said_in_one_line() -> None:
    """With what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}.*--http") as caught,
            bound_sockets("127.0.0.1", port, loopback_only=True),
        ):
            pass
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])  # noqa: S104
def test_other_machines_are_kept_out_while_nobody_proves_who_they_are(host: str) -> None:
    """The line says what to give, or where to listen."""
    with (
        pytest.raises(ConfigError, match=r"--jwks-file.*127\.0\.0\.1"),
        bound_sockets(host, 0, loopback_only=True),
    ):
        pass


def test_every_address_is_told_from_one() -> None:
    """Clients cannot be sent to 0.0.0.0."""
    with bound_sockets("0.0.0.0", 0, loopback_only=False) as sockets:  # noqa: S104
        assert is_wildcard(sockets)
    with bound_sockets("127.0.0.1", 0, loopback_only=True) as sockets:
        assert not is_wildcard(sockets)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1", "a..b"])
def test_a_host_that_cannot_be_had_is_refused(host: str) -> None:
    """In one line that names it."""
    with (
        pytest.raises(ConfigError, match=host) as caught,
        bound_sockets(host, 0, loopback_only=False),
    ):
        pass
    assert "\n" not in str(caught.value)


def test_sockets_are_closed_after_the_block() -> None:
    """Nothing is left behind, and the port is free again."""
    with bound_sockets("127.0.0.1", 0, loopback_only=True) as sockets:
        port = sockets[0].getsockname()[1]
        assert url_of(sockets) == f"http://127.0.0.1:{port}"
    assert sockets[0].fileno() == -1
    with bound_sockets("127.0.0.1", port, loopback_only=True):
        pass


def test_ipv6_is_bound_and_shown_in_brackets() -> None:
    """As it is written in a URL."""
    try:
        with bound_sockets("::1", 0, loopback_only=True) as sockets:
            assert url_of(sockets).startswith("http://[::1]:")
    except ConfigError:
        pytest.skip("this machine has no IPv6")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:8000", ("127.0.0.1", 8000)),
        ("[::1]:0", ("::1", 0)),
        ("localhost:65535", ("localhost", 65535)),
    ],
)
def test_an_address_is_host_and_port(text: str, expected: tuple[str, int]) -> None:
    """IPv6 in brackets."""
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "8000",
        ":8000",
        "localhost",
        "localhost:",
        "a:b",
        "h:65536",
        "::1:8000",
        "http://h:1",
        "h:-1",
    ],
)
def test_anything_else_is_no_address(text: str) -> None:
    """Also what could be meant in two ways."""
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_address(text)
