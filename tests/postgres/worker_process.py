"""A worker in a process of its own: `worker_process.py URL LEASE KINDS`, logging JSON lines.

Its standard output holds the log. It ends when it is told to, by SIGTERM, or when its standard
input ends, so that it outlives no test.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import trio

from hastetrio import AsyncJobWorker, AsyncJobWorkerConfig, _log
from hastetrio.postgres import PostgresJobProvider

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.postgres.handlers import HANDLERS


def _die_with_the_test() -> None:
    # Not through sys.stdin: a thread that waits inside of it spoils the interpreter's exit.
    while os.read(0, 1):
        pass
    os._exit(1)


async def main(url: str, lease: float, kinds: list[str]) -> None:
    """Run the worker until it is told to stop."""
    config = AsyncJobWorkerConfig(lease_duration=lease, poll_interval=0.2, drain_timeout=5)
    handlers = [handler for handler in HANDLERS if handler.kind in kinds]
    async with PostgresJobProvider.open(url, call_budget=config.call_budget) as provider:
        worker = AsyncJobWorker(provider, handlers, config)
        async with trio.open_nursery() as nursery:
            with trio.open_signal_receiver(signal.SIGTERM) as signals:

                async def stop() -> None:
                    async for _ in signals:
                        worker.stop()

                nursery.start_soon(stop)
                await worker.run()
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    threading.Thread(target=_die_with_the_test, daemon=True).start()
    _log.configure("debug", "json", sys.stdout)
    trio.run(main, sys.argv[1], float(sys.argv[2]), sys.argv[3].split(","))
