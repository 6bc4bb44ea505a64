"""What the simulation knows for sure, and the rules it holds the workers to.

The ledger sees each claim twice: when the storage grants it and when the answer reaches its
worker. Deadlines are counted here a second time, from the protocol's numbers, not from the
worker's configuration.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final

import trio

from hastetrio import AsyncJob, AsyncJobStatus, JobContext, JobLease, JobResult, LeaseRenewal
from hastetrio._claims import ERROR_BACKOFF

from .book import Body, Book, Claim, margin_of

if TYPE_CHECKING:
    from hastetrio._memory_rows import Row

    from .network import Process

_CALLS_LIMIT: Final = 100_000


class Ledger(Book):
    """Hears of all that is asked, done and answered, and judges it."""

    def __init__(self) -> None:
        super().__init__()
        self._tokens: dict[str, float] = {}
        """When each claim was sent."""
        self._unanswered: dict[str, tuple[Process, float]] = {}
        """Whose claim was not answered, and until when it may hold rows."""
        self._forgotten: set[str] = set()
        self._calls = 0

    # What reaches a worker, or leaves it.

    def called(self, process: Process) -> None:
        """A worker makes a call: its slots are counted."""
        self._calls += 1
        self.require(self._calls < _CALLS_LIMIT, "more than {} calls were made", _CALLS_LIMIT)
        worker = process.worker
        if process.interrupted and worker is not None and worker._hurrying.is_set():
            # The body raised it earlier; the worker learned of it when the body had unwound.
            process.stopping(hurry=True)
        self.check_slots(process)

    def claim_sent(
        self, process: Process, lease: JobLease, exclude: Collection[str] | None
    ) -> None:
        """A worker asks for jobs (or, without `exclude`, for rows to clean up)."""
        self.require(
            trio.current_time() <= process.stopped_at or exclude is None,
            "{} asks for jobs after it was told to stop",
            process.name,
        )
        self.require(
            lease.token not in self._tokens, "the token {} was drawn twice", _name(lease.token)
        )
        self._tokens[lease.token] = trio.current_time()
        if exclude is None:
            return
        for token, (owner, until) in self._unanswered.items():
            self.require(
                owner is not process or token in self._forgotten or trio.current_time() >= until,
                "{} asks for jobs before it has handed back what the unanswered {} took",
                process.name,
                _name(token),
            )
        for id, bodies in self._bodies.items():
            for body in bodies:
                if body.is_alive and body.claim.process is process and body.context is not None:
                    self.require(
                        id in exclude or not body.context.is_cancelled,
                        "{} asks for jobs while its late body of {} unwinds, which it names not",
                        process.name,
                        self.name(id),
                    )

    def claim_answered(self, process: Process, lease: JobLease, jobs: list[AsyncJob]) -> None:
        """The answer of a claim reached its worker."""
        assert process.worker is not None
        for job in jobs:
            claim = self._claims[job.id, lease.token]
            claim.answered = trio.current_time()
            if job.id in process.worker._renewals:
                # An earlier claim's body is still there: this one starts nothing, and is left to
                # lapse or handed back.
                claim.ended = "left alone"
        if jobs:
            names = " ".join(self.name(job.id) for job in jobs)
            self.note("{} has {}", process.name, names)

    def claim_unanswered(self, process: Process, lease: JobLease) -> None:
        """A worker gave up waiting for the answer of a claim, or was told that it is lost."""
        self._unanswered[lease.token] = (process, trio.current_time() + lease.duration)
        for claim in self._claims.values():
            if claim.token == lease.token:
                claim.unanswered = trio.current_time()

    def renewal_answered(self, id: str, lease: JobLease, sent: float, answer: LeaseRenewal) -> None:
        """The answer of a renewal reached its worker."""
        claim = self._claims.get((id, lease.token))
        if claim is None:
            return
        held = answer is LeaseRenewal.RENEWED or (
            claim.is_cleanup and answer is not LeaseRenewal.LOST
        )
        if not held:
            claim.over = True
            self.note("{} learns: {} is {}", claim.process.name, self.name(id), answer.name)
            if answer is LeaseRenewal.LOST and not claim.ended:
                claim.ended = "lost"
        elif trio.current_time() < claim.deadline:
            duration = claim.process.config.lease_duration
            claim.deadline = max(claim.deadline, sent + duration - margin_of(duration))

    # What the storage did.

    def granted(
        self, process: Process, lease: JobLease, jobs: list[AsyncJob], *, is_cleanup: bool
    ) -> None:
        """The storage gave rows to a claim."""
        now = trio.current_time()
        margin = margin_of(lease.duration)
        for job in jobs:
            sent = self._tokens[lease.token]
            claim = Claim(
                len(self._claims) + 1,
                process,
                job.id,
                lease.token,
                is_cleanup,
                sent,
                now,
                sent + lease.duration - margin,
                margin,
            )
            before = self._holder.get(job.id)
            if before is not None and not before.ended:
                self._check_takeover(before, f"c{claim.number}")
                claim.is_last_chance = not is_cleanup and 1 < job.attempts == job.max_attempts
                before.ended = "taken"
            states = self.states.get(job.id, [])
            self.require(
                job.state == (states[-1] if states else None),
                "c{} is given a state of {} that was not saved last",
                claim.number,
                self.name(job.id),
            )
            if lease.token in self._unanswered:
                claim.unanswered = now - 1e-9  # it was applied after its worker had given up
            self._claims[job.id, lease.token] = self._holder[job.id] = claim
            self.require(
                0 <= job.attempts <= job.max_attempts,
                "{} is at attempt {} of {}",
                self.name(job.id),
                job.attempts,
                job.max_attempts,
            )
            self.note(
                "c{} grants {} to {}, {}",
                claim.number,
                self.name(job.id),
                process.name,
                "to clean up" if is_cleanup else f"attempt {job.attempts} of {job.max_attempts}",
            )

    def _check_takeover(self, old: Claim, new: str) -> None:
        now = trio.current_time()
        process = old.process
        if process.is_dead or now >= process.gives_up_at:
            return
        duration = process.config.lease_duration
        if old.answered is not None:
            # It is held, by a worker that lives: only missed renewals can lose it.
            self.require(
                now - max(process.trouble_until, self.last_jump, self.last_step) <= duration,
                "{} takes {} from c{}, which {} holds and has renewed without trouble",
                new,
                self.name(old.job),
                old.number,
                process.name,
            )
        elif (
            old.unanswered is not None
            and old.granted <= old.unanswered
            and old.unanswered + ERROR_BACKOFF + self.slowness < old.granted + duration
        ):
            trouble = max(process.trouble_until, self.last_jump, self.last_step, process.fault_at)
            self.require(
                trouble > old.unanswered or process.stopped_at <= now,
                "c{} was not answered, and {} has not handed back {}",
                old.number,
                process.name,
                self.name(old.job),
            )

    def renewed(self, id: str, lease: JobLease, progress: str | None, *, held: bool) -> None:
        """The storage was asked to renew."""
        claim = self._claims.get((id, lease.token))
        if claim is None or not held:
            return
        self._check_progress(claim, progress)
        if lease.duration > claim.process.config.lease_duration:
            self._end(claim, "kept")

    def abandoned(self, rows: Iterable[Row]) -> None:
        """The storage failed jobs that were abandoned on their last attempt."""
        for row in rows:
            claim = self._holder.get(row.id)
            if claim is None or claim.ended or claim.is_cleanup:
                continue
            if row.status is AsyncJobStatus.FAILED:
                self._check_takeover(claim, "the sweep for abandoned jobs")
                claim.ended = "abandoned"
                self.note("c{} of {} is abandoned", claim.number, self.name(claim.job))

    def released(self, id: str, lease: JobLease) -> None:
        """The storage let go of a row."""
        claim = self._claims.get((id, lease.token))
        if claim is None:
            return
        failed = claim.is_cleanup and claim.body is not None and not claim.body.returned
        self.require(
            not failed or claim.process.stopped_at <= trio.current_time(),
            "c{} lets go at once of a row whose clean-up failed",
            claim.number,
        )
        self._end(claim, "released")

    def rescheduled(self, id: str, lease: JobLease, row: Row, *, give_back: bool) -> None:
        """The storage queued a job again for later, as its body had asked."""
        claim = self._claims.get((id, lease.token))
        if claim is None:
            self.broken(f"{self.name(id)} was rescheduled under a token nobody holds")
            return
        if claim.ended == "rescheduled":
            return
        if claim.ended == "finished":
            self.broken(f"c{claim.number} was finished, and then rescheduled")
            return
        self._end(claim, "rescheduled")
        self.require(id not in self.results, "{} has a result and runs again", self.name(id))
        self.require(id not in self.cancelled, "{} runs again after a cancel", self.name(id))
        body = claim.body
        if body is None:
            self.broken(f"c{claim.number} was rescheduled without a body")
            return
        self.require(
            body.asked == "snooze" if give_back else body.asked != "snooze" and not body.returned,
            "c{} was rescheduled, and its body has not asked for that",
            claim.number,
        )
        stopped = claim.process.hurried_at <= trio.current_time()
        self.require(
            stopped or not (body.was_over or body.saw_cancelled),
            "c{} was rescheduled for a body that was cancelled",
            claim.number,
        )
        self.require(
            not body.reported or row.progress == str(body.reported),
            "c{} recorded progress {} and its body reported {}",
            claim.number,
            row.progress,
            body.reported,
        )
        if row.status is AsyncJobStatus.FAILED:
            self.note("{} has no attempt left", self.name(id))

    def not_rescheduled(self, id: str, lease: JobLease) -> None:
        """The storage says that a job is not this claim's to be run later."""
        claim = self._claims.get((id, lease.token))
        self.require(
            claim is None
            or claim.ended != "rescheduled"
            or self._holder[id] is not claim
            or id in self.removed,
            "{} is told that {} was not rescheduled, and it was",
            lease.worker,
            self.name(id),
        )

    def saved(self, id: str, lease: JobLease, state: object) -> None:
        """The storage keeps a state, of a body that holds the job."""
        claim = self._claims.get((id, lease.token))
        if claim is None or claim.body is None:
            self.broken(f"a state of {self.name(id)} was saved by nobody")
            return
        self.require(
            self._holder[id] is claim and claim.ended in ("", "lost"),
            "c{} saves a state after it was {}",
            claim.number,
            claim.ended or "taken",
        )
        self.states.setdefault(id, []).append(state)

    def forgot(self, lease: JobLease, count: int) -> None:
        """The storage handed back what an unanswered claim took."""
        self._forgotten.add(lease.token)
        for claim in self._claims.values():
            if claim.token == lease.token and not claim.ended:
                self.require(
                    claim.body is None, "c{} was forgotten after its body began", claim.number
                )
                claim.ended = "forgotten"
        if count:
            self.note("{} rows of {} are forgotten", count, lease.worker)

    def finished(
        self, id: str, lease: JobLease, result: JobResult, progress: str | None, row: Row
    ) -> None:
        """The storage says that it recorded this result."""
        claim = self._claims.get((id, lease.token))
        if claim is None:
            self.broken(f"{self.name(id)} was finished under a token nobody holds")
            return
        if claim.ended == "finished":
            return
        self._check_progress(claim, progress)
        self._end(claim, "finished")
        self.require(id not in self.results, "{} has two results", self.name(id))
        self.require(id not in self.cancelled, "{} has a result after a cancel", self.name(id))
        self.results[id] = claim.token
        self.require(row.state is None, "{} has a state and a result", self.name(id))
        self.states.pop(id, None)
        body = claim.body
        if body is None:
            self.broken(f"c{claim.number} was finished without a body")
            return
        stopped = claim.process.hurried_at <= trio.current_time()
        self.require(
            stopped or not (body.was_over or body.saw_cancelled),
            "c{} recorded a result its body returned after it was cancelled",
            claim.number,
        )
        if result.status is AsyncJobStatus.COMPLETED:
            self.require(
                body.returned and result.output == body.output,
                "c{} recorded what its body has not returned",
                claim.number,
            )
        self.require(
            not body.reported or row.progress == str(body.reported),
            "c{} recorded progress {} and its body reported {}",
            claim.number,
            row.progress,
            body.reported,
        )

    def not_finished(self, id: str, lease: JobLease) -> None:
        """The storage says that a job is not this claim's to finish."""
        self.require(
            self.results.get(id) != lease.token or id in self.removed,
            "{} is told that its result of {} was not recorded, and it was",
            lease.worker,
            self.name(id),
        )

    def deleted(self, id: str, lease: JobLease) -> None:
        """The storage deleted a row after its clean-up."""
        claim = self._claims.get((id, lease.token))
        if claim is None or claim.body is None or not claim.body.returned:
            self.broken(f"{self.name(id)} was deleted before its expire had returned")
        if claim is not None:
            self._end(claim, "deleted")
        self.removed.add(id)

    def _end(self, claim: Claim, how: str) -> None:
        """The row is let go of: no task of its body may be left."""
        self.require(
            self._holder[claim.job] is claim,
            "c{} was {} though another claim holds {}",
            claim.number,
            how,
            self.name(claim.job),
        )
        body = claim.body
        if body is not None:
            self.require(body.ended, "c{} was {} while its body runs", claim.number, how)
            self.require(
                not body.nursery.child_tasks,
                "c{} was {} while a task of its nursery runs",
                claim.number,
                how,
            )
        if not claim.ended:
            claim.ended = how
            self.note("c{} of {} is {}", claim.number, self.name(claim.job), how)

    def _check_progress(self, claim: Claim, progress: str | None) -> None:
        if progress is not None:
            self.require(
                int(progress) >= claim.progress, "c{}'s progress goes backwards", claim.number
            )
            claim.progress = int(progress)

    # Bodies.

    def begin(self, process: Process, job: AsyncJob, context: JobContext | None) -> Body:
        """A body begins."""
        now = trio.current_time()
        claim = self._claims[job.id, job.locked_by or ""]
        body = Body(claim, trio.lowlevel.current_task().child_nurseries[-1], context)
        what = f"expire of {self.name(job.id)}" if context is None else self.name(job.id)
        self.note("{} begins {} under c{}", process.name, what, claim.number)
        self.require(claim.process is process, "c{} runs in another process", claim.number)
        self.require(claim.body is None, "c{} runs twice", claim.number)
        self.require(claim.is_cleanup == (context is None), "c{} runs the wrong body", claim.number)
        self.require(
            claim.ended in ("", "taken", "lost"),
            "c{} begins after it was {}",
            claim.number,
            claim.ended,
        )
        self.require(now < claim.deadline, "c{} begins after its deadline", claim.number)
        self.require(
            context is None or (claim.answered or 0.0) <= process.stopped_at,
            "c{} begins after {} was told to stop",
            claim.number,
            process.name,
        )
        for other in self.alive(job.id):
            self.require(
                now >= other.claim.deadline + other.claim.slack,
                "c{} begins {} while c{} is inside its lease",
                claim.number,
                what,
                other.claim.number,
            )
            self.require(
                other.claim.process is not process or context is None,
                "{} runs {} twice at once",
                process.name,
                what,
            )
        for bodies in self._bodies.values() if claim.is_last_chance else ():
            for other in bodies:
                # One that has outlived a lease is not what kills its process.
                self.require(
                    not (
                        other.is_alive
                        and other.claim.process is process
                        and other.claim.is_last_chance
                        and claim.sent < other.claim.sent + process.config.lease_duration
                    ),
                    "{} runs two jobs that lapsed before on their last attempts",
                    process.name,
                )
        if context is not None:
            self.require(
                context.state is None or context.state in self.states.get(job.id, [context.state]),
                "c{} begins with a state that nobody saved",
                claim.number,
            )
        claim.body = body
        self._bodies.setdefault(job.id, []).append(body)
        self.check_slots(process)
        return body

    def end(self, body: Body) -> None:
        """A body has ended, with all it started."""
        body.ended = True
        body.was_over = body.claim.over
        if body.claim.is_cleanup and body.returned:
            self.expired.add(body.claim.job)
        self.note("c{} ends{}", body.claim.number, ", returning" if body.returned else "")


def _name(token: str) -> str:
    """A token without what is random in it."""
    return token[:-9]
