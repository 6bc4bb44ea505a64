"""`hastetrio worker` as processes: their logs are followed, and they never outlive a test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from tests.postgres.processes import WorkerProcess

import hastetrio

_PLACES = (Path(hastetrio.__file__).parents[1], Path(__file__).parents[2])


@asynccontextmanager
async def command(
    url: str,
    *kinds: str,
    lease: float = 1.2,
    environment: Mapping[str, str] | None = None,
    **settings: float,
) -> AsyncIterator[WorkerProcess]:
    """A worker process for these kinds, started, and killed at the end of the block.

    Settings are those of the command line, with underscores.
    """
    settings = {"poll_interval": 0.2, "lease_duration": lease} | settings
    environment = dict(environment or {})
    paths = (environment.pop("PYTHONPATH", ""), *map(str, _PLACES))
    process = await trio.lowlevel.open_process(
        [
            *(sys.executable, "-m", "hastetrio", "worker"),
            *("--handlers", "tests.faults.process_handlers:everything", "--kinds", ",".join(kinds)),
            *("--log-format", "json", "--log-level", "debug"),
            *(
                part
                for name, value in settings.items()
                for part in (f"--{name.replace('_', '-')}", str(value))
            ),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("HASTETRIO_")},
            "HASTETRIO_DATABASE_URL": url,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            **environment,
        },
    )
    worker = WorkerProcess(process)
    try:
        async with trio.open_nursery() as nursery:
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


async def ended(worker: WorkerProcess, seconds: float = 20) -> int:
    """Wait for the process to end by itself; its exit code."""
    with trio.fail_after(seconds):
        return await worker.process.wait()
