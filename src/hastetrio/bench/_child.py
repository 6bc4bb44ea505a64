"""The worker process that `_process` starts: one worker whose jobs sleep, and which tells how it
stands when asked.
"""  # noqa: D205

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import time
from pathlib import Path
from typing import Final

import attrs
import trio

from hastetrio import (
    AsyncJobWorker,
    AsyncJobWorkerConfig,
    CancelReason,
    JobContext,
    JobHandler,
    JobOutput,
    tune_collector,
)
from hastetrio.bench._protocol import LineReader, Look, Order
from hastetrio.postgres import PostgresJobProvider

_A_DAY: Final = 86_400.0

# Seconds for handing back what sleeps, after the benchmark has its figures.
_GRACE: Final = 30.0


class Sleeper(JobHandler):
    """Sleeps until the worker stops, and counts who was woken otherwise."""

    def __init__(self, kind: str, slots: int) -> None:
        self.kind = kind
        self.running = 0
        self.lost = 0
        self._slots = slots

    async def run(self, context: JobContext) -> JobOutput:
        """Sleep."""
        self.running += 1
        if self.running == self._slots:
            _say("running")
        try:
            await trio.sleep(_A_DAY)
        finally:
            self.running -= 1
            self.lost += context.cancel_reason is not CancelReason.SHUTDOWN
        return JobOutput.json({})


async def serve() -> None:
    """Run the worker until told to stop, or until nobody is left who could tell."""
    orders = LineReader(trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())))
    first = await orders.read()
    if first is None:
        return
    order = Order(**json.loads(first))
    logging.basicConfig(level=order.log_level.upper())
    handler = Sleeper(order.kind, order.slots)
    config = AsyncJobWorkerConfig(
        lease_duration=order.lease, max_concurrent_jobs=order.slots, cancel_grace=_GRACE
    )
    async with PostgresJobProvider.open(
        order.dsn,
        call_budget=config.call_budget,
        prepared_statements=order.prepared_statements,
    ) as provider:
        worker = AsyncJobWorker(provider, [handler], config)
        async with trio.open_nursery() as nursery:
            await nursery.start(worker.run)
            _say("started")
            while (line := await orders.read()) == b"look":
                _say("look", **attrs.asdict(_look(worker, handler)))
            if line is None:
                # The benchmark was killed, and the wire to the database went with it.
                os._exit(1)
            # Twice: jobs that sleep are not waited for.
            worker.stop()
            worker.stop()


def _look(worker: AsyncJobWorker, handler: Sleeper) -> Look:
    totals = worker.statistics().totals
    memory, memory_is = _memory()
    return Look(
        time=time.perf_counter(),
        cpu=time.process_time(),
        memory=memory,
        memory_is=memory_is,
        running=handler.running,
        lost=handler.lost,
        renewals=totals.renewals,
        renewals_failed=totals.renewals_failed,
    )


def _memory() -> tuple[int, str]:
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:
        # Not Linux: the most it ever had, in bytes on macOS and in KiB elsewhere.
        unit = 1 if sys.platform == "darwin" else 1024
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most * unit, "peak resident set"
    return pages * resource.getpagesize(), "resident set"


def _say(event: str, **more: object) -> None:
    print(json.dumps({"event": event, **more}), flush=True)


if __name__ == "__main__":
    tune_collector()
    trio.run(serve)
