"""A provider in a world of its own, where time passes when a test says so."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import psycopg
import trio
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from trio.testing import MockClock

from hastetrio._model import AsyncJob, CreateAsyncJob, JobLease
from hastetrio._provider import AsyncJobProvider
from hastetrio._storable import decode_json
from hastetrio.memory import MemoryJobProvider

TENANT = "acme"
PROJECT = "main"
KIND = "work"
MINUTE = 60.0
DAY = 86400.0
JSON_COLUMNS = ("parameters", "claims", "output", "error", "state", "attempt_errors")


def kick_off(kind: str = KIND, *, sub: str = "ann", **values: Any) -> CreateAsyncJob:  # noqa: ANN401
    """A job to create, submitted by `sub`."""
    return CreateAsyncJob(kind=kind, claims={"sub": sub}, **values)


def new_lease(duration: float = MINUTE, worker: str = "worker-1") -> JobLease:
    """A lease with a token of its own."""
    return JobLease(worker, duration)


class World(ABC):
    """A provider, and what a test does around it."""

    provider: AsyncJobProvider

    @abstractmethod
    async def pass_time(self, seconds: float) -> None:
        """Let so many seconds pass for the provider."""

    @abstractmethod
    async def insert_row(self, **columns: Any) -> str:  # noqa: ANN401
        """Insert a row as a foreign program would; a time is a `timedelta` from now."""

    @abstractmethod
    async def row(self, id: str) -> dict[str, Any] | None:
        """The columns of a row as they are stored, whatever its state."""

    @abstractmethod
    async def moment(self, seconds: float = 0.0) -> datetime:
        """The provider's time, `seconds` from now."""

    @abstractmethod
    def locked(self, id: str) -> AbstractAsyncContextManager[None]:
        """A row that somebody else's transaction has locked, where there are such, meanwhile."""

    @abstractmethod
    def peers(self, number: int) -> AbstractAsyncContextManager[list[AsyncJobProvider]]:
        """Providers on the same storage, as further processes would have: each its own session."""

    async def stored(self, id: str) -> dict[str, Any]:
        """The columns of a row that must be there."""
        row = await self.row(id)
        if row is None:
            raise AssertionError(f"the row {id} is gone")
        return row

    async def create(self, kind: str = KIND, **values: Any) -> AsyncJob:  # noqa: ANN401
        """Queue a job of the one project the tests use."""
        return await self.provider.create_job(TENANT, PROJECT, kick_off(kind, **values))

    async def read(self, id: str) -> AsyncJob | None:
        """What a client sees of a job."""
        return await self.provider.read_job(TENANT, PROJECT, id)

    async def cancel(self, id: str) -> AsyncJob | None:
        """Cancel a job as its client."""
        return await self.provider.cancel_job(TENANT, PROJECT, id)

    async def claim(self, lease: JobLease, limit: int = 100, kind: str = KIND) -> list[str]:
        """Claim jobs of one kind; their ids."""
        return [job.id for job in await self.provider.claim_jobs([kind], lease, limit)]

    async def sweep(self, lease: JobLease, limit: int = 100, kind: str = KIND) -> list[str]:
        """Claim expired jobs of one kind for their clean-up; their ids."""
        return [job.id for job in await self.provider.claim_expired_jobs([kind], lease, limit)]

    async def start(
        self,
        duration: float = MINUTE,
        **values: Any,  # noqa: ANN401
    ) -> tuple[AsyncJob, JobLease]:
        """Queue a job and claim it: the claimed job, and its lease."""
        created = await self.create(**values)
        lease = new_lease(duration)
        (job,) = await self.provider.claim_jobs([created.kind], lease, 1)
        if job.id != created.id:
            raise AssertionError("another job was waiting")
        return job, lease


