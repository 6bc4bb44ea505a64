"""Worker processes: started, told to begin, looked at from outside, and ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_ROOT: Final = Path(__file__).parents[2]

# Seconds a process may take to end before it is killed.
_PATIENCE: Final = 30.0


@attrs.frozen
class WorkerProcess:
    """One of them."""

    process: subprocess.Popen[str]

    def begin(self) -> None:
        """Let it claim."""
        pipe(self.process.stdin).write("begin\n")
        pipe(self.process.stdin).flush()

    def memory(self) -> int:
        """The bytes of memory it has now."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def cpu(self) -> float:
        """The seconds of CPU time it has used, in user and system."""
        text = Path(f"/proc/{self.process.pid}/stat").read_text()
        user, system = text.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def pipe(stream: IO[str] | None) -> IO[str]:
    """A stream that is known to be a pipe."""
    assert stream is not None  # noqa: S101  # the process was started with pipes
    return stream


@contextmanager
def workers(
    url: str,
    count: int,
    *,
    handler: str,
    kinds: Sequence[str],
    config: Mapping[str, Any],
) -> Iterator[list[WorkerProcess]]:
    """So many worker processes, ready to begin, while the block lasts.

    Args:
        url: The database.
        count: How many.
        handler: What they do: "no-op", "leaving" or "sleeper".
        kinds: The kinds they run.
        config: The settings of each worker.

    Raises:
        RuntimeError: One of them did not start; what it said is on standard error.
    """
    order = {"url": url, "handler": handler, "kinds": list(kinds), "config": dict(config)}
    command = [sys.executable, "-m", "benchmarks.growth._child", json.dumps(order)]
    started: list[WorkerProcess] = []
    try:
        for _ in range(count):
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT
            )
            started.append(WorkerProcess(process))
        for one in started:
            if pipe(one.process.stdout).readline() != "ready\n":
                raise RuntimeError("a worker process did not start")
        yield started
    finally:
        for one in started:
            pipe(one.process.stdin).close()
        for one in started:
            try:
                one.process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()
            pipe(one.process.stdout).close()
