"""Latencies: how soon a new job runs on an idle worker, and how soon a cancelled one has left.

The moment of the commit is not seen from outside, but it lies between the call's leaving and its
answer. So each sample gives two figures, one above and one below the true one.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final, Literal

import attrs
import trio

from hastetrio import JobContext, JobHandler, JobOutput
from hastetrio.bench._figures import Latency, Row
from hastetrio.bench._plan import TENANT, BenchError
from hastetrio.bench._worker import a_job, happened, open_provider, running_worker, until_idle

if TYPE_CHECKING:
    from hastetrio.bench._plan import Plan, Progress
    from hastetrio.bench._room import Room

# Seconds before the next sample: at random, so that it meets every phase of the worker's loops.
_PAUSES: Final = (0.01, 0.06)

# The first samples open connections and prepare statements; they are not counted.
_WARM_UP: Final = 5

_A_DAY: Final = 86_400.0


@attrs.frozen(kw_only=True)
class Latencies:
    """What was measured.

    Attributes:
        what: Which latency.
        samples: How many samples.
        since_sent: Since just before the call left; the true latency is at most that.
        since_answered: Since the call's return, 0 where that was later; it is at least that.
    """

    what: Literal["pick-up", "cancel"]
    samples: int
    since_sent: Latency
    since_answered: Latency

    def rows(self) -> list[Row]:
        """The lines of the table."""
        call, end = {
            "pick-up": ("create", "first line of the handler"),
            "cancel": ("cancel", "handler unwound"),
        }[self.what]
        samples = f"of {self.samples:,} samples"
        return [
            self.since_sent.row(f"{call} sent to {end}", f"{samples}; at most this since commit"),
            self.since_answered.row(f"{call} answered to {end}", f"{samples}; at least this"),
        ]


class _Stamping(JobHandler):
    """Notes when its only job began; where told to, sleeps, and notes when it has unwound."""

    kind = "bench-latency"

    def __init__(self, *, sleeps: bool) -> None:
        self._sleeps = sleeps
        self.expect()

    def expect(self) -> None:
        """Forget the last job."""
        self.began = 0.0
        self.unwound = 0.0
        self.has_begun = trio.Event()
        self.has_unwound = trio.Event()

    async def run(self, context: JobContext) -> JobOutput:  # noqa: ARG002  # when, not what
        self.began = time.perf_counter()
        self.has_begun.set()
        if self._sleeps:
            try:
                await trio.sleep(_A_DAY)
            finally:
                self.unwound = time.perf_counter()
                self.has_unwound.set()
        return JobOutput.json({})


async def measure_pick_up(room: Room, plan: Plan, progress: Progress) -> Latencies:
    """From a job's commit to the first line of its handler, on an idle worker.

    Raises:
        BenchError: A job did not start for a long while.
        ProviderUnavailable: The database went away.

    Cancellation: the worker is stopped.
    """
    handler = _Stamping(sleeps=False)
    sent: list[float] = []
    answered: list[float] = []
    async with (
        open_provider(room, plan) as client,
        running_worker(room, plan, handler) as worker,
    ):
        with progress("pick-up", plan.samples) as advance:
            for sample in range(-_WARM_UP, plan.samples):
                await until_idle(worker)
                await _pause()
                handler.expect()
                before = time.perf_counter()
                await client.create_job(TENANT, TENANT, a_job(handler.kind))
                after = time.perf_counter()
                await happened(handler.has_begun, "a new job did not start")
                if sample >= 0:
                    sent.append(handler.began - before)
                    answered.append(max(handler.began - after, 0.0))
                    advance(1)
    return _latencies("pick-up", sent, answered)


async def measure_cancel(room: Room, plan: Plan, progress: Progress) -> Latencies:
    """From a cancel's commit to the moment its handler, which slept, has unwound.

    Raises:
        BenchError: A job did not start, or did not end, for a long while.
        ProviderUnavailable: The database went away.

    Cancellation: the worker is stopped.
    """
    handler = _Stamping(sleeps=True)
    sent: list[float] = []
    answered: list[float] = []
    async with (
        open_provider(room, plan) as client,
        running_worker(room, plan, handler) as worker,
    ):
        with progress("cancel", plan.samples) as advance:
            for sample in range(-_WARM_UP, plan.samples):
                await until_idle(worker)
                handler.expect()
                job = await client.create_job(TENANT, TENANT, a_job(handler.kind))
                await happened(handler.has_begun, "a new job did not start")
                await _pause()
                before = time.perf_counter()
                cancelled = await client.cancel_job(TENANT, TENANT, job.id)
                after = time.perf_counter()
                if cancelled is None:
                    raise BenchError(f"job {job.id} was over before it was cancelled")
                await happened(handler.has_unwound, "a cancelled handler did not leave")
                if sample >= 0:
                    sent.append(handler.unwound - before)
                    answered.append(max(handler.unwound - after, 0.0))
                    advance(1)
    return _latencies("cancel", sent, answered)


async def _pause() -> None:
    await trio.sleep(random.uniform(*_PAUSES))  # noqa: S311


def _latencies(
    what: Literal["pick-up", "cancel"], sent: list[float], answered: list[float]
) -> Latencies:
    return Latencies(
        what=what,
        samples=len(sent),
        since_sent=Latency.of(sent),
        since_answered=Latency.of(answered),
    )
