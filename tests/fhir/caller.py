"""A client of the application that takes its messages one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import attrs
import trio
from starlette.types import Message

from hastetrio.fhir import Face, make_app

# No test waits as long; it ends one that would hang.
SOON: Final = 30.0


@attrs.define
class Caller:
    """A client as the server sees it, which can stop taking what it is sent.

    Attributes:
        taken: The messages it took.
        hold_after: How many it takes before it holds.
        is_holding: Set when it does.
        resume: Set it to make the client go on.
        error: Raised instead of holding.
        on_send: Called before each message is taken.
        gone: Set it to make the client go away.
    """

    taken: list[Message] = attrs.field(factory=list)
    hold_after: int = 1_000_000
    is_holding: trio.Event = attrs.field(factory=trio.Event)
    resume: trio.Event = attrs.field(factory=trio.Event)
    error: Exception | None = None
    on_send: Callable[[], None] = lambda: None
    gone: trio.Event = attrs.field(factory=trio.Event)

    async def send(self, message: Message) -> None:
        """Take one message."""
        if len(self.taken) >= self.hold_after:
            self.is_holding.set()
            if self.error is not None:
                raise self.error
            await self.resume.wait()
        self.on_send()
        self.taken.append(message)

    async def receive(self) -> Message:
        """What the client says: nothing until it is gone."""
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def get(
        self, of: Face, path: str, headers: Mapping[str, str] | None = None, method: str = "GET"
    ) -> None:
        """Make one request."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()],
            "server": ("inside.invalid", 80),
            "client": ("127.0.0.1", 1),
        }
        await make_app(of)(scope, self.receive, self.send)

    @property
    def status(self) -> int:
        """The status that was sent."""
        return int(self.taken[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        """The header fields that were sent, without those of CORS."""
        fields = {name.decode(): value.decode() for name, value in self.taken[0]["headers"]}
        vary = [name for name in fields.pop("vary", "").split(", ") if name != "Origin"]
        return fields | {"vary": ", ".join(vary)}

    @property
    def body(self) -> bytes:
        """What was sent of the body."""
        return b"".join(message.get("body", b"") for message in self.taken[1:])

    @property
    def is_complete(self) -> bool:
        """Whether the answer has an end."""
        return self.taken[-1]["type"] == "http.response.body" and not self.taken[-1].get(
            "more_body"
        )
