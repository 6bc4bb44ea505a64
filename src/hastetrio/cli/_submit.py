"""`hastetrio jobs submit`."""

from __future__ import annotations

import getpass
import logging
import os
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import attrs
import click

from hastetrio._errors import UnstorableValue
from hastetrio._handler import JobHandler, attempts_of, judge_parameters
from hastetrio._model import DAY, CreateAsyncJob
from hastetrio._outcome import OperationOutcomeError
from hastetrio._settings import Settings
from hastetrio.cli._connect import run
from hastetrio.cli._following import follow_to_end, verdict
from hastetrio.cli._format import echo_json, job_fields, one_line
from hastetrio.cli._job_options import job_command, json_option, time_option
from hastetrio.cli._options import EPILOG, Seconds, State
from hastetrio.cli._watch import Display, display_for

if TYPE_CHECKING:
    from hastetrio.postgres import PostgresJobProvider

_logger = logging.getLogger("hastetrio.cli")


@click.command(epilog=EPILOG)
@click.argument("kind")
@click.option("--request", default="", metavar="URL", help="The kick-off's URL, for the handler.")
@click.option(
    "--parameters",
    default="{}",
    metavar="JSON|@FILE",
    callback=json_option,
    help="The job's parameters.  [default: {}]",
)
@click.option(
    "--claims",
    metavar="JSON|@FILE",
    callback=json_option,
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
    metavar="N",
    help="How often it may be started.  [default: as its handler's policy says, else 3]",
)
@click.option(
    "--run-at",
    metavar="TIME",
    callback=time_option,
    help="Start it at this time or later, such as 2027-01-31T04:00:00+01:00.",
)
@click.option(
    "--delay",
    type=Seconds(0),
    metavar="SECONDS",
    help="Start it so many seconds from now or later.",
)
@click.option(
    "--unique-key",
    metavar="KEY",
    help="While a job of this kind and key is queued or running, answer that one.",
)
@click.option(
    "--wait",
    is_flag=True,
    help="Wait for its end: exit code 0 if it completed, 1 if it failed or is gone.",
)
@job_command("parameters_limit", "claims_limit", "handlers")
def submit(
    state: State,
    kind: str,
    request: str,
    parameters: Any,  # noqa: ANN401  # JSON is any value
    claims: Any,  # noqa: ANN401  # JSON is any value
    retention: float,
    max_attempts: int | None,
    run_at: datetime | None,
    delay: float | None,
    unique_key: str | None,
    *,
    wait: bool,
    as_json: bool,
) -> int:
    """Queue a job of KIND, and print its id.

    Where its handler can be found (--handlers), the parameters are checked as a kick-off's are.
    """
    if run_at is not None and delay is not None:
        raise click.UsageError("--run-at and --delay exclude each other: give one")
    if delay is not None:
        run_at = datetime.now(UTC) + timedelta(seconds=delay)
    settings = state.settings()
    handler = _handler_of(settings, kind)
    try:
        if handler is not None:
            judge_parameters(handler, parameters)
        new = CreateAsyncJob(
            kind=kind,
            request=request,
            parameters=parameters,
            claims={"sub": _login_name()} if claims is None else claims,
            retention=retention,
            max_attempts=attempts_of(handler) if max_attempts is None else max_attempts,
            run_at=run_at,
            unique_key=unique_key,
        )
    except OperationOutcomeError as error:
        texts = " ".join(one_line(issue.diagnostics) for issue in error.issues)
        raise click.UsageError(f"the handler refuses the parameters: {texts}") from None
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
        over = await follow_to_end(provider, settings, job.id, display)
        if as_json:
            echo_json(job_fields(over))
        return verdict(over, quiet=as_json)

    return run(settings, work)


def _handler_of(settings: Settings, kind: str) -> JobHandler | None:
    """The handler of a kind, where the settings say how to find it."""
    if not settings.handlers:
        return None
    from hastetrio.cli._handlers import collect_handlers

    handlers = collect_handlers(attrs.evolve(settings, kinds=()), required=False)
    found = next((one for one in handlers if one.kind == kind), None)
    if found is None:
        known = ", ".join(sorted(one.kind for one in handlers)) or "none"
        _logger.warning("No handler for %r is known (of: %s): queued unjudged", kind, known)
    return found


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        # A container's user often has no entry, and no variable says its name.
        return f"uid-{os.getuid()}"
