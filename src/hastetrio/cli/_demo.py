"""`hastetrio demo`: the whole story on this machine, told while it happens."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hastetrio._nursery import serving_nursery
from hastetrio.cli._errors import CommandFailed
from hastetrio.cli._options import EPILOG, State, global_options, pass_state

if TYPE_CHECKING:
    from hastetrio.cli._demo_story import Verdict


@click.command(epilog=EPILOG)
@click.option(
    "--output",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to put what the exports make.  [default: a new temporary folder]",
)
@global_options(hidden=True)
@pass_state
def demo(state: State, output: Path | None) -> None:
    """Watch jobs survive the death of their worker, in under 30 seconds.

    On the embedded PostgreSQL, in a database of its own that is dropped afterwards: two workers
    share a handful of exports of sample data, one worker is killed with SIGKILL, its jobs are
    taken over when their leases lapse, and all of them complete. The exports are slowed down so
    that a person can watch. Ends with 0 only if all of that really happened.
    """
    settings = state.settings()
    if settings.database_url is not None:
        click.echo("The demo runs on the embedded PostgreSQL; your database is left alone.")
    import trio

    folder = output or Path(tempfile.mkdtemp(prefix="hastetrio-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    verdict = trio.run(_until_signal, settings.data_dir, folder.absolute())
    if verdict is None:
        raise CommandFailed("the demo was interrupted; its workers and its database are gone")
    if verdict.failures:
        raise CommandFailed("the demo did not go as told: " + "; ".join(verdict.failures))


async def _until_signal(data_dir: Path | None, output: Path) -> Verdict | None:
    """Tell the story, unless a signal ends it: then the workers must go, too."""
    import trio

    from hastetrio.cli._demo_story import tell
    from hastetrio.cli._stop import SIGNALS

    verdict: Verdict | None = None
    with trio.open_signal_receiver(*SIGNALS, signal.SIGHUP) as signals:
        async with serving_nursery() as nursery:

            async def obey() -> None:
                async for _ in signals:
                    nursery.cancel_scope.cancel("a signal")

            nursery.start_soon(obey)
            verdict = await tell(data_dir, output)
    return verdict
