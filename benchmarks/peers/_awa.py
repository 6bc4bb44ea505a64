"""awa-pg: 200 workers on one queue, its queue storage, jobs queued by COPY."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from awa import AsyncClient

from benchmarks.peers._adapter import Run, chunks


@dataclass
class Noop:
    """The job's arguments."""

    n: int


async def main(run: Run) -> None:
    """Drain the jobs of the run."""

    async def noop(job: Any) -> None:  # noqa: ANN401, ARG001  # the peer's type is not here
        run.job()

    async with AsyncClient(run.server.url) as client:
        await client.migrate()
        # Its current engine; a worker would switch to it by itself, but only once it runs.
        await client.install_queue_storage()
        for chunk in chunks(run.jobs, 5000):
            await client.enqueue_many_copy([Noop(n) for n in chunk], queue="noop")
        client.task(Noop, queue="noop")(noop)
        run.ready("awa-pg")
        await client.start([("noop", 200)])
        await asyncio.to_thread(run.wait_for_stop)
        await client.shutdown()


if __name__ == "__main__":
    asyncio.run(main(Run()))
