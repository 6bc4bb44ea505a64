"""The rules of the whole command line: exit codes, one-line errors, where options may stand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from hastetrio._errors import ProviderUnavailable
from hastetrio.cli import _app
from hastetrio.cli._app import COMMANDS, app
from hastetrio.cli._errors import report, unwrap

from .harness import Run, Start, only_line

NEEDING_A_DATABASE = [
    ("worker", "--handlers", "x:y"),
    ("migrate",),
    ("migrate", "--check"),
    ("status",),
    ("jobs", "submit", "k"),
    ("jobs", "show", "i"),
    ("jobs", "list"),
    ("jobs", "cancel", "i"),
    ("jobs", "watch", "i"),
]
# Nothing listens on port 1.
NOT_THERE = "postgresql://someone:hunter2@127.0.0.1:1/jobs"


@pytest.mark.parametrize("command", NEEDING_A_DATABASE, ids=" ".join)
def test_without_a_database_one_line_says_how_to_give_one(
    command: tuple[str, ...], run: Run
) -> None:
    """No command falls back to a private empty database."""
    result = run(*command)
    assert result.exit_code == 2
    line = only_line(result.stderr)
    assert "--database-url" in line
    assert "HASTETRIO_DATABASE_URL" in line
    assert result.stdout == ""


@pytest.mark.parametrize("command", NEEDING_A_DATABASE[1:], ids=" ".join)
def test_a_database_out_of_reach_is_one_line_and_exit_code_3(
    command: tuple[str, ...], run: Run
) -> None:
    """A script can tell "try again later" from "this is wrong"; the password stays out of it."""
    result = run("--database-url", NOT_THERE, *command)
    assert result.exit_code == 3
    assert "hunter2" not in only_line(result.stderr)
    assert result.stdout == ""


@pytest.mark.parametrize("url", ["hunter2", "postgresql://u:hunter2@[::1/x", "password=hunter2 x"])
def test_a_url_that_is_none_is_refused_without_repeating_it(url: str, run: Run) -> None:
    """What libpq says of a broken URL may quote the password in it."""
    result = run("status", "--database-url", url)
    assert result.exit_code == 2
    line = only_line(result.stderr)
    assert "postgresql://" in line
    assert "hunter2" not in line


@pytest.mark.parametrize(
    ("command", "word"),
    [
        (("no-such-command",), "no-such-command"),
        (("--no-such-option",), "--no-such-option"),
        (("jobs", "no-such"), "no-such"),
        (("jobs", "show"), "ID"),
        (("jobs", "list", "--status", "odd"), "odd"),
        (("jobs", "list", "--limit", "0"), "--limit"),
        (("worker", "--poll-interval", "soon"), "poll_interval"),
        (("status", "--log-format", "xml"), "log_format"),
        (("migrate", "--check", "--sql"), "--check"),
        (("migrate", "--lock-timeout", "-1"), "--lock-timeout"),
        (("--config", "missing.toml", "status"), "missing.toml"),
        (("--embedded", "--database-url", "x", "status"), "exclude each other"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(
    command: tuple[str, ...], word: str, run: Run
) -> None:
    """A mistake is answered with its name, not with a page."""
    result = run(*command)
    assert result.exit_code == 2
    assert word in only_line(result.stderr)
    assert result.stdout == ""


@pytest.mark.parametrize("command", [(), ("jobs",)])
def test_a_group_alone_shows_its_help_as_a_usage_error(command: tuple[str, ...], run: Run) -> None:
    """Whoever types only the name wants to know what there is; a script made a mistake."""
    result = run(*command)
    assert result.exit_code == 2
    assert "Commands:" in result.stderr


def test_every_command_of_the_registry_loads_and_is_in_the_help(run: Run) -> None:
    """The registry's text is the help, so that the help needs no imports."""
    shown = run("--help").stdout
    for name, entry in COMMANDS.items():
        assert f"  {name} " in shown
        assert entry.help in shown
        assert run(name, "--help").exit_code == 0


