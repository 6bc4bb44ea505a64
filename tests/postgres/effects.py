"""One job whose handler writes in transactions of its own, and what came of it.

Each test writes its handler as a function. The effects are rows of a table in the jobs' database.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import attrs
import trio

from hastetrio import (
    AsyncJob,
    AsyncJobWorker,
    AsyncJobWorkerConfig,
    CancelReason,
    JobContext,
    JobOutput,
    job_handler,
)
from hastetrio.postgres import PostgresJobProvider, TrioConnection
from hastetrio.testing import FaultyProvider

from .harness import KIND, PROJECT, TENANT, column, insert, run, until, value

DONE = JobOutput.json("done")

# One slot: while a handler runs, its worker claims nothing, not even what has lapsed.
LONG = AsyncJobWorkerConfig(
    lease_duration=60, poll_interval=0.1, cancel_grace=0.3, max_concurrent_jobs=1
)
"""No renewal falls due within a test."""

SHORT = attrs.evolve(LONG, lease_duration=1.2)
"""Renewals every 0.4 s, the deadline at 1.0 s."""

Script = Callable[[JobContext], Awaitable[object]]


async def write(connection: TrioConnection, note: str = "written") -> None:
    """An effect."""
    await connection.execute("INSERT INTO effects VALUES (%s)", [note])


@contextmanager
def effects_table(url: str) -> Iterator[None]:
    """A table for effects, while the block lasts; a note may be there once, seen at the commit."""
    run(url, "CREATE TABLE effects (note text UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    try:
        yield
    finally:
        run(url, "DROP TABLE effects")


def notes(url: str) -> list[str]:
    """The effects that are there."""
    return [note for (note,) in run(url, "SELECT note FROM effects ORDER BY note")]


def is_clean(url: str) -> bool:
    """Whether no transaction is open, and the table of the effects is locked by nobody."""
    return bool(
        value(
            url,
            "SELECT NOT EXISTS (SELECT FROM pg_locks WHERE relation = 'effects'::regclass) AND NOT "
            "EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = 'hastetrio' AND state LIKE 'idle in transaction%')",
        )
    )


def is_sleeping(url: str) -> bool:
    """Whether a session is in `pg_sleep`."""
    return bool(value(url, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"))


def is_waiting(url: str) -> bool:
    """Whether somebody waits for a lock."""
    return bool(value(url, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))


def take_over(url: str, id: str) -> None:
    """Another worker has claimed the job, as after a lapsed lease."""
    run(
        url,
        "UPDATE async_jobs SET locked_by = 'thief/1-aaaaaaaa', attempts = attempts + 1,"
        " lease_expires_at = now() + interval '60 s' WHERE id = %s",
        [id],
    )


def let_lapse(url: str, id: str) -> None:
    """The job's lease has lapsed by the database's clock, and nobody has taken it."""
    run(
        url,
        "UPDATE async_jobs SET lease_expires_at = now() - interval '1 s' WHERE id = %s",
        [id],
    )


class Lines(logging.Handler):
    """The package's log, by event."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record."""
        self.records.append(record)

    def events(self, *names: str) -> list[str]:
        """The events among these, in their order."""
        found = [getattr(record, "event", "") for record in self.records]
        return [event for event in found if event in names]


