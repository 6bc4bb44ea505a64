"""The verdict on a soak: what the database did, change by change, and what is left of each job."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import attrs

from tools import soak_bodies
from tools.soak_evidence import LIVE
from tools.soak_handlers import worker_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.soak_evidence import Change, Evidence, Row, State

# What a job may be given back at most, as `release_jobs.sql` has it.
_HAND_BACKS: Final = 10

# Seconds around an attempt in which a fault explains that it was lost: a claim's answer may have
# been under way when its worker was killed, and a worker may be cut off from before the claim.
_AROUND: Final = 1.0

# Seconds after which an expired row that is still there was forgotten: the sweeps run every one.
_SWEPT_AFTER: Final = 10.0

# Exit codes of a worker that was told to end: in order; without its stuck handlers; before its
# signal handlers were there; while it could not reach the database.
_UNREACHABLE: Final = 3
_TOLD: Final = (0, 1, -15, _UNREACHABLE)


@attrs.frozen
class Violation:
    """A promise that was not kept: which rule, by which job or worker, and how."""

    rule: str
    about: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.about}: {self.text}"


@attrs.frozen
class LostAttempt:
    """A claim that ended without its holder's doing: another took the row, or it was failed."""

    job: str
    token: str
    claimed: float
    lost: float
    abandoned: bool


def audit(evidence: Evidence, *, emptied: bool = False) -> list[Violation]:
    """Every promise that was not kept.

    Args:
        evidence: What the soak left, with no worker running.
        emptied: Whether every job was made to expire, so that nothing may be left.
    """
    found = [*_creations(evidence), *_processes(evidence)]
    for job in evidence.jobs():
        found += [Violation(rule, job, text) for rule, text in _of_job(evidence, job)]
    found += [Violation(*parts) for parts in soak_bodies.check(evidence, emptied=emptied)]
    if emptied:
        found += [Violation("left", row.id, "its row was not removed") for row in _rows(evidence)]
    return found


def lost_attempts(evidence: Evidence) -> list[LostAttempt]:
    """Every attempt whose lease lapsed."""
    lost = []
    for job, changes in evidence.changes.items():
        claimed: dict[str, float] = {}
        for change in changes:
            before, after = change.before, change.after
            if before and after and before.status == "in-progress" and before.token:
                abandoned = _is_abandonment(before, after)
                if abandoned or change.takes:
                    began = claimed.get(before.token, change.at)
                    lost.append(LostAttempt(job, before.token, began, change.at, abandoned))
            if change.claims and after and after.token:
                claimed[after.token] = change.at
    return lost


def explanation(evidence: Evidence, attempt: LostAttempt) -> str | None:
    """Which fault explains that an attempt was lost, if one does."""
    life = evidence.lives.get(worker_name(attempt.token))
    begin, end = attempt.claimed - _AROUND, attempt.lost
    if life is not None:
        if life.killed is not None and life.killed <= end:
            return "killed"
        if any(begin <= until and since <= end for since, until in life.stops):
            return "stopped"
        if life.told is not None and life.exited is not None and life.exited <= end:
            return "ended"
    if any(begin - evidence.lease <= until and since <= end for since, until in evidence.outages):
        return "database"
    return None


