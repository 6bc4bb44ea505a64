"""`hastetrio status`: the queue, and who works on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import click

from hastetrio.cli._connect import run
from hastetrio.cli._format import cell, duration, echo_json, echo_table, one_line
from hastetrio.cli._options import EPILOG, State, global_options, pass_state

if TYPE_CHECKING:
    from hastetrio.postgres import PostgresJobProvider, QueueOverview
    from hastetrio.postgres._overview import OldestTransaction

# From when on an open transaction is worth a line. A shorter one ends by itself; where its age is
# not to be seen, so many later transactions take longer than that.
_OLD_SECONDS: Final = 60.0
_OLD_TRANSACTIONS: Final = 100_000


@click.command(epilog=EPILOG)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@global_options(hidden=True)
@pass_state
def status(state: State, *, as_json: bool) -> None:
    """Show jobs by status and kind, what waits, and the workers that hold jobs.

    All tenants and projects together. Says also which transaction, if one has been open for more
    than a minute, keeps the database from removing dead rows.
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
            ("WAITING KIND", "DUE", "OLDEST", "LATER"),
            [
                (one.kind, one.count, duration(one.oldest_seconds), one.delayed)
                for one in overview.waiting
            ],
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
    held_back = _held_back(overview.oldest_transaction)
    if overview.lapsed or overview.unserved or held_back:
        click.echo()
    if overview.lapsed:
        click.echo(f"lapsed leases: {overview.lapsed}; their jobs wait to be taken over")
    if overview.unserved:
        click.echo(f"kinds that wait while nobody runs them: {cell(overview.unserved)}")
    if held_back:
        click.echo(held_back)


def _held_back(oldest: OldestTransaction | None) -> str | None:
    """One line on a transaction that has been open for long, and what to do about it."""
    if oldest is None:
        return None
    old = (
        oldest.seconds >= _OLD_SECONDS
        if oldest.seconds is not None
        else oldest.transactions >= _OLD_TRANSACTIONS
    )
    # A slot that nobody reads from holds on for ever, however few transactions there were.
    if not old and oldest.state != "inactive":
        return None
    since = (
        f"open for {duration(oldest.seconds)}"
        if oldest.seconds is not None
        else f"{oldest.transactions:,} transactions old"
    )
    name = one_line(oldest.name or "no name")
    if oldest.source == "slot":
        who = f"replication slot {name} ({oldest.state}), {since}"
        remedy = "see to what reads from it, or drop it"
    elif oldest.source == "prepared":
        who = f"prepared transaction {name} of {cell(oldest.owner)}, {since}"
        remedy = f"in database {cell(oldest.database)}, COMMIT PREPARED or ROLLBACK PREPARED it"
    else:
        facts = [name, cell(oldest.owner), cell(oldest.database)]
        if oldest.state is not None:
            facts.append(one_line(oldest.state))
        who = f"transaction of process {oldest.pid} ({', '.join(facts)}), {since}"
        remedy = f"end it, or SELECT pg_terminate_backend({oldest.pid})"
    return f"dead rows stay and claims slow down because of the {who}: {remedy}"
