"""What the bodies of a soak's jobs did, by their own records, and the files they left.

A body is *inside its lease* from its start until it has left, was killed, or its lease's deadline
as it saw it has passed, whichever comes first. Where no deadline was written down, because the
process was killed, the lease in the database stands for it. Past its lease a body may overlap
with the next one: it is unwinding, or its process was stopped. That is counted, not condemned.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.soak_evidence import Body, Evidence, Row

# Seconds by which two processes' readings of one clock may contradict each other.
TOLERANCE: Final = 0.02

# Seconds from the reading of the clock that an effect holds to its file's rename, unless stopped.
_WRITING: Final = 0.5

_RETURNING: Final = ("quick", "sleep", "report", "slow", "stubborn")


def check(evidence: Evidence, *, emptied: bool) -> Iterator[tuple[str, str, str]]:
    """Rule, job and fault of everything the bodies and files did wrong."""
    leases = _leases(evidence)
    by_job: dict[str, list[Body]] = defaultdict(list)
    for body in evidence.bodies.values():
        by_job[body.job].append(body)
        for rule, fault in _of_body(evidence, body, leases):
            yield rule, body.job, fault
    for job, bodies in by_job.items():
        for first, second in _overlaps(evidence, bodies):
            if second.started < _inside_until(evidence, first, leases) - TOLERANCE:
                yield (
                    "overlap",
                    job,
                    f"{second.what} of {second.token} began inside the lease of {first.token}",
                )
    for job in sorted(evidence.changes):
        last = evidence.changes[job][-1]
        if last.after is None and last.before is not None:
            cleanup = evidence.body(job, last.before.token, "expire")
            if cleanup is None or cleanup.how != "returned":
                yield "expire", job, "its row was removed without a clean-up that returned"
    for job, files in sorted(evidence.files.items()):
        for rule, fault in _of_files(evidence, job, files, emptied=emptied):
            yield rule, job, fault


def check_row(evidence: Evidence, row: Row, *, abandoned: bool) -> Iterator[tuple[str, str]]:
    """Rule and fault of what a row that is left says about its job's bodies."""
    body = evidence.body(row.id, row.finished_by)
    if row.status == "completed":
        effect = _effect(evidence, row.id, body)
        if body is None or body.how != "returned":
            yield "result", f"{row.finished_by} never returned one"
        elif row.kind not in _RETURNING:
            yield "result", f"jobs of the kind {row.kind} have none"
        elif not isinstance(row.output, dict) or row.output.get("nonce") != body.nonce:
            yield "result", f"it is not what {row.finished_by} returned"
        elif effect != row.output:
            yield "artefact", f"the effect of {row.finished_by} is gone or another"
        elif row.kind == "report" and row.progress != body.reported:
            yield "progress", f"{row.progress!r} is not the last that was reported"
    if row.status == "failed" and not abandoned:
        if body is None or body.how != "raised" or row.kind in _RETURNING:
            yield "outcome", f"{row.finished_by} did not raise, and it failed"
        elif row.kind == "outcome" and body.claim not in json.dumps(row.error):
            yield "outcome", f"it is not what {row.finished_by} raised"
        elif not isinstance(row.error, dict) or not row.error.get("issue"):
            yield "outcome", "it has none"


def figures(evidence: Evidence) -> dict[str, int | str]:
    """The figures of the bodies, in the order they are shown."""
    leases = _leases(evidence)
    runs = [body for body in evidence.bodies.values() if body.what == "run"]
    how = Counter(body.how or "killed" for body in runs)
    by_job: dict[str, list[Body]] = defaultdict(list)
    for body in evidence.bodies.values():
        by_job[body.job].append(body)
    allowed = [
        _was_stopped(evidence, first)
        for bodies in by_job.values()
        for first, second in _overlaps(evidence, bodies)
        if second.started >= _inside_until(evidence, first, leases) - TOLERANCE
    ]
    finished = {
        (change.id, change.after.finished_by)
        for changes in evidence.changes.values()
        for change in changes
        if change.after is not None and change.after.finished_by is not None
    }
    dropped = sum(
        body.how in ("returned", "raised") and (body.job, body.token) not in finished
        for body in runs
    )
    late = [
        body.cancelled - body.lease_end
        for body in runs
        if body.cancelled and body.lease_end and body.reason == "lease-lost"
        if not _was_stopped(evidence, body)
    ]
    return {
        "bodies": len(runs),
        **{f"  {key}": number for key, number in sorted(how.items())},
        "results dropped": dropped,
        "overlaps past the lease (allowed)": len(allowed),
        "  of them stopped processes": sum(allowed),
        "clean-ups": len(evidence.bodies) - len(runs),
        "latest cancel after a deadline": f"{max(late, default=0):.3f} s",
    }


