"""Throughput: how fast one worker process drains jobs that do nothing."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Final

import attrs
import trio

from hastetrio import AsyncJobWorkerConfig, JobContext, JobHandler, JobOutput
from hastetrio.bench._figures import Row, Spread, rounded
from hastetrio.bench._plan import STALLED, BenchError
from hastetrio.bench._worker import enqueue, open_provider, running_worker

if TYPE_CHECKING:
    from hastetrio import AsyncJobWorker
    from hastetrio.bench._plan import Advance, Plan, Progress
    from hastetrio.bench._room import Room

# How often the progress is looked at, and how often the end is, once the last handler has run.
_LOOK: Final = 0.25
_LAST_LOOK: Final = 0.001


@attrs.frozen(kw_only=True)
class Throughput:
    """What was measured.

    Attributes:
        jobs: Jobs a round.
        slots: Jobs the worker ran at once.
        jobs_per_second: From the start of the worker to the last recorded result.
        cpu_us_per_job: Microseconds of CPU that this process used over that time, for each job.
    """

    jobs: int
    slots: int
    jobs_per_second: Spread
    cpu_us_per_job: Spread

    def rows(self) -> list[Row]:
        """The lines of the table."""
        rate, cpu = self.jobs_per_second, self.cpu_us_per_job
        rounds = f"in {len(rate.rounds)} x {self.jobs:,} jobs, {self.slots:,} slots"
        return [
            ("no-op jobs drained: median", rounded(rate.median), "jobs/s", f"{rate} {rounds}"),
            ("CPU of the process: median", rounded(cpu.median), "us/job", str(cpu)),
        ]


class _NoOp(JobHandler):
    kind = "bench-no-op"

    def __init__(self, jobs: int) -> None:
        self.all_ran = trio.Event()
        self.left = jobs

    async def run(self, context: JobContext) -> JobOutput:  # noqa: ARG002  # nothing is the point
        self.left -= 1
        if not self.left:
            self.all_ran.set()
        return JobOutput.json({})


async def measure(room: Room, plan: Plan, progress: Progress) -> Throughput:
    """Drain the rounds; the jobs are queued before the worker starts.

    Raises:
        BenchError: A job failed, or none ended for a long while.
        ProviderUnavailable: The database went away.

    Cancellation: the worker is stopped.
    """
    rates: list[float] = []
    costs: list[float] = []
    with progress("throughput", plan.jobs * plan.rounds) as advance:
        for _ in range(plan.rounds):
            async with open_provider(room, plan) as client:
                await enqueue(client, _NoOp.kind, plan.jobs)
            gc.collect()
            elapsed, cpu = await _drain(room, plan, advance)
            rates.append(plan.jobs / elapsed)
            costs.append(cpu * 1e6 / plan.jobs)
    return Throughput(
        jobs=plan.jobs,
        slots=plan.slots,
        jobs_per_second=Spread.of(rates),
        cpu_us_per_job=Spread.of(costs),
    )


async def _drain(room: Room, plan: Plan, advance: Advance) -> tuple[float, float]:
    """Seconds, and seconds of CPU, that a worker takes from its start until all are recorded."""
    handler = _NoOp(plan.jobs)
    config = AsyncJobWorkerConfig(max_concurrent_jobs=plan.slots)
    start, cpu = time.perf_counter(), time.process_time()
    async with running_worker(room, plan, handler, config) as worker:
        await _all_recorded(worker, handler, plan.jobs, advance)
        return time.perf_counter() - start, time.process_time() - cpu


async def _all_recorded(
    worker: AsyncJobWorker, handler: _NoOp, jobs: int, advance: Advance
) -> None:
    done = 0
    moved = trio.current_time()
    while done < jobs:
        if handler.all_ran.is_set():
            await trio.sleep(_LAST_LOOK)
        else:
            with trio.move_on_after(_LOOK):
                await handler.all_ran.wait()
        totals = worker.statistics().totals
        if totals.failed:
            raise BenchError(f"{totals.failed} of the no-op jobs failed; the worker's log says why")
        if totals.completed > done:
            moved = trio.current_time()
            advance(totals.completed - done)
            done = totals.completed
        elif trio.current_time() - moved > STALLED:
            raise BenchError(f"no job was completed for {STALLED:g} s, with {jobs - done:,} to go")
