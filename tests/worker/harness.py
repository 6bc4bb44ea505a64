"""A worker over a memory provider whose calls can be broken, and ways to wait for what it does."""

from __future__ import annotations

import logging
import math
import typing
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any, TypeVar

import attrs
import trio

from hastetrio import (
    AsyncJob,
    AsyncJobStatus,
    AsyncJobWorker,
    AsyncJobWorkerConfig,
    CreateAsyncJob,
    JobContext,
    JobHandler,
    JobLease,
    JobMiddleware,
    JobOutput,
    WatchRestored,
    job_handler,
)
from hastetrio._log import EVENTS, JsonFormatter, TextFormatter
from hastetrio._nursery import serving_nursery
from hastetrio.memory import MemoryJobProvider
from hastetrio.testing import CallName, FaultyProvider

T = TypeVar("T")
Body = Callable[[JobContext], Awaitable[JobOutput]]

TENANT = "acme"
PROJECT = "main"
KIND = "work"

LEASE = 30.0
"""Seconds; renewals fall due every 10, and a handler is cancelled 3 before the end."""
THIRD = 10.0
DEADLINE = 27.0

HOUR = 3600.0
DAY = 24 * HOUR

DONE = JobOutput.json("done")


class EventLog(logging.Handler):
    """Keeps what the package logs."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.happened = trio.lowlevel.ParkingLot()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one record."""
        self.records.append(record)
        # A thread looks after the loop, and may have something to say.
        if trio.lowlevel.in_trio_run():
            self.happened.unpark_all()

    def of(self, event: str, job: str | None = None) -> list[logging.LogRecord]:
        """The records of one event (about one job), in order."""
        return [
            record
            for record in self.records
            if record.__dict__.get("event") == event
            and (job is None or record.__dict__["fields"].get("job") == job)
        ]

    def fields(self, event: str, job: str | None = None) -> list[dict[str, Any]]:
        """The fields of those records."""
        return [record.__dict__["fields"] for record in self.of(event, job)]

    def text(self) -> str:
        """All lines as they are written, in both forms, with their tracebacks."""
        return "\n".join(
            formatter.format(record)
            for record in self.records
            for formatter in (TextFormatter(), JsonFormatter())
        )

    def check(self) -> None:
        """Hold every record to the declaration of its event."""
        events = {event.name: event for event in EVENTS}
        for record in self.records:
            event = events[record.__dict__["event"]]
            assert tuple(record.__dict__["fields"]) == event.fields, event.name
            assert record.levelno == event.level, event.name
            assert record.getMessage()

    def count(self, event: str, job: str | None = None) -> int:
        """How many there are."""
        return len(self.of(event, job))


@attrs.frozen
class Claimed:
    """One claim that took jobs: when it was sent, how many it asked for, what it took."""

    time: float
    limit: int
    ids: list[str]


class Probe(FaultyProvider):
    """Lets tests wait for what happens, call by call."""

    def __init__(self, memory: MemoryJobProvider, happened: trio.lowlevel.ParkingLot) -> None:
        super().__init__(memory)
        self._happened = happened
        self.claimed: list[Claimed] = []
        self.asked: list[tuple[int, list[str], list[str]]] = []
        """Limit, kinds and excluded ids of every claim."""

    async def _call(self, name: CallName, id: str | None, call: Callable[[], Awaitable[T]]) -> T:
        try:
            return await super()._call(name, id, call)
        finally:
            self._happened.unpark_all()

    async def claim_jobs(
        self,
        kinds: Collection[str],
        lease: JobLease,
        limit: int,
        *,
        exclude: Collection[str] = (),
        last_chances: int | None = None,
    ) -> list[AsyncJob]:
        """Claim, and keep what was asked for and taken."""
        sent = trio.current_time()
        self.asked.append((limit, sorted(kinds), sorted(exclude)))
        jobs = await super().claim_jobs(
            kinds, lease, limit, exclude=exclude, last_chances=last_chances
        )
        if jobs:
            self.claimed.append(Claimed(sent, limit, [job.id for job in jobs]))
        return jobs

    def mend(self) -> None:
        """Take all faults out."""
        for fault in self._faults:
            fault.remove()

    def times(self, name: CallName, id: str | None = None) -> list[float]:
        """When the calls of one method (about one job) were made."""
        return [call.time for call in self.made(name, id)]