class MemoryWorld(World):
    """The memory provider, on a mock clock."""

    def __init__(self) -> None:
        self._memory = MemoryJobProvider()
        self.provider = self._memory

    async def pass_time(self, seconds: float) -> None:
        clock = trio.lowlevel.current_clock()
        if not isinstance(clock, MockClock):
            raise TypeError("virtual time needs a MockClock")
        clock.jump(seconds)

    async def insert_row(self, **columns: Any) -> str:  # noqa: ANN401
        now = self._memory._now()
        values = {
            name: now + value if isinstance(value, timedelta) else value
            for name, value in columns.items()
        }
        return self._memory.insert_row(**values).id

    async def row(self, id: str) -> dict[str, Any] | None:
        row = self._memory._table.rows.get(id)
        if row is None:
            return None
        columns = attrs.asdict(row)
        for name in JSON_COLUMNS:
            columns[name] = None if columns[name] is None else decode_json(columns[name])
        return columns | {"status": row.status.value}

    async def moment(self, seconds: float = 0.0) -> datetime:
        return self._memory._now() + timedelta(seconds=seconds)

    @asynccontextmanager
    async def locked(self, id: str) -> AsyncIterator[None]:
        yield

    @asynccontextmanager
    async def peers(self, number: int) -> AsyncIterator[list[AsyncJobProvider]]:
        yield [self.provider] * number


class PostgresWorld(World):
    """The PostgreSQL provider; time passes by moving every stored time back."""

    def __init__(self, provider: AsyncJobProvider, url: str) -> None:
        self.provider = provider
        self._url = url

    async def pass_time(self, seconds: float) -> None:
        times = (
            "lease_expires_at",
            "created_at",
            "updated_at",
            "started_at",
            "finished_at",
            "expires_at",
            "run_at",
        )
        shifts = sql.SQL(", ").join(
            sql.SQL("{0} = {0} - %(passed)s").format(sql.Identifier(time)) for time in times
        )
        await self._run(
            sql.SQL("UPDATE async_jobs SET {}").format(shifts),
            {"passed": timedelta(seconds=seconds)},
        )

    async def insert_row(self, **columns: Any) -> str:  # noqa: ANN401
        names, places, values = [], [], {}
        for name, value in columns.items():
            names.append(sql.Identifier(name))
            is_time = isinstance(value, timedelta) and name != "retention"
            places.append(sql.SQL("now() + {}" if is_time else "{}").format(sql.Placeholder(name)))
            values[name] = Jsonb(value) if name in JSON_COLUMNS and value is not None else value
            if name == "retention" and value is not None:
                values[name] = timedelta(seconds=value)
        statement = sql.SQL("INSERT INTO async_jobs ({}) VALUES ({}) RETURNING id").format(
            sql.SQL(", ").join(names), sql.SQL(", ").join(places)
        )
        (row,) = await self._run(statement, values)
        return str(row["id"])

    async def row(self, id: str) -> dict[str, Any] | None:
        rows = await self._run(sql.SQL("SELECT * FROM async_jobs WHERE id = %(id)s"), {"id": id})
        return rows[0] if rows else None

    async def moment(self, seconds: float = 0.0) -> datetime:
        (row,) = await self._run(sql.SQL("SELECT now() AS now"), {})
        now: datetime = row["now"]
        return now.astimezone(UTC) + timedelta(seconds=seconds)

    @asynccontextmanager
    async def locked(self, id: str) -> AsyncIterator[None]:
        statement = "SELECT 1 FROM async_jobs WHERE id = %s FOR UPDATE"
        # At once, in trio's thread: nobody has it locked before.
        with psycopg.connect(self._url) as connection:
            if connection.execute(statement, [id]).fetchone() is None:
                raise AssertionError(f"the row {id} is gone")
            yield

    @asynccontextmanager
    async def peers(self, number: int) -> AsyncIterator[list[AsyncJobProvider]]:
        from hastetrio.postgres import PostgresJobProvider

        async with AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(PostgresJobProvider.open(self._url))
                for _ in range(number)
            ]

    async def waiting(self) -> int:
        """How many sessions wait for a lock that another one has."""
        (row,) = await self._run(
            sql.SQL(
                "SELECT count(*) AS sessions FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ),
            {},
        )
        return int(row["sessions"])

    async def _run(
        self, statement: sql.SQL | sql.Composed, values: dict[str, Any]
    ) -> list[dict[str, Any]]:
        def run() -> list[dict[str, Any]]:
            with psycopg.connect(self._url, row_factory=dict_row) as connection:
                cursor = connection.execute(statement, values)
                return cursor.fetchall() if cursor.description else []

        return await trio.to_thread.run_sync(run)


@asynccontextmanager
async def open_world(url: str | None) -> AsyncIterator[World]:
    """A world on the migrated database at `url`, or in memory."""
    if url is None:
        yield MemoryWorld()
        return
    from hastetrio.postgres import PostgresJobProvider

    async with PostgresJobProvider.open(url) as provider:
        yield PostgresWorld(provider, url)
