"""`/metrics`: the queue, the worker and the HTTP requests, for Prometheus.

A registry of its own: a program that embeds this one keeps the default registry to itself.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import TYPE_CHECKING, Final

import trio
from prometheus_client.core import CollectorRegistry, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hastetrio._errors import HastetrioError
from hastetrio.fhir._families import Requests, build_family, queue_families, worker_families
from hastetrio.fhir._health import probe
from hastetrio.fhir._kick_off import kick_off_of
from hastetrio.fhir._places import place_of

if TYPE_CHECKING:
    from hastetrio._statistics import WorkerStatistics
    from hastetrio.postgres import QueueOverview

# Seconds the queue's figures hold: they cost one look through the table.
_HOLDS: Final = 5.0

# Seconds the database may take for them; Prometheus gives up on a scrape after ten.
_BUDGET: Final = 4.0

_STATUS: Final = "_async/{id}"
_OTHER: Final = "other"

_logger = logging.getLogger("hastetrio.http")


class Metrics(Collector):
    """What `/metrics` shows.

    Args:
        overview: Reads how the queue stands; None where there is no queue to read.
        worker: Says how the worker stands; None without a worker in this process.
        operations: The names of the operations that can be kicked off here.
    """

    def __init__(
        self,
        overview: Callable[[], Awaitable[QueueOverview]] | None,
        worker: Callable[[], WorkerStatistics] | None = None,
        operations: Collection[str] = (),
    ) -> None:
        self._read = overview
        self._worker = worker
        self._operations = frozenset(operations)
        self._requests = Requests()
        self._overview: QueueOverview | None = None
        self._asked = -math.inf
        self._one_at_a_time = trio.Lock()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """The families, of what is known now; for the registry."""
        yield build_family()
        if self._read is not None:
            yield GaugeMetricFamily(
                "hastetrio_database_up",
                "Whether the database gave the queue's figures.",
                value=self._overview is not None,
            )
        if self._overview is not None:
            yield from queue_families(self._overview)
        if self._worker is not None:
            yield from worker_families(self._worker())
        yield from self._requests.families()

    async def refresh(self) -> None:
        """Read how the queue stands, unless that was done just now.

        A database that is away is no error: its figures are left out.

        Cancellation: the next call reads anew.
        """
        if self._read is None:
            return
        async with self._one_at_a_time:
            if trio.current_time() - self._asked < _HOLDS:
                return
            overview = None
            try:
                with trio.move_on_after(_BUDGET):
                    overview = await self._read()
            except HastetrioError as error:
                _logger.debug("The queue's figures are not to be had: %s", error)
            except Exception:
                _logger.exception("The queue's figures could not be read")
            self._overview = overview
            self._asked = trio.current_time()

    def route(self) -> Route:
        """`/metrics`."""

        async def metrics(request: Request) -> Response:
            await self.refresh()
            encode, content_type = choose_encoder(request.headers.get("accept", ""))
            headers = {"Content-Type": content_type, "Cache-Control": "no-store"}
            return Response(encode(self._registry), headers=headers)

        return probe("/metrics", metrics)

    def instrumented(self, app: ASGIApp) -> ASGIApp:
        """The application, with its requests counted."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            began = trio.current_time()
            status: int | None = None

            async def answer(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            try:
                await app(scope, receive, answer)
            finally:
                route = self._template(scope)
                elapsed = trio.current_time() - began
                self._requests.count(route, scope["method"], status, elapsed)
                if route == _STATUS and status == 429:
                    self._requests.throttled += 1

        return counted

    def _template(self, scope: Scope) -> str:
        """The route of a path, one of few."""
        path: str = scope["path"]
        if path in ("/livez", "/readyz", "/metrics"):
            return path
        place = place_of(scope.get("raw_path") or path.encode())
        if place is None:
            return _OTHER
        rest = place.rest
        if rest == ("metadata",):
            return "metadata"
        if rest[:1] == ("_async",):
            if len(rest) == 4 and rest[2] == "files":
                return "_async/{id}/files/{name}"
            return {1: "_async", 2: _STATUS}.get(len(rest), _OTHER)
        invoked = kick_off_of(rest)
        if invoked is None or invoked[0] not in self._operations:
            return _OTHER
        return ("", "{type}/", "{type}/{id}/")[len(rest) - 1] + f"${invoked[0]}"
