"""The course of a soak: faults under load, calm, the first audit, expiry, the second."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import trio

from hastetrio import CreateAsyncJob, ProviderUnavailable
from hastetrio.postgres import PostgresJobProvider
from tools.soak_audit import Violation, audit, figures
from tools.soak_evidence import Journal, load
from tools.soak_plan import Fault, fault_plan, job_plan
from tools.soak_world import Server, Slot

if TYPE_CHECKING:
    from collections.abc import Callable

_TENANT: Final = "soak"
_CLAIMS: Final = {"sub": "soak"}

# Seconds between two batches of new jobs, and between looks at what is left in the calm.
_BATCH: Final = 0.25
_LOOK: Final = 0.5

_LEFT: Final = """
SELECT count(*) FILTER (WHERE status IN ('accepted', 'in-progress')),
       count(*) FILTER (WHERE status NOT IN ('accepted', 'in-progress')
                          AND (expires_at <= now() OR locked_by IS NOT NULL)),
       count(*)
FROM async_jobs
"""

# A clean-up that failed (its process was stopped over its lease, its database was away) is due
# again only after ten minutes. Those pass here: behind the back of the history, which would call
# it a lease that shrank.
_POSTPONED: Final = """
SET session_replication_role = replica;
WITH due AS (
  UPDATE async_jobs SET lease_expires_at = now()
  WHERE expires_at <= now() AND lease_expires_at > now() + make_interval(secs => {seconds})
  RETURNING 1)
