"""`hastetrio status`: the queue, and who works on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import click

from hastetrio.cli._connect import run
from hastetrio.cli._format import cell, duration, echo_json, echo_table
from hastetrio.cli._options import EPILOG, State, global_options, pass_state

if TYPE_CHECKING:
    from hastetrio.postgres import PostgresJobProvider, QueueOverview


@click.command(epilog=EPILOG)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@global_options(hidden=True)
@pass_state
def status(state: State, *, as_json: bool) -> None:
    """Show jobs by status and kind, what waits, and the workers that hold jobs.

    All tenants and projects together.
    """
    settings = state.settings()

    async def work(provider: PostgresJobProvider) -> QueueOverview:
        return await provider.overview()

    overview = run(settings, work)
    if as_json:
        echo_json({**attrs.asdict(overview, recurse=False), "unserved": overview.unserved})
    else:
        _echo(overview)


def _echo(overview: QueueOverview) -> None:
    if overview.counts:
        echo_table(
            ("STATUS", "KIND", "JOBS"),
            [(one.status.value, one.kind, one.count) for one in overview.counts],
        )
    else:
        click.echo("no jobs")
    if overview.waiting:
        click.echo()
        echo_table(
            ("WAITING KIND", "JOBS", "OLDEST"),
            [(one.kind, one.count, duration(one.oldest_seconds)) for one in overview.waiting],
        )
    if overview.holders:
        click.echo()
        echo_table(
            ("WORKER", "JOBS", "NEXT LAPSE", "KINDS"),
            [
                (one.worker, one.jobs, duration(one.next_lapse_seconds), one.kinds)
                for one in overview.holders
            ],
        )
    if overview.lapsed or overview.unserved:
        click.echo()
    if overview.lapsed:
        click.echo(f"lapsed leases: {overview.lapsed}; their jobs wait to be taken over")
    if overview.unserved:
        click.echo(f"kinds that wait while nobody runs them: {cell(overview.unserved)}")
