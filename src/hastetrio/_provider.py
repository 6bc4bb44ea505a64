"""The storage protocol: every promise a provider makes to the worker and to a server.

`PostgresJobProvider` and `MemoryJobProvider` keep it; one contract suite runs on both.

Every call may raise `ProviderUnavailable`, which means that nothing is known: the call may have
been applied. All are safe to repeat. Only the provider's own clock decides about leases and
expiry; callers pass durations.

Cancellation: a cancelled call leaves no transaction open and no lock held. Whether it was applied
is unknown, as after `ProviderUnavailable`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Protocol, TypeAlias

import attrs
import trio

from hastetrio._model import (
    AsyncJob,
    AsyncJobStatus,
    CreateAsyncJob,
    JobLease,
    JobResult,
    LeaseRenewal,
)


@attrs.frozen
class JobQueued:
    """Jobs of `kind` became claimable. A hint: the poll stands behind it."""

    kind: str


@attrs.frozen
class JobCancelled:
    """The job may have been cancelled. A hint: only a renewal's answer is believed."""

    id: str


@attrs.frozen
class WatchRestored:
    """Notifications flow (again); any number may have been missed before."""


WatchEvent: TypeAlias = JobQueued | JobCancelled | WatchRestored


class JobPosition(Protocol):
    """Where a page of a list ended: a job, or what a client kept of one."""

    @property
    def created_at(self) -> datetime:
        """When the job was queued."""

    @property
    def id(self) -> str:
        """The job's id."""


@attrs.frozen
class JobFinish:
    """How a job held under a lease ended, for `AsyncJobProvider.finish_jobs`."""

    id: str
    lease: JobLease
    result: JobResult
    retention: float
    progress: str | None = None

    @property
    def token(self) -> str:
        """The claim's token."""
        return self.lease.token

    @property
    def size(self) -> int:
        """Characters of JSON in the result."""
        return len(self.result.output_json or self.result.error_json or "")


class JobTransaction(Protocol):
    """An open transaction in which a handler writes, and in which its job's result may go along."""

    @property
    def connection(self) -> Any:  # noqa: ANN401  # what kind it is, the storage says
        """The connection, in the transaction."""

    async def finish(self, finish: JobFinish) -> bool:
        """Record a result in the transaction; it counts once that is committed.

        Returns:
            False if the job was not this claim's to finish.

        Raises:
            UnstorableValue: The storage refuses this result; the transaction is to be rolled back.
        """


