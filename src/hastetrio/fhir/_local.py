"""A server that demands no access token answers to this machine only, and not to web pages.

Any page a person opens can send requests to the loopback interface, and with a name of its own that
resolves to 127.0.0.1 it can read the answers too (DNS rebinding). Both show in the request's head.
"""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from hastetrio._outcome import Issue, IssueType, outcome_json
from hastetrio.fhir._face import json_response

_REFUSED: Final = (
    "This server demands no access token, so it answers to programs of this machine only: ask for "
    "it as 127.0.0.1 or localhost, and not from a web page of another origin."
)


def local_only(app: ASGIApp, public_url: str) -> ASGIApp:
    """The application, for requests that name this machine.

    Args:
        app: What answers them.
        public_url: Its host is a name of this machine too.
    """
    own = urlsplit(public_url).hostname

    def is_here(host: str | None) -> bool:
        if host is None:
            return False
        if host in ("localhost", own):
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            origin = headers.get("origin")
            if not is_here(_hostname(f"//{headers.get('host', '')}")) or (
                origin is not None and not is_here(_hostname(origin))
            ):
                issue = Issue(IssueType.FORBIDDEN, _REFUSED)
                await json_response(outcome_json((issue,)), 403)(scope, receive, send)
                return
        await app(scope, receive, send)

    return guarded


def _hostname(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None
