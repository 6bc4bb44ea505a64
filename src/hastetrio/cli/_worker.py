"""`hastetrio worker`: run jobs until told to stop."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Final

import click

from hastetrio._settings import WORKER_KEYS, Settings
from hastetrio.cli._options import EPILOG, State, global_options, pass_state, setting_options

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from hastetrio._handler import JobHandler
    from hastetrio._middleware import JobMiddleware
    from hastetrio._worker import AsyncJobWorker
    from hastetrio.cli._stop import Stopper
    from hastetrio.postgres import PostgresJobProvider

# Seconds that a scrape under way may take when the worker has ended.
_LAST_SCRAPE: Final = 1.0

_logger = logging.getLogger("hastetrio.cli")


@click.command(epilog=EPILOG)
@setting_options("handlers", "kinds", "middleware")
@setting_options("export_source", "export_output", "export_base_url", "export_pace")
@setting_options(*WORKER_KEYS, "transaction_connections", "http", "public_url")
@global_options(hidden=True)
@pass_state
def worker(state: State) -> None:
    """Run jobs until told to stop.

    The handlers come from --handlers (the current folder can be imported from), from installed
    packages (entry points of the group hastetrio.handlers), and from --export-source and
    --export-output.

    With --http, /livez, /readyz and /metrics are served there.

    SIGINT or SIGTERM lets the running jobs finish; a second one cancels them and hands them back;
    a third leaves at once.
    """
    settings = state.settings(log_level="info")
    settings.check_database()
    from hastetrio.cli._handlers import collect_handlers, collect_middleware

    handlers = collect_handlers(settings)
    middleware = collect_middleware(settings)
    import trio

    from hastetrio._collector import tune_collector

    tune_collector()
    if settings.http is None:
        trio.run(functools.partial(_serve, settings, handlers, middleware))
        return
    from hastetrio.cli._http import listening_on

    with listening_on(settings.http) as sockets:
        trio.run(functools.partial(_serve, settings, handlers, middleware, sockets))


async def _serve(
    settings: Settings,
    handlers: Sequence[JobHandler],
    middleware: Sequence[JobMiddleware],
    sockets: Sequence[socket.socket] | None = None,
) -> None:
    import trio

    from hastetrio._worker import AsyncJobWorker
    from hastetrio.cli._connect import database_name, open_provider
    from hastetrio.cli._stop import SIGNALS, Stopper

    config = settings.worker
    stopper = Stopper(config)
    # Signals are received before anything is started: as process 1 of a container there is no
    # default action that would end this one while it connects.
    with trio.open_signal_receiver(*SIGNALS) as signals:
        async with trio.open_nursery() as nursery:
            with stopper.watching(nursery.cancel_scope):
                nursery.start_soon(stopper.obey, signals)
                async with open_provider(settings, call_budget=config.call_budget) as provider:
                    _logger.info("Connected to %s", database_name(settings))
                    worker = AsyncJobWorker(provider, handlers, config, middleware=middleware)
                    if sockets is None:
                        stopper.serve(worker)
                        await worker.run()
                    else:
                        await _run_with_probes(settings, provider, worker, stopper, sockets)
            nursery.cancel_scope.cancel()


async def _run_with_probes(
    settings: Settings,
    provider: PostgresJobProvider,
    worker: AsyncJobWorker,
    stopper: Stopper,
    sockets: Sequence[socket.socket],
) -> None:
    """Run the worker, and serve the probes until it has ended."""
    import trio

    from hastetrio.cli._http import run_worker, say_listening
    from hastetrio.fhir._health import Health, probes_app
    from hastetrio.fhir._metrics import Metrics
    from hastetrio.fhir._serve import Server

    health = Health(functools.partial(provider.check_schema, warn=False), has_worker=True)
    metrics = Metrics(provider.overview, worker.statistics)
    app = metrics.instrumented(probes_app([*health.routes(), metrics.route()]))
    server = Server(app, sockets, settings.face, drain=_LAST_SCRAPE)
    # Not the server: while jobs drain, /readyz says so, and /metrics shows how many are left.
    stopper.serve(worker, health)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        say_listening(sockets, "probes and metrics")
        await run_worker(worker, health)
        server.stop()
