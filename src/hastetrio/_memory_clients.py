"""What clients do with the jobs in memory, and what every call of `MemoryJobProvider` builds on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from heapq import nlargest
from typing import Any, Final

import trio

from hastetrio._errors import LiveJobLimit
from hastetrio._ids import generate_job_id
from hastetrio._memory_rows import Row, Table
from hastetrio._memory_watch import Watchers
from hastetrio._model import DAY, AsyncJob, AsyncJobStatus, CreateAsyncJob
from hastetrio._provider import JobPosition, WatchEvent
from hastetrio._storable import check_text, encode_json

_MIB: Final = 1024 * 1024
_JSON_COLUMNS: Final = ("parameters", "claims", "output", "error", "state", "attempt_errors")


class MemoryClients:
    """The calls of clients; see `MemoryJobProvider`."""

    def __init__(self, *, parameters_limit: int = _MIB, claims_limit: int = _MIB) -> None:
        self._parameters_limit = parameters_limit
        self._claims_limit = claims_limit
        self._table = Table()
        self._watchers = Watchers()
        self._epoch: datetime | None = None
        self._newest: datetime | None = None

    async def create_job(
        self, tenant: str, project: str, job: CreateAsyncJob, *, live_limit: int | None = None
    ) -> AsyncJob:
        """Queue a job; see `AsyncJobProvider.create_job`."""
        await trio.lowlevel.checkpoint()
        now = self._now()
        row = self._new_row(tenant, project, job, now)
        found = self._table.unique(row, now)
        if found is not None:
            return found.as_job()
        if live_limit is not None and self._table.live(tenant, project, now) >= live_limit:
            raise LiveJobLimit(live_limit)
        self._add(row)
        return row.as_job()

    async def create_jobs(
        self, tenant: str, project: str, jobs: Sequence[CreateAsyncJob]
    ) -> list[AsyncJob]:
        """Queue jobs, all or none; see `AsyncJobProvider.create_jobs`."""
        await trio.lowlevel.checkpoint()
        now = self._now()
        rows = [self._new_row(tenant, project, job, now) for job in jobs]
        queued = []
        for row in rows:
            found = self._table.unique(row, now)
            if found is None:
                self._add(row)
            queued.append(found or row)
        return [row.as_job() for row in queued]

    async def retry_job(
        self, tenant: str, project: str, id: str, *, submitted_by: str | None = None
    ) -> AsyncJob | None:
        """Queue a failed job anew; see `AsyncJobProvider.retry_job`."""
        await trio.lowlevel.checkpoint()
        now = self._now()
        failed = self._shown(tenant, project, id, submitted_by, now)
        if failed is None or failed.status is not AsyncJobStatus.FAILED:
            return None
        retention = DAY if failed.retention is None else failed.retention
        row = Row(
            id=generate_job_id(),
            tenant=failed.tenant,
            project=failed.project,
            kind=failed.kind,
            request=failed.request,
            parameters=failed.parameters,
            claims=failed.claims,
            submitted_by=failed.submitted_by,
            max_attempts=max(failed.max_attempts, 1),
            created_at=(created_at := self._next_moment(now)),
            updated_at=created_at,
            run_at=now,
            expires_at=now + timedelta(seconds=retention),
            retention=failed.retention,
        )
        self._add(row)
        return row.as_job()

    async def read_job(
        self, tenant: str, project: str, id: str, *, submitted_by: str | None = None
    ) -> AsyncJob | None:
        """A job that has not expired; see `AsyncJobProvider.read_job`."""
        await trio.lowlevel.checkpoint()
        row = self._shown(tenant, project, id, submitted_by, self._now())
        return None if row is None else row.as_job()

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
        """A page of jobs, newest first; see `AsyncJobProvider.list_jobs`."""
        await trio.lowlevel.checkpoint()
        now = self._now()
        found = (
            row
            for row in self._table.rows.values()
            if (row.tenant, row.project) == (tenant, project)
            and not row.is_expired(now)
            and (status is None or row.status is status)
            and (kind is None or row.kind == kind)
            and (submitted_by is None or row.submitted_by == submitted_by)
            and (before is None or row.age < (before.created_at, before.id))
        )
        return [row.as_job() for row in nlargest(limit, found, key=lambda row: row.age)]

    async def count_live_jobs(self, tenant: str, project: str) -> int:
        """Queued and running jobs; see `AsyncJobProvider.count_live_jobs`."""
        await trio.lowlevel.checkpoint()
        return self._table.live(tenant, project, self._now())

    async def cancel_job(
        self, tenant: str, project: str, id: str, *, submitted_by: str | None = None
    ) -> AsyncJob | None:
        """Cancel a job; see `AsyncJobProvider.cancel_job`."""
        await trio.lowlevel.checkpoint()
        now = self._now()
        row = self._shown(tenant, project, id, submitted_by, now)
        if row is None or row.status is AsyncJobStatus.CANCELLED:
            return None
        before = row.as_job()
        row.output = row.output_content_type = row.error = row.progress = None
        row.attempt_errors = None
        row.expires_at = row.updated_at = now
        row.finished_at = row.finished_at or now
        self._turn(row, AsyncJobStatus.CANCELLED)
        return before

    def watch(
        self, kinds: Collection[str]
    ) -> AbstractAsyncContextManager[trio.MemoryReceiveChannel[WatchEvent]]:
        """Notifications; one that falls behind reads `WatchRestored` for what it lost."""
        return self._watchers.watch(kinds)

    def insert_row(self, **columns: Any) -> AsyncJob:  # noqa: ANN401  # columns of many types
        """Insert a row as a foreign program would, and return it.

        Tenant, project and kind are enough; what is left out has the table's default. JSON columns
        take their value, `retention` takes seconds.

        Raises:
            TypeError: A column is missing, or is none of the table's.
            ValueError: The id is taken, or the row breaks a CHECK constraint of the table.
        """
        now = self._now()
        for column in _JSON_COLUMNS:
            if columns.get(column) is not None:
                columns[column] = encode_json(columns[column], 2**28, column)
        if "status" in columns:
            columns["status"] = AsyncJobStatus(columns["status"])
        defaults: dict[str, Any] = {
            "id": generate_job_id(),
            "created_at": now,
            "updated_at": now,
            "run_at": now,
            "expires_at": now + timedelta(seconds=DAY),
        }
        row = Row(**(defaults | columns))
        row.check_shape()
        self._add(row)
        return row.as_job()

    def seconds_until(self, time: datetime) -> float:
        """Seconds from now, on trio's clock, until a time of a job's; negative where it is past."""
        return (time - self._now()).total_seconds()

    def _now(self) -> datetime:
        seconds = timedelta(seconds=trio.current_time())
        if self._epoch is None:
            self._epoch = datetime.now(UTC) - seconds
        return self._epoch + seconds

    def _new_row(self, tenant: str, project: str, job: CreateAsyncJob, now: datetime) -> Row:
        parameters = encode_json(job.parameters, self._parameters_limit, "the parameters")
        claims = encode_json(job.claims, self._claims_limit, "the claims")
        created_at = self._next_moment(now)
        run_at = now if job.run_at is None else job.run_at
        return Row(
            id=generate_job_id(),
            tenant=check_text(tenant, "tenant"),
            project=check_text(project, "project"),
            kind=job.kind,
            request=job.request,
            parameters=parameters,
            claims=claims,
            submitted_by=job.submitted_by,
            max_attempts=job.max_attempts,
            created_at=created_at,
            updated_at=created_at,
            run_at=run_at,
            unique_key=job.unique_key,
            expires_at=max(now, run_at) + timedelta(seconds=job.retention),
            retention=job.retention,
        )

    def _next_moment(self, now: datetime) -> datetime:
        # Virtual time stands still between two calls. A microsecond apart, the jobs keep their
        # order in "oldest first"; with equal times it would be that of their random ids.
        if self._newest is not None and self._newest >= now:
            now = self._newest + timedelta(microseconds=1)
        self._newest = now
        return now

    def _add(self, row: Row) -> None:
        self._table.add(row)
        if row.status is AsyncJobStatus.ACCEPTED and row.run_at <= self._now():
            self._watchers.queued(row.kind)

    def _shown(
        self, tenant: str, project: str, id: str, submitted_by: str | None, now: datetime
    ) -> Row | None:
        row = self._table.rows.get(id)
        if row is None or (row.tenant, row.project) != (tenant, project) or row.is_expired(now):
            return None
        return row if submitted_by in (None, row.submitted_by) else None

    def _turn(self, row: Row, status: AsyncJobStatus) -> None:
        was_running = row.status is AsyncJobStatus.IN_PROGRESS
        self._table.set_status(row, status)
        if was_running and status is AsyncJobStatus.ACCEPTED:
            if row.run_at <= self._now():
                self._watchers.queued(row.kind)
        elif was_running and status is AsyncJobStatus.CANCELLED:
            self._watchers.cancelled(row.id)
