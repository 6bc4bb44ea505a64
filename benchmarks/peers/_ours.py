"""hastetrio: 100 slots, everything else as it comes. Run by this project's own interpreter."""

from __future__ import annotations

import trio

from benchmarks.peers._adapter import Run, chunks
from hastetrio import (
    AsyncJobWorker,
    AsyncJobWorkerConfig,
    CreateAsyncJob,
    JobContext,
    JobOutput,
    job_handler,
    tune_collector,
)
from hastetrio.postgres import PostgresJobProvider


async def queue_jobs(provider: PostgresJobProvider, count: int) -> None:
    """Make the tables and queue that many jobs of the kind `noop`."""
    await provider.migrate()
    job = CreateAsyncJob(kind="noop", claims={"sub": "bench"})
    for chunk in chunks(count, 1000):
        await provider.create_jobs("bench", "bench", [job] * len(chunk))


async def main(run: Run) -> None:
    """Drain the jobs of the run."""

    @job_handler("noop")
    async def noop(context: JobContext) -> JobOutput:  # noqa: ARG001  # a no-op looks at nothing
        run.job()
        return JobOutput.json({"ok": 1})

    async with PostgresJobProvider.open(run.server.conninfo) as provider:
        await queue_jobs(provider, run.jobs)
    run.ready("hastetrio", "psycopg", "trio")
    config = AsyncJobWorkerConfig(max_concurrent_jobs=100)
    async with (
        PostgresJobProvider.open(run.server.conninfo) as provider,
        trio.open_nursery() as nursery,
    ):
        worker = AsyncJobWorker(provider, [noop], config)
        nursery.start_soon(worker.run)
        await trio.to_thread.run_sync(run.wait_for_stop)
        worker.stop()


if __name__ == "__main__":
    tune_collector()
    trio.run(main, Run())
