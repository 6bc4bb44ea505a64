"""`FaultyProvider`: any provider, with faults put into chosen calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import trio

from hastetrio._errors import LeaseLost
from hastetrio._model import LeaseRenewal
from hastetrio._nursery import serving_nursery
from hastetrio._provider import JobCancelled, JobFinish, JobTransaction, WatchEvent, WatchRestored
from hastetrio.testing._book import FaultBook
from hastetrio.testing._calls import RecordedCall

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from hastetrio._model import (
        AsyncJob,
        AsyncJobStatus,
        CreateAsyncJob,
        JobLease,
        JobResult,
    )
    from hastetrio._provider import JobPosition

T = TypeVar("T")


class FaultyProvider(FaultBook):
    """Wraps a provider; every call goes through, except where a fault was put in.

    Faults are tried in the order they were put in, and the first that matches is used. All is
    deterministic: a fault names its call, the job (any, by default) and how many times it strikes
    (always, by default).

    Args:
        provider: The provider to wrap.
    """

    async def create_job(
        self, tenant: str, project: str, job: CreateAsyncJob, *, live_limit: int | None = None
    ) -> AsyncJob:
        """See `AsyncJobProvider.create_job`."""
        return await self._call(
            "create_job",
            None,
            lambda: self._provider.create_job(tenant, project, job, live_limit=live_limit),
        )

    async def create_jobs(
        self, tenant: str, project: str, jobs: Sequence[CreateAsyncJob]
    ) -> list[AsyncJob]:
        """See `AsyncJobProvider.create_jobs`."""
        return await self._call(
            "create_jobs", None, lambda: self._provider.create_jobs(tenant, project, jobs)
        )

    async def retry_job(
        self, tenant: str, project: str, id: str, *, submitted_by: str | None = None
    ) -> AsyncJob | None:
        """See `AsyncJobProvider.retry_job`."""
        return await self._call(
            "retry_job",
            id,
            lambda: self._provider.retry_job(tenant, project, id, submitted_by=submitted_by),
        )

    async def read_job(
        self, tenant: str, project: str, id: str, *, submitted_by: str | None = None
    ) -> AsyncJob | None:
        """See `AsyncJobProvider.read_job`."""
        return await self._call(
            "read_job",
            id,
            lambda: self._provider.read_job(tenant, project, id, submitted_by=submitted_by),
        )

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
        """See `AsyncJobProvider.list_jobs`."""
        return await self._call(
            "list_jobs",
            None,
            lambda: self._provider.list_jobs(
                tenant,
                project,
                status=status,
                kind=kind,
                submitted_by=submitted_by,
                limit=limit,
                before=before,
            ),
        )

    async def count_live_jobs(self, tenant: str, project: str) -> int:
        """See `AsyncJobProvider.count_live_jobs`."""
        return await self._call(
            "count_live_jobs", None, lambda: self._provider.count_live_jobs(tenant, project)
        )

    async def cancel_job(
        self, tenant: str, project: str, id: str, *, submitted_by: str | None = None
    ) -> AsyncJob | None:
        """See `AsyncJobProvider.cancel_job`."""
        return await self._call(
            "cancel_job",
            id,
            lambda: self._provider.cancel_job(tenant, project, id, submitted_by=submitted_by),
        )

    async def claim_jobs(
        self,
        kinds: Collection[str],
        lease: JobLease,
        limit: int,
        *,
        exclude: Collection[str] = (),
        last_chances: int | None = None,
    ) -> list[AsyncJob]:
        """See `AsyncJobProvider.claim_jobs`."""
        return await self._call(
            "claim_jobs",
            None,
            lambda: self._provider.claim_jobs(
                kinds, lease, limit, exclude=exclude, last_chances=last_chances
            ),
        )

    async def forget_claim(self, lease: JobLease) -> int:
        """See `AsyncJobProvider.forget_claim`."""
        return await self._call("forget_claim", None, lambda: self._provider.forget_claim(lease))

    async def renew_lease(
        self, id: str, lease: JobLease, progress: str | None = None
    ) -> LeaseRenewal:
        """See `AsyncJobProvider.renew_lease`."""
        if id in self._lost:
            return await self._call("renew_lease", id, _answer(LeaseRenewal.LOST))
        return await self._call(
            "renew_lease", id, lambda: self._provider.renew_lease(id, lease, progress)
        )

    async def finish_job(
        self,
        id: str,
        lease: JobLease,
        result: JobResult,
        retention: float,
        progress: str | None = None,
    ) -> bool:
        """See `AsyncJobProvider.finish_job`."""
        if id in self._lost:
            return await self._call("finish_job", id, _answer(False))
        return await self._call(
            "finish_job",
            id,
            lambda: self._provider.finish_job(id, lease, result, retention, progress),
        )

    async def finish_jobs(self, finishes: Sequence[JobFinish]) -> list[bool]:
        """See `AsyncJobProvider.finish_jobs`.

        Each job counts as a call of `finish_job` too. Those with a fault there are not recorded:
        they are asked about alone, and meet it.
        """
        clean = [f for f in finishes if not (f.id in self._lost or self._is_aimed_at(f.id))]
        if not clean:
            await trio.lowlevel.checkpoint()
            return [False] * len(finishes)
        for finish in clean:
            self.calls.append(RecordedCall("finish_job", finish.id, trio.current_time(), None))
        answers = await self._call("finish_jobs", None, lambda: self._provider.finish_jobs(clean))
        recorded = {id(finish): answer for finish, answer in zip(clean, answers, strict=True)}
        return [recorded.get(id(finish), False) for finish in finishes]

    def _is_aimed_at(self, id: str) -> bool:
        return any(fault.fits("finish_job", id) for fault in self._faults)

    async def release_job(self, id: str, lease: JobLease, *, give_back: bool = True) -> bool:
        """See `AsyncJobProvider.release_job`."""
        if id in self._lost:
            return await self._call("release_job", id, _answer(False))
        return await self._call(
            "release_job",
            id,
            lambda: self._provider.release_job(id, lease, give_back=give_back),
        )

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
        """See `AsyncJobProvider.reschedule_job`."""
        if id in self._lost:
            return await self._call("reschedule_job", id, _answer(False))
        return await self._call(
            "reschedule_job",
            id,
            lambda: self._provider.reschedule_job(
                id,
                lease,
                after,
                give_back=give_back,
                retention=retention,
                failure=failure,
                progress=progress,
            ),
        )

    async def save_state(self, id: str, lease: JobLease, state: str) -> bool:
        """See `AsyncJobProvider.save_state`."""
        if id in self._lost:
            return await self._call("save_state", id, _answer(False))
        return await self._call(
            "save_state", id, lambda: self._provider.save_state(id, lease, state)
        )

    @asynccontextmanager
    async def transaction(self, id: str, lease: JobLease) -> AsyncGenerator[JobTransaction]:
        """See `AsyncJobProvider.transaction`. No fault strikes it; a lost lease shows in it."""
        async with self._provider.transaction(id, lease) as transaction:
            fenced = _FencedTransaction(transaction, self._lost)
            yield fenced
            if id in self._lost and not fenced.is_finished:
                raise LeaseLost("the job is another worker's: the transaction is undone")

    async def fail_abandoned_jobs(
        self, outcome: Mapping[str, Any], retention: float, limit: int
    ) -> int:
        """See `AsyncJobProvider.fail_abandoned_jobs`."""
        return await self._call(
            "fail_abandoned_jobs",
            None,
            lambda: self._provider.fail_abandoned_jobs(outcome, retention, limit),
        )

    async def claim_expired_jobs(
        self, kinds: Collection[str], lease: JobLease, limit: int
    ) -> list[AsyncJob]:
        """See `AsyncJobProvider.claim_expired_jobs`."""
        return await self._call(
            "claim_expired_jobs",
            None,
            lambda: self._provider.claim_expired_jobs(kinds, lease, limit),
        )

    async def delete_expired_job(self, id: str, lease: JobLease) -> bool:
        """See `AsyncJobProvider.delete_expired_job`."""
        return await self._call(
            "delete_expired_job", id, lambda: self._provider.delete_expired_job(id, lease)
        )

    async def discard_expired_jobs(self, kinds: Collection[str], limit: int) -> int:
        """See `AsyncJobProvider.discard_expired_jobs`."""
        return await self._call(
            "discard_expired_jobs", None, lambda: self._provider.discard_expired_jobs(kinds, limit)
        )

    async def delete_orphans(self, limit: int) -> dict[str, int]:
        """See `AsyncJobProvider.delete_orphans`."""
        return await self._call(
            "delete_orphans", None, lambda: self._provider.delete_orphans(limit)
        )

    @asynccontextmanager
    async def watch(
        self, kinds: Collection[str]
    ) -> AsyncGenerator[trio.MemoryReceiveChannel[WatchEvent]]:
        """See `AsyncJobProvider.watch`."""
        send, receive = trio.open_memory_channel[WatchEvent](100)

        async def relay(events: trio.MemoryReceiveChannel[WatchEvent]) -> None:
            async for event in events:
                unheard = isinstance(event, JobCancelled) and event.id in self._unheard
                if isinstance(event, WatchRestored) or not (self._deaf or unheard):
                    await send.send(event)

        async with (
            send,
            receive,
            self._provider.watch(kinds) as events,
            serving_nursery() as nursery,
        ):
            nursery.start_soon(relay, events)
            yield receive


def _answer(value: T) -> Callable[[], Awaitable[T]]:
    async def answer() -> T:
        await trio.lowlevel.checkpoint()
        return value

    return answer


@attrs.define
class _FencedTransaction:
    """A transaction in which the jobs of `lost` are another worker's."""

    _transaction: JobTransaction
    _lost: set[str]
    is_finished: bool = False

    @property
    def connection(self) -> Any:  # noqa: ANN401  # what kind it is, the storage says
        return self._transaction.connection

    async def finish(self, finish: JobFinish) -> bool:
        if finish.id in self._lost:
            await trio.lowlevel.checkpoint()
            return False
        self.is_finished = await self._transaction.finish(finish)
        return self.is_finished
