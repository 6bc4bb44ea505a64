"""`FaultyProvider`: any provider, with faults put into chosen calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from hastetrio._errors import ProviderUnavailable
from hastetrio._model import LeaseRenewal
from hastetrio._nursery import serving_nursery
from hastetrio._provider import JobCancelled, JobFinish, WatchEvent, WatchRestored
from hastetrio.testing._calls import CallName, Fault, RecordedCall, RenewalKilled

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from hastetrio._model import (
        AsyncJob,
        AsyncJobStatus,
        CreateAsyncJob,
        JobLease,
        JobResult,
    )
    from hastetrio._provider import AsyncJobProvider, JobPosition

T = TypeVar("T")


class FaultyProvider:
    """Wraps a provider; every call goes through, except where a fault was put in.

    Faults are tried in the order they were put in, and the first that matches is used. All is
    deterministic: a fault names its call, the job (any, by default) and how many times it strikes
    (always, by default).

    Args:
        provider: The provider to wrap.
    """

    def __init__(self, provider: AsyncJobProvider) -> None:
        self._provider = provider
        self._faults: list[Fault] = []
        self._lost: set[str] = set()
        self._deaf = False
        self._unheard: set[str] = set()
        self.calls: list[RecordedCall] = []
        """Every call, in order."""

    def fail(
        self,
        name: CallName,
        *,
        job: str | None = None,
        times: int | None = None,
        error: BaseException | None = None,
    ) -> Fault:
        """Raise `error` (ProviderUnavailable) instead of making the call."""
        error = error or ProviderUnavailable("a fault was injected")
        return self._put(Fault(name, job, times, "fail", error))

    def drop(self, name: CallName, *, job: str | None = None, times: int | None = None) -> Fault:
        """Make the call, but lose its answer: ProviderUnavailable is raised afterwards."""
        error = ProviderUnavailable("the answer was lost")
        return self._put(Fault(name, job, times, "drop", error))

    def hang(self, name: CallName, *, job: str | None = None, times: int | None = None) -> Fault:
        """Never make the call and never answer, until the caller is cancelled."""
        return self._put(Fault(name, job, times, "hang"))

    def delay(
        self, name: CallName, seconds: float, *, job: str | None = None, times: int | None = None
    ) -> Fault:
        """Make the call `seconds` later."""
        return self._put(Fault(name, job, times, "delay", seconds=seconds))

    def delay_answer(
        self, name: CallName, seconds: float, *, job: str | None = None, times: int | None = None
    ) -> Fault:
        """Make the call at once, and answer `seconds` later."""
        return self._put(Fault(name, job, times, "delay_answer", seconds=seconds))

    def kill_renewals(self, *, job: str | None = None, times: int | None = None) -> Fault:
        """Kill the task that renews: RenewalKilled is raised inside of `renew_lease`."""
        return self._put(Fault("renew_lease", job, times, "fail", RenewalKilled()))

    def lose_lease(self, id: str) -> None:
        """Answer from now on as if another worker had taken the job."""
        self._lost.add(id)

    def drop_wakeups(self) -> None:
        """Let no notification through from now on."""
        self._deaf = True

    async def cancel_behind(self, job: AsyncJob) -> AsyncJob | None:
        """Cancel a job as its client would, past all faults and without a notification."""
        self._unheard.add(job.id)
        return await self._provider.cancel_job(job.tenant, job.project, job.id)

    def made(self, name: CallName, id: str | None = None) -> list[RecordedCall]:
        """The calls of one method (about one job), in order."""
        return [c for c in self.calls if c.name == name and (id is None or c.id == id)]

    def _put(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    async def _call(self, name: CallName, id: str | None, call: Callable[[], Awaitable[T]]) -> T:
        await trio.lowlevel.checkpoint()
        fault = next((fault for fault in self._faults if fault.matches(name, id)), None)
        self.calls.append(
            RecordedCall(name, id, trio.current_time(), fault.kind if fault else None)
        )
        if fault is None:
            return await call()
        if fault.kind == "hang":
            await trio.sleep_forever()
        if fault.kind == "fail" and fault.error is not None:
            raise fault.error
        if fault.kind == "delay":
            await trio.sleep(fault.seconds)
        answer = await call()
        if fault.kind == "delay_answer":
            await trio.sleep(fault.seconds)
        if fault.error is not None:
            raise fault.error
        return answer

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
