"""A worker that exports, in a process of its own: `export_process.py URL SOURCE OUTPUT [STOP_IN]`.

Its standard output tells, as JSON lines, of each file that the process opens in SOURCE: an audit
hook of the interpreter sees to it, which no code can get around. When it has opened the source file
STOP_IN, and is about to write to an output file for the fifth time since, it says so and waits, to
be killed there. It ends when its standard input does, so that it outlives no test.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import trio

from hastetrio import AsyncJobWorker, AsyncJobWorkerConfig
from hastetrio.bulk import BulkExport, _export
from hastetrio.postgres import PostgresJobProvider

_FILE_SIZE = 8 * 1024


def _die_with_the_test() -> None:
    # Not through sys.stdin: a thread that waits inside of it spoils the interpreter's exit.
    while os.read(0, 1):
        pass
    os._exit(1)


def _tell(**line: str) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")


def _watch_files(source: Path, output: Path, stop_in: str | None) -> None:
    opened = ""
    written = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal opened, written
        if event != "open" or not isinstance(arguments[0], (str, os.PathLike)):
            return
        path = Path(arguments[0])
        if path.parent == source:
            opened = path.name
            _tell(event="opened", name=opened)
        elif opened == stop_in and arguments[1] in ("a", "ab") and path.is_relative_to(output):
            written += 1
            if written == 5:
                _tell(event="stopped", name=path.name)
                threading.Event().wait()

    sys.addaudithook(hook)


async def main(url: str, source: Path, output: Path) -> None:
    """Run the worker until the process is killed."""
    # Small steps, and a state after each source file.
    _export.SAVE_SECONDS = 0.0  # type: ignore[misc]
    _export._SAVE_SHARE = 0  # type: ignore[misc]
    handler = BulkExport(source, output, file_size=_FILE_SIZE, pace=1e-9)
    config = AsyncJobWorkerConfig(poll_interval=0.2)
    async with PostgresJobProvider.open(url, call_budget=config.call_budget) as provider:
        worker = AsyncJobWorker(provider, [handler], config)
        async with trio.open_nursery() as nursery:
            await nursery.start(worker.run)
            _tell(event="worker.starting")


if __name__ == "__main__":
    threading.Thread(target=_die_with_the_test, daemon=True).start()
    _watch_files(Path(sys.argv[2]), Path(sys.argv[3]), (*sys.argv, None)[4])
    trio.run(main, sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
