"""One worker process of the measurements; its parent starts it, and ends it.

It says `ready` once it could begin, begins at the first line it reads, and ends when its input
does.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Any

import trio

from hastetrio import (
    AsyncJobWorker,
    AsyncJobWorkerConfig,
    JobContext,
    JobHandler,
    JobOutput,
    tune_collector,
)
from hastetrio.postgres import PostgresJobProvider

if TYPE_CHECKING:
    from hastetrio import AsyncJob


class _NoOp(JobHandler):
    """Does nothing, and leaves nothing behind."""

    async def run(self, context: JobContext) -> JobOutput:  # noqa: ARG002  # nothing is the point
        return JobOutput.json(None)


class _Leaving(_NoOp):
    """Does nothing, and has a clean-up of its own."""

    async def expire(self, job: AsyncJob) -> None:  # noqa: ARG002  # it left nothing
        """Remove nothing, after a checkpoint, as a handler would that removes a file."""
        await trio.lowlevel.checkpoint()


class _Sleeper(JobHandler):
    """Sleeps for as long as it may."""

    async def run(self, context: JobContext) -> JobOutput:  # noqa: ARG002
        await trio.sleep_forever()
        raise AssertionError


_HANDLERS: dict[str, type[JobHandler]] = {
    "no-op": _NoOp,
    "leaving": _Leaving,
    "sleeper": _Sleeper,
}


async def _main(order: dict[str, Any]) -> None:
    handlers = []
    for kind in order["kinds"]:
        handler = _HANDLERS[order["handler"]]()
        handler.kind = kind
        handlers.append(handler)
    config = AsyncJobWorkerConfig(**order["config"])
    async with PostgresJobProvider.open(order["url"], call_budget=config.call_budget) as provider:
        await provider.check_schema()
        worker = AsyncJobWorker(provider, handlers, config)
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)
        async with trio.open_nursery() as nursery:
            await nursery.start(worker.run)
            await trio.to_thread.run_sync(sys.stdin.read)
            worker.stop()
            worker.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    tune_collector()
    trio.run(_main, json.loads(sys.argv[1]))
