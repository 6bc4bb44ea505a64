"""How downloads end: at the file's end, or cut short; and that nothing stays open."""

from __future__ import annotations

import gzip
import io
import logging
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import httpx2
import pytest
import trio
import trio.testing

from hastetrio.fhir import Face, make_app
from hastetrio.fhir._connections import Patience
from hastetrio.fhir._files import CHUNK, STALL
from hastetrio.fhir._serve import Server, bound_sockets, url_of

from .caller import SOON, Caller
from .downloads import LONG, Files, Unreadable, a_face, insert, path_of
from .harness import client, issue_of


class Shrunk(io.BytesIO):
    """A file that has become shorter since its size was looked at."""

    def getbuffer(self) -> memoryview:
        """More than there is."""
        return memoryview(super().getvalue() + b"more")


@pytest.mark.parametrize("coding", ["identity", "gzip"])
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Unreadable(LONG, good=CHUNK), "Input/output error"),
        (lambda: Shrunk(LONG), f"it ends after {len(LONG):,} of {len(LONG) + 4:,} bytes"),
    ],
)
async def test_a_file_that_breaks_off_is_no_complete_answer(
    coding: str, make: Callable[[], io.BytesIO], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer lacks its end, so that no client takes the beginning for the whole."""
    handler = Files(x=make)
    of = a_face(handler)
    id = insert(of)
    caller = Caller()
    with caplog.at_level(logging.INFO, "hastetrio.fhir"):
        await caller.get(of, path_of(id), {"Accept-Encoding": coding})
    assert caller.status == 200
    assert not caller.is_complete
    if coding == "gzip":
        with pytest.raises(EOFError):
            gzip.decompress(caller.body)
    assert handler.all_closed()
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is None
    assert id in record.getMessage()
    assert record.getMessage().endswith(why)


async def test_a_file_that_cannot_be_opened_is_the_servers_failure() -> None:
    """A disk's error while opening is 500 with an OperationOutcome, which shows no path."""
    handler = Files()

    def fail() -> None:
        raise PermissionError(13, "Permission denied", "/secret/place")

    handler.on_open = fail
    of = a_face(handler)
    async with client(of) as http:
        answer = await http.get(path_of(insert(of)))
    assert issue_of(answer)[:2] == (500, "exception")
    assert "secret" not in answer.text


async def test_a_client_that_goes_away_ends_the_download() -> None:
    """The file is closed though the server goes on taking nothing."""
    handler = Files(x=LONG)
    of = a_face(handler)
    caller = Caller(hold_after=2)
    with trio.fail_after(SOON):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(caller.get, of, path_of(insert(of)))
            await caller.is_holding.wait()
            assert not handler.all_closed()
            caller.gone.set()
    assert handler.all_closed()
    assert not caller.is_complete


async def test_a_server_that_reports_the_client_gone_ends_the_download() -> None:
    """Servers of ASGI 2.4 raise OSError from send: no failure, and nothing to log."""
    handler = Files(x=LONG)
    of = a_face(handler)
    caller = Caller(hold_after=2, error=OSError("gone"))
    await caller.get(of, path_of(insert(of)))
    assert handler.all_closed()
    assert not caller.is_complete


@pytest.mark.parametrize("taken", [0, 1, 3])
async def test_a_client_that_takes_nothing_is_given_up(
    taken: int, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A send without progress ends the download after its time, and not before."""
    handler = Files(x=LONG)
    of = a_face(handler)
    caller = Caller(hold_after=taken)
    ended = trio.Event()

    async def download(id: str) -> None:
        with caplog.at_level(logging.INFO, "hastetrio.fhir"):
            await caller.get(of, path_of(id))
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(download, insert(of))
        await caller.is_holding.wait()
        mock_clock.jump(STALL - 1)
        await trio.testing.wait_all_tasks_blocked()
        assert not ended.is_set()
        assert not handler.all_closed()
        mock_clock.jump(2)
    assert handler.all_closed()
    assert len(caller.taken) == taken
    assert [record.levelno for record in caplog.records] == [logging.INFO]


async def test_slow_progress_is_progress(mock_clock: trio.testing.MockClock) -> None:
    """Each chunk has the whole time to itself, however long the download takes."""
    handler = Files(x=LONG)
    of = a_face(handler)
    caller = Caller(on_send=lambda: mock_clock.jump(STALL - 1))
    await caller.get(of, path_of(insert(of)))
    assert caller.body == LONG
    assert caller.is_complete


async def test_a_file_that_is_opened_after_a_cancel_is_closed() -> None:
    """The thread cannot be stopped; what it brings is not left open."""
    handler = Files(x=LONG)
    of = a_face(handler)
    opening, go_on = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()

    def wait() -> None:
        token.run_sync_soon(opening.set)
        assert go_on.wait(SOON)

    handler.on_open = wait
    caller = Caller()
    with trio.fail_after(SOON):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(caller.get, of, path_of(insert(of)))
            await opening.wait()
            nursery.cancel_scope.cancel()
            go_on.set()
    assert handler.all_closed()
    assert caller.body == b""
    assert not caller.is_complete


class Slow(io.BytesIO):
    """A file that waits before it is read, and notes whether it was closed meanwhile."""

    def __init__(self, content: bytes, wait: Callable[[], None]) -> None:
        super().__init__(content)
        self._wait = wait
        self.was_closed_while_read = False

    def read(self, size: int | None = -1, /) -> bytes:
        """Read, after a while."""
        self._wait()
        self.was_closed_while_read = self.closed
        return super().read(size)


async def test_a_cancel_closes_the_file_after_its_last_read() -> None:
    """A thread may be in the file when the download is cancelled: it is closed behind it."""
    reading, go_on = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()

    def wait() -> None:
        token.run_sync_soon(reading.set)
        assert go_on.wait(SOON)

    file = Slow(LONG, wait)
    handler = Files(x=lambda: file)
    of = a_face(handler)
    with trio.fail_after(SOON):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Caller().get, of, path_of(insert(of)))
            await reading.wait()
            nursery.cancel_scope.cancel()
            # The download's tasks see the cancel, all of them, before the thread goes on.
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
            assert not file.closed
            go_on.set()
    assert handler.all_closed()
    assert not file.was_closed_while_read


async def test_files_need_no_thread_of_the_rest_of_the_process() -> None:
    """With trio's default threads all taken, a file is still sent; and files take none of them."""
    handler = Files(x=LONG)
    of = a_face(handler)
    default = trio.to_thread.current_default_thread_limiter()
    others = [object() for _ in range(int(default.total_tokens))]
    for other in others:
        default.acquire_on_behalf_of_nowait(other)
    caller = Caller()
    with trio.fail_after(SOON):
        await caller.get(of, path_of(insert(of)))
    for other in others:
        default.release_on_behalf_of(other)
    assert caller.body == LONG


@asynccontextmanager
async def serving(of: Face, **patience: float) -> AsyncGenerator[str]:
    """The address of a server of the face, over real connections."""
    with bound_sockets("127.0.0.1", 0, loopback_only=True) as sockets:
        server = Server(make_app(of), sockets, of.config, drain=SOON, patience=Patience(**patience))
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            yield url_of(sockets)
            server.stop()


@pytest.mark.parametrize("coding", ["identity", "gzip"])
async def test_a_client_sees_that_a_file_broke_off(coding: str) -> None:
    """Over a real connection the answer is cut: HTTP clients refuse it, compressed or not."""
    handler = Files(x=lambda: Unreadable(LONG, good=CHUNK), y=LONG)
    of = a_face(handler)
    id = insert(of)
    async with serving(of) as url, httpx2.AsyncClient(base_url=url) as http:
        headers = {"Accept-Encoding": coding}
        with pytest.raises(httpx2.RemoteProtocolError):
            await http.get(path_of(id, "x"), headers=headers)
        assert (await http.get(path_of(id, "y"), headers=headers)).content == LONG


class Noticed(io.BytesIO):
    """A file that says when it is closed."""

    def __init__(self, content: bytes, closed: trio.Event) -> None:
        super().__init__(content)
        self._closed = closed

    def close(self) -> None:
        """Close."""
        super().close()
        self._closed.set()


async def test_a_connection_that_takes_nothing_is_cut() -> None:
    """A client that never reads keeps neither its connection nor the file."""
    closed = trio.Event()
    # More than the buffers of two ends hold.
    handler = Files(x=lambda: Noticed(bytes(32 * 1024 * 1024), closed))
    of = a_face(handler)
    path = path_of(insert(of))
    async with serving(of, piece=0.1) as url:
        host, _, port = url.removeprefix("http://").rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            with trio.fail_after(SOON):
                await closed.wait()