SELECT count(*) FROM due
"""
_EXPIRE_ALL: Final = """
SET session_replication_role = replica;
UPDATE async_jobs SET expires_at = now() WHERE expires_at > now()
"""


@attrs.frozen(kw_only=True)
class Options:
    """How a soak goes; durations in seconds.

    Args:
        seconds: How long faults go on.
        seed: What replays their schedule.
        workers: Worker processes.
        rate: Jobs created a second.
        lease: The workers' lease duration.
        calm: How long the workers may take for what is left, after the faults and at the end.
    """

    seconds: float
    seed: int
    workers: int
    rate: float
    lease: float
    calm: float


@attrs.define
class Report:
    """What came of it."""

    figures: dict[str, int | str] = attrs.field(factory=dict)
    violations: list[Violation] = attrs.field(factory=list)


class Soak:
    """One soak in a folder of its own.

    Args:
        options: How it goes.
        folder: An empty folder that the server's account can enter.
        say: Told in a line what happens.
    """

    def __init__(self, options: Options, folder: Path, say: Callable[[str], None]) -> None:
        self._options = options
        self._folder = folder
        self._say = say
        self._journal = Journal(folder)
        self._server = Server(folder, self._journal)
        self._report = Report()
        self._skipped = 0
        self._postponed = 0

    async def run(self) -> Report:
        """Run it.

        Cancellation: workers and server are ended, and waited for.
        """
        workers = self._options.workers
        began = time.monotonic()
        (self._folder / "effects").mkdir()
        try:
            await self._server.start()
            await self._server.prepare()
            async with self._workers(range(workers)) as slots:
                await self._faults(slots)
                faults_over = time.monotonic()
                await self._settle("what is left", lambda left: not (left[0] or left[1]))
            drained = time.monotonic()
            await self._audit(emptied=False)
            await self._server.fetch(_EXPIRE_ALL)
            async with self._workers(range(workers, workers + 2)):
                await self._settle("the clean-ups", lambda left: not left[2])
            await self._audit(emptied=True)
        finally:
            with trio.CancelScope(shield=True):
                gone = await trio.to_thread.run_sync(self._server.stop)
        if not gone:
            self._blame("server", "postgres", "its processes are still there")
        report = self._report
        report.figures["faults that met nobody"] = self._skipped
        report.figures["clean-ups that were postponed"] = self._postponed
        report.figures["drained after the faults"] = f"{drained - faults_over:.1f} s"
        report.figures["time"] = f"{time.monotonic() - began:.1f} s"
        return report

    @asynccontextmanager
    async def _workers(self, numbers: range) -> AsyncIterator[list[Slot]]:
        slots = [
            Slot(number, self._folder, self._journal, self._server.url, self._options.lease)
            for number in numbers
        ]
        async with trio.open_nursery() as nursery:
            for slot in slots:
                nursery.start_soon(slot.run)
            yield slots
            async with trio.open_nursery() as ends:
                for slot in slots:
                    ends.start_soon(self._end, slot)

    async def _end(self, slot: Slot) -> None:
        if not await slot.end():
            self._blame("process", "a worker", "it did not end in time after SIGTERM")

    def _blame(self, rule: str, about: str, text: str) -> None:
        self._report.violations.append(Violation(rule, about, text))

    async def _audit(self, *, emptied: bool) -> None:
        self._say("judging")
        evidence = await trio.to_thread.run_sync(
            load, self._server.url, self._folder, self._options.lease
        )
        known = set(self._report.violations)
        found = await trio.to_thread.run_sync(lambda: audit(evidence, emptied=emptied))
        self._report.violations += [violation for violation in found if violation not in known]
        if not emptied:
            self._report.figures.update(figures(evidence))

    # Under faults

    async def _faults(self, slots: list[Slot]) -> None:
        options = self._options
        plan = fault_plan(options.seed, options.seconds, options.workers, options.lease)
        self._say(f"{len(plan)} faults in {options.seconds:g} s on {len(slots)} workers")
        start = trio.current_time()
        async with (
            PostgresJobProvider.open(self._server.url, call_budget=2.0) as provider,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._create, provider, nursery, start + options.seconds)
            for fault in plan:
                await trio.sleep_until(start + fault.at)
                nursery.start_soon(self._do, fault, slots)

    async def _do(self, fault: Fault, slots: list[Slot]) -> None:
        slot = slots[fault.slot]
        match fault.kind:
            case "kill":
                met = slot.kill(fault.seconds)
            case "term" | "term-twice":
                met = slot.term(fault.seconds)
                if fault.kind == "term-twice":
                    await trio.sleep(fault.share)
                    slot.term(fault.seconds)
            case "stop" | "stop-kill":
                met = await slot.stop(fault.seconds, then_kill=fault.kind == "stop-kill")
            case "terminate" | "stall" | "crash":
                met = await self._server.break_backends(fault.kind, fault.share, fault.seconds)
            case _:
                met = await self._server.restart(fault.kind, fault.seconds)
        self._skipped += not met

    async def _create(
        self, provider: PostgresJobProvider, nursery: trio.Nursery, until: float
    ) -> None:
        """Queue jobs at the rate that was asked for."""
        number = 0
        begin = trio.current_time()
        while (now := trio.current_time()) < until:
            due = math.ceil((now - begin) * self._options.rate)
            plans = [
                job_plan(self._options.seed, each, self._options.lease)
                for each in range(number, due)
            ]
            number = due
            jobs = [
                CreateAsyncJob(
                    kind=plan.kind,
                    parameters=plan.parameters,
                    claims=_CLAIMS,
                    retention=plan.retention,
                    max_attempts=plan.max_attempts,
                )
                for plan in plans
            ]
            try:
                created = await provider.create_jobs(_TENANT, "soak", jobs)
            except ProviderUnavailable:
                pass  # Not answered: they may be there or not, and both is right.
            else:
                self._journal.write("created", jobs=[job.id for job in created])
                for job, plan in zip(created, plans, strict=True):
                    if plan.cancel_after is not None:
                        nursery.start_soon(self._cancel, provider, job.id, plan.cancel_after)
            await trio.sleep(_BATCH)

    async def _cancel(self, provider: PostgresJobProvider, job: str, after: float) -> None:
        await trio.sleep(after)
        self._journal.write("asked", job=job)
        while True:
            try:
                before = await provider.cancel_job(_TENANT, "soak", job)
            except ProviderUnavailable:
                await trio.sleep(0.2)
            else:
                if before is not None:
                    self._journal.write("cancelled", job=job)
                return

    # In the calm

    async def _settle(self, what: str, done: Callable[[tuple[int, ...]], bool]) -> None:
        """Wait until the workers are done or their time is over; the audit finds out which."""
        self._say(f"waiting for {what}")
        end = trio.current_time() + self._options.calm
        while True:
            (left,) = await self._server.fetch(_LEFT)
            if done(left) or trio.current_time() > end:
                return
            # Longer than any lease that a worker renews.
            statement = _POSTPONED.format(seconds=10 * self._options.lease)
            ((postponed,),) = await self._server.fetch(statement)
            self._postponed += postponed
            await trio.sleep(_LOOK)
