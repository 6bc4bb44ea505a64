"""A schedule: workers, clients and faults drawn from one number, then peace, then the account."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from random import Random

import attrs
import trio
from trio.testing import MockClock

from hastetrio import (
    AsyncJob,
    AsyncJobStatus,
    AsyncJobWorker,
    AsyncJobWorkerConfig,
    CreateAsyncJob,
)
from hastetrio._maintenance import CLEANUP_RETRY, CLEANUP_TIMEOUT, CONCURRENT_CLEANUPS
from hastetrio.memory import MemoryJobProvider

from .bodies import RandomHandler
from .faults import Faults
from .ledger import Ledger
from .network import Network, Process
from .seeding import begin_process, seeded


@attrs.frozen
class Report:
    """How a schedule went."""

    seed: int
    violation: str | None
    trace: list[str]
    calls: int


def simulate(seed: int) -> Report:
    """Run one schedule in virtual time."""
    with seeded(seed):
        clock = MockClock(autojump_threshold=0)
        return trio.run(_World(seed, clock).run, clock=clock)


class _World:
    def __init__(self, seed: int, clock: MockClock) -> None:
        self._seed = seed
        self._clock = clock
        self._rng = rng = Random(seed)  # noqa: S311  # replayable, not secret
        self._ledger = Ledger()
        self._memory = MemoryJobProvider()
        self._processes: list[Process] = []
        self._jobs: list[AsyncJob] = []
        self._nursery: trio.Nursery | None = None
        self._faults: Faults | None = None
        self._kinds = ["export"] if rng.random() < 0.6 else ["export", "import"]
        self._lease = rng.choice((6.0, 12.0, 12.0, 30.0))
        self._latency = rng.choice((0.0, 0.0, 0.01, 0.3))
        self._maintenance = rng.choice((self._lease, self._lease * 3))
        self._poll = rng.choice((1.0, 3.0))
        # How often there is a fault, and how often a body is an odd one.
        self._fault_rate = rng.choice((0.0, 0.2, 0.5, 0.8))
        self._wildness = rng.choice((0.2, 0.5, 0.9))
        self._late_rate = rng.choice((0.0, 0.0, 0.02)) if self._fault_rate else 0.0
        self._pause_rate = rng.choice((0.0, 0.0, 0.01)) if self._fault_rate else 0.0
        self._ledger.slowness = 0.1 + 4 * self._latency
        # Clones of one machine share a name.
        self._one_name = rng.random() < 0.2
        self._time = self._lease * rng.choice((2, 4, 8))

    async def run(self) -> Report:
        """The schedule, and what came of it."""
        rng, ledger = self._rng, self._ledger
        async with trio.open_nursery() as self._nursery:
            self._faults = Faults(rng, ledger, self._memory, self._lease, self._nursery)
            for _ in range(rng.choice((1, 2, 2, 3))):
                self._join()
            for _ in range(rng.randrange(1, 6)):
                await self._create()
            await self._chaos()
            if not ledger.failed.is_set():
                await self._peace()
            await self._end()
        if ledger.violation is None:
            self._check_rows()
        calls = sum(len(process.wire.calls) for process in self._processes)
        return Report(self._seed, ledger.violation, ledger.lines(), calls)

    # Processes.

    def _join(self, *, kinds: list[str] | None = None, patient: bool = False) -> Process:
        """Start a worker in a process of its own."""
        rng = self._rng
        number = len(self._processes) + 1
        lease = 30.0 if patient else self._lease
        config = AsyncJobWorkerConfig(
            poll_interval=30.0 if patient else self._poll,
            lease_duration=lease,
            max_concurrent_jobs=10 if patient else rng.choice((1, 2, 3)),
            maintenance_interval=30.0 if patient else self._maintenance,
            drain_timeout=rng.choice((0.0, self._lease / 2, self._lease * 3)),
            cancel_grace=rng.choice((1.0, self._lease / 2)),
        )
        if kinds is None:
            kinds = [self._kinds[0]] if rng.random() < 0.2 else list(self._kinds)
        process = Process(f"w{number}", config, kinds)
        assert self._nursery is not None
        network = Network(
            self._memory, process, self._ledger, rng, self._latency, self._clock, self._nursery
        )
        network.late_rate, network.pause_rate = self._late_rate, self._pause_rate
        handlers = [
            RandomHandler(kind, process, self._ledger, rng, self._clock, lambda: self._wildness)
            for kind in kinds
        ]
        process.worker = AsyncJobWorker(
            network, handlers, config, worker_id="clone" if self._one_name else process.name
        )
        self._processes.append(process)
        process.network = network
        self._nursery.start_soon(self._live, process)
        return process

    async def _live(self, process: Process) -> None:
        begin_process()
        process.task = trio.lowlevel.current_task()
        assert process.worker is not None
        self._ledger.note("{} starts", process.name)
        try:
            with process.scope:
                await process.worker.run()
        except trio.Cancelled:
            raise
        except BaseException as error:  # noqa: BLE001  # judged below
            process.error = error
        process.has_ended = True
        if process.is_dead:
            return
        self._ledger.note("{} has ended", process.name)
        if process.error is not None:
            self._ledger.require(
                process.interrupted and isinstance(process.error, KeyboardInterrupt),
                "{} raised {!r}",
                process.name,
                process.error,
            )
        self._ledger.require(
            process.interrupted or process.stopped_at < math.inf,
            "{} ended though nobody stopped it",
            process.name,
        )
        self._check_idle(process)

    def _check_idle(self, process: Process) -> None:
        worker = process.worker
        assert worker is not None
        stand = worker.statistics()
        self._ledger.require(
            stand.free == stand.slots and worker._expired._free == CONCURRENT_CLEANUPS,
            "{} has ended with {} of {} slots free and {} of {} for clean-ups",
            process.name,
            stand.free,
            stand.slots,
            worker._expired._free,
            CONCURRENT_CLEANUPS,
        )
        self._ledger.require(stand.held == 0, "{} has ended and holds {}", process.name, stand.held)

    def _running(self) -> list[Process]:
        return [p for p in self._processes if not p.is_dead and not p.has_ended]

    def _working(self) -> list[Process]:
        return [p for p in self._running() if p.stopped_at == math.inf and not p.interrupted]

    # Chaos.

    async def _chaos(self) -> None:
        rng = self._rng
        end = trio.current_time() + self._time
        while trio.current_time() < end and not self._ledger.failed.is_set():
            with trio.move_on_after(rng.expovariate(4 / self._lease)):
                await self._ledger.failed.wait()
                return
            if rng.random() < self._fault_rate:
                self._fault()
            elif (what := rng.random()) < 0.4 and len(self._jobs) < 12:
                await self._create()
            elif what < 0.65:
                await self._cancel()
            elif what < 0.7 and len(self._processes) < 6:
                self._join()

    async def _create(self) -> None:
        rng = self._rng
        delay = self._lease * rng.choice((0.0, 0.0, 0.0, 0.5, 1.5, -1.0))
        created = CreateAsyncJob(
            kind=rng.choice(self._kinds),
            claims={"sub": "simulation"},
            retention=self._lease * rng.choice((0.5, 1.5, 5.0, 100.0, 100.0, 10_000.0)),
            max_attempts=rng.choice((1, 2, 3, 3)),
            run_at=self._memory._now() + timedelta(seconds=delay) if delay else None,
        )
        job = await self._memory.create_job("acme", "main", created)
        self._jobs.append(job)
        self._ledger.note(
            "{} is created, for {:.0f} s, {} attempts, to run in {:.1f} s",
            self._ledger.name(job.id),
            created.retention,
            job.max_attempts,
            delay,
        )

    async def _cancel(self) -> None:
        if not self._jobs:
            return
        job = self._rng.choice(self._jobs[-5:])
        before = await self._memory.cancel_job("acme", "main", job.id)
        if before is not None:
            self._ledger.cancelled.add(job.id)
            self._ledger.note(
                "{} is cancelled; it was {}", self._ledger.name(job.id), before.status.value
            )

    def _fault(self) -> None:
        rng = self._rng
        processes = self._running()
        if not processes:
            self._join()
            return
        process = rng.choice(processes)
        what = rng.random()
        if what < 0.77:
            assert self._faults is not None
            self._faults.strike(process, processes)
        elif what < 0.87:
            process.stopping(hurry=process.stopped_at < math.inf)
            assert process.worker is not None
            process.worker.stop()
            self._ledger.note("{} is told to stop", process.name)
        elif what < 0.9:
            process.stopping(hurry=True)
            self._ledger.note("run() of {} is cancelled", process.name)
            process.scope.cancel("the host ends")
        else:
            self._ledger.note("{} dies", process.name)
            process.die()
            if rng.random() < 0.7 and len(self._processes) < 6:
                self._join()

    # Peace.

    async def _peace(self) -> None:
        """No more faults: everything ends, and everything that held it is free again."""
        ledger = self._ledger
        self._wildness = self._late_rate = self._pause_rate = 0.0
        for process in self._processes:
            process.wire.heal()
        ledger.note("peace")
        # Late bodies, leases of the dead, and each attempt anew; then the sweep.
        patience = 20 * self._lease + 4 * self._maintenance + 100
        await self._until(self._all_over, patience, "jobs are not over")
        await self._until(self._all_idle, patience, "slots are not free")
        for process in self._working():
            process.stopping(hurry=False)
            assert process.worker is not None
            process.worker.stop()
        await self._until(
            lambda: not any(not p.has_ended for p in self._processes if not p.is_dead),
            patience,
            "workers have not ended",
        )
        self._join(kinds=list(self._kinds), patient=True)
        await self._until(
            lambda: not self._memory._table.expired(self._memory._now(), self._memory._now()),
            CLEANUP_RETRY + CLEANUP_TIMEOUT + patience,
            "rows are not cleaned up",
        )

    def _live_jobs(self) -> list[str]:
        rows = self._memory._table.rows.values()
        return [self._ledger.name(row.id) for row in rows if row.status.is_live]

    def _all_over(self) -> bool:
        if not any(process.kinds == self._kinds for process in self._working()):
            # The last one that could do the rest has left, or was interrupted by a late body.
            self._join(kinds=list(self._kinds))
        return not self._live_jobs()

    def _all_idle(self) -> bool:
        return all(
            process.worker is not None
            and process.worker._claims.free == process.config.max_concurrent_jobs
            for process in self._working()
        )

    async def _until(self, holds: Callable[[], bool], patience: float, what: str) -> None:
        end = trio.current_time() + patience
        while not holds() and not self._ledger.failed.is_set():
            if trio.current_time() > end:
                self._ledger.broken(f"{what} after {patience:.0f} s of peace: {self._live_jobs()}")
            with trio.move_on_after(self._lease / 2):
                await self._ledger.failed.wait()

    async def _end(self) -> None:
        """Stop what still runs; after a violation, at once."""
        for process in self._running():
            process.stopping(hurry=True)
            if self._ledger.failed.is_set():
                process.die()
            elif process.worker is not None:
                process.worker.stop()
                process.worker.stop()

    def _check_rows(self) -> None:
        """What is left is over, and what is gone was cleaned up."""
        rows = self._memory._table.rows
        for job in self._jobs:
            name, row = self._ledger.name(job.id), rows.get(job.id)
            if row is None:
                self._ledger.require(
                    job.id in self._ledger.removed and job.id in self._ledger.expired,
                    "{} has gone, and nobody cleaned up after it",
                    name,
                )
                continue
            row.check_shape()
            self._ledger.require(not row.status.is_live, "{} is {}", name, row.status.value)
            result = self._ledger.results.get(job.id)
            self._ledger.require(
                result in (None, row.finished_by)
                and (result is not None or row.status is not AsyncJobStatus.COMPLETED),
                "{} has lost its result, or has one that nobody recorded",
                name,
            )
