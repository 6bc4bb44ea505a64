"""`MemoryJobProvider`: the lease protocol in plain Python, on trio's clock.

For tests, of handlers and of the worker, and as the model that the storage in PostgreSQL is
compared with: each call does what one statement of `sql/queries` does. Nothing outlives the
object, and nothing crosses the process.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from heapq import nlargest
from itertools import islice
from typing import Any, Final

import trio

from hastetrio._errors import LiveJobLimit
from hastetrio._ids import generate_job_id
from hastetrio._memory_rows import Row, Table
from hastetrio._memory_watch import Watchers
from hastetrio._model import (
    DAY,
    AsyncJob,
    AsyncJobStatus,
    CreateAsyncJob,
    JobLease,
    JobResult,
    LeaseRenewal,
)
from hastetrio._outcome import OUTCOME_LIMIT, abandoned_outcome
from hastetrio._provider import JobFinish, JobPosition, WatchEvent
from hastetrio._storable import check_text, clean_text, encode_json

_MIB: Final = 1024 * 1024
_HAND_BACKS: Final = 10
_ORPHAN_AFTER: Final = timedelta(days=7)
_JSON_COLUMNS: Final = ("parameters", "claims", "output", "error")


class MemoryJobProvider:
    """An `AsyncJobProvider` that keeps its rows in this object.

    Its clock is `trio.current_time()`, so that under trio's `MockClock` leases and retentions
    pass in virtual time. One provider belongs to one `trio.run`. Each call is a checkpoint first,
    and then acts at once: a cancelled call did nothing.

    Args:
        parameters_limit: The most bytes of JSON a job's parameters may have.
        claims_limit: The most bytes of JSON a job's claims may have.
    """

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
        for row in rows:
            self._add(row)
        return [row.as_job() for row in rows]

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
        row.expires_at = row.updated_at = now
        row.finished_at = row.finished_at or now
        self._turn(row, AsyncJobStatus.CANCELLED)
        return before

    async def claim_jobs(
        self,
        kinds: Collection[str],
        lease: JobLease,
        limit: int,
        *,
        exclude: Collection[str] = (),
        last_chances: int | None = None,
    ) -> list[AsyncJob]:
        """Take claimable jobs; see `AsyncJobProvider.claim_jobs`."""
        await trio.lowlevel.checkpoint()
        now = self._now()
        chances = limit if last_chances is None else min(limit, last_chances)
        rows = self._table.claimable(set(kinds), limit, chances, set(exclude), now)
        for row in rows:
            self._turn(row, AsyncJobStatus.IN_PROGRESS)
            row.attempts += 1
            row.progress = None
            # Jobs made at one moment of the clock are a microsecond apart: see `_new_row`.
            row.started_at = row.started_at or max(now, row.created_at)
            row.updated_at = now
            row.hold(lease, now)
        return [row.as_job() for row in rows]

    async def forget_claim(self, lease: JobLease) -> int:
        """Hand back what an unanswered claim took; see `AsyncJobProvider.forget_claim`."""
        await trio.lowlevel.checkpoint()
        now = self._now()
        rows = [row for row in self._table.running() if row.locked_by == lease.token]
        for row in rows:
            row.let_go()
            row.attempts = max(row.attempts - 1, 0)
            row.updated_at = now
            self._turn(row, AsyncJobStatus.ACCEPTED)
        return len(rows)

    async def renew_lease(
        self, id: str, lease: JobLease, progress: str | None = None
    ) -> LeaseRenewal:
        """Extend a lease; see `AsyncJobProvider.renew_lease`."""
        await trio.lowlevel.checkpoint()
        now = self._now()
        row = self._table.held(id, lease.token)
        if row is None:
            return LeaseRenewal.LOST
        row.hold(lease, now)
        if row.status is AsyncJobStatus.IN_PROGRESS and progress is not None:
            row.progress = clean_text(progress)
        row.updated_at = max(now, row.updated_at)
        if row.status is AsyncJobStatus.CANCELLED:
            return LeaseRenewal.CANCELLED
        return LeaseRenewal.EXPIRED if row.is_expired(now) else LeaseRenewal.RENEWED

    async def finish_job(
        self,
        id: str,
        lease: JobLease,
        result: JobResult,
        retention: float,
        progress: str | None = None,
    ) -> bool:
        """Record a result, fenced; see `AsyncJobProvider.finish_job`."""
        await trio.lowlevel.checkpoint()
        return self._finish(JobFinish(id, lease, result, retention, progress))

    async def finish_jobs(self, finishes: Sequence[JobFinish]) -> list[bool]:
        """Record several results; see `AsyncJobProvider.finish_jobs`."""
        await trio.lowlevel.checkpoint()
        return list(map(self._finish, finishes))

    def _finish(self, finish: JobFinish) -> bool:
        now = self._now()
        row = self._table.rows.get(finish.id)
        if row is None or row.locked_by != finish.lease.token:
            return row is not None and row.finished_by == finish.lease.token
        if row.status is not AsyncJobStatus.IN_PROGRESS or row.is_expired(now):
            return False
        row.take(finish.result, finish.progress)
        self._end(row, finish.result.status, finish.retention, now)
        return True

    async def release_job(self, id: str, lease: JobLease, *, give_back: bool = True) -> bool:
        """Let go of a job; see `AsyncJobProvider.release_job`."""
        await trio.lowlevel.checkpoint()
        now = self._now()
        row = self._table.held(id, lease.token)
        if row is None:
            return False
        row.let_go()
        row.updated_at = now
        if row.status is not AsyncJobStatus.IN_PROGRESS:
            return True
        if give_back and row.hand_backs < _HAND_BACKS:
            row.hand_backs += 1
            row.attempts = max(row.attempts - 1, 0)
        if row.is_expired(now):
            # Queued it could not be, with its attempts spent, and its time is over anyway.
            row.finished_at = now
            self._turn(row, AsyncJobStatus.CANCELLED)
        elif row.attempts >= row.max_attempts:
            row.error = encode_json(abandoned_outcome(), OUTCOME_LIMIT, "the outcome")
            self._end(row, AsyncJobStatus.FAILED, DAY, now)
        else:
            self._turn(row, AsyncJobStatus.ACCEPTED)
        return True

    async def fail_abandoned_jobs(
        self, outcome: Mapping[str, Any], retention: float, limit: int
    ) -> int:
        """Fail abandoned jobs; see `AsyncJobProvider.fail_abandoned_jobs`."""
        await trio.lowlevel.checkpoint()
        now = self._now()
        error = encode_json(dict(outcome), OUTCOME_LIMIT, "the outcome")
        due = (
            row
            for row in self._table.running()
            if row.is_lapsed(now) and row.attempts >= row.max_attempts and not row.is_expired(now)
        )
        rows = list(islice(due, limit))
        for row in rows:
            row.error = error
            self._end(row, AsyncJobStatus.FAILED, retention, now)
        return len(rows)

    async def claim_expired_jobs(
        self, kinds: Collection[str], lease: JobLease, limit: int
    ) -> list[AsyncJob]:
        """Take expired jobs for their clean-up; see `AsyncJobProvider.claim_expired_jobs`."""
        await trio.lowlevel.checkpoint()
        now = self._now()
        due = (row for row in self._table.expired(now, now) if row.kind in set(kinds))
        rows = list(islice(due, limit))
        for row in rows:
            row.let_go()
            row.hold(lease, now)
            row.updated_at = now
            if row.status.is_live:
                self._turn(row, AsyncJobStatus.CANCELLED)
        return [row.as_job() for row in rows]

    async def delete_expired_job(self, id: str, lease: JobLease) -> bool:
        """Delete a job after its clean-up; see `AsyncJobProvider.delete_expired_job`."""
        await trio.lowlevel.checkpoint()
        row = self._table.held(id, lease.token)
        if row is None or not row.is_expired(self._now()):
            return False
        self._table.remove(row)
        return True

    async def discard_expired_jobs(self, kinds: Collection[str], limit: int) -> int:
        """Delete what needs no clean-up; see `AsyncJobProvider.discard_expired_jobs`."""
        await trio.lowlevel.checkpoint()
        now = self._now()
        due = [row for row in self._table.expired(now, now) if row.kind in set(kinds)][:limit]
        for row in due:
            self._table.remove(row)
        return len(due)

    async def delete_orphans(self, limit: int) -> dict[str, int]:
        """Delete what nobody cleans up after; see `AsyncJobProvider.delete_orphans`."""
        await trio.lowlevel.checkpoint()
        now = self._now()
        deleted: dict[str, int] = {}
        for row in self._table.expired(now - _ORPHAN_AFTER, now)[:limit]:
            self._table.remove(row)
            deleted[row.kind] = deleted.get(row.kind, 0) + 1
        return deleted

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
            "expires_at": now + timedelta(seconds=DAY),
        }
        row = Row(**(defaults | columns))
        row.check_shape()
        self._add(row)
        return row.as_job()

    def _now(self) -> datetime:
        seconds = timedelta(seconds=trio.current_time())
        if self._epoch is None:
            self._epoch = datetime.now(UTC) - seconds
        return self._epoch + seconds

    def _new_row(self, tenant: str, project: str, job: CreateAsyncJob, now: datetime) -> Row:
        parameters = encode_json(job.parameters, self._parameters_limit, "the parameters")
        claims = encode_json(job.claims, self._claims_limit, "the claims")
        # Virtual time stands still between two calls. A microsecond apart, the jobs keep their
        # order in "oldest first"; with equal times it would be that of their random ids.
        created_at = now
        if self._newest is not None and self._newest >= now:
            created_at = self._newest + timedelta(microseconds=1)
        self._newest = created_at
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
            expires_at=now + timedelta(seconds=job.retention),
            retention=job.retention,
        )

    def _add(self, row: Row) -> None:
        self._table.add(row)
        if row.status is AsyncJobStatus.ACCEPTED:
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
            self._watchers.queued(row.kind)
        elif was_running and status is AsyncJobStatus.CANCELLED:
            self._watchers.cancelled(row.id)

    def _end(self, row: Row, status: AsyncJobStatus, retention: float, now: datetime) -> None:
        kept = retention if row.retention is None else row.retention
        row.let_go()
        row.finished_at = row.updated_at = now
        row.expires_at = now + timedelta(seconds=kept)
        self._turn(row, status)
