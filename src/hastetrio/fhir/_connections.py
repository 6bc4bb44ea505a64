"""Connections that cannot be held for nothing: how many there are, and how long each may idle."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import attrs
import trio

# Bytes handed to the system at once. A client's progress is judged by each such piece.
_PIECE: Final = 64 * 1024

_CUT: Final = "the connection was cut"


@attrs.frozen(kw_only=True)
class Patience:
    """How long a client is waited for, seconds.

    Args:
        idle: The longest that nothing moves in either direction.
        piece: The longest that 64 KiB of an answer may take.
        farewell: How long a client may go on sending after its answer was complete.
    """

    idle: float = 30.0
    piece: float = 60.0
    farewell: float = 2.0


class PatientStream(trio.abc.HalfCloseableStream):
    """A connection that breaks when its client lets it idle, or takes an answer too slowly.

    hypercorn bounds neither: it shields each send against its own cancellation, so that one client
    that reads nothing would hold up the end of the process for ever.

    Args:
        stream: The connection.
        patience: How long the client is waited for.
        edit: Changes what is sent, piece by piece.
    """

    def __init__(
        self,
        stream: trio.SocketStream,
        patience: Patience,
        edit: Callable[[bytes], bytes] = bytes,
    ) -> None:
        self._stream = stream
        self._patience = patience
        self._edit = edit
        self._reading: trio.CancelScope | None = None
        self._sending: trio.CancelScope | None = None
        self._ended = trio.Event()
        self._is_farewell = False
        self._is_closed = False

    @property
    def socket(self) -> trio.socket.SocketType:
        """The socket, which says who is at the other end."""
        return self._stream.socket

    def cut(self) -> None:
        """Break the connection now, whatever is under way."""
        self._is_closed = True
        for scope in (self._reading, self._sending):
            if scope is not None:
                scope.cancel("the connection is cut")

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """The next bytes of the client; none at its end, or once its answer is complete.

        Raises:
            BrokenResourceError: It let the connection idle.
        """
        if self._is_closed or self._is_farewell:
            self._ended.set()
            raise trio.ClosedResourceError(_CUT)
        data: bytes | None = None
        try:
            with trio.CancelScope(deadline=self._idle_until()) as self._reading:
                data = bytes(await self._stream.receive_some(max_bytes))
                # The answer is complete: what else comes is read, so that closing does not reset
                # the connection before the client has read its answer (RFC 9112 section 9.6).
                while data and self._reads_on():
                    data = bytes(await self._stream.receive_some(max_bytes))
        finally:
            self._reading = None
            if not data:
                self._ended.set()
        if data is None:
            raise trio.BrokenResourceError("the client let the connection idle")
        return data

    def _idle_until(self) -> float:
        # While something is sent, it is the sending that is timed.
        return math.inf if self._sending else trio.current_time() + self._patience.idle

    def _reads_on(self) -> bool:
        # A method, because another task changes what it tells while this one waits.
        return self._is_farewell

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send, as long as the client takes it.

        Raises:
            BrokenResourceError: It is gone, or it takes nothing.
        """
        left = memoryview(self._edit(bytes(data)))
        while left:
            if self._is_closed:
                raise trio.BrokenResourceError(_CUT)
            if not await self._send_piece(left[:_PIECE]):
                # How much was sent is not known: nothing sensible can follow.
                self.cut()
                raise trio.BrokenResourceError("the client does not take its answer")
            left = left[_PIECE:]

    async def _send_piece(self, piece: memoryview) -> bool:
        deadline = trio.current_time() + self._patience.piece
        with trio.CancelScope(deadline=deadline) as scope:
            self._sending = scope
            if self._reading is not None:
                self._reading.deadline = self._idle_until()
            try:
                await self._stream.send_all(piece)
            finally:
                self._sending = None
                if self._reading is not None:
                    self._reading.deadline = self._idle_until()
        return not scope.cancelled_caught

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the client takes bytes."""
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """Say that no more is to come."""
        await self._stream.send_eof()
        self._is_farewell = True

    async def aclose(self) -> None:
        """Close, once the client has had its chance to read the end.

        Cancellation: it is closed at once.
        """
        try:
            if self._is_farewell and not self._is_closed:
                with trio.move_on_after(self._patience.farewell):
                    await self._until_ended()
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
            pass
        finally:
            self.cut()
            await self._stream.aclose()

    async def _until_ended(self) -> None:
        if self._reading is not None:
            # Whoever reads now reads on to the end.
            await self._ended.wait()
        while not self._ended.is_set() and await self._stream.receive_some(_PIECE):
            pass


class LimitedListener(trio.abc.Listener[PatientStream]):
    """Accepts a connection only while fewer than a limit are open; others wait in the backlog.

    Args:
        listener: Where they come from.
        slots: One for each connection that may be open, shared by all listeners.
        wrap: Makes the stream of a connection.
    """

    def __init__(
        self,
        listener: trio.SocketListener,
        slots: trio.Semaphore,
        wrap: Callable[[trio.SocketStream], PatientStream],
    ) -> None:
        self._listener = listener
        self._slots = slots
        self._wrap = wrap

    async def accept(self) -> PatientStream:
        """The next connection; its slot is the caller's to release when it has ended."""
        await self._slots.acquire()
        try:
            return self._wrap(await self._listener.accept())
        except BaseException:
            self._slots.release()
            raise

    async def aclose(self) -> None:
        """Accept no more."""
        await self._listener.aclose()
