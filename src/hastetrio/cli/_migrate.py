"""`hastetrio migrate`: create or update the tables, or say what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hastetrio.cli._connect import run
from hastetrio.cli._errors import FAILED, say
from hastetrio.cli._options import EPILOG, Seconds, State, global_options, pass_state

if TYPE_CHECKING:
    from hastetrio.postgres import PostgresJobProvider


@click.command(epilog=EPILOG)
@click.option(
    "--check",
    is_flag=True,
    help="Change nothing: exit code 0 if the tables are up to date, 1 and the names of what is "
    "missing if not.",
)
@click.option("--sql", is_flag=True, help="Change nothing: print the SQL that would run.")
@click.option(
    "--lock-timeout",
    type=Seconds(min=0, min_open=True, max=86_400),
    default=5.0,
    metavar="SECONDS",
    help="How long to wait for a lock that a running worker or server holds.  [default: 5]",
)
@global_options(hidden=True)
@pass_state
def migrate(state: State, *, check: bool, sql: bool, lock_timeout: float) -> int:
    """Create or update the tables.

    Also adopts the table of a Haste server: adds what is missing, and touches no data.
    """
    if check and sql:
        raise click.UsageError("--check and --sql exclude each other: give one")
    settings = state.settings()

    async def work(provider: PostgresJobProvider) -> int:
        if sql:
            script = await provider.migration_script()
            click.echo(script, nl=False)
            if not script:
                say("up to date: nothing would run")
            return 0
        names = (
            await provider.pending_migrations()
            if check
            else await provider.migrate(lock_timeout=lock_timeout)
        )
        for name in names:
            click.echo(f"{'pending' if check else 'applied'} {name}")
        if not names:
            click.echo("up to date")
        return FAILED if check and names else 0

    return run(settings, work, schema=False)
