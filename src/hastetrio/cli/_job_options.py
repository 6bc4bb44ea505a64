"""What commands about jobs take: their common options, JSON and times."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from hastetrio.cli._options import global_options, pass_state, setting_options

_Command = TypeVar("_Command", bound=Callable[..., Any])


def job_command(*names: str) -> Callable[[_Command], _Command]:
    """Give a command what all commands about jobs take, and the settings `names`."""

    def decorate(command: _Command) -> _Command:
        command = pass_state(command)  # type: ignore[assignment]  # the state is passed first
        command = global_options(hidden=True)(command)
        command = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
        return setting_options("tenant", "project", *names)(command)

    return decorate


def json_option(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:  # noqa: ANN401  # JSON is any value
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


def time_option(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> datetime | None:
    """A time with a zone, in ISO 8601."""
    if value is None:
        return None
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        time = datetime.min  # noqa: DTZ901  # refused below
    if time.utcoffset() is None:
        raise click.BadParameter(
            f"{value!r} is no time with a zone, such as 2027-01-31T04:00:00+01:00",
            context,
            parameter,
        )
    return time


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        # Which of the two was meant, nobody can know.
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is given twice")
    return found
