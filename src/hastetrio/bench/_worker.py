"""A worker in this process, and the jobs it is given."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio

from hastetrio import AsyncJobWorker, AsyncJobWorkerConfig, CreateAsyncJob, JobHandler
from hastetrio.bench._plan import STALLED, TENANT, BenchError
from hastetrio.postgres import PostgresJobProvider

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from hastetrio.bench._plan import Plan
    from hastetrio.bench._room import Room

# Jobs queued by one statement.
_CHUNK: Final = 1000

# How often to see whether a worker has become idle, seconds.
_LOOK: Final = 0.001


@asynccontextmanager
async def open_provider(
    room: Room, plan: Plan, config: AsyncJobWorkerConfig | None = None
) -> AsyncGenerator[PostgresJobProvider]:
    """A provider with connections of its own, while the block lasts."""
    config = config or AsyncJobWorkerConfig()
    async with PostgresJobProvider.open(
        room.dsn,
        call_budget=config.call_budget,
        prepared_statements=plan.prepared_statements,
    ) as provider:
        yield provider


@asynccontextmanager
async def running_worker(
    room: Room, plan: Plan, handler: JobHandler, config: AsyncJobWorkerConfig | None = None
) -> AsyncGenerator[AsyncJobWorker]:
    """A worker that listens for jobs, on a provider of its own, while the block lasts.

    Cancellation: its jobs are cancelled and handed back.
    """
    async with trio.open_nursery() as nursery:
        worker: AsyncJobWorker = await nursery.start(_serve, room, plan, handler, config)
        try:
            yield worker
        finally:
            # Twice: a job that sleeps is not waited for.
            worker.stop()
            worker.stop()


async def _serve(
    room: Room,
    plan: Plan,
    handler: JobHandler,
    config: AsyncJobWorkerConfig | None,
    *,
    task_status: trio.TaskStatus[AsyncJobWorker],
) -> None:
    async with open_provider(room, plan, config) as provider, trio.open_nursery() as nursery:
        worker = AsyncJobWorker(provider, [handler], config)
        await nursery.start(worker.run)
        task_status.started(worker)


async def enqueue(client: PostgresJobProvider, kind: str, count: int) -> None:
    """Queue `count` jobs of a kind."""
    for start in range(0, count, _CHUNK):
        await client.create_jobs(TENANT, TENANT, [a_job(kind)] * min(_CHUNK, count - start))


def a_job(kind: str) -> CreateAsyncJob:
    """A job of a kind that says nothing else."""
    return CreateAsyncJob(kind=kind, claims={"sub": TENANT})


async def until_idle(worker: AsyncJobWorker) -> None:
    """Wait until the worker holds no row.

    Raises:
        BenchError: It still does after a long while.
    """
    with trio.move_on_after(STALLED) as scope:
        while worker.statistics().held:  # noqa: ASYNC110  # a worker has no event for it
            await trio.sleep(_LOOK)
    if scope.cancelled_caught:
        raise BenchError(f"the worker did not become idle within {STALLED:g} s")


async def happened(event: trio.Event, what: str) -> None:
    """Wait for the event.

    Raises:
        BenchError: It did not happen within a long while.
    """
    with trio.move_on_after(STALLED) as scope:
        await event.wait()
    if scope.cancelled_caught:
        raise BenchError(f"{what} within {STALLED:g} s")
