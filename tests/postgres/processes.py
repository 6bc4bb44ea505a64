"""Starts worker processes, follows their logs, and always ends them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from .harness import until

SCRIPT = Path(__file__).with_name("worker_process.py")


class WorkerProcess:
    """A running worker process.

    Attributes:
        pid: Its process id.
        lines: What it has logged, each line an object.
    """

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.pid = process.pid
        self.lines: list[dict[str, Any]] = []

    def events(self, name: str, job: str | None = None) -> list[dict[str, Any]]:
        """The lines of one event (of one job)."""
        return [
            line
            for line in self.lines
            if line.get("event") == name and (job is None or line.get("job") == job)
        ]

    async def logged(self, name: str, job: str | None = None) -> dict[str, Any]:
        """The first line of one event, as soon as it is there."""
        await until(lambda: self.events(name, job))
        return self.events(name, job)[0]

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    async def follow(self) -> None:
        """Read the log until it ends."""
        assert self.process.stdout is not None
        rest = b""
        async for data in self.process.stdout:
            *whole, rest = (rest + data).split(b"\n")
            self.lines += [json.loads(line) for line in whole]


@asynccontextmanager
async def worker_process(url: str, *kinds: str, lease: float = 1.2) -> AsyncIterator[WorkerProcess]:
    """A worker process for these kinds, running, and killed at the end of the block."""
    process = await trio.lowlevel.open_process(
        [sys.executable, str(SCRIPT), url, str(lease), ",".join(kinds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        async with trio.open_nursery() as nursery:
            worker = WorkerProcess(process)
            nursery.start_soon(worker.follow)
            await worker.logged("worker.starting")
            yield worker
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            # SIGKILL ends a stopped process too.
            process.kill()
            await process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    await stream.aclose()
