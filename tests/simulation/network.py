"""Processes, and the network between each and the one storage: what is lost on it, and when."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any, TypeVar

import attrs
import trio
from trio.testing import MockClock

from hastetrio import (
    AsyncJob,
    AsyncJobWorker,
    AsyncJobWorkerConfig,
    JobLease,
    JobResult,
    LeaseRenewal,
    ProviderUnavailable,
    WatchEvent,
)
from hastetrio._provider import JobFinish
from hastetrio._storable import decode_json
from hastetrio.memory import MemoryJobProvider
from hastetrio.testing import CallName, Fault, FaultyProvider

from .ledger import Ledger

T = TypeVar("T")


@attrs.define(eq=False)
class Process:
    """One worker in a process of its own."""

    name: str
    config: AsyncJobWorkerConfig
    kinds: list[str]
    worker: AsyncJobWorker | None = None
    network: Network | None = None
    task: trio.lowlevel.Task | None = None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """Around `run()`, for whoever cancels it."""
    error: BaseException | None = None
    has_ended: bool = False
    is_dead: bool = False
    interrupted: bool = False
    """A handler of it raised KeyboardInterrupt."""
    stopped_at: float = math.inf
    hurried_at: float = math.inf
    gives_up_at: float = math.inf
    trouble_until: float = -math.inf
    """Until when a fault may have kept it from renewing."""
    fault_at: float = -math.inf
    shields: list[trio.CancelScope] = attrs.field(factory=list)

    @property
    def wire(self) -> Network:
        """Its calls."""
        assert self.network is not None
        return self.network

    def stopping(self, *, hurry: bool) -> None:
        """It was told to stop."""
        now = trio.current_time()
        self.stopped_at = min(self.stopped_at, now)
        wait = 0.0 if hurry else self.config.drain_timeout
        self.hurried_at = min(self.hurried_at, now + wait)
        self.gives_up_at = min(self.gives_up_at, self.hurried_at + self.config.cancel_grace)

    def die(self) -> None:
        """All its tasks end at once, wherever they are."""
        self.is_dead = True
        self.scope.cancel("the process died")
        if self.task is not None:
            _cancel_all(self.task)
        for shield in self.shields:
            shield.cancel()


def _cancel_all(task: trio.lowlevel.Task) -> None:
    for nursery in task.child_nurseries:
        nursery.cancel_scope.cancel("the process died")
        for child in nursery.child_tasks:
            _cancel_all(child)


@attrs.define(eq=False)
class _NotedFault(Fault):
    """A fault that says when it strikes."""

    struck: Callable[[CallName, float], None] = lambda _name, _seconds: None

    def matches(self, name: CallName, id: str | None) -> bool:
        """As of any fault."""
        hit = Fault.matches(self, name, id)
        if hit:
            self.struck(name, self.seconds)
        return hit


class Network(FaultyProvider):
    """The calls of one process, with their faults, and what reached the worker of their answers.

    Args:
        memory: The storage all processes share.
        process: Whose calls these are.
        ledger: Hears of all that is asked, done and answered.
        rng: Draws how long calls take.
        latency: At most this many seconds in each direction.
        clock: Jumps when the machine is paused while a call is under way.
        post: Where calls go on whose caller has given up.
    """

    def __init__(
        self,
        memory: MemoryJobProvider,
        process: Process,
        ledger: Ledger,
        rng: Random,
        latency: float,
        clock: MockClock,
        post: trio.Nursery,
    ) -> None:
        super().__init__(memory)
        self._memory = memory
        self._process = process
        self._ledger = ledger
        self._rng = rng
        self._latency = latency
        self._clock = clock
        self._post = post
        self.late_rate = 0.0
        """How many of the calls are done after their caller has given up."""
        self.pause_rate = 0.0
        """How many of the calls meet a pause of the machine on their way."""
        self.watch_breaks = trio.Event()

    def heal(self) -> None:
        """End all faults."""
        for fault in self._faults:
            fault.remove()
        self._faults.clear()
        self._deaf = False
        self._unheard.clear()
        self._lost.clear()
        self.late_rate = self.pause_rate = 0.0

    def hear_again(self) -> None:
        """Let notifications through again."""
        self._deaf = False

    def break_watch(self) -> None:
        """The connection that listens is lost."""
        self.watch_breaks.set()
        self.watch_breaks = trio.Event()

    def _put(self, fault: Fault) -> Fault:
        self._faults = [old for old in self._faults if not old.removed]
        return super()._put(
            _NotedFault(
                fault.name,
                fault.id,
                fault.times,
                fault.kind,
                fault.error,
                fault.seconds,
                fault.removed,
                self._struck,
            )
        )

    def _struck(self, name: CallName, seconds: float) -> None:
        now = trio.current_time()
        process = self._process
        process.fault_at = now
        if name == "renew_lease":
            until = now + seconds + process.config.lease_duration / 6
            process.trouble_until = max(process.trouble_until, until)

    async def _call(
        self,
        name: CallName,
        id: str | None,
        call: Callable[[], Awaitable[T]],
        *,
        may_be_late: bool = True,
    ) -> T:
        process = self._process
        self._ledger.called(process)
        # The session's own time limit: no call of a provider hangs for ever.
        with trio.move_on_after(4 * process.config.call_budget):
            await self._travel()
            if self._rng.random() < self.late_rate and may_be_late:
                seconds = process.config.lease_duration / 2 * self._rng.random()
                self._ledger.note("{} of {} comes {:.1f} s late", name, process.name, seconds)
                self._struck(name, seconds)
                self._post.start_soon(self._do_later, call, seconds)
                await trio.sleep_forever()
            answer = await super()._call(name, id, call)
            await self._travel()
            return answer
        process.fault_at = trio.current_time()
        raise ProviderUnavailable("no answer in time")

    async def _travel(self) -> None:
        if self._latency:
            await trio.sleep(self._latency * self._rng.random())
        if self._rng.random() < self.pause_rate:
            seconds = self._process.config.lease_duration * self._rng.choice((0.3, 0.95, 1.1))
            self._ledger.note("the machine is paused for {:.1f} s", seconds)
            self._clock.jump(seconds)
            self._ledger.jumped()
        if self._process.is_dead:
            await trio.sleep_forever()

    async def _do_later(self, call: Callable[[], Awaitable[object]], seconds: float) -> None:
        await trio.sleep(seconds)
        # Nobody hears what it answers.
        with suppress(Exception):
            await call()

    async def claim_jobs(
        self,
        kinds: Collection[str],
        lease: JobLease,
        limit: int,
        *,
        exclude: Collection[str] = (),
        last_chances: int | None = None,
    ) -> list[AsyncJob]:
        """Claim, under the ledger's eyes."""
        ledger, process = self._ledger, self._process
        ledger.claim_sent(process, lease, exclude)

        async def claim() -> list[AsyncJob]:
            jobs = await self._memory.claim_jobs(
                kinds, lease, limit, exclude=exclude, last_chances=last_chances
            )
            ledger.granted(process, lease, jobs, is_cleanup=False)
            for job in jobs:
                ledger.require(
                    job.run_at <= self._memory._now(),
                    "{} is granted before its time",
                    ledger.name(job.id),
                )
            return jobs

        answer: list[AsyncJob] | None = None
        try:
            answer = await self._call("claim_jobs", None, claim)
        finally:
            if answer is None:
                ledger.claim_unanswered(process, lease)
        ledger.claim_answered(process, lease, answer)
        return answer

    async def forget_claim(self, lease: JobLease) -> int:
        """Hand back what an unanswered claim took."""

        async def forget() -> int:
            count = await self._memory.forget_claim(lease)
            self._ledger.forgot(lease, count)
            return count

        return await self._call("forget_claim", None, forget)

    async def renew_lease(
        self, id: str, lease: JobLease, progress: str | None = None
    ) -> LeaseRenewal:
        """Renew."""

        async def renew() -> LeaseRenewal:
            if id in self._lost:
                return LeaseRenewal.LOST
            answer = await self._memory.renew_lease(id, lease, progress)
            self._ledger.renewed(id, lease, progress, held=answer is not LeaseRenewal.LOST)
            return answer

        sent = trio.current_time()
        # One with a progress text that comes after its successor's brings an old text back, until
        # the next one: known, and only a text.
        answer = await self._call("renew_lease", id, renew, may_be_late=progress is None)
        self._ledger.renewal_answered(id, lease, sent, answer)
        return answer

    async def finish_job(
        self,
        id: str,
        lease: JobLease,
        result: JobResult,
        retention: float,
        progress: str | None = None,
    ) -> bool:
        """Finish."""
        finish = JobFinish(id, lease, result, retention, progress)
        return await self._call("finish_job", id, lambda: self._finish(finish))

    async def finish_jobs(self, finishes: Sequence[JobFinish]) -> list[bool]:
        """Finish several, in one call that is lost or late as a whole."""

        async def finish() -> list[bool]:
            return [await self._finish(one) for one in finishes]

        return await self._call("finish_jobs", None, finish)

    async def _finish(self, finish: JobFinish) -> bool:
        id, lease = finish.id, finish.lease
        if id in self._lost:
            self._ledger.lost(id, lease)
            return False
        done = await self._memory.finish_job(
            id, lease, finish.result, finish.retention, finish.progress
        )
        if done:
            row = self._memory._table.rows[id]
            self._ledger.finished(id, lease, finish.result, finish.progress, row)
        else:
            self._ledger.not_finished(id, lease)
        return done

    async def release_job(self, id: str, lease: JobLease, *, give_back: bool = True) -> bool:
        """Release."""

        async def release() -> bool:
            if id in self._lost:
                self._ledger.lost(id, lease)
                return False
            done = await self._memory.release_job(id, lease, give_back=give_back)
            if done:
                self._ledger.released(id, lease)
            return done

        return await self._call("release_job", id, release)

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
        """Have it run again later."""

        async def reschedule() -> bool:
            if id in self._lost:
                self._ledger.lost(id, lease)
                return False
            done = await self._memory.reschedule_job(
                id,
                lease,
                after,
                give_back=give_back,
                retention=retention,
                failure=failure,
                progress=progress,
            )
            if done:
                row = self._memory._table.rows[id]
                self._ledger.rescheduled(id, lease, row, give_back=give_back)
            else:
                self._ledger.not_rescheduled(id, lease)
            return done

        return await self._call("reschedule_job", id, reschedule)

    async def save_state(self, id: str, lease: JobLease, state: str) -> bool:
        """Save."""

        async def save() -> bool:
            if id in self._lost:
                return False
            saved = await self._memory.save_state(id, lease, state)
            if saved:
                self._ledger.saved(id, lease, decode_json(state))
            return saved

        return await self._call("save_state", id, save)

    async def fail_abandoned_jobs(
        self, outcome: Mapping[str, Any], retention: float, limit: int
    ) -> int:
        """Fail what was abandoned: a takeover like a claim's."""

        async def fail() -> int:
            count = await self._memory.fail_abandoned_jobs(outcome, retention, limit)
            if count:
                self._ledger.abandoned(self._memory._table.rows.values())
            return count

        return await self._call("fail_abandoned_jobs", None, fail)

    async def claim_expired_jobs(
        self, kinds: Collection[str], lease: JobLease, limit: int
    ) -> list[AsyncJob]:
        """Take rows to clean up, under the ledger's eyes."""
        ledger, process = self._ledger, self._process
        ledger.claim_sent(process, lease, None)

        async def claim() -> list[AsyncJob]:
            jobs = await self._memory.claim_expired_jobs(kinds, lease, limit)
            ledger.granted(process, lease, jobs, is_cleanup=True)
            return jobs

        answer = await self._call("claim_expired_jobs", None, claim)
        ledger.claim_answered(process, lease, answer)
        return answer

    async def delete_expired_job(self, id: str, lease: JobLease) -> bool:
        """Delete."""

        async def delete() -> bool:
            done = await self._memory.delete_expired_job(id, lease)
            if done:
                self._ledger.deleted(id, lease)
            else:
                # A clock that was set back makes the row one that has not expired yet.
                self._ledger.lost(id, lease)
            return done

        return await self._call("delete_expired_job", id, delete)

    @asynccontextmanager
    async def watch(
        self, kinds: Collection[str]
    ) -> AsyncGenerator[trio.MemoryReceiveChannel[WatchEvent]]:
        """Watch, until the connection breaks."""
        if any(fault.name == "claim_jobs" and fault.times is None for fault in self._faults):
            await trio.lowlevel.checkpoint()
            raise ProviderUnavailable("cannot listen while nothing gets through")
        async with super().watch(kinds) as events, trio.open_nursery() as nursery:
            breaks = self.watch_breaks

            async def break_off() -> None:
                await breaks.wait()
                events.close()

            nursery.start_soon(break_off)
            try:
                yield events
            finally:
                nursery.cancel_scope.cancel()
