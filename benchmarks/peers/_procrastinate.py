"""procrastinate: concurrency 100, its psycopg connector."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from procrastinate import App, PsycopgConnector

from benchmarks.peers._adapter import Run, chunks


async def main(run: Run) -> None:
    """Drain the jobs of the run."""

    async def noop() -> None:
        run.job()

    app = App(connector=PsycopgConnector(conninfo=run.server.conninfo))
    task = app.task(name="noop")(noop)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for chunk in chunks(run.jobs, 500):
            await task.batch_defer_async(*({} for _ in chunk))
        run.ready("procrastinate", "psycopg")
        worker = asyncio.create_task(
            app.run_worker_async(concurrency=100, install_signal_handlers=False)
        )
        await asyncio.to_thread(run.wait_for_stop)
        worker.cancel()
        with suppress(asyncio.CancelledError):
            await worker


if __name__ == "__main__":
    asyncio.run(main(Run()))
