"""What a worker costs that has nothing to do, and one whose jobs all sleep.

Both run in a process of their own, reached by a wire that counts statements, and are watched from
outside for a while.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from hastetrio.bench._figures import Row, rounded
from hastetrio.bench._plan import STALLED
from hastetrio.bench._process import WorkerProcess, worker_process
from hastetrio.bench._protocol import Look, Order
from hastetrio.bench._wire import Wire, counted_wire
from hastetrio.bench._worker import enqueue, open_provider

if TYPE_CHECKING:
    from hastetrio.bench._plan import Plan, Progress
    from hastetrio.bench._room import Room

_IDLE_KIND: Final = "bench-idle"
_LEASED_KIND: Final = "bench-leased"

# The default of a worker.
_IDLE_SLOTS: Final = 4

# Seconds until what a worker does when it starts, or has claimed, is over.
_SETTLE: Final = 2.0

# How often the progress is shown, seconds.
_STEP: Final = 0.25

# A worker that starts ten thousand jobs a minute would be far too slow; one that is that slow is
# still told apart from one that hangs.
_JOBS_PER_SECOND: Final = 100.0

# Rows an idle worker looks at now and then: its sweeps, once a minute.
_SWEEPS: Final = 60.0

_NOT_COUNTED: Final = "not counted: the connection is encrypted (see sslmode=disable)"


@attrs.frozen(kw_only=True)
class Window:
    """What a worker process did while it was watched.

    Attributes:
        seconds: For how long.
        cpu_percent: Its CPU, of one core.
        statements: The statements it sent, or None where they cannot be counted.
        statements_per_minute: As many a minute.
    """

    seconds: float
    cpu_percent: float
    statements: int | None
    statements_per_minute: float | None

    def rows(self, about: str) -> list[Row]:
        """The lines of the table."""
        count = self.statements
        more = _NOT_COUNTED if count is None else f"{count:,} in {self.seconds:.1f} s"
        if self.seconds < _SWEEPS - 1:
            more += "; the sweeps, once a minute, may be missing"
        per_minute = self.statements_per_minute
        return [
            ("statements", None if per_minute is None else rounded(per_minute), "a minute", more),
            ("CPU of the process", rounded(self.cpu_percent), "% of a core", about),
        ]


@attrs.frozen(kw_only=True)
class Idle:
    """What an idle worker costs."""

    window: Window

    def rows(self) -> list[Row]:
        """The lines of the table."""
        return self.window.rows("a worker with nothing to do")


@attrs.frozen(kw_only=True)
class Leases:
    """What many sleeping jobs cost.

    Attributes:
        jobs: How many slept in the one worker.
        lease: Their lease, seconds.
        claim_seconds: From the first job's queueing until all of them ran.
        held_seconds: From when all of them ran until the end of the window.
        window: While all of them slept.
        lost: Jobs that lost their lease, as far as the worker or the database knows.
        renewals: Renewals that were answered, in the window.
        renewals_failed: Renewals that were not, ever.
        memory_per_job: Bytes: the growth of `memory_is` from the idle worker to the end of the
            window, for each job.
        memory_is: What was looked at.
    """

    jobs: int
    lease: float
    claim_seconds: float
    held_seconds: float
    window: Window
    lost: int
    renewals: int
    renewals_failed: int
    memory_per_job: float
    memory_is: str

    def rows(self) -> list[Row]:
        """The lines of the table."""
        held = f"all {self.jobs:,} held for {self.held_seconds:.0f} s of {self.lease:g} s leases"
        return [
            *self.window.rows(f"{self.jobs:,} jobs asleep"),
            ("lost leases", self.lost, "jobs", held),
            ("renewals that failed", self.renewals_failed, "jobs", f"{self.renewals:,} answered"),
            (
                "memory a job",
                rounded(self.memory_per_job / 1000),
                "kB",
                f"growth of the {self.memory_is} / jobs",
            ),
            ("until all ran", rounded(self.claim_seconds), "s", "their queueing included"),
        ]


async def measure_idle(room: Room, plan: Plan, progress: Progress) -> Idle:
    """Watch a worker that has nothing to do.

    Raises:
        BenchError: The worker process ended or hangs.
        ProviderUnavailable: The database went away.

    Cancellation: the worker process is killed.
    """
    async with (
        counted_wire(room.dsn) as wire,
        worker_process(_order(plan, wire, _IDLE_KIND, _IDLE_SLOTS)) as worker,
    ):
        window, _ = await _watch("idle", worker, wire, plan, progress)
    return Idle(window=window)


async def measure_leases(room: Room, plan: Plan, progress: Progress) -> Leases:
    """Watch a worker that holds the leases of many sleeping jobs.

    Raises:
        BenchError: The worker process ended or hangs.
        ProviderUnavailable: The database went away.

    Cancellation: the worker process is killed.
    """
    async with (
        open_provider(room, plan) as client,
        counted_wire(room.dsn) as wire,
        worker_process(_order(plan, wire, _LEASED_KIND, plan.leases)) as worker,
    ):
        await trio.sleep(_settling(plan))
        empty = await worker.look()
        queued = trio.current_time()
        await enqueue(client, _LEASED_KIND, plan.leases)
        await worker.expect("running", STALLED + plan.leases / _JOBS_PER_SECOND)
        all_run = trio.current_time()
        window, (first, last) = await _watch("leases", worker, wire, plan, progress)
        held = trio.current_time() - all_run
        overview = await client.overview()
        holding = sum(one.jobs for one in overview.holders if _LEASED_KIND in one.kinds)
    return Leases(
        jobs=plan.leases,
        lease=plan.lease,
        claim_seconds=all_run - queued,
        held_seconds=held,
        window=window,
        # A lost job is claimed again when it has unwound, so that the rows alone might hide it.
        lost=max(last.lost, plan.leases - holding + overview.lapsed),
        renewals=last.renewals - first.renewals,
        renewals_failed=last.renewals_failed,
        memory_per_job=(last.memory - empty.memory) / plan.leases,
        memory_is=last.memory_is,
    )


async def _watch(
    name: str, worker: WorkerProcess, wire: Wire, plan: Plan, progress: Progress
) -> tuple[Window, tuple[Look, Look]]:
    await trio.sleep(_settling(plan))
    before = wire.statements
    first = await worker.look()
    end = trio.current_time() + plan.seconds
    steps = max(round(plan.seconds / _STEP), 1)
    with progress(name, steps) as advance:
        for step in range(1, steps + 1):
            await trio.sleep_until(end - plan.seconds * (1 - step / steps))
            advance(1)
    last = await worker.look()
    statements = wire.statements - before if wire.is_counted else None
    seconds = last.time - first.time
    window = Window(
        seconds=seconds,
        cpu_percent=100 * (last.cpu - first.cpu) / seconds,
        statements=statements,
        statements_per_minute=None if statements is None else statements * 60 / seconds,
    )
    return window, (first, last)


def _settling(plan: Plan) -> float:
    return min(_SETTLE, plan.seconds)


def _order(plan: Plan, wire: Wire, kind: str, slots: int) -> Order:
    return Order(
        dsn=wire.dsn,
        kind=kind,
        slots=slots,
        lease=plan.lease,
        log_level=plan.log_level,
        prepared_statements=plan.prepared_statements,
    )
