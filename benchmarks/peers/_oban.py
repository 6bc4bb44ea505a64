"""oban: limit 100, on uvloop as its own `oban start` runs it."""

from __future__ import annotations

import asyncio
from typing import Any

import uvloop
from oban import Oban, worker
from oban.schema import install

from benchmarks.peers._adapter import Run, chunks


async def main(run: Run) -> None:
    """Drain the jobs of the run."""

    class Noop:
        async def process(self, job: Any) -> None:  # noqa: ANN401, ARG002  # the peer's type is not here
            run.job()

    noop = worker(queue="noop")(Noop)
    pool = await Oban.create_pool(run.server.conninfo)
    try:
        await install(pool)
        client = Oban(pool=pool, name="client")
        for chunk in chunks(run.jobs, 1000):
            await client.enqueue_many(noop.new({"n": n}) for n in chunk)
        run.ready("oban", "psycopg", "uvloop")
        async with Oban(pool=pool, queues={"noop": 100}):
            await asyncio.to_thread(run.wait_for_stop)
    finally:
        await pool.close()


if __name__ == "__main__":
    uvloop.run(main(Run()))
