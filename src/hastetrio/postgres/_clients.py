"""What clients do with jobs: queue, read, list, count, cancel, retry. One unit a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from hastetrio._errors import LiveJobLimit, UnstorableValue
from hastetrio._ids import generate_job_id
from hastetrio._sql import query
from hastetrio._storable import is_text
from hastetrio.postgres._create import Creation
from hastetrio.postgres._pool import LanePool
from hastetrio.postgres._rows import read_visible_jobs
from hastetrio.postgres._unit import unit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hastetrio._model import AsyncJob, AsyncJobStatus, CreateAsyncJob
    from hastetrio._provider import JobPosition
    from hastetrio.postgres._connection import TrioConnection


class ClientCalls:
    """The calls of clients; see `PostgresJobProvider`.

    Their connections are apart from those of leases: no number of calls makes a renewal late.
    """

    def __init__(
        self,
        dsn: str,
        *,
        call_budget: float,
        prepared_statements: bool,
        parameters_limit: int,
        claims_limit: int,
        client_connections: int,
    ) -> None:
        self._budget = call_budget
        self._prepared = prepared_statements
        self._parameters_limit = parameters_limit
        self._claims_limit = claims_limit
        self._clients = LanePool(
            dsn, size=client_connections, budget=call_budget, prepared=prepared_statements
        )

    async def create_job(
        self,
        tenant: str,
        project: str,
        job: CreateAsyncJob,
        *,
        live_limit: int | None = None,
        connection: TrioConnection | None = None,
    ) -> AsyncJob:
        """Queue a job; see `AsyncJobProvider.create_job`.

        Args:
            tenant: The tenant the job belongs to.
            project: The project of that tenant.
            job: What to run, and as whom.
            live_limit: The most live jobs the project may have.
            connection: A connection with an open transaction of the caller's, to queue the job
                in: both are committed, or neither.
        """
        creation = self._creation(tenant, project, [job], live_limit)
        if connection is not None:
            async with unit(connection, self._budget):
                jobs = await creation.insert(connection)
        else:
            jobs = await self._insert(creation)
        if not jobs:
            raise LiveJobLimit(live_limit or 0)
        return jobs[0]

    async def create_jobs(
        self, tenant: str, project: str, jobs: Sequence[CreateAsyncJob]
    ) -> list[AsyncJob]:
        """Queue several jobs, all or none; see `AsyncJobProvider.create_jobs`."""
        if not jobs:
            await trio.lowlevel.checkpoint()
            return []
        return await self._insert(self._creation(tenant, project, jobs, None))

    async def _insert(self, creation: Creation) -> list[AsyncJob]:
        async with self._clients.unit() as connection:
            if not creation.needs_transaction:
                # One statement is a transaction; to say so takes two round trips more.
                return await creation.insert(connection)
            async with connection.transaction():
                return await creation.insert(connection)

    async def retry_job(
        self, tenant: str, project: str, id: str, *, submitted_by: str | None = None
    ) -> AsyncJob | None:
        """Queue a failed job anew; see `AsyncJobProvider.retry_job`."""
        if not all(map(is_text, (tenant, project, id))):
            return None
        where = {"tenant": tenant, "project": project, "id": id, "submitted_by": submitted_by}
        jobs, unreadable = await self._clients.fetch_jobs(
            "retry_job", {**where, "new_id": generate_job_id()}
        )
        if unreadable:
            raise UnstorableValue(f"job {unreadable[0]} was queued, but its row cannot be read")
        return jobs[0] if jobs else None

    def _creation(
        self, tenant: str, project: str, jobs: Sequence[CreateAsyncJob], live_limit: int | None
    ) -> Creation:
        return Creation(
            tenant,
            project,
            jobs,
            live_limit=live_limit,
            parameters_limit=self._parameters_limit,
            claims_limit=self._claims_limit,
            prepared=self._prepared,
        )

    async def read_job(
        self, tenant: str, project: str, id: str, *, submitted_by: str | None = None
    ) -> AsyncJob | None:
        """A job of this project, until it expires; see `AsyncJobProvider.read_job`.

        One whose row cannot be read is shown without its JSON, here and in lists.
        """
        if not all(map(is_text, (tenant, project, id))):
            return None
        where = {"tenant": tenant, "project": project, "id": id, "submitted_by": submitted_by}
        jobs = await self._show("read_job", where)
        return jobs[0] if jobs else None

    async def list_jobs(
        self,
        tenant: str,
        project: str,
        *,
        status: AsyncJobStatus | None = None,
        kind: str | None = None,
        submitted_by: str | None = None,
        limit: int = 50,
        before: JobPosition | None = None,
    ) -> list[AsyncJob]:
        """Jobs of this project, newest first; see `AsyncJobProvider.list_jobs`."""
        where = {
            "tenant": tenant,
            "project": project,
            "status": status.value if status else None,
            "kind": kind,
            "submitted_by": submitted_by,
            "limit": limit,
            "before_id": before.id if before else None,
            "before_created_at": before.created_at if before else None,
        }
        texts = (value for value in where.values() if isinstance(value, str))
        return await self._show("list_jobs", where) if all(map(is_text, texts)) else []

    async def count_live_jobs(self, tenant: str, project: str) -> int:
        """Jobs of this project that are queued or running."""
        if not (is_text(tenant) and is_text(project)):
            return 0
        where = {"tenant": tenant, "project": project}
        rows = await self._clients.fetch(query("count_live_jobs"), where)
        return int(rows[0][0])

    async def cancel_job(
        self, tenant: str, project: str, id: str, *, submitted_by: str | None = None
    ) -> AsyncJob | None:
        """Cancel a job; see `AsyncJobProvider.cancel_job`."""
        if not all(map(is_text, (tenant, project, id))):
            return None
        where = {"tenant": tenant, "project": project, "id": id, "submitted_by": submitted_by}
        jobs, unreadable = await self._clients.fetch_jobs("cancel_job", where)
        if unreadable:
            raise UnstorableValue(f"job {id} was cancelled, but its row cannot be read")
        return jobs[0] if jobs else None

    async def _show(self, name: str, parameters: Mapping[str, Any]) -> list[AsyncJob]:
        async with self._clients.unit() as connection:
            return await read_visible_jobs(connection, name, parameters, prepare=self._prepared)
