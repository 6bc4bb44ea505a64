"""Workers in the tests' own process, and the jobs for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from psycopg.conninfo import make_conninfo
from tests.postgres.harness import KIND, column, run, statuses, until

from hastetrio import AsyncJobWorker, AsyncJobWorkerConfig, JobHandler
from hastetrio.postgres import PostgresJobProvider

from .bodies import LONG
from .history import History


@asynccontextmanager
async def working(
    url: str,
    *handlers: JobHandler,
    config: AsyncJobWorkerConfig = LONG,
    call_budget: float | None = None,
) -> AsyncIterator[tuple[PostgresJobProvider, AsyncJobWorker]]:
    """A worker that runs while the block lasts, and is still able to stop in order after it."""
    budget = config.call_budget if call_budget is None else call_budget
    async with (
        PostgresJobProvider.open(url, call_budget=budget) as provider,
        trio.open_nursery() as nursery,
    ):
        worker = AsyncJobWorker(provider, handlers, config)
        await nursery.start(worker.run)
        yield provider, worker
        worker.stop()


def queue(url: str, kind: str = KIND, number: int = 1) -> list[str]:
    """Queue jobs by plain SQL, without a notification; their ids."""
    rows = run(
        make_conninfo(url, options="-c hastetrio.notify=off"),
        "INSERT INTO async_jobs (tenant, project, kind) SELECT 'acme', 'main', %s"
        " FROM generate_series(1, %s) RETURNING id",
        [kind, number],
    )
    return [id for (id,) in rows]


async def completed(url: str, *ids: str) -> None:
    """Wait until all of these have completed."""
    await until(lambda: set(statuses(url, ids)) == {"completed"}, 30)


def check_untouched(history: History, url: str, *ids: str) -> None:
    """Each ran once: one claim, one attempt, one result, nothing handed back."""
    for id in ids:
        ((token, _),) = history.claims(id)
        assert history.results(id) == [token]
        assert (column(url, id, "attempts"), column(url, id, "hand_backs")) == (1, 0)
