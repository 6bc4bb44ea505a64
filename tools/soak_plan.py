"""What a soak does and when: a pure function of its seed, so that one number replays it.

What the machine makes of the plan differs from run to run; which fault comes when, on which
worker, and what each job is, does not.
"""

from __future__ import annotations

import random
from typing import Any, Final

import attrs

DRAIN_TIMEOUT: Final = 2.0
CANCEL_GRACE: Final = 1.5

# One deck of faults; decks follow one another, each shuffled, so that every kind comes up early.
_DECK: Final = (
    *("kill",) * 6,
    *("stop",) * 5,
    *("stop-kill",) * 2,
    *("term",) * 3,
    "term-twice",
    *("terminate",) * 2,
    *("stall",) * 2,
    "restart-fast",
    "restart-immediate",
    "crash",
)
_DATABASE: Final = frozenset({"terminate", "stall", "restart-fast", "restart-immediate", "crash"})

# Seconds between two faults. With four workers each meets one about every seven seconds, and most
# of their time is spent under load, not starting.
_GAP: Final = (0.5, 1.8)

# Seconds in which nothing more is done to a worker that was stopped and continued: its bodies
# get to write down that they were cancelled, which is what the audit judges by.
_AFTER_STOP: Final = 2.0
_AFTER_START: Final = 3.0
_AFTER_RESTART: Final = 5.0
_AFTER_TERMINATE: Final = 1.0

# Kind and share of the jobs. With 30 jobs a second, about half of 4 x 16 slots are in use.
_KINDS: Final = {
    "quick": 58,
    "report": 12,
    "outcome": 8,
    "error": 6,
    "sleep": 7,
    "slow": 5,
    "stubborn": 4,
}
KINDS: Final = tuple(_KINDS)


@attrs.frozen
class Fault:
    """One fault.

    Attributes:
        at: Seconds after the beginning.
        kind: What is done.
        slot: To which worker; -1 for the database.
        seconds: How long it stays stopped, or down, or away after it was killed.
        share: Of the database's connections, how many are ended.
    """

    at: float
    kind: str
    slot: int
    seconds: float
    share: float


@attrs.frozen
class JobPlan:
    """One job.

    Attributes:
        kind: The kind.
        parameters: What its handler is told.
        retention: Seconds it is kept, from now and again from its end.
        max_attempts: How often it may be started.
        cancel_after: Seconds after which its client cancels it, or None.
    """

    kind: str
    parameters: dict[str, Any]
    retention: float
    max_attempts: int
    cancel_after: float | None


def fault_plan(seed: int, seconds: float, workers: int, lease: float) -> list[Fault]:
    """The faults of `seconds` seconds, in order; one worker never has two at a time."""
    draw = random.Random(f"faults/{seed}")  # noqa: S311  # to be replayed, not to be secret
    free = dict.fromkeys(range(-1, workers), 1.0)  # No fault before the workers have started.
    plan: list[Fault] = []
    deck: list[str] = []
    now = 1.0
    while True:
        now += draw.uniform(*_GAP)
        if now > seconds:
            return plan
        if not deck:
            deck = list(_DECK)
            draw.shuffle(deck)
        ready = [slot for slot in range(workers) if free[slot] <= now]
        possible = [kind for kind in deck if (free[-1] <= now if kind in _DATABASE else ready)]
        if not possible:
            continue
        kind = possible[0]
        deck.remove(kind)
        slot = -1 if kind in _DATABASE else draw.choice(ready)
        length = _length(draw, kind, lease)
        if now + length > seconds:
            continue
        plan.append(Fault(now, kind, slot, length, draw.uniform(0.2, 1.0)))
        free[slot] = now + length + _quiet(kind)


def _length(draw: random.Random, kind: str, lease: float) -> float:
    if kind == "stop":
        # One in three comes back in time, and must go on as if nothing had been.
        return lease * (draw.uniform(0.1, 0.6) if draw.random() < 1 / 3 else draw.uniform(1.1, 2))
    if kind in ("stop-kill", "stall"):
        return lease * draw.uniform(0.5, 2)
    if kind.startswith("restart"):
        # Past a lease every worker's last results compete with the claims that follow.
        return lease * draw.choice((0.0, draw.uniform(0, 0.5), *(draw.uniform(0.9, 1.6),) * 2))
    return draw.uniform(0, 1) if kind in ("kill", "term", "term-twice") else 0.0


def _quiet(kind: str) -> float:
    if kind == "stop":
        return _AFTER_STOP
    if kind.startswith(("restart", "crash")):
        return _AFTER_RESTART
    if kind in ("term", "term-twice"):
        return DRAIN_TIMEOUT + CANCEL_GRACE + 2 + _AFTER_START
    return _AFTER_TERMINATE if kind == "terminate" else _AFTER_START


def job_plan(seed: int, number: int, lease: float) -> JobPlan:
    """The `number`-th job."""
    draw = random.Random(f"job/{seed}/{number}")  # noqa: S311  # as above
    kind = draw.choices(KINDS, tuple(_KINDS.values()))[0]
    parameters: dict[str, Any] = {"number": number}
    if kind == "sleep":
        parameters["seconds"] = lease * draw.uniform(1.2, 3)
    elif kind in ("slow", "stubborn"):
        parameters["seconds"] = lease * draw.uniform(0.5, 2)
        parameters["unwind"] = lease * draw.uniform(0.05, 0.8)
    elif kind == "report":
        parameters["steps"] = draw.randint(2, 8)
        parameters["seconds"] = draw.uniform(0.05, 0.3)
    elif kind in ("outcome", "error"):
        parameters["seconds"] = draw.uniform(0, 0.2)
    return JobPlan(
        kind,
        parameters,
        # Some run out while queued, some while running, some after they have completed.
        retention=draw.uniform(1, 8) if draw.random() < 0.15 else 3600,
        max_attempts=draw.choice((2, 3, 3, 5)),
        cancel_after=draw.uniform(0, 6) if draw.random() < 0.08 else None,
    )
