"""The group of all commands: global options, loading on demand, and the end of the program."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import attrs
import click

from hastetrio.cli._errors import USAGE, report
from hastetrio.cli._options import global_options


@attrs.frozen
class _Entry:
    """A command: where it is (`module:attribute`), and its line in the group's help."""

    target: str
    help: str

    def load(self) -> click.Command:
        module, _, attribute = self.target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        command.short_help = self.help
        return command


COMMANDS: Final[dict[str, _Entry]] = {
    "demo": _Entry("hastetrio.cli._demo:demo", "Watch jobs survive the death of a worker."),
    "worker": _Entry("hastetrio.cli._worker:worker", "Run jobs until told to stop."),
    "serve": _Entry("hastetrio.cli._serve:serve", "Answer FHIR requests over HTTP."),
    "jobs": _Entry("hastetrio.cli._jobs:jobs", "Submit, show, list, cancel, retry and watch jobs."),
    "bench": _Entry("hastetrio.cli._bench:bench", "Measure throughput and latencies here."),
    "status": _Entry("hastetrio.cli._status:status", "Show the queue and who works on it."),
    "migrate": _Entry("hastetrio.cli._migrate:migrate", "Create or update the tables."),
}
"""Every command, in the order of the help. A new one takes one line."""


class App(click.Group):
    """A group that imports a command when it is used, and ends the program by the house's rules.

    The help of the group needs none of the commands: theirs is in `COMMANDS`.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """The names, in the order of the registry."""
        return list(COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002  # click's signature
        cmd_name: str,
    ) -> click.Command | None:
        """The command of that name, imported now."""
        entry = COMMANDS.get(cmd_name)
        return None if entry is None else entry.load()

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002  # click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        """Write the list of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401  # what the command returns
        """Run the command; an error a person can cause becomes its line and its exit code."""
        # Here, too, and not in `main` alone: click gives a closed pipe an exit code of its own.
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BaseException as error:
            code = report(error)
            if code is None:
                raise
            raise click.exceptions.Exit(code) from None

    def main(  # type: ignore[override]  # never returns, whatever the mode
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        **extra: Any,  # noqa: ANN401  # click's own
    ) -> NoReturn:
        """Run the command line, and end the program with its exit code."""
        extra["standalone_mode"] = False
        try:
            code = super().main(args, prog_name or "hastetrio", **extra)
        except (click.ClickException, click.Abort) as error:
            code = report(error)
        sys.exit(code or 0)


@click.group(
    cls=App,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every setting can also be given as HASTETRIO_<NAME> in the environment, or by its "
    "name in hastetrio.toml; an option wins over the environment, that over the file.",
)
@global_options()
@click.version_option(package_name="hastetrio", message="%(package)s %(version)s")
@click.pass_context
def app(context: click.Context) -> None:
    """Run asynchronous jobs on trio and PostgreSQL."""
    show_help_without_command(context)


def show_help_without_command(context: click.Context) -> None:
    """Answer a group's name alone with its help, as a usage error."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(USAGE)


def main() -> NoReturn:
    """Run the command line of this process."""
    for stream in (sys.stdout, sys.stderr):
        # Foreign ids and texts may hold what the terminal's encoding cannot say.
        if stream is not None:
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    app.main()
