"""The demo's board: one line a job, redrawn on a terminal, printed when it changes elsewhere."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from hastetrio._model import AsyncJobStatus, worker_of
from hastetrio.cli._format import cut, one_line

if TYPE_CHECKING:
    from hastetrio._model import AsyncJob


class Board:
    """Shows jobs as they stand.

    Args:
        read: Reads the jobs, always the same ones in the same order.
    """

    def __init__(self, read: Callable[[], Awaitable[list[AsyncJob]]]) -> None:
        self._read = read
        self._terminal = sys.stdout.isatty()
        self._drawn: list[str] = []

    async def show(self) -> list[AsyncJob]:
        """Read the jobs, show them, and return them."""
        jobs = await self._read()
        width = shutil.get_terminal_size().columns
        lines = [cut(_line(job), width) for job in jobs]
        if self._terminal:
            up = f"\x1b[{len(self._drawn)}A" if self._drawn else ""
            click.echo(up + "".join(f"\x1b[2K{line}\n" for line in lines), nl=False)
        else:
            for line in lines:
                if line not in self._drawn:
                    click.echo(line)
        self._drawn = lines
        return jobs

    def say(self, text: str) -> None:
        """Say something between two pictures of the board."""
        click.echo(f"\n{text}\n")
        if self._terminal:
            self._drawn = []

    def close(self) -> None:
        """Leave the last picture standing."""
        self._drawn = []


def _line(job: AsyncJob) -> str:
    if job.status is AsyncJobStatus.ACCEPTED:
        where, what = "", "queued"
    elif job.status is AsyncJobStatus.IN_PROGRESS:
        where = worker_of(job.locked_by or "").partition("-")[0]
        what = job.progress or "running"
    else:
        where = worker_of(job.finished_by or "").partition("-")[0]
        what = job.status.value
    attempt = f"attempt {job.attempts}" if job.attempts else ""
    return f"  {job.id}  {where:<6} {attempt:<9}  {one_line(what)}".rstrip()
