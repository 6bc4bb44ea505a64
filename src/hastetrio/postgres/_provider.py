"""`PostgresJobProvider`: the storage protocol on one table, `async_jobs`."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Self

import trio

from hastetrio._errors import ConfigError, ProviderUnavailable, UnstorableValue
from hastetrio._model import DAY, AsyncJob, JobLease, JobResult, LeaseRenewal
from hastetrio._nursery import serving_nursery
from hastetrio._outcome import unreadable_outcome
from hastetrio._sql import query
from hastetrio.postgres import _migrate
from hastetrio.postgres._clients import ClientCalls
from hastetrio.postgres._held import HeldRows
from hastetrio.postgres._listen import watch
from hastetrio.postgres._overview import QueueOverview, read_overview
from hastetrio.postgres._sweeps import Sweeps
from hastetrio.postgres._transactions import HandlerTransaction, Transactions
from hastetrio.postgres._unit import Lane

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        Collection,
        Mapping,
        Sequence,
    )
    from contextlib import AbstractAsyncContextManager

    from hastetrio._provider import JobFinish, WatchEvent

_MEBIBYTE: Final = 1024 * 1024


class PostgresJobProvider(ClientCalls):
    """Jobs in PostgreSQL. Made by `PostgresJobProvider.open`.

    It keeps up to three connections for a worker, each opened when first needed: claims and
    sweeps; finishes and releases; renewals. Each `watch` has one more. Clients' calls have
    `client_connections` of their own, so that no number of them makes a renewal late, and so have
    handlers' transactions (`transaction_connections`).
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
        transaction_connections: int,
    ) -> None:
        super().__init__(
            dsn,
            call_budget=call_budget,
            prepared_statements=prepared_statements,
            parameters_limit=parameters_limit,
            claims_limit=claims_limit,
            client_connections=client_connections,
        )
        self._dsn = dsn
        self._claims = self._lane()
        self._finishes = self._lane()
        self._renewals = self._lane()
        self._transactions = Transactions(
            dsn,
            size=transaction_connections,
            budget=call_budget,
            prepared=prepared_statements,
        )
        self._sweeps = Sweeps(self._claims)
        self._held = HeldRows(self._finishes, self._renewals, call_budget)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        dsn: str,
        *,
        call_budget: float = 5.0,
        prepared_statements: bool = True,
        parameters_limit: int = _MEBIBYTE,
        claims_limit: int = _MEBIBYTE,
        client_connections: int = 1,
        transaction_connections: int = 4,
    ) -> AsyncGenerator[Self]:
        """A provider for the database at `dsn`, while the block lasts.

        Nothing is connected yet: a database that is away shows at the first call.

        Args:
            dsn: A libpq connection string or URL.
            call_budget: The longest one call may take, seconds. A worker's leases want at most a
                sixth of their duration (`AsyncJobWorkerConfig.call_budget`).
            prepared_statements: Off behind a pooler that keeps no session state, such as
                PgBouncer in transaction mode.
            parameters_limit: The most bytes of JSON a new job's parameters may have.
            claims_limit: The most bytes of JSON a new job's claims may have.
            client_connections: The most connections for clients' calls; 1 at least.
            transaction_connections: The most transactions that handlers have open at once, each
                with a connection of its own; further ones wait.

        Raises:
            ConfigError: A number of connections is below 1.

        Cancellation: statements under way are finished, and the connections are closed.
        """
        for name, count in (
            ("client_connections", client_connections),
            ("transaction_connections", transaction_connections),
        ):
            if count < 1:
                raise ConfigError(f"{name} must be at least 1, not {count}")
        provider = cls(
            dsn,
            call_budget=call_budget,
            prepared_statements=prepared_statements,
            parameters_limit=parameters_limit,
            claims_limit=claims_limit,
            client_connections=client_connections,
            transaction_connections=transaction_connections,
        )
        # Shielded until the block has ended: a worker in it that is cancelled still hands its jobs
        # back, through these.
        serving = trio.CancelScope(shield=True)
        try:
            async with serving_nursery() as nursery:
                await nursery.start(provider._held.serve, serving)
                try:
                    yield provider
                finally:
                    serving.cancel("the provider is closed")
        finally:
            for lane in (provider._claims, provider._finishes, provider._renewals):
                lane.close()
            provider._clients.close()
            provider._transactions.close()

    def _lane(self) -> Lane:
        return Lane(self._dsn, budget=self._budget, prepared=self._prepared)

    # Schema

    async def migrate(self, *, lock_timeout: float = 5.0) -> list[str]:
        """Bring the database's tables up to date; returns the names of the migrations applied.

        Args:
            lock_timeout: Seconds to wait for a lock that a running worker or server holds.

        Raises:
            SchemaError: The tables are of a version this program does not know, or are no
                `async_jobs` of a Haste server.
            ProviderUnavailable: No connection, or a lock was not had in time; nothing was done.
        """
        return await _migrate.migrate(self._dsn, lock_timeout)

    async def pending_migrations(self) -> list[str]:
        """The names of the migrations the database lacks."""
        return await _migrate.pending(self._dsn)

    async def migration_script(self) -> str:
        """The SQL that `migrate` would run."""
        return await _migrate.script(self._dsn)

    async def check_schema(self, *, warn: bool = True) -> None:
        """Check that this program can work with the database's tables.

        A newer schema that only adds to this one is accepted.

        Args:
            warn: Whether to log a warning of such a schema.

        Raises:
            SchemaError: It cannot; the text says what to do.
        """
        await _migrate.check(self._dsn, warn=warn)

    # Workers

    async def claim_jobs(
        self,
        kinds: Collection[str],
        lease: JobLease,
        limit: int,
        *,
        exclude: Collection[str] = (),
        last_chances: int | None = None,
    ) -> list[AsyncJob]:
        """Take claimable jobs, oldest first; see `AsyncJobProvider.claim_jobs`."""
        parameters = {
            "kinds": list(kinds),
            "exclude": list(exclude),
            "limit": limit,
            "last_chances": limit if last_chances is None else min(limit, last_chances),
            "token": lease.token,
            "lease": lease.duration,
        }
        budget = min(self._budget, lease.duration / 2)
        jobs, unreadable = await self._claims.fetch_jobs("claim_jobs", parameters, budget)
        for id in unreadable:
            await self._fail_unreadable(id, lease)
        # UPDATE ... RETURNING promises no order.
        jobs.sort(key=lambda job: (job.run_at, job.created_at, job.id))
        return jobs

    async def _fail_unreadable(self, id: str, lease: JobLease) -> None:
        try:
            await self.finish_job(id, lease, JobResult.failed(unreadable_outcome()), DAY)
        except (ProviderUnavailable, UnstorableValue):
            # Its lease lapses, and the next claim of it comes here again.
            return

    async def forget_claim(self, lease: JobLease) -> int:
        """Hand back what an unanswered claim took; see `AsyncJobProvider.forget_claim`."""
        return len(await self._claims.fetch(query("forget_claim"), {"token": lease.token}))

    async def renew_lease(
        self, id: str, lease: JobLease, progress: str | None = None
    ) -> LeaseRenewal:
        """Extend a lease; see `AsyncJobProvider.renew_lease`."""
        return await self._held.renew(id, lease, progress)

    async def finish_job(
        self,
        id: str,
        lease: JobLease,
        result: JobResult,
        retention: float,
        progress: str | None = None,
    ) -> bool:
        """Record a result, fenced; see `AsyncJobProvider.finish_job`."""
        return await self._held.finish(id, lease, result, retention, progress)

    async def finish_jobs(self, finishes: Sequence[JobFinish]) -> list[bool]:
        """Record several results; see `AsyncJobProvider.finish_jobs`."""
        return await self._held.finish_many(finishes)

    async def release_job(self, id: str, lease: JobLease, *, give_back: bool = True) -> bool:
        """Let go of a job; see `AsyncJobProvider.release_job`."""
        return await self._held.release(id, lease, give_back=give_back)

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
        """Queue a job again for later; see `AsyncJobProvider.reschedule_job`."""
        return await self._held.reschedule(
            id,
            lease,
            after,
            give_back=give_back,
            retention=retention,
            failure=failure,
            progress=progress,
        )

    async def save_state(self, id: str, lease: JobLease, state: str) -> bool:
        """Keep a state with a running job; see `AsyncJobProvider.save_state`."""
        return await self._held.save_state(id, lease, state)

    def transaction(
        self, id: str, lease: JobLease
    ) -> AbstractAsyncContextManager[HandlerTransaction]:
        """A transaction for a job's handler; see `AsyncJobProvider.transaction`."""
        return self._transactions.open(id, lease)

    async def fail_abandoned_jobs(
        self, outcome: Mapping[str, Any], retention: float, limit: int
    ) -> int:
        """Fail abandoned jobs; see `AsyncJobProvider.fail_abandoned_jobs`."""
        return await self._sweeps.fail_abandoned(outcome, retention, limit)

    async def claim_expired_jobs(
        self, kinds: Collection[str], lease: JobLease, limit: int
    ) -> list[AsyncJob]:
        """Take expired jobs for their clean-up; see `AsyncJobProvider.claim_expired_jobs`.

        A row that cannot be read is put aside for a day, so that it keeps the sweep from no other,
        and goes with the orphans after seven.
        """
        return await self._sweeps.claim_expired(kinds, lease, limit)

    async def delete_expired_job(self, id: str, lease: JobLease) -> bool:
        """Delete an expired job; see `AsyncJobProvider.delete_expired_job`."""
        return await self._held.delete(id, lease)

    async def discard_expired_jobs(self, kinds: Collection[str], limit: int) -> int:
        """Delete what needs no clean-up; see `AsyncJobProvider.discard_expired_jobs`."""
        return await self._sweeps.discard_expired(kinds, limit)

    async def delete_orphans(self, limit: int) -> dict[str, int]:
        """Delete expired jobs of kinds nobody registers; see `AsyncJobProvider.delete_orphans`."""
        return await self._sweeps.delete_orphans(limit)

    def watch(
        self, kinds: Collection[str]
    ) -> AbstractAsyncContextManager[trio.MemoryReceiveChannel[WatchEvent]]:
        """Notifications while the block lasts; see `AsyncJobProvider.watch`."""
        return watch(self._dsn, kinds, budget=self._budget)

    # Operators

    async def overview(self) -> QueueOverview:
        """How the queue stands: counts, waiting kinds, lapsed leases, holders."""
        return await read_overview(self._clients)
