"""pgqueuer: batches of 100, on uvloop as its own `pgq run` runs it; argument: the driver."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from typing import Any

import uvloop
from pgqueuer import PgQueuer

from benchmarks.peers._adapter import Run, chunks


async def _open(run: Run, driver: str, stack: AsyncExitStack) -> Any:  # noqa: ANN401
    if driver == "asyncpg":
        import asyncpg

        connection = await asyncpg.connect(
            host=run.server.host,
            port=run.server.port,
            user=run.server.user,
            password=run.server.password or None,
            database=run.server.database,
        )
        stack.push_async_callback(connection.close)
        return PgQueuer.from_asyncpg_connection(connection)
    import psycopg

    psycopg_connection = await psycopg.AsyncConnection.connect(run.server.conninfo, autocommit=True)
    stack.push_async_callback(psycopg_connection.close)
    return PgQueuer.from_psycopg_connection(psycopg_connection)


async def main(run: Run, driver: str) -> None:
    """Drain the jobs of the run."""

    async def noop(job: Any) -> None:  # noqa: ANN401, ARG001  # the peer's type is not here
        run.job()

    async with AsyncExitStack() as stack:
        queuer = await _open(run, driver, stack)
        queries = queuer.qm.queries
        await queries.install()
        for chunk in chunks(run.jobs, 5000):
            count = len(chunk)
            await queries.enqueue(["noop"] * count, [None] * count, [0] * count)
        queuer.entrypoint("noop")(noop)
        run.ready("pgqueuer", driver, "uvloop")
        task = asyncio.create_task(queuer.run(batch_size=100))
        await asyncio.to_thread(run.wait_for_stop)
        queuer.shutdown.set()
        await task


if __name__ == "__main__":
    uvloop.run(main(Run(), sys.argv[1]))
