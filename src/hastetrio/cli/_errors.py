"""Exit codes, and the one line that stands for each error a person can cause."""

from __future__ import annotations

import errno
import signal
from typing import Final

import click

from hastetrio._errors import ConfigError, HastetrioError, ProviderUnavailable

FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
INTERRUPTED: Final = 128 + signal.SIGINT
# What a shell shows for a program that a closed pipe ended.
PIPE_CLOSED: Final = 128 + signal.SIGPIPE

# What a write says when the disk has no room for the output.
_OUTPUT_LOST: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CommandFailed(HastetrioError):
    """The command did what it could, and the answer is no; the text says which no."""


def unwrap(error: BaseException) -> BaseException:
    """The error inside groups of one: what a nursery makes of an error in its body."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def say(line: str) -> None:
    """Print one line for a person on the standard error."""
    click.echo(f"hastetrio: {line}", err=True)


def report(error: BaseException) -> int | None:
    """Print the line that stands for `error`, and return the exit code.

    Returns:
        None for an error nobody foresaw: it deserves its traceback.
    """
    error = unwrap(error)
    match error:
        case BrokenPipeError():
            return PIPE_CLOSED
        case OSError() if error.errno in _OUTPUT_LOST:
            say(f"cannot write the output: {error.strerror}")
            return FAILED
        case KeyboardInterrupt() | click.Abort():
            return INTERRUPTED
        case click.UsageError():
            where = "" if error.ctx is None else f" (see '{error.ctx.command_path} --help')"
            say(_one_line(error.format_message()) + where)
            return USAGE
        case click.ClickException():
            say(_one_line(error.format_message()))
            return error.exit_code
        case HastetrioError():
            say(_one_line(str(error)))
            return _code(error)
        case _:
            return None


def _code(error: HastetrioError) -> int:
    if isinstance(error, ProviderUnavailable):
        return UNREACHABLE
    if isinstance(error, ConfigError):
        return USAGE
    return FAILED


def _one_line(text: str) -> str:
    return " ".join(text.split())
