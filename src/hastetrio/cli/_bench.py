"""`hastetrio bench`: measure throughput, latencies and idle cost on this machine."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from hastetrio._nursery import serving_nursery
from hastetrio.bench import SECTIONS, Plan
from hastetrio.cli._format import echo_json, echo_table
from hastetrio.cli._options import EPILOG, Seconds, State, global_options, pass_state

if TYPE_CHECKING:
    from hastetrio.bench import Progress
    from hastetrio.bench._plan import Advance
    from hastetrio.bench._report import Report

_A_DAY: Final = 86_400

# What a worker may be told to run at once.
_MOST_SLOTS: Final = 100_000


@click.command(epilog=EPILOG)
@click.option(
    "--only",
    "sections",
    multiple=True,
    type=click.Choice(SECTIONS),
    help="Measure only this. May be repeated.  [default: all]",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 10_000_000),
    default=Plan().jobs,
    show_default=True,
    help="throughput: jobs a round.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 1000),
    default=Plan().rounds,
    show_default=True,
    help="throughput: rounds.",
)
@click.option(
    "--slots",
    type=click.IntRange(1, _MOST_SLOTS),
    default=Plan().slots,
    show_default=True,
    help="throughput: jobs run at once.",
)
@click.option(
    "--samples",
    type=click.IntRange(1, 1_000_000),
    default=Plan().samples,
    show_default=True,
    help="pick-up, cancel: samples.",
)
@click.option(
    "--seconds",
    type=Seconds(min=0, min_open=True, max=_A_DAY),
    default=Plan().seconds,
    metavar="SECONDS",
    help="idle, leases: how long to watch; a worker's sweeps run once a minute, its renewals "
    "three times a lease.  [default: 60]",
)
@click.option(
    "--leases",
    type=click.IntRange(1, _MOST_SLOTS),
    default=Plan().leases,
    show_default=True,
    help="leases: jobs asleep in one worker.",
)
@click.option(
    "--lease",
    # The shortest a worker takes.
    type=Seconds(min=0.7, max=_A_DAY),
    default=Plan().lease,
    metavar="SECONDS",
    help="leases: how long one claim or renewal holds a job.  [default: 60]",
)
@click.option(
    "--fsync",
    is_flag=True,
    help="Let the server that is thrown away wait for its disk at each commit.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@global_options(hidden=True)
@pass_state
def bench(
    state: State,
    /,
    *,
    sections: tuple[str, ...],
    as_json: bool,
    fsync: bool,
    **sizes: Any,  # noqa: ANN401  # checked by click, and named as in Plan
) -> None:
    """Measure throughput, latencies, idle cost and many leases; takes about three minutes.

    Without a database, on an embedded PostgreSQL that is thrown away afterwards; with
    --database-url or --data-dir, on that server, in a database of the benchmark's own (or a
    schema, where the role may not create one), which is dropped afterwards.

    The worker's settings are those of the benchmark, whatever the environment or the settings file
    say. Logs from WARNING on, unless --log-level says otherwise.
    """
    settings = state.settings()
    plan = Plan(
        sections=sections or SECTIONS,
        database_url=settings.database_url,
        data_dir=settings.data_dir,
        fsync=fsync,
        prepared_statements=settings.prepared_statements,
        log_level=settings.log_level or "warning",
        **sizes,
    )
    if fsync and (plan.database_url is not None or plan.data_dir is not None):
        raise click.UsageError("--fsync is for the server that is thrown away, not for a given one")
    import trio

    from hastetrio import tune_collector

    # As the worker command does, whose figures these are.
    tune_collector()
    report = trio.run(_until_signal, plan)
    if isinstance(report, int):
        raise click.exceptions.Exit(128 + report)
    if as_json:
        echo_json(report)
    else:
        _echo(report)


async def _until_signal(plan: Plan) -> Report | int:
    """The report, or the number of the signal that ended the run."""
    import trio

    from hastetrio.bench._run import run
    from hastetrio.cli._stop import SIGNALS

    # The first signal ends the run; those that follow find the cleaning up already under way.
    came: list[int] = []
    report: Report | None = None
    with trio.open_signal_receiver(*SIGNALS, signal.SIGHUP) as signals:
        async with serving_nursery() as nursery:

            async def obey() -> None:
                async for number in signals:
                    came.append(number)
                    nursery.cancel_scope.cancel("a signal")

            nursery.start_soon(obey)
            report = await run(plan, _progress())
    return report if report is not None else came[0]


def _progress() -> Progress:
    """A progress bar on a terminal, nothing elsewhere."""

    @contextmanager
    def bar(name: str, length: int) -> Iterator[Advance]:
        with click.progressbar(length=length, label=f"{name:<10}", file=sys.stderr) as shown:
            yield shown.update

    @contextmanager
    def nothing(name: str, length: int) -> Iterator[Advance]:  # noqa: ARG001  # as above
        yield lambda _: None

    return bar if sys.stderr.isatty() else nothing


def _echo(report: Report) -> None:
    for line in report.headline():
        click.echo(line)
    click.echo()
    rows = [(name, *row) for name, section in report.sections.items() for row in section.rows()]
    echo_table(("SECTION", "MEASURE", "VALUE", "UNIT", ""), rows)
