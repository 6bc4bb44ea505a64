"""Drain no-op jobs whose handler asks for one thing each, and compare their costs.

    python -m benchmarks.features [--jobs 10000] [--rounds 5] [--json FILE]

The variants take turns in each round, so that a busy machine is busy for all of them. The server is
thrown away afterwards.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psycopg
import trio

from benchmarks._server import database, server
from benchmarks.features._handlers import KIND, PARAMETERS, VARIANTS
from hastetrio import AsyncJobWorker, AsyncJobWorkerConfig, CreateAsyncJob, tune_collector
from hastetrio.bench._figures import Spread
from hastetrio.embedded import EmbeddedUnavailable
from hastetrio.postgres import PostgresJobProvider

_SLOTS: Final = 100
_BATCH: Final = 1000

# Seconds between looks for the last result, once the last handler has run.
_LOOK: Final = 0.001

# Seconds that a variant may take: the slowest takes 8 for 10,000 jobs.
_STALLED: Final = 60.0


class NotMeasured(Exception):
    """A round did not do what it measures; the text says how."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit status."""
    options = _options(arguments)
    tune_collector()
    try:
        with server() as url, database(url, "hastetrio_bench_features") as own:
            costs = trio.run(_measured, own, options.jobs, options.rounds)
    except KeyboardInterrupt:
        return 130
    except (NotMeasured, EmbeddedUnavailable, psycopg.OperationalError, OSError) as error:
        print(f"nothing was measured: {error}", file=sys.stderr)
        return 1
    plain = costs["nothing"].median
    for name, cost in costs.items():
        print(f"{name:36}{cost.median:8.1f} us/job  {cost.median - plain:+8.1f}   ({cost})")
    if options.json:
        rounds = {name: list(cost.rounds) for name, cost in costs.items()}
        options.json.write_text(json.dumps(rounds, indent=2) + "\n", "utf-8")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.features")
    parser.add_argument("--jobs", type=int, default=10_000, help="jobs a variant and round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rounds there")
    return parser.parse_args(arguments)


async def _measured(url: str, jobs: int, rounds: int) -> dict[str, Spread]:
    """Microseconds of this process's CPU a job, by variant."""
    async with PostgresJobProvider.open(url) as provider:
        await provider.migrate()
    costs: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in range(rounds):
        for name, found in costs.items():
            found.append(await _drained(url, name, jobs))
    return {name: Spread.of(found) for name, found in costs.items()}


async def _drained(url: str, name: str, jobs: int) -> float:
    async with PostgresJobProvider.open(url) as client:
        new = CreateAsyncJob(kind=KIND, claims={"sub": "bench"}, parameters=PARAMETERS)
        for begin in range(0, jobs, _BATCH):
            await client.create_jobs("bench", "bench", [new] * min(_BATCH, jobs - begin))
    gc.collect()
    kind, middleware = VARIANTS[name]
    handler = kind(jobs)
    config = AsyncJobWorkerConfig(max_concurrent_jobs=_SLOTS)
    cpu = time.process_time()
    async with PostgresJobProvider.open(url) as provider, trio.open_nursery() as nursery:
        worker = AsyncJobWorker(provider, [handler], config, middleware=middleware)
        await nursery.start(worker.run)
        with trio.move_on_after(_STALLED):
            await handler.all_ran.wait()
            while worker.statistics().totals.completed < jobs:  # noqa: ASYNC110  # it tells nobody
                await trio.sleep(_LOOK)
        used = time.process_time() - cpu
        totals = worker.statistics().totals
        worker.stop()
        worker.stop()
    if totals.completed != jobs:
        raise NotMeasured(f"{name}: {totals.completed:,} of {jobs:,} jobs were completed")
    return used * 1e6 / jobs


if __name__ == "__main__":
    sys.exit(main())