@attrs.define
class Stage:
    """A worker that runs one job.

    Attributes:
        url: The database, past every gateway.
        id: The job.
        worker: The worker.
        provider: What the worker uses, where faults can be put in.
        lines: The log.
        errors: What the handler raised, attempt by attempt; None where it returned.
    """

    url: str
    id: str
    worker: AsyncJobWorker
    provider: FaultyProvider
    lines: Lines
    errors: list[BaseException | None]

    async def over(self) -> None:
        """Wait until the worker has let go of the job, and knows how it ended."""
        await until(lambda: self.errors and not self.worker.statistics().held)

    def status(self) -> str:
        """The job's status."""
        return str(column(self.url, self.id, "status"))

    def check_both(self, *effects: str, output: object = "done") -> None:
        """The effects and the result are there, once; and the worker knows."""
        assert notes(self.url) == sorted(effects)
        assert (self.status(), column(self.url, self.id, "output")) == ("completed", output)
        totals = self.worker.statistics().totals
        assert (totals.completed, totals.failed, totals.dropped, totals.handed_back) == (1, 0, 0, 0)
        assert self.lines.events("job.finished", "job.dropped") == ["job.finished"]
        assert is_clean(self.url)

    def check_neither(self, status: str) -> None:
        """Neither an effect nor the handler's result is there, and no lock."""
        assert notes(self.url) == []
        assert (self.status(), column(self.url, self.id, "output")) == (status, None)
        assert self.worker.statistics().totals.completed == 0
        assert is_clean(self.url)

    def error(self) -> str:
        """The text of what the only run raised."""
        (error,) = self.errors
        return str(error)


@asynccontextmanager
async def performing(
    url: str,
    script: Script,
    *,
    config: AsyncJobWorkerConfig = LONG,
    through: str | None = None,
    **settings: Any,  # noqa: ANN401
) -> AsyncIterator[Stage]:
    """A worker that runs `script` for one job, while the block lasts.

    Args:
        url: The database.
        script: The handler.
        config: The worker's.
        through: Where the worker reaches the database, if not at `url`.
        settings: Of the provider.
    """
    errors: list[BaseException | None] = []

    @job_handler(KIND)
    async def handler(context: JobContext) -> Any:  # noqa: ANN401
        try:
            output = await script(context)
        except BaseException as error:
            errors.append(error)
            raise
        errors.append(None)
        return output

    logger = logging.getLogger("hastetrio")
    lines, level = Lines(), logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.DEBUG)
    try:
        async with (
            PostgresJobProvider.open(through or url, **settings) as provider,
            trio.open_nursery() as nursery,
        ):
            faulty = FaultyProvider(provider)
            worker = AsyncJobWorker(faulty, [handler], config, worker_id="stage")
            try:
                # Once it listens it renews whatever it holds: the job comes after that.
                await nursery.start(worker.run)
                yield Stage(url, insert(url), worker, faulty, lines, errors)
            finally:
                worker.stop()
                worker.stop()
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)


class Steps:
    """A handler that goes on when the test says so.

    Attributes:
        at: The step it has reached.
        finishes: Whether it gives its result in the transaction.
        reason: Why it was to leave, when it left.
    """

    def __init__(self, *, finishes: bool = True) -> None:
        self.at = ""
        self.finishes = finishes
        self.reason: CancelReason | None = None
        self.context: JobContext | None = None
        self._go: dict[str, trio.Event] = {}

    def _gate(self, step: str) -> trio.Event:
        return self._go.setdefault(step, trio.Event())

    async def _reach(self, step: str) -> None:
        self.at = step
        await self._gate(step).wait()

    async def reached(self, step: str) -> None:
        """Wait until the handler is at `step`."""
        await until(lambda: self.at == step)

    def go_on(self, *steps: str) -> None:
        """Let it leave these steps."""
        for step in steps:
            self._gate(step).set()

    async def __call__(self, context: JobContext) -> object:
        """Write, finish, commit, and go on a while."""
        self.context = context
        output: object = DONE
        try:
            async with context.transaction() as connection:
                await write(connection)
                await self._reach("written")
                if self.finishes:
                    output = await context.finish(connection, DONE)
                await self._reach("finished")
            await self._reach("committed")
        finally:
            self.reason = context.cancel_reason
        return output


async def cancel(stage: Stage) -> AsyncJob | None:
    """Cancel the job as its client would."""
    async with PostgresJobProvider.open(stage.url) as client:
        return await client.cancel_job(TENANT, PROJECT, stage.id)


async def perform(url: str, script: Script, **settings: Any) -> Stage:  # noqa: ANN401
    """Run `script` for one job until the worker has let go of it."""
    async with performing(url, script, **settings) as stage:
        await stage.over()
    return stage
