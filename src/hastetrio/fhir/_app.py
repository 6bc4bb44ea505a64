"""The ASGI application: which endpoint answers what, and what every answer has in common.

request -> limits -> place -> endpoint { caller -> storage } -> response, or an OperationOutcome
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final, TypeAlias
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from hastetrio._errors import ConfigError, ProviderUnavailable, SchemaError
from hastetrio._outcome import IssueType
from hastetrio.fhir._callers import Caller, caller_of
from hastetrio.fhir._errors import RequestError, not_found
from hastetrio.fhir._face import Face, check_operations, json_response
from hastetrio.fhir._files import result_file
from hastetrio.fhir._kick_off import check_target, kick_off, kick_off_of
from hastetrio.fhir._metadata import metadata
from hastetrio.fhir._places import Place, place_of
from hastetrio.fhir._status import cancel, jobs, status

_logger = logging.getLogger("hastetrio.fhir")

# Seconds after which to try again while the database is away; a worker reconnects in one to five.
_AWAY_RETRY: Final = 5

# What a browser may read of an answer (https://fetch.spec.whatwg.org/#http-access-control-expose-headers).
_EXPOSED: Final = (
    "Content-Location",
    "X-Progress",
    "Retry-After",
    "Expires",
    "Preference-Applied",
    "WWW-Authenticate",
)

_Endpoint: TypeAlias = Callable[[Face, Request, Place, Caller], Awaitable[Response]]


def make_app(face: Face, routes: Iterable[Route] = ()) -> ASGIApp:
    """The application.

    Args:
        face: What it serves.
        routes: Further routes, such as those of the probes.

    Raises:
        ConfigError: Two operations collide, or there is no public URL to make addresses of.
    """
    check_operations(face.handlers.values())
    if not face.config.public_url:
        raise ConfigError("public_url is needed: what clients' addresses of this server begin with")

    async def fhir(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        response = await _answer(face, request)
        if request.method == "HEAD":
            response.body = b""
        await response(scope, receive, send)

    cors = Middleware(
        _Cors,
        allow_origins=["*"],
        allow_methods=["GET", "HEAD", "POST", "DELETE"],
        allow_headers=["Accept", "Authorization", "Content-Type", "Prefer"],
        expose_headers=list(_EXPOSED),
    )
    app = Starlette(routes=list(routes), middleware=[cors])
    # It would send clients to an address made of the Host field.
    app.router.redirect_slashes = False
    # Whatever no other route takes, with any method: its answers are OperationOutcomes.
    app.router.default = fhir
    return app


class _Cors(CORSMiddleware):
    """Starlette's, except that a preflight is refused as everything else is."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """The answer to a preflight; 400 where it asks for what no request may have."""
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        refusal = RequestError(
            response.status_code,
            IssueType.NOT_SUPPORTED,
            f"A browser may send {', '.join(self.allow_methods)} here, with the header fields "
            f"{', '.join(self.allow_headers)}.",
            headers=self.preflight_headers,
        )
        return json_response(refusal.outcome, refusal.status, headers=refusal.headers)


async def _answer(face: Face, request: Request) -> Response:
    try:
        return await _respond(face, request)
    except RequestError as error:
        answer = error
    except ProviderUnavailable:
        answer = RequestError(
            503,
            IssueType.TRANSIENT,
            "The database is not available at the moment; the job itself is not affected.",
            headers={"Retry-After": str(_AWAY_RETRY)},
        )
    except ClientDisconnect:
        answer = RequestError(400, IssueType.INCOMPLETE, "The request's body did not arrive.")
    except SchemaError as error:
        _logger.error("Cannot answer requests: %s", error)
        answer = RequestError(
            500, IssueType.EXCEPTION, "The server's database is not set up for this version."
        )
    except Exception:
        _logger.exception("%s request failed", request.method)
        answer = RequestError(500, IssueType.EXCEPTION, "The server failed to answer.")
    return json_response(answer.outcome, answer.status, headers=answer.headers)


async def _respond(face: Face, request: Request) -> Response:
    # Not every server passes the path as it was sent; encoded anew, it means the same.
    raw_path: bytes = (
        request.scope.get("raw_path")
        or quote(request.scope["path"], errors="surrogatepass").encode()
    )
    size = len(raw_path) + len(request.scope["query_string"])
    if size > face.config.url_limit:
        raise RequestError(
            414,
            IssueType.TOO_LONG,
            f"The address has {size:,} bytes; the most is {face.config.url_limit:,}.",
        )
    place = place_of(raw_path)
    if place is None:
        raise not_found()
    if place.rest == ("metadata",):
        # Without a token: a client reads there what there is.
        check_method(request.method, ["GET", "HEAD"])
        return metadata(face, request, place)
    endpoints = _endpoints(face, place)
    if not endpoints:
        raise not_found()
    check_method(request.method, endpoints)
    endpoint = endpoints[request.method]
    caller = await caller_of(request, place, face.authenticator)
    return await endpoint(face, request, place, caller)


def check_method(method: str, allowed: Collection[str]) -> None:
    """See that a method is one of those that are possible.

    Raises:
        RequestError: 405, with the methods there are.
    """
    listed = ", ".join(allowed)
    if method not in allowed:
        raise RequestError(
            405,
            IssueType.NOT_SUPPORTED,
            f"{method} is not possible here; {listed} would be.",
            headers={"Allow": listed},
        )


def _endpoints(face: Face, place: Place) -> dict[str, _Endpoint]:
    """What a path leads to, by method; nothing where it leads nowhere."""
    rest = place.rest
    if rest[:1] == ("_async",):
        if len(rest) == 1:
            return {"GET": jobs, "HEAD": jobs}
        if len(rest) == 2:
            return {"GET": status, "HEAD": status, "DELETE": cancel}
        if len(rest) == 4 and rest[2] == "files":
            return {"GET": result_file, "HEAD": result_file}
        return {}
    invoked = kick_off_of(rest)
    if invoked is None:
        return {}
    name, level, type, id = invoked
    check_target(type, id)
    handler = face.handler_for(name, level, type)
    if handler is None or handler.operation is None:
        return {}

    async def start(face: Face, request: Request, place: Place, caller: Caller) -> Response:
        return await kick_off(face, request, place, caller, handler)

    # No HEAD: it must not do what a GET does here.
    methods = ("POST",) if handler.operation.affects_state else ("GET", "POST")
    return dict.fromkeys(methods, start)
