"""The probes: whether the process lives, and whether it can do its work now."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from hastetrio._errors import HastetrioError, SchemaError
from hastetrio.fhir._app import check_method
from hastetrio.fhir._errors import RequestError, not_found
from hastetrio.fhir._face import json_response

# Seconds the database may take to answer a probe; most probes give up after one to five.
_BUDGET: Final = 2.0

# Seconds an answer holds for all who ask: any number of probes costs the database one look each.
_HOLDS: Final = 1.0

_logger = logging.getLogger("hastetrio.http")


class Health:
    """What the probes answer.

    Args:
        check: Sees whether the database answers and fits, and raises if not; None where there is
            nothing to ask.
        has_worker: Whether a worker belongs to this process; then it must have started.
    """

    def __init__(
        self, check: Callable[[], Awaitable[None]] | None, *, has_worker: bool = False
    ) -> None:
        self._check = check
        self._worker = "is starting" if has_worker else None
        self._is_stopping = False
        self._asked = -math.inf
        self._problem: str | None = None
        self._one_at_a_time = trio.Lock()

    def worker_started(self) -> None:
        """The worker runs."""
        self._worker = None

    def worker_ended(self) -> None:
        """The worker runs no more."""
        self._worker = "has ended"

    def stop(self) -> None:
        """This process is stopping."""
        self._is_stopping = True

    async def problem(self) -> str | None:
        """Why no work should be sent here now, in one line; None if there is no reason.

        Cancellation: the next who asks looks anew.
        """
        if self._is_stopping:
            return "it is stopping"
        if self._worker is not None:
            return f"its worker {self._worker}"
        async with self._one_at_a_time:
            if trio.current_time() - self._asked >= _HOLDS:
                found = await self._look()
                self._asked = trio.current_time()
                if found is not None and found != self._problem:
                    _logger.warning("Not ready: %s", found)
                self._problem = found
        return self._problem

    async def _look(self) -> str | None:
        if self._check is None:
            return None
        try:
            with trio.fail_after(_BUDGET):
                await self._check()
        except SchemaError as error:
            return str(error)
        except trio.TooSlowError:
            return f"the database does not answer within {_BUDGET:g} s"
        except HastetrioError as error:
            # Where it is, and what it says, is for the log: anybody may ask a probe.
            _logger.debug("The database cannot be reached: %s", error)
            return "the database cannot be reached"
        except Exception:
            _logger.exception("The database could not be asked")
            return "the database could not be asked"
        return None

    def routes(self) -> list[Route]:
        """`/livez` and `/readyz`."""

        async def livez(_: Request) -> Response:
            return _line(200, "alive")

        async def readyz(_: Request) -> Response:
            problem = await self.problem()
            return _line(200, "ready") if problem is None else _line(503, f"not ready: {problem}")

        return [probe("/livez", livez), probe("/readyz", readyz)]


def _line(status: int, text: str) -> Response:
    line = " ".join(text.split()) + "\n"
    return PlainTextResponse(line, status, headers={"Cache-Control": "no-store"})


def probe(path: str, answer: Callable[[Request], Awaitable[Response]]) -> Route:
    """A route that is read with GET or HEAD; anything else is answered 405."""
    return Route(path, _Probe(answer))


class _Probe:
    """An endpoint that sees every method, so that it can refuse in FHIR's way."""

    def __init__(self, answer: Callable[[Request], Awaitable[Response]]) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            check_method(request.method, ["GET", "HEAD"])
            response = await self._answer(request)
        except RequestError as error:
            response = json_response(error.outcome, error.status, headers=error.headers)
        await response(scope, receive, send)


def probes_app(routes: Iterable[Route]) -> ASGIApp:
    """An application that has these routes and nothing else, for a worker without a face."""

    async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
        error = not_found()
        await json_response(error.outcome, error.status)(scope, receive, send)

    app = Starlette(routes=list(routes))
    app.router.default = nothing
    return app
