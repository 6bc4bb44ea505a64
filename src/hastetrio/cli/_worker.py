"""`hastetrio worker`: run jobs until told to stop."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

import click

from hastetrio._settings import WORKER_KEYS, Settings
from hastetrio.cli._options import EPILOG, State, global_options, pass_state, setting_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastetrio._handler import JobHandler

_logger = logging.getLogger("hastetrio.cli")


@click.command(epilog=EPILOG)
@setting_options("handlers", "kinds")
@setting_options("export_source", "export_output", "export_base_url", "export_pace")
@setting_options(*WORKER_KEYS)
@global_options(hidden=True)
@pass_state
def worker(state: State) -> None:
    """Run jobs until told to stop.

    The handlers come from --handlers (the current folder can be imported from), from installed
    packages (entry points of the group hastetrio.handlers), and from --export-source and
    --export-output.

    SIGINT or SIGTERM lets the running jobs finish; a second one cancels them and hands them back;
    a third leaves at once.
    """
    settings = state.settings(log_level="info")
    settings.check_database()
    from hastetrio.cli._handlers import collect_handlers

    handlers = collect_handlers(settings)
    import trio

    from hastetrio._collector import tune_collector

    tune_collector()
    trio.run(functools.partial(_serve, settings, handlers))


async def _serve(settings: Settings, handlers: Sequence[JobHandler]) -> None:
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
                    worker = AsyncJobWorker(provider, handlers, config)
                    stopper.serve(worker)
                    await worker.run()
            nursery.cancel_scope.cancel()