def figures(evidence: Evidence) -> dict[str, int | str]:
    """The figures of a soak, in the order they are shown."""
    ends: Counter[str] = Counter()
    takes = 0
    for changes in evidence.changes.values():
        last = [change.after for change in changes if change.after is not None][-1]
        ends[last.status] += 1
        takes += sum(change.claims for change in changes)
    lost = lost_attempts(evidence)
    causes = Counter(explanation(evidence, attempt) or "unexplained" for attempt in lost)
    abandoned = sum(attempt.abandoned for attempt in lost)
    counts = evidence.counts
    return {
        "jobs": len(evidence.changes),
        "  completed": ends["completed"],
        "  failed": ends["failed"],
        "    of them abandoned": abandoned,
        "  cancelled or expired": ends["cancelled"],
        "  removed": sum(job not in evidence.rows for job in evidence.changes),
        "attempts (claims)": takes,
        "  lapsed": len(lost),
        **{f"    {cause}": number for cause, number in sorted(causes.items())},
        "  longest wait after a lapse": f"{_longest_wait(evidence, last=False):.1f} s",
        "    for the last attempt": f"{_longest_wait(evidence, last=True):.1f} s",
        "  handed back": sum(
            _gives_back(change) for changes in evidence.changes.values() for change in changes
        ),
        **soak_bodies.figures(evidence),
        "workers started": counts["spawn"],
        "  SIGKILL": counts["kill"],
        "  SIGSTOP": counts["stop"],
        "  SIGTERM": counts["term"],
        "database restarts": counts["restart-fast"] + counts["restart-immediate"],
        "  of them immediate": counts["restart-immediate"],
        "backends killed": counts["crash"],
        "rounds of terminated backends": counts["terminate"],
        "rounds of stopped backends": counts["stall"],
    }


def _longest_wait(evidence: Evidence, *, last: bool) -> float:
    """Seconds from a lease's end to the next claim; last attempts are given out one at a time."""
    waits = [
        change.at - change.before.lease
        for changes in evidence.changes.values()
        for change in changes
        if change.claims and change.before and change.before.lease and change.after
        if (change.after.attempts >= change.after.max_attempts) == last
    ]
    return max(waits, default=0.0)


def _rows(evidence: Evidence) -> list[Row]:
    return [evidence.rows[id] for id in sorted(evidence.rows)]


def _creations(evidence: Evidence) -> Iterator[Violation]:
    for job in sorted(evidence.created - evidence.changes.keys()):
        yield Violation("lost", job, "its creation was answered, and it is not there")


def _processes(evidence: Evidence) -> Iterator[Violation]:
    for life in evidence.lives.values():
        if life.exited is None:
            yield Violation("process", life.name, "it still runs")
        elif life.killed is not None and life.code == -9:
            continue
        elif life.told is not None:
            if life.code not in _TOLD:
                yield Violation("process", life.name, f"told to end, it left with {life.code}")
        elif life.code != _UNREACHABLE or not _was_out(evidence, life.spawned, life.exited):
            yield Violation("process", life.name, f"it left by itself with {life.code}")


def _was_out(evidence: Evidence, since: float, until: float) -> bool:
    return any(since - _AROUND <= end and begin <= until for begin, end in evidence.outages)


def _of_job(evidence: Evidence, job: str) -> Iterator[tuple[str, str]]:
    changes = evidence.changes[job]
    ends = 0
    for change in changes:
        fault = _fault_of(change, job in evidence.asked)
        if fault is not None:
            yield "transition", fault
        before, after = change.before, change.after
        if after is not None and not 0 <= after.attempts <= after.max_attempts:
            yield "attempts", f"{after.attempts} attempts of {after.max_attempts}"
        ends += bool(before and before.is_live and after and not after.is_live)
    last = changes[-1].after
    row = evidence.rows.get(job)
    if ends != 1:
        yield "one-end", f"it ended {ends} times"
    if (row is None) != (last is None):
        yield "history", "its row came or went without a trace"
    if row is not None and last is not None:
        yield from _of_row(evidence, row, last, changes)
    if job in evidence.cancelled and not any(c.after and _is_cancelled(c.after) for c in changes):
        yield "cancel", "its cancelling was answered and did not happen"
    for attempt in _lost_of(evidence, job):
        if explanation(evidence, attempt) is None:
            yield "abandoned", f"no fault explains that {attempt.token} lost it"


def _of_row(
    evidence: Evidence, row: Row, last: State, changes: list[Change]
) -> Iterator[tuple[str, str]]:
    if (row.status, row.attempts, row.finished_by) != (
        last.status,
        last.attempts,
        last.finished_by,
    ):
        yield "history", "its row changed without a trace"
    now = max(change.at for changes in evidence.changes.values() for change in changes)
    if row.status in LIVE or row.locked_by is not None:
        yield "stuck", f"it is {row.status}, held by {row.locked_by}"
    elif row.expires < now - _SWEPT_AFTER:
        yield "stuck", f"{row.status}, it expired {now - row.expires:.1f} s ago and is still there"
    yield from soak_bodies.check_row(evidence, row, abandoned=any(map(_abandons, changes)))