class AsyncJobProvider(Protocol):
    """Storage for asynchronous jobs."""

    async def create_job(
        self, tenant: str, project: str, job: CreateAsyncJob, *, live_limit: int | None = None
    ) -> AsyncJob:
        """Queue a job under a new id, and return it as stored.

        With a `unique_key` that a live job of the project and kind has, nothing is queued, and that
        job is returned: its id is the same for all who ask at once. The limit does not matter then.

        Args:
            tenant: The tenant the job belongs to.
            project: The project of that tenant.
            job: What to run, and as whom.
            live_limit: The most queued and running jobs the project may have, this one included;
                enforced without a race.

        Raises:
            LiveJobLimit: The project has that many live jobs already.
            UnstorableValue: The parameters or claims are not JSON that can be stored, or exceed
                the provider's limits.
        """

    async def create_jobs(
        self, tenant: str, project: str, jobs: Sequence[CreateAsyncJob]
    ) -> list[AsyncJob]:
        """Queue several jobs, all or none, and return them in the same order.

        Raises:
            UnstorableValue: As for `create_job`; then none was queued.
        """

    async def retry_job(
        self, tenant: str, project: str, id: str, *, submitted_by: str | None = None
    ) -> AsyncJob | None:
        """Queue a failed job anew, as a job of its own: same kind, parameters, claims and limits.

        The failed job stays as it is. The new one has no unique key and no saved state.

        Returns:
            The new job; None if there is no such failed job (of this submitter, where given).
        """

    async def read_job(
        self, tenant: str, project: str, id: str, *, submitted_by: str | None = None
    ) -> AsyncJob | None:
        """A job of this project (and of this submitter, where given), until it expires."""

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
        """Jobs of this project that have not expired, newest first.

        Args:
            tenant: The tenant.
            project: The project.
            status: Only jobs of this status.
            kind: Only jobs of this kind.
            submitted_by: Only jobs of this submitter.
            limit: The most jobs to return.
            before: The last job of the previous page.
        """

    async def count_live_jobs(self, tenant: str, project: str) -> int:
        """Jobs of this project that are queued or running and have not expired."""

    async def cancel_job(
        self, tenant: str, project: str, id: str, *, submitted_by: str | None = None
    ) -> AsyncJob | None:
        """Cancel a job of this project, and return it as it was before.

        A queued job never runs; a running one finds out at its next renewal, which the
        notification makes due at once; a finished one gives up its result.

        Returns:
            None if there is no such job, or it was cancelled before, or it has expired.
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
        """Take up to `limit` claimable jobs of `kinds` under `lease`, oldest first.

        Claimable is a job that is queued and due (`run_at`), or in progress with a lapsed lease,
        with attempts left, and not expired. Oldest is what became due first. No two claims take the
        same job. A row that cannot be read is recorded as failed and left out.

        Args:
            kinds: The kinds to take.
            lease: The token to hold them under, made for this one call.
            limit: The most jobs to take.
            exclude: Ids to leave alone: their bodies still unwind in this process.
            last_chances: The most of them that may be lapsed and on their last attempt; None for
                any number. Jobs that died together are otherwise run together again, until the
                one that kills its process has used up everybody's attempts.
        """

    async def forget_claim(self, lease: JobLease) -> int:
        """Hand back whatever a claim took that was never answered; returns how many.

        Rows that were started since by the same token must not be among them: call it only for a
        token none of whose jobs was started.
        """

    async def renew_lease(
        self, id: str, lease: JobLease, progress: str | None = None
    ) -> LeaseRenewal:
        """Extend the lease on a job held under `lease.token`, and record `progress` if given.

        The lease only grows: it ends `lease.duration` from now, or later if it did before.
        """

    async def finish_job(
        self,
        id: str,
        lease: JobLease,
        result: JobResult,
        retention: float,
        progress: str | None = None,
    ) -> bool:
        """Record the result of a job held under `lease.token`, and let go of it.

        Args:
            id: The job.
            lease: The claim it is held under.
            result: How it ended.
            retention: Seconds to keep it, for a job without a retention of its own.
            progress: The last progress, if it was not recorded yet.

        Returns:
            True if the result is recorded, also for a repeat of one that was. False if the job
            was not this claim's to finish: cancelled, expired, or taken over.

        Raises:
            UnstorableValue: The storage refuses this result; nothing was recorded.
        """

    async def finish_jobs(self, finishes: Sequence[JobFinish]) -> list[bool]:
        """Record several results at once, each as `finish_job` would.

        Returns:
            For each whether it is recorded. False says nothing about why not, nor that the storage
            refuses it: `finish_job` tells.
        """

    async def release_job(self, id: str, lease: JobLease, *, give_back: bool = True) -> bool:
        """Let go of a job held under `lease.token`: a running one is queued again.

        Args:
            id: The job.
            lease: The claim it is held under.
            give_back: Whether the attempt is given back, at most ten times a job. A job that is
                left without attempts ends failed, as abandoned.

        Returns:
            False if the job was not held under that token.
        """

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
        """Let go of a running job held under `lease.token`, to be run again later.

        The job does not expire before its time: it has its retention from then on, at least. A job
        that is left without attempts ends failed, as abandoned.

        Args:
            id: The job.
            lease: The claim it is held under.
            after: Seconds from now before which it is not claimed; 0 for at once.
            give_back: Whether this attempt does not count.
            retention: Seconds to keep it, for a job without a retention of its own.
            failure: For the job's `attempt_errors`: a JSON array of texts.
            progress: The last progress, if it was not recorded yet.

        Returns:
            True if the end of this claim is recorded, also for a repeat of one that was. False if
            the job was not this claim's: cancelled, expired, or taken over.
        """

    async def save_state(self, id: str, lease: JobLease, state: str) -> bool:
        """Keep `state`, JSON as text, with a running job held under `lease.token`.

        The next attempt finds it in `AsyncJob.state`, and so does the clean-up of a job that ended
        without a result; a finish removes it.

        Returns:
            False if the job was not this claim's to change: cancelled, expired, or taken over.

        Raises:
            UnstorableValue: The storage refuses it.
        """

    def transaction(self, id: str, lease: JobLease) -> AbstractAsyncContextManager[JobTransaction]:
        """A transaction of the storage's own database, for a job held under `lease.token`.

        Committed when the block ends while the job is still this claim's; rolled back when it is
        not, or when an error or a cancellation leaves the block.

        Raises:
            LeaseLost: The job is no longer this claim's; nothing was done.
            ProviderUnavailable: There is no connection; or the commit of a transaction without a
                finish was not answered, and may have been applied.
            UnsupportedFeature: The storage has no such transactions.
        """

    async def fail_abandoned_jobs(
        self, outcome: Mapping[str, Any], retention: float, limit: int
    ) -> int:
        """Fail up to `limit` jobs whose lease lapsed on their last attempt; returns how many."""

    async def claim_expired_jobs(
        self, kinds: Collection[str], lease: JobLease, limit: int
    ) -> list[AsyncJob]:
        """Take up to `limit` expired jobs of `kinds` that nobody holds, for their clean-up.

        Adds no attempt. A queued or running one becomes cancelled by it.
        """

    async def delete_expired_job(self, id: str, lease: JobLease) -> bool:
        """Delete an expired job held under `lease.token`; False if it was not."""

    async def discard_expired_jobs(self, kinds: Collection[str], limit: int) -> int:
        """Delete up to `limit` expired jobs of `kinds` that nobody holds; returns how many.

        For kinds that need no clean-up: what does need one goes through `claim_expired_jobs`.
        """

    async def delete_orphans(self, limit: int) -> dict[str, int]:
        """Delete up to `limit` jobs that expired seven days ago or more and that nobody holds.

        These are of kinds that no running worker registers, so nobody cleans up after them.

        Returns:
            How many of each kind.
        """

    def watch(
        self, kinds: Collection[str]
    ) -> AbstractAsyncContextManager[trio.MemoryReceiveChannel[WatchEvent]]:
        """Notifications while the block lasts: `JobQueued` for `kinds`, `JobCancelled`.

        `WatchRestored` comes first, as soon as notifications flow, and after each interruption.
        """
