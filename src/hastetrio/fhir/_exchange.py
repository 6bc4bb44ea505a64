"""What stands between the server and the application: bodies that stall, and what is no HTTP."""

from __future__ import annotations

from typing import Final

import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hastetrio._outcome import IssueType
from hastetrio.fhir._errors import RequestError
from hastetrio.fhir._face import json_response

HEAD_LIMIT: Final = 16 * 1024
"""The most bytes of a request's line and fields."""

# Seconds a body may take to arrive, all in all; one larger than this many KiB a second allow may
# take as long as it needs at that pace.
_BODY_SECONDS: Final = 30.0
_BODY_PACE: Final = 32 * 1024

_TOO_LONG: Final = RequestError(
    431, IssueType.TOO_LONG, f"The request's header has more than {HEAD_LIMIT:,} bytes."
)


def guarded(app: ASGIApp, body_limit: int) -> ASGIApp:
    """The application, safe from clients that send their bodies slowly, or beyond its interest.

    Args:
        app: The application.
        body_limit: The most bytes of a body that it reads.
    """
    seconds = max(_BODY_SECONDS, body_limit / _BODY_PACE)

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _head_size(scope) > HEAD_LIMIT:
            await json_response(_TOO_LONG.outcome, _TOO_LONG.status)(scope, receive, send)
        elif scope["type"] == "http":
            exchange = _Exchange(receive, send, trio.current_time() + seconds)
            await app(scope, exchange.receive, exchange.send)
        elif scope["type"] == "websocket":
            # Before it was accepted, this refuses it: 403.
            await receive()
            await send({"type": "websocket.close"})

    return guard


def _head_size(scope: Scope) -> int:
    # The server's own limit is on what it has not understood yet: a head that comes all at once
    # may have 64 KiB.
    fields = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    return fields + len(scope["raw_path"]) + len(scope["query_string"])


class _Exchange:
    """One request and its answer."""

    def __init__(self, receive: Receive, send: Send, deadline: float) -> None:
        self._receive = receive
        self._send = send
        self._deadline = deadline
        self._is_complete = False

    async def receive(self) -> Message:
        """The next piece of the body; a disconnect if it does not come in time."""
        if self._is_complete:
            return await self._receive()
        with trio.CancelScope(deadline=self._deadline):
            message = await self._receive()
            self._is_complete = not message.get("more_body", False)
            return message
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send a piece of the answer."""
        is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if self._is_complete or not is_last:
            await self._send(message)
            return
        # hypercorn tells the application of the end through the same channel as the body, and
        # waits while that is full: an answer given before the body was read would never end.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._discard)
            await self._send(message)
            nursery.cancel_scope.cancel("the answer is complete")

    async def _discard(self) -> None:
        while (await self._receive())["type"] == "http.request":
            pass