def test_help_imports_no_command() -> None:
    """The help answers at once; psycopg alone takes longer than the rest."""
    package = str(Path(_app.__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    probe = (
        "import sys\n"
        "from hastetrio.cli._app import app\n"
        "try: app.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in sys.modules if name.startswith('hastetrio.cli._')\n"
        "       and name.split('.')[2] in ('_worker', '_jobs', '_status', '_migrate')],\n"
        "      file=sys.stderr)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", probe],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert result.stderr == "[]\n"


def test_the_version_is_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report of a fault begins with the version."""
    monkeypatch.setattr("importlib.metadata.version", lambda _: "1.2.3")
    assert run("--version").stdout == "hastetrio 1.2.3\n"


@pytest.mark.parametrize(
    "command", [("--log-level", "odd", "status"), ("status", "--log-level", "odd")]
)
def test_global_options_may_stand_before_and_after_the_command(
    command: tuple[str, ...], run: Run
) -> None:
    """Nobody remembers which options belong to the group."""
    assert "log_level" in run(*command).stderr


def test_the_option_nearer_to_the_command_wins(run: Run) -> None:
    """Given twice, the last one counts, as for any option."""
    result = run("--log-level", "odd", "status", "--log-level", "debug")
    assert "log_level" not in result.stderr


def test_unknown_variables_warn_and_do_not_stop(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod next to a service named hastetrio starts all the same."""
    monkeypatch.setenv("HASTETRIO_SERVICE_HOST", "10.0.0.1")
    result = run("--database-url", NOT_THERE, "status")
    assert result.exit_code == 3
    warning, error = result.stderr.splitlines()
    assert "HASTETRIO_SERVICE_HOST" in warning
    assert "cannot" in error or "not" in error


def test_a_bug_keeps_its_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line for what a person can mend; everything for what only a programmer can."""

    @click.command()
    def broken() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(app, "get_command", lambda *_: broken)
    result = run("status")
    assert result.exit_code == 1
    assert isinstance(result.exception, ZeroDivisionError)


def test_an_interrupt_is_silent(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever pressed Ctrl-C needs no explanation; the code is the shell's."""

    @click.command()
    def interrupted() -> None:
        raise BaseExceptionGroup("nursery", [KeyboardInterrupt()])

    monkeypatch.setattr(app, "get_command", lambda *_: interrupted)
    result = run("status")
    assert result.exit_code == 130
    assert result.output == ""


def test_an_error_inside_a_nursery_counts_as_itself() -> None:
    """Trio wraps what leaves a nursery; the exit code must not depend on that."""
    error = ProviderUnavailable("away")
    group = ExceptionGroup("outer", [ExceptionGroup("inner", [error])])
    assert unwrap(group) is error
    assert report(group) == 3
    assert report(ExceptionGroup("two", [error, ValueError()])) is None


def test_a_closed_pipe_ends_quietly(start: Start, database_url: str) -> None:
    """`hastetrio jobs list | head -0` shows no traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    process = start("jobs", "list", stdout=writer, HASTETRIO_DATABASE_URL=database_url)
    os.close(writer)
    _, errors = process.communicate()
    assert errors == ""
    assert process.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_line(start: Start, database_url: str) -> None:
    """Output that was lost must not look like success."""
    with Path("/dev/full").open("w") as full:
        process = start(
            "jobs", "list", "--json", stdout=full.fileno(), HASTETRIO_DATABASE_URL=database_url
        )
        _, errors = process.communicate()
    assert "No space left" in only_line(errors)
    assert process.returncode == 1


def test_the_program_works_as_a_module(start: Start, database_url: str) -> None:
    """`python -m hastetrio` is the same program."""
    process = start("jobs", "list", "--json", HASTETRIO_DATABASE_URL=database_url)
    output, errors = process.communicate()
    assert (json.loads(output), errors, process.returncode) == ([], "", 0)