class Rig:
    """What a test holds: the storage, the log, and workers that always end."""

    def __init__(self, log: EventLog) -> None:
        self.memory = MemoryJobProvider()
        self.provider = Probe(self.memory, log.happened)
        self.log = log
        self.let_go = trio.Event()
        """Set when the test is over: what a stuck handler waits for."""
        self._left: dict[AsyncJobWorker, trio.Event] = {}

    def restore_watch(self) -> None:
        """Tell all watchers that notifications flow again."""
        for watcher in self.memory._watchers._watchers:
            watcher.send(WatchRestored())

    @contextmanager
    def outage(self, *, hang: bool = False) -> Iterator[None]:
        """Every call of a worker fails, or hangs, while the block lasts."""
        names: tuple[CallName, ...] = typing.get_args(CallName)
        put = self.provider.hang if hang else self.provider.fail
        faults = [put(name) for name in names]
        yield
        for fault in faults:
            fault.remove()

    @asynccontextmanager
    async def running(
        self,
        *handlers: JobHandler,
        worker_id: str = "tester",
        provider: FaultyProvider | None = None,
        middleware: Sequence[JobMiddleware] = (),
        **config: Any,  # noqa: ANN401
    ) -> AsyncGenerator[AsyncJobWorker]:
        """A worker that has started, with leases of 30 s unless told otherwise.

        When the block ends its `run()` is cancelled, and has left.
        """
        config = {"lease_duration": LEASE} | config
        worker = AsyncJobWorker(
            provider or self.provider,
            handlers,
            AsyncJobWorkerConfig(**config),
            worker_id=worker_id,
            middleware=middleware,
        )
        left = self._left[worker] = trio.Event()

        async def run(task_status: trio.TaskStatus[str]) -> None:
            try:
                await worker.run(task_status=task_status)
            finally:
                left.set()

        async with serving_nursery() as nursery:
            await nursery.start(run)
            try:
                yield worker
            except BaseException:
                # A test that failed is not to wait for a storage that never comes back.
                self.provider.mend()
                raise
            finally:
                self.let_go.set()

    async def left(self, worker: AsyncJobWorker) -> None:
        """Wait until `run()` of this worker has returned, at most a virtual day."""
        with trio.fail_after(DAY):
            await self._left[worker].wait()

    def has_left(self, worker: AsyncJobWorker) -> bool:
        """Whether `run()` of this worker has returned."""
        return self._left[worker].is_set()

    async def create(self, kind: str = KIND, **values: Any) -> str:  # noqa: ANN401
        """Queue a job; its id."""
        created = CreateAsyncJob(kind=kind, **({"claims": {"sub": "ann"}} | values))
        return (await self.memory.create_job(TENANT, PROJECT, created)).id

    async def create_many(self, count: int, kind: str = KIND) -> list[str]:
        """Queue jobs; their ids, oldest first."""
        return [await self.create(kind) for _ in range(count)]

    def insert_expired(self, kind: str = KIND, ago: float = 1.0, **values: Any) -> str:  # noqa: ANN401
        """Insert a completed job that expired `ago` seconds ago; its id."""
        columns: dict[str, Any] = {
            "tenant": TENANT,
            "project": PROJECT,
            "kind": kind,
            "status": "completed",
            "expires_at": self.memory._now() - timedelta(seconds=ago),
        }
        return self.memory.insert_row(**(columns | values)).id

    def insert_abandoned(self, kind: str = KIND) -> str:
        """Insert a job whose worker died on its last attempt; its id."""
        return self.memory.insert_row(
            tenant=TENANT,
            project=PROJECT,
            kind=kind,
            status="in-progress",
            attempts=3,
            locked_by="dead/1-aaaaaaaa",
            lease_expires_at=self.memory._now() - timedelta(seconds=1),
        ).id

    async def cancel(self, id: str) -> None:
        """Cancel a job as its client, with the notification."""
        if await self.memory.cancel_job(TENANT, PROJECT, id) is None:
            raise AssertionError("there was nothing to cancel")

    async def cancel_unheard(self, id: str) -> None:
        """Cancel a job as its client, without a notification."""
        await self.provider.cancel_behind(self.job(id))

    def take_over(self, id: str) -> None:
        """Let another worker hold a job, as if it had claimed it after the lease had lapsed."""
        row = self.memory._table.rows[id]
        row.locked_by = "other/1-zzzzzzzz"
        row.lease_expires_at = self.memory._now() + timedelta(seconds=10 * LEASE)

    def lapse(self, id: str) -> None:
        """Let a lease lapse early, as when the database's clock steps forward."""
        self.memory._table.rows[id].lease_expires_at = self.memory._now() - timedelta(seconds=1)

    def lease_left(self, id: str) -> float:
        """Seconds until the lease lapses, by the storage's clock."""
        ends = self.memory._table.rows[id].lease_expires_at
        if ends is None:
            raise AssertionError("nobody holds the job")
        return (ends - self.memory._now()).total_seconds()

    def exists(self, id: str) -> bool:
        """Whether the row is still there, whatever its state."""
        return id in self.memory._table.rows

    def job(self, id: str) -> AsyncJob:
        """The row as it is stored, whatever its state."""
        return self.memory._table.rows[id].as_job()

    def jobs(self, status: AsyncJobStatus) -> list[str]:
        """The ids of all rows of a status."""
        return [row.id for row in self.memory._table.rows.values() if row.status is status]

    async def until(self, check: Callable[[], T], seconds: float = 3 * HOUR) -> T:
        """Wait until `check` is true; what it returned.

        It is asked after each call to the storage and each line of the package's log.
        """
        with trio.fail_after(seconds):
            while not (found := check()):
                await self.log.happened.park()
            return found

    async def wait_for_status(self, id: str, status: AsyncJobStatus) -> AsyncJob:
        """Wait until the row has a status; the job."""
        await self.until(lambda: self.job(id).status is status)
        return self.job(id)

    async def ended(self, id: str) -> AsyncJob:
        """Wait until the job is neither queued nor running; the job."""
        await self.until(lambda: not self.job(id).status.is_live)
        return self.job(id)

    async def removed(self, id: str) -> None:
        """Wait until the row is gone."""
        await self.until(lambda: not self.exists(id))

    async def outcome_of(self, body: Body, **config: Any) -> AsyncJob:  # noqa: ANN401
        """Run one job to its end in a worker of its own; the job."""
        async with self.running(handler(body), **config):
            id = await self.create()
            return await self.ended(id)


