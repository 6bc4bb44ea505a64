"""`MemoryJobProvider`: the lease protocol in plain Python, on trio's clock.

For tests, of handlers and of the worker, and as the model that the storage in PostgreSQL is
compared with: each call does what one statement of `sql/queries` does. Nothing outlives the
object, and nothing crosses the process.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final

import trio

from hastetrio._errors import UnsupportedFeature
from hastetrio._memory_clients import MemoryClients
from hastetrio._memory_rows import Row
from hastetrio._model import DAY, AsyncJob, AsyncJobStatus, JobLease, JobResult, LeaseRenewal
from hastetrio._outcome import OUTCOME_LIMIT, abandoned_outcome
from hastetrio._provider import JobFinish, JobTransaction
from hastetrio._storable import clean_text, encode_json

_HAND_BACKS: Final = 10
_ORPHAN_AFTER: Final = timedelta(days=7)


class MemoryJobProvider(MemoryClients):
    """An `AsyncJobProvider` that keeps its rows in this object.

    Its clock is `trio.current_time()`, so that under trio's `MockClock` leases and retentions
    pass in virtual time. One provider belongs to one `trio.run`. Each call is a checkpoint first,
    and then acts at once: a cancelled call did nothing.

    Args:
        parameters_limit: The most bytes of JSON a job's parameters may have.
        claims_limit: The most bytes of JSON a job's claims may have.
    """

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
        row.take(finish.result, finish.progress, now)
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

    async def reschedule_job(
        self,
        id: str,
        lease: JobLease,
        after: float,
        *,
        give_back: bool,
        retention: float,
        failure: str | None = None,
        progress: str | None = None,
    ) -> bool:
        """Let go of a job, to be run again later; see `AsyncJobProvider.reschedule_job`."""
        await trio.lowlevel.checkpoint()
        now = self._now()
        row = self._table.rows.get(id)
        if row is None or row.locked_by != lease.token:
            return row is not None and row.finished_by == lease.token
        if row.status is not AsyncJobStatus.IN_PROGRESS or row.is_expired(now):
            return False
        row.note(failure, progress, now)
        row.run_at = now + timedelta(seconds=after)
        kept = retention if row.retention is None else row.retention
        row.expires_at = max(row.expires_at, row.run_at + timedelta(seconds=kept))
        row.let_go()
        row.updated_at = now
        if give_back:
            row.attempts = max(row.attempts - 1, 0)
        if row.attempts < row.max_attempts:
            self._turn(row, AsyncJobStatus.ACCEPTED)
        else:
            row.error = encode_json(abandoned_outcome(), OUTCOME_LIMIT, "the outcome")
            row.finished_at = now
            self._turn(row, AsyncJobStatus.FAILED)
        return True

    async def save_state(self, id: str, lease: JobLease, state: str) -> bool:
        """Keep a state with a running job; see `AsyncJobProvider.save_state`."""
        await trio.lowlevel.checkpoint()
        row = self._table.held(id, lease.token)
        if (
            row is None
            or row.status is not AsyncJobStatus.IN_PROGRESS
            or row.is_expired(self._now())
        ):
            return False
        row.state = state
        return True

    def transaction(
        self,
        id: str,  # noqa: ARG002
        lease: JobLease,  # noqa: ARG002
    ) -> AbstractAsyncContextManager[JobTransaction]:
        """Refuse: there is no database.

        Raises:
            UnsupportedFeature: Always.
        """
        raise UnsupportedFeature(
            "a memory provider has no transactions: test such a handler on a database, with the "
            "fixture job_database"
        )

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

    def _end(self, row: Row, status: AsyncJobStatus, retention: float, now: datetime) -> None:
        kept = retention if row.retention is None else row.retention
        row.let_go()
        row.finished_at = row.updated_at = now
        row.expires_at = now + timedelta(seconds=kept)
        self._turn(row, status)