def _lost_of(evidence: Evidence, job: str) -> list[LostAttempt]:
    """The lost attempts of a job that was abandoned."""
    changes = evidence.changes[job]
    if not any(_abandons(change) for change in changes):
        return []
    return lost_attempts(attrs.evolve(evidence, changes={job: changes}))


def _fault_of(change: Change, asked: bool) -> str | None:
    """What is wrong with a change, if anything is."""
    before, after = change.before, change.after
    if before is None:
        fresh = after and after.status == "accepted" and not after.token and not after.attempts
        return None if fresh else "it did not begin as a queued job"
    if after is None:
        fine = before.token and before.expires <= change.tx
        return None if fine else "it was removed unheld, or before it expired"
    if not before.is_live and after.is_live:
        return f"{before.status}, it came back as {after.status}"
    if not before.is_live and after.status not in (before.status, "cancelled"):
        return f"{before.status}, it became {after.status}"
    if before.finished_by is not None and after.finished_by != before.finished_by:
        return "its recorded result was replaced"
    ended = _is_cancelled(after) and not _is_cancelled(before)
    if ended and not asked and before.expires > change.tx:
        return "it was cancelled though nobody asked and it had not expired"
    if change.takes:
        return _fault_of_taking(change, before, after)
    if after.token is not None:
        return _fault_of_holding(before, after)
    return _fault_of_ending(change, before, after)


def _fault_of_taking(change: Change, before: State, after: State) -> str | None:
    if before.token is not None and (before.lease is None or before.lease >= change.tx):
        return f"{after.token} took it inside the lease of {before.token}"
    if after.status != "in-progress":
        fine = before.expires <= change.tx and after.attempts == before.attempts
        return None if fine else "a sweep took it before it expired, or counted an attempt"
    if before.expires <= change.tx:
        return "it was claimed though it had expired"
    return None if after.attempts == before.attempts + 1 else "a claim did not count one attempt"


def _fault_of_holding(before: State, after: State) -> str | None:
    if after.status not in (before.status, "cancelled"):
        return f"held, it went from {before.status} to {after.status}"
    if before.lease is not None and (after.lease is None or after.lease < before.lease):
        return "its lease shrank"
    return None if after.attempts == before.attempts else "held, its attempts changed"


def _fault_of_ending(change: Change, before: State, after: State) -> str | None:
    if before.token is None:
        fine = after.status == before.status or _is_cancelled(after)
        return None if fine else f"held by nobody, it went from {before.status} to {after.status}"
    if before.status == "in-progress" and after.status in ("accepted", "cancelled"):
        # Cancelled: handed back when it had expired, or expired when it was let go of.
        back = before.attempts - after.attempts
        return None if back in (0, 1) else f"{back} attempts were given back"
    if after.attempts != before.attempts:
        return "its end changed its attempts"
    if before.status != "in-progress":
        return None
    if after.finished_by is not None:
        fine = after.finished_by == before.token and before.expires > change.tx
        return None if fine else "it was finished by another token, or after it had expired"
    lapsed = before.lease is not None and before.lease < change.tx
    spent = after.attempts >= after.max_attempts and (lapsed or after.hand_backs >= _HAND_BACKS)
    fine = after.status == "failed" and spent
    return None if fine else "it ended by nobody's result though it had attempts or a lease left"


def _is_cancelled(state: State) -> bool:
    return state.status == "cancelled"


def _is_abandonment(before: State, after: State) -> bool:
    return (
        before.status == "in-progress"
        and after.status == "failed"
        and after.finished_by is None
        and after.token is None
    )


def _abandons(change: Change) -> bool:
    return bool(change.before and change.after and _is_abandonment(change.before, change.after))


def _gives_back(change: Change) -> bool:
    before, after = change.before, change.after
    return bool(before and after and before.status == "in-progress" and after.status == "accepted")