def _leases(evidence: Evidence) -> dict[tuple[str, str], float]:
    """When the lease of each claim ended in the database, at the latest."""
    leases: dict[tuple[str, str], float] = {}
    for job, changes in evidence.changes.items():
        for change in changes:
            if change.after and change.after.token and change.after.lease is not None:
                key = (job, change.after.token)
                leases[key] = max(leases.get(key, 0.0), change.after.lease)
    return leases


def _of_body(
    evidence: Evidence, body: Body, leases: dict[tuple[str, str], float]
) -> Iterator[tuple[str, str]]:
    life = evidence.lives.get(body.worker)
    taken = [
        change
        for change in evidence.changes.get(body.job, ())
        if change.takes and change.after is not None and change.after.token == body.token
    ]
    name = f"{body.what} of {body.token}"
    if body.starts != 1:
        yield "body", f"{name} began {body.starts} times"
    elif not taken or taken[0].claims != (body.what == "run"):
        yield "body", f"{name} ran though it was not claimed for that"
    elif body.started < taken[0].at - TOLERANCE:
        yield "body", f"{name} ran before it was claimed"
    elif body.attempt != (taken[0].after.attempts if taken[0].after else 0):
        yield "body", f"{name} took itself for attempt {body.attempt}"
    if body.ended is None and (life is None or life.exited is None):
        yield "body", f"{name} never left, and its worker never ended"
    lease = leases.get((body.job, body.token))
    if body.lease_end is not None and lease is not None and body.lease_end > lease + TOLERANCE:
        yield "lease", f"{name} believed in its lease {body.lease_end - lease:.3f} s too long"


def _overlaps(evidence: Evidence, bodies: list[Body]) -> Iterator[tuple[Body, Body]]:
    """Pairs of bodies of which the second began while the first was still there."""
    ordered = sorted(bodies, key=lambda body: body.started)
    for position, first in enumerate(ordered):
        until = _left(evidence, first)
        for second in ordered[position + 1 :]:
            if second.started < until:
                yield first, second


def _left(evidence: Evidence, body: Body) -> float:
    if body.ended is not None:
        return body.ended
    life = evidence.lives.get(body.worker)
    return life.exited if life is not None and life.exited is not None else float("inf")


def _inside_until(evidence: Evidence, body: Body, leases: dict[tuple[str, str], float]) -> float:
    lease = body.lease_end
    if lease is None:
        lease = leases.get((body.job, body.token), float("inf"))
    return min(_left(evidence, body), lease)


def _was_stopped(evidence: Evidence, body: Body) -> bool:
    life = evidence.lives.get(body.worker)
    until = _left(evidence, body)
    return life is not None and any(
        since <= until and body.started <= end for since, end in life.stops
    )


def _effect(evidence: Evidence, job: str, body: Body | None) -> Any:  # noqa: ANN401  # JSON
    name = f"{body.attempt}-{body.claim}.json" if body is not None else ""
    text = evidence.files.get(job, {}).get(name)
    return None if text is None else json.loads(text)


def _of_files(
    evidence: Evidence, job: str, files: dict[str, str], *, emptied: bool
) -> Iterator[tuple[str, str]]:
    bodies = {
        f"{body.attempt}-{body.claim}": body
        for body in evidence.bodies.values()
        if body.what == "run" and body.job == job
    }
    removed = job not in evidence.rows
    if removed and not files:
        yield "artefact", "its folder is left though its row was removed"
    for name, text in files.items():
        stem, _, kind = name.partition(".")
        body = bodies.get(stem)
        if body is None:
            yield "effect", f"no attempt explains {name}"
        elif kind == "unfinished":
            if body.how is not None or removed:
                yield "temporary", f"{name} is left"
        elif not body.started <= json.loads(text)["at"] <= _left(evidence, body):
            yield "effect", f"{name} was not written while its attempt ran"
        elif removed and not _is_late(evidence, body, json.loads(text)["at"]):
            yield "artefact", f"{name} is left though its row was removed"
        elif emptied and not removed:
            yield "artefact", f"{name} is left"


def _is_late(evidence: Evidence, body: Body, at: float) -> bool:
    """Whether an effect was written past its body's lease, or by a process stopped over it."""
    life = evidence.lives.get(body.worker)
    stops = life.stops if life is not None else []
    return (body.lease_end is not None and at > body.lease_end) or any(
        since - _WRITING <= at <= until for since, until in stops
    )
