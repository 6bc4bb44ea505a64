"""`hastetrio jobs`: submit, show, list, cancel and watch."""

from __future__ import annotations

import functools
import getpass
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from hastetrio._errors import UnstorableValue
from hastetrio._model import DAY, AsyncJob, AsyncJobStatus, CreateAsyncJob
from hastetrio._outcome import diagnostics_of
from hastetrio._settings import Settings
from hastetrio.cli._app import show_help_without_command
from hastetrio.cli._connect import run
from hastetrio.cli._errors import FAILED, CommandFailed
from hastetrio.cli._format import (
    cell,
    echo_json,
    echo_table,
    job_fields,
    one_line,
    pretty,
)
from hastetrio.cli._options import EPILOG, State, global_options, pass_state, setting_options
from hastetrio.cli._watch import Display, display_for, follow

if TYPE_CHECKING:
    from hastetrio.postgres import PostgresJobProvider

_Command = TypeVar("_Command", bound=Callable[..., Any])

_JSON_COLUMNS: Final = ("parameters", "claims", "output", "error")


def _job_command(*names: str) -> Callable[[_Command], _Command]:
    """Give a command what all commands about jobs take, and the settings `names`."""

    def decorate(command: _Command) -> _Command:
        command = pass_state(command)  # type: ignore[assignment]  # the state is passed first
        command = global_options(hidden=True)(command)
        command = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
        return setting_options("tenant", "project", *names)(command)

    return decorate


