"""The book: every claim and every body of a schedule, its trace, and the first broken rule."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs
import trio

from hastetrio import JobContext, JobLease

if TYPE_CHECKING:
    from .network import Process


@attrs.define(eq=False)
class Body:
    """One call of a handler's `run` or `expire`."""

    claim: Claim
    nursery: trio.Nursery
    context: JobContext | None
    ended: bool = False
    returned: bool = False
    output: object = None
    saw_cancelled: bool = False
    was_over: bool = False
    """A renewal had told its worker, before it ended, that the job is over."""
    reported: int = 0
    saved: int = 0
    asked: str = ""
    """How it asked to be run again: "retry" or "snooze"."""

    @property
    def is_alive(self) -> bool:
        """Whether it runs; in a process that died nothing does."""
        return not self.ended and not self.claim.process.is_dead


@attrs.define(eq=False)
class Claim:
    """One row, held under one token."""

    number: int
    process: Process
    job: str
    token: str
    is_cleanup: bool
    sent: float
    granted: float
    deadline: float
    slack: float
    """How long after the deadline nobody else may start: the margin, less the clock's steps."""
    answered: float | None = None
    unanswered: float | None = None
    is_last_chance: bool = False
    """The job had lapsed before, and has no attempt after this one."""
    over: bool = False
    ended: str = ""
    body: Body | None = None
    progress: int = 0


def margin_of(duration: float) -> float:
    """A tenth of the lease, from 0.2 s to 5 s."""
    return min(max(duration / 10, 0.2), 5.0)


class Book:
    """All claims and bodies of one schedule, and the first rule that was broken."""

    def __init__(self) -> None:
        self.violation: str | None = None
        self.failed = trio.Event()
        self.trace: list[tuple[float, str, tuple[object, ...]]] = []
        self.names: dict[str, str] = {}
        self.results: dict[str, str] = {}
        self.cancelled: set[str] = set()
        self.removed: set[str] = set()
        self.expired: set[str] = set()
        """Jobs whose `expire` has returned."""
        self.states: dict[str, list[object]] = {}
        """What the storage kept of each job's saved states, the latest last."""
        self.slowness = 0.0
        """The most seconds a call without faults takes."""
        self.last_jump = -math.inf
        self.last_step = -math.inf
        self._claims: dict[tuple[str, str], Claim] = {}
        self._holder: dict[str, Claim] = {}
        self._bodies: dict[str, list[Body]] = {}

    def note(self, text: str, *values: object) -> None:
        """Add a line to the trace."""
        self.trace.append((trio.current_time(), text, values))

    def name(self, id: str) -> str:
        """A job's name in traces: job ids differ from run to run."""
        return self.names.setdefault(id, f"j{len(self.names) + 1}")

    def lines(self) -> list[str]:
        """The trace."""
        return [f"{time:9.3f}  {text.format(*values)}" for time, text, values in self.trace]

    def broken(self, rule: str) -> None:
        """A rule was broken; the first one counts."""
        if self.violation is None:
            self.violation = rule
            self.note("BROKEN: {}", rule)
            self.failed.set()

    def require(self, holds: bool, rule: str, *values: object) -> None:
        """`rule` is what is so when it does not hold."""
        if not holds:
            self.broken(rule.format(*values))

    def claims(self) -> Iterator[Claim]:
        """All claims ever granted."""
        yield from self._claims.values()

    def alive(self, id: str) -> list[Body]:
        """The bodies of a job that run now."""
        bodies = [body for body in self._bodies.get(id, ()) if body.is_alive]
        self._bodies[id] = bodies
        return bodies

    def lost(self, id: str, lease: JobLease) -> None:
        """A worker was told that a row is not its own any more, whether or not it is so."""
        claim = self._claims.get((id, lease.token))
        if claim is not None and not claim.ended:
            claim.ended = "lost"

    def stepped(self, seconds: float) -> None:
        """The database's clock was set forward: leases end that much earlier.

        A step beyond the margin lets bodies overlap in different processes, never results.
        """
        self.last_step = trio.current_time()
        for claim in self._claims.values():
            if not claim.ended:
                claim.slack -= seconds

    def jumped(self) -> None:
        """The clock jumped while the loop stood still."""
        self.last_jump = trio.current_time()

    def check_slots(self, process: Process) -> None:
        """No body runs in a slot that is free."""
        if process.is_dead or process.worker is None:
            return
        running = sum(
            body.is_alive and body.claim.process is process and not body.claim.is_cleanup
            for bodies in self._bodies.values()
            for body in bodies
        )
        free, slots = process.worker._claims.free, process.config.max_concurrent_jobs
        self.require(0 <= free <= slots, "{} has {} of {} slots free", process.name, free, slots)
        self.require(
            running <= slots - free,
            "{} has {} bodies running and {} of {} slots free",
            process.name,
            running,
            free,
            slots,
        )
