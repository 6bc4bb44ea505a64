"""`hastetrio jobs`: submit, show, list, cancel, retry and watch."""

from __future__ import annotations

import functools
import shutil
import sys
from typing import TYPE_CHECKING, Final

import click

from hastetrio._model import AsyncJob, AsyncJobStatus
from hastetrio._settings import Settings
from hastetrio.cli._app import show_help_without_command
from hastetrio.cli._connect import run
from hastetrio.cli._errors import CommandFailed
from hastetrio.cli._following import follow_to_end, there, verdict
from hastetrio.cli._format import cell, echo_json, echo_table, job_fields, one_line, pretty
from hastetrio.cli._job_options import job_command
from hastetrio.cli._options import EPILOG, State, global_options
from hastetrio.cli._submit import submit
from hastetrio.cli._watch import Display, display_for

if TYPE_CHECKING:
    from hastetrio.postgres import PostgresJobProvider

_JSON_COLUMNS: Final = ("parameters", "claims", "output", "error", "state", "attempt_errors")


@click.group(invoke_without_command=True, epilog=EPILOG)
@global_options(hidden=True)
@click.pass_context
def jobs(context: click.Context) -> None:
    """Submit, show, list, cancel, retry and watch jobs.

    An id that begins with a dash is given after '--'.
    """
    show_help_without_command(context)


@jobs.command(epilog=EPILOG)
@click.argument("id")
@click.option("--claims", is_flag=True, help="Show the claims too: as whom the job runs.")
@job_command()
def show(state: State, id: str, *, claims: bool, as_json: bool) -> None:
    """Show the job ID with all its columns."""
    settings = state.settings()
    job = _read(settings, id)
    fields = job_fields(job, claims=claims)
    if as_json:
        echo_json(fields)
        return
    width = max(map(len, fields))
    for name, value in fields.items():
        if name in _JSON_COLUMNS and value is not None:
            text = pretty(value).replace("\n", "\n" + " " * (width + 2))
        else:
            text = cell(value)
        click.echo(f"{name:<{width}}  {text}")


@jobs.command("list", epilog=EPILOG)
@click.option(
    "--status",
    type=click.Choice([status.value for status in AsyncJobStatus]),
    help="Only jobs of this status.",
)
@click.option("--kind", help="Only jobs of this kind.")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=50,
    metavar="N",
    help="The most jobs to list.  [default: 50]",
)
@job_command()
def list_(state: State, status: str | None, kind: str | None, limit: int, *, as_json: bool) -> None:
    """List the jobs that have not expired, newest first."""
    settings = state.settings()

    async def work(provider: PostgresJobProvider) -> list[AsyncJob]:
        return await provider.list_jobs(
            settings.tenant,
            settings.project,
            status=None if status is None else AsyncJobStatus(status),
            kind=kind,
            limit=limit,
        )

    found = run(settings, work)
    if as_json:
        echo_json([job_fields(job) for job in found])
        return
    rows = [
        (
            job.id,
            job.kind,
            job.status.value,
            f"{job.attempts} of {job.max_attempts}",
            job.created_at,
            job.submitted_by,
            job.progress,
        )
        for job in found
    ]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    heads = ("ID", "KIND", "STATUS", "ATTEMPTS", "CREATED", "SUBMITTED BY", "PROGRESS")
    echo_table(heads, rows, width=width)


@jobs.command(epilog=EPILOG)
@click.argument("id")
@job_command()
def cancel(state: State, id: str, *, as_json: bool) -> None:
    """Cancel the job ID: it never runs, or stops running, or gives up its result."""
    settings = state.settings()

    async def work(provider: PostgresJobProvider) -> AsyncJob:
        job = await provider.cancel_job(settings.tenant, settings.project, id)
        return there(settings, id, job)

    before = run(settings, work)
    if as_json:
        echo_json({"id": before.id, "cancelled": True, "status_before": before.status})
    else:
        click.echo(f"cancelled {one_line(before.id)}, which was {before.status.value}")


@jobs.command(epilog=EPILOG)
@click.argument("id")
@job_command()
def retry(state: State, id: str, *, as_json: bool) -> None:
    """Queue the failed job ID anew, as a job of its own, and print the new id."""
    settings = state.settings()

    async def work(provider: PostgresJobProvider) -> AsyncJob:
        job = await provider.retry_job(settings.tenant, settings.project, id)
        if job is None:
            found = await provider.read_job(settings.tenant, settings.project, id)
            failed = there(settings, id, found)
            raise CommandFailed(
                f"job {failed.id!r} is {failed.status.value}: only a failed job is queued anew"
            )
        return job

    job = run(settings, work)
    if as_json:
        echo_json(job_fields(job))
    else:
        click.echo(job.id)


@jobs.command(epilog=EPILOG)
@click.argument("id")
@job_command()
def watch(state: State, id: str, *, as_json: bool) -> int:
    """Follow the job ID until its end.

    The exit code is 0 if it completed, 1 if it failed, was cancelled, or is gone. With --json, one
    document a line for each change.
    """
    settings = state.settings()
    display = display_for(sys.stdout, as_json=as_json)
    work = functools.partial(_watched, settings=settings, id=id, display=display)
    return verdict(run(settings, work), quiet=as_json)


jobs.add_command(submit)


async def _watched(
    provider: PostgresJobProvider, *, settings: Settings, id: str, display: Display
) -> AsyncJob:
    there(settings, id, await provider.read_job(settings.tenant, settings.project, id))
    return await follow_to_end(provider, settings, id, display)


def _read(settings: Settings, id: str) -> AsyncJob:
    async def work(provider: PostgresJobProvider) -> AsyncJob | None:
        return await provider.read_job(settings.tenant, settings.project, id)

    return there(settings, id, run(settings, work))