def _json_option(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:  # noqa: ANN401  # JSON is any value
    """The value of JSON given as text, as `@FILE`, or as `@-` for the standard input."""
    if value is None:
        return None
    text = value
    try:
        if value == "@-":
            text = sys.stdin.read()
        elif value.startswith("@"):
            text = Path(value[1:]).read_text(encoding="utf-8")
        return json.loads(text, object_pairs_hook=_object)
    except OSError as error:
        reason = f"cannot read {value[1:]}: {error.strerror}"
    except UnicodeDecodeError:
        reason = f"{value[1:]} is not UTF-8 text"
    except RecursionError:
        reason = "the JSON is nested too deeply"
    except ValueError as error:
        reason = f"not JSON: {error}"
    raise click.BadParameter(reason, context, parameter)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        # Which of the two was meant, nobody can know.
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is given twice")
    return found


@click.group(invoke_without_command=True, epilog=EPILOG)
@global_options(hidden=True)
@click.pass_context
def jobs(context: click.Context) -> None:
    """Submit, show, list, cancel and watch jobs.

    An id that begins with a dash is given after '--'.
    """
    show_help_without_command(context)


@jobs.command(epilog=EPILOG)
@click.argument("kind")
@click.option("--request", default="", metavar="URL", help="The kick-off's URL, for the handler.")
@click.option(
    "--parameters",
    default="{}",
    metavar="JSON|@FILE",
    callback=_json_option,
    help="The job's parameters.  [default: {}]",
)
@click.option(
    "--claims",
    metavar="JSON|@FILE",
    callback=_json_option,
    help='As whom it runs.  [default: {"sub": LOGIN NAME}]',
)
@click.option(
    "--retention",
    type=float,
    default=DAY,
    metavar="SECONDS",
    help=f"How long the job is kept, from now and from its end.  [default: {DAY:.0f}]",
)
@click.option(
    "--max-attempts",
    type=int,
    default=3,
    metavar="N",
    help="How often it may be started.  [default: 3]",
)
@click.option(
    "--wait",
    is_flag=True,
    help="Wait for its end: exit code 0 if it completed, 1 if it failed or is gone.",
)
@_job_command("parameters_limit", "claims_limit")
def submit(
    state: State,
    kind: str,
    request: str,
    parameters: Any,  # noqa: ANN401  # JSON is any value
    claims: Any,  # noqa: ANN401  # JSON is any value
    retention: float,
    max_attempts: int,
    *,
    wait: bool,
    as_json: bool,
) -> int:
    """Queue a job of KIND, and print its id."""
    settings = state.settings()
    try:
        new = CreateAsyncJob(
            kind=kind,
            request=request,
            parameters=parameters,
            claims={"sub": _login_name()} if claims is None else claims,
            retention=retention,
            max_attempts=max_attempts,
        )
    except (ValueError, UnstorableValue) as error:
        raise click.UsageError(str(error), click.get_current_context()) from None

    async def work(provider: PostgresJobProvider) -> int:
        try:
            job = await provider.create_job(settings.tenant, settings.project, new)
        except UnstorableValue as error:
            raise click.UsageError(str(error)) from None
        if not wait:
            if as_json:
                echo_json(job_fields(job))
            else:
                click.echo(job.id)
            return 0
        if not as_json:
            # At once, for whoever reads it from a pipe.
            click.echo(job.id)
        # The id is the answer; how it goes on is told on the side.
        display = Display() if as_json else display_for(sys.stderr, as_json=False)
        over = await _follow(provider, settings, job.id, display)
        if as_json:
            echo_json(job_fields(over))
        return _verdict(over, quiet=as_json)

    return run(settings, work)


@jobs.command(epilog=EPILOG)
@click.argument("id")
@click.option("--claims", is_flag=True, help="Show the claims too: as whom the job runs.")
@_job_command()
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
@_job_command()
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
@_job_command()
def cancel(state: State, id: str, *, as_json: bool) -> None:
    """Cancel the job ID: it never runs, or stops running, or gives up its result."""
    settings = state.settings()

    async def work(provider: PostgresJobProvider) -> AsyncJob:
        job = await provider.cancel_job(settings.tenant, settings.project, id)
        return _there(settings, id, job)

    before = run(settings, work)
    if as_json:
        echo_json({"id": before.id, "cancelled": True, "status_before": before.status})
    else:
        click.echo(f"cancelled {one_line(before.id)}, which was {before.status.value}")


@jobs.command(epilog=EPILOG)
@click.argument("id")
@_job_command()
def watch(state: State, id: str, *, as_json: bool) -> int:
    """Follow the job ID until its end.

    The exit code is 0 if it completed, 1 if it failed, was cancelled, or is gone. With --json, one
    document a line for each change.
    """
    settings = state.settings()
    display = display_for(sys.stdout, as_json=as_json)
    work = functools.partial(_watched, settings=settings, id=id, display=display)
    return _verdict(run(settings, work), quiet=as_json)


async def _watched(
    provider: PostgresJobProvider, *, settings: Settings, id: str, display: Display
) -> AsyncJob:
    _there(settings, id, await provider.read_job(settings.tenant, settings.project, id))
    return await _follow(provider, settings, id, display)


async def _follow(
    provider: PostgresJobProvider, settings: Settings, id: str, display: Display
) -> AsyncJob:
    job = await follow(provider, settings, id, display)
    if job is None:
        raise CommandFailed(f"job {id!r} is gone: it was cancelled, or has expired")
    return job


def _verdict(job: AsyncJob, *, quiet: bool) -> int:
    """The exit code for a job that is over; says why it failed, unless `quiet`."""
    if job.status is AsyncJobStatus.COMPLETED:
        return 0
    if not quiet:
        raise CommandFailed(f"job {job.id!r} ended {job.status.value}{_reason(job)}")
    return FAILED


def _reason(job: AsyncJob) -> str:
    texts = diagnostics_of(job.error)
    return ": " + one_line("; ".join(texts)) if texts else ""


def _read(settings: Settings, id: str) -> AsyncJob:
    async def work(provider: PostgresJobProvider) -> AsyncJob | None:
        return await provider.read_job(settings.tenant, settings.project, id)

    return _there(settings, id, run(settings, work))


def _there(settings: Settings, id: str, job: AsyncJob | None) -> AsyncJob:
    if job is None:
        _missing(settings, id)
    return job


def _missing(settings: Settings, id: str) -> NoReturn:
    raise CommandFailed(
        f"no job {id!r} in project {settings.project!r} of tenant {settings.tenant!r}: "
        "it never was there, was cancelled, or has expired"
    )


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        # A container's user often has no entry, and no variable says its name.
        return f"uid-{os.getuid()}"
