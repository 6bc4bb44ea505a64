"""Following one job to its end: what changed, as a live line on a terminal, else line by line."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TextIO

import click

from hastetrio._errors import ProviderUnavailable
from hastetrio.cli._format import cut, duration, echo_json_line, iso, job_fields, one_line

if TYPE_CHECKING:
    from hastetrio._model import AsyncJob
    from hastetrio._provider import AsyncJobProvider
    from hastetrio._settings import Settings

# A quarter of a second looks live; a job that takes long is asked about once a second, so that a
# hundred watchers cost a hundred index look-ups a second.
_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 1.0

# A database that restarts is back in this time, seconds; a watcher of hours should survive it.
_PATIENCE: Final = 30.0


class Display:
    """Shows a job's state whenever it changed."""

    def show(self, job: AsyncJob) -> None:
        """Show where the job is."""

    def close(self) -> None:
        """Leave the output so that the next line begins a line."""


class JsonLines(Display):
    """One JSON document a line for each change."""

    def show(self, job: AsyncJob) -> None:
        """Print the job."""
        echo_json_line(job_fields(job))


class Lines(Display):
    """One line for each change, with the time."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, job: AsyncJob) -> None:
        """Print a line."""
        click.echo(f"{iso(datetime.now(UTC))}  {describe(job)}", file=self._stream)


class LiveLine(Display):
    """One line of a terminal, written over and over."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._open = False

    def show(self, job: AsyncJob) -> None:
        """Write the line again."""
        # The last column stays free: a full line would wrap, and the next could not cover it.
        width = max(shutil.get_terminal_size().columns - 1, 1)
        click.echo(f"\r{cut(describe(job), width)}\x1b[K", nl=False, file=self._stream)
        self._open = True

    def close(self) -> None:
        """End the line."""
        if self._open:
            click.echo(file=self._stream)


def display_for(stream: TextIO, *, as_json: bool) -> Display:
    """How to show progress on `stream`."""
    if as_json:
        return JsonLines()
    return LiveLine(stream) if stream.isatty() else Lines(stream)


def describe(job: AsyncJob) -> str:
    """Where a job is, in one line."""
    text = f"{job.status.value}, attempt {job.attempts} of {job.max_attempts}"
    if job.started_at is not None and job.finished_at is not None:
        text += f", {duration((job.finished_at - job.started_at).total_seconds())}"
    if job.progress:
        text += f": {one_line(job.progress)}"
    return text


async def follow(
    provider: AsyncJobProvider, settings: Settings, id: str, display: Display
) -> AsyncJob | None:
    """Show the job's changes until it is over; returns it, or None once it is not there (any more).

    Raises:
        ProviderUnavailable: The database did not answer for half a minute.

    Cancellation: the display is closed; the job is not touched.
    """
    import trio

    pause = _FIRST_PAUSE
    shown: tuple[object, ...] | None = None
    answered = trio.current_time()
    try:
        while True:
            try:
                job = await provider.read_job(settings.tenant, settings.project, id)
            except ProviderUnavailable:
                if shown is None or trio.current_time() > answered + _PATIENCE:
                    raise
            else:
                answered = trio.current_time()
                if job is None:
                    return None
                state = (job.status, job.attempts, job.progress)
                if state != shown:
                    display.show(job)
                    shown = state
                if not job.status.is_live:
                    return job
            await trio.sleep(pause)
            pause = min(pause * 1.2, _LONGEST_PAUSE)
    finally:
        display.close()