def handler(
    body: Body, kind: str = KIND, expire: Callable[[AsyncJob], Awaitable[None]] | None = None
) -> JobHandler:
    """A handler made of functions."""
    made = job_handler(kind)(body)
    if expire is not None:
        made.on_expire(expire)
    return made


def returning(output: object) -> Body:
    """A body that returns at once, anything."""

    async def body(context: JobContext) -> JobOutput:
        return output  # type: ignore[return-value]  # rubbish is what some tests are about

    return body


def raising(error: BaseException) -> Body:
    """A body that raises at once."""

    async def body(context: JobContext) -> JobOutput:
        raise error

    return body


def sleeping(seconds: float = math.inf) -> Body:
    """A body that takes its time."""

    async def body(context: JobContext) -> JobOutput:
        await trio.sleep(seconds)
        return DONE

    return body


@attrs.define
class Runs:
    """A body that tells how its runs went: one entry a run in each list.

    Args:
        seconds: How long a run takes unless it is cancelled.
    """

    seconds: float = math.inf
    contexts: list[JobContext] = attrs.field(factory=list)
    started: list[float] = attrs.field(factory=list)
    cancelled: list[float] = attrs.field(factory=list)
    reasons: list[str] = attrs.field(factory=list)
    deadlines: list[float] = attrs.field(factory=list)
    running: int = 0
    most: int = 0
    begun: trio.Event = attrs.field(factory=trio.Event)

    async def __call__(self, context: JobContext) -> JobOutput:
        """Run one job."""
        self.contexts.append(context)
        self.started.append(trio.current_time())
        self.running += 1
        self.most = max(self.most, self.running)
        self.begun.set()
        try:
            await trio.sleep(self.seconds)
        except trio.Cancelled:
            self.cancelled.append(trio.current_time())
            self.reasons.append(str(context.cancel_reason))
            self.deadlines.append(context.lease_deadline)
            raise
        finally:
            self.running -= 1
        return DONE


def issues(job: AsyncJob) -> list[tuple[str, str, str]]:
    """Severity, code and diagnostics of each issue of a failed job."""
    assert job.status is AsyncJobStatus.FAILED
    assert job.error["resourceType"] == "OperationOutcome"
    return [(i["severity"], i["code"], i["diagnostics"]) for i in job.error["issue"]]


def gaps(times: list[float]) -> list[float]:
    """What lies between each moment and the next."""
    return [later - earlier for earlier, later in pairwise(times)]


def block(seconds: float) -> None:
    """Let time pass while no task runs, as code does that blocks the loop."""
    clock = trio.lowlevel.current_clock()
    if not isinstance(clock, trio.testing.MockClock):
        raise TypeError("virtual time needs a MockClock")
    clock.jump(seconds)


async def never(context: JobContext) -> JobOutput:
    """A body that is never to run."""
    raise AssertionError(f"{context.job.kind} ran")
