"""Settings as command line options, and the state that the commands of one call share."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import click

from hastetrio._settings import KEYS, Key, LogLevel, Settings, load

_Command = TypeVar("_Command", bound=Callable[..., Any])

GLOBAL_KEYS: Final = (
    "database_url",
    "embedded",
    "data_dir",
    "prepared_statements",
    "log_format",
    "log_level",
)
"""The settings every command takes, before its name and after it."""

EPILOG: Final = "The options of 'hastetrio --help' may be given here too."

_logger = logging.getLogger("hastetrio.cli")


class Seconds(click.FloatRange):
    """A number of seconds; "nan", which is in every range, is in none of ours."""

    def convert(
        self,
        value: Any,  # noqa: ANN401  # click's signature
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return seconds


@attrs.define
class State:
    """What the options of one command line gave, until a command asks for the settings."""

    flags: dict[str, object] = attrs.field(factory=dict)
    config: Path | None = None

    def settings(self, *, log_level: LogLevel = "warning") -> Settings:
        """The settings, with logging set up by them.

        Args:
            log_level: The level to log at when none was set.

        Raises:
            ConfigError: A setting cannot be used.
        """
        from hastetrio._log import configure

        loaded = load(self.flags, os.environ, config=self.config)
        settings = loaded.settings
        configure(settings.log_level or log_level, settings.log_format)
        for warning in loaded.warnings:
            _logger.warning("%s", warning)
        return settings


pass_state = click.make_pass_decorator(State, ensure=True)


def setting_options(*names: str, hidden: bool = False) -> Callable[[_Command], _Command]:
    """Give a command the options that set `names`; the values go to the shared `State`."""

    def decorate(command: _Command) -> _Command:
        for name in reversed(names):
            command = _option(KEYS[name], hidden=hidden)(command)
        return command

    return decorate


def global_options(*, hidden: bool = False) -> Callable[[_Command], _Command]:
    """Give a command the options that every command takes."""

    def keep_path(context: click.Context, _: click.Parameter, value: str | None) -> None:
        if value is not None:
            context.ensure_object(State).config = Path(value)

    def decorate(command: _Command) -> _Command:
        command = click.option(
            "--config",
            metavar="PATH",
            help="The settings file.  [default: hastetrio.toml, where there is one]",
            expose_value=False,
            hidden=hidden,
            callback=keep_path,
        )(command)
        return setting_options(*GLOBAL_KEYS, hidden=hidden)(command)

    return decorate


def _option(key: Key, *, hidden: bool) -> Callable[[_Command], _Command]:
    def keep(context: click.Context, _: click.Parameter, value: object) -> None:
        if value is not None and value != ():
            context.ensure_object(State).flags[key.name] = value

    words = key.help + _shown_default(key)
    common: dict[str, Any] = {
        "expose_value": False,
        "hidden": hidden,
        "callback": keep,
        "default": None,
        "help": words,
    }
    if key.type is bool and key.default is False:
        return click.option(key.flag, key.name, is_flag=True, flag_value=True, **common)
    if key.type is bool:
        return click.option(f"{key.flag}/--no-{key.flag[2:]}", key.name, **common)
    multiple = key.type == tuple[str, ...]
    # Text, whatever the type: the settings convert it, with one wording for all three sources.
    return click.option(key.flag, key.name, metavar=key.metavar, multiple=multiple, **common)


def _shown_default(key: Key) -> str:
    if isinstance(key.default, bool):
        return ""
    if isinstance(key.default, (int, float)):
        return f"  [default: {key.default:.15g}]"
    if isinstance(key.default, str) and key.default:
        return f"  [default: {key.default}]"
    return ""
