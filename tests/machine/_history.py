"""What the rules are made of: the calls, the claims they move, and what they must have done."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

import attrs

from hastetrio._errors import LiveJobLimit
from hastetrio._model import AsyncJob, CreateAsyncJob, JobLease, JobResult, LeaseRenewal
from hastetrio._provider import AsyncJobProvider

from ._agreement import Agreement, Call
from ._ledger import Claim, promise
from ._sides import GRID, TENANT, View, given_ids

ALL: Final = 100
OUTCOME: Final = {
    "resourceType": "OperationOutcome",
    "issue": [{"severity": "error", "code": "timeout"}],
}
RETENTION: Final = 650.0

_TICK: Final = 0.001

# Failed attempts that a row remembers.
_HISTORY: Final = 10

# Rows that expired this close to each other may stand in any order.
_SAME_MOMENT: Final = 10.0


class History(Agreement):
    """The steps that several rules share."""

    def __init__(self) -> None:
        super().__init__()
        self.unanswered: list[tuple[int, JobLease]] = []
        self._tokens = 0
        self._results = 0
        self._drawn = 0

    def _new_ids(self, number: int) -> list[str]:
        # Later ids sort before earlier ones, so that "by id" and "oldest first" are apart.
        first, self._drawn = self._drawn, self._drawn + number
        return [f"job-{999 - n}" for n in range(first, first + number)]

    def _create(
        self,
        project: str,
        jobs: Sequence[CreateAsyncJob],
        live_limit: int | None,
        delay: float | None = None,
    ) -> None:
        ids = self._new_ids(len(jobs))

        async def create(provider: AsyncJobProvider) -> list[AsyncJob]:
            asked = jobs
            if delay is not None:
                run_at = moments[provider]
                asked = [attrs.evolve(job, run_at=run_at) for job in jobs]
            with given_ids(ids):
                if len(asked) > 1:
                    return await provider.create_jobs(TENANT, project, asked)
                try:
                    job = await provider.create_job(
                        TENANT, project, asked[0], live_limit=live_limit
                    )
                except LiveJobLimit:
                    return []
                return [job]

        self._tick()
        moments = {side.provider: side.moment(delay or 0.0) for side in self.sides}
        expected, freed = self._keyed(project, jobs, ids)
        live = sum(view.is_live for view in self._shown(project))
        returned = [job.id for job in self._ask(create)]
        new = [id for id in ids if id in expected]
        if live_limit is not None and live >= live_limit and new:
            self._count("creation refused")
            new, expected = [], []
        promise(
            returned == expected,
            "a limit counts live jobs, and a key has one",
            live,
            returned,
            expected,
        )
        self._count("key found", len(expected) - len(new))
        self._count("key freed", len(freed))
        # Of the others the key is another's.
        self.ids += new
        self._settle([*new, *freed])
        for view in map(self.ledger.views.__getitem__, new):
            wanted = 0.0 if delay is None else delay
            promise(
                abs(view.due_left - wanted) < GRID / 2, "a new job waits for its time", view, wanted
            )

    def _keyed(
        self, project: str, jobs: Sequence[CreateAsyncJob], ids: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """The ids that these jobs are to have, and those that have to give up their keys for it."""
        expected: list[str] = []
        freed: list[str] = []
        holders = {
            (view.kind, view.unique_key): view
            for view in self.ledger.views.values()
            if view.is_live and view.project == project and view.unique_key is not None
        }
        taken: dict[tuple[str, str], str] = {}
        for id, job in zip(ids, jobs, strict=True):
            if job.unique_key is None:
                expected.append(id)
                continue
            key = job.kind, job.unique_key
            holder = holders.get(key)
            if holder is not None and not holder.expired:
                expected.append(holder.id)
                continue
            if holder is not None and key not in taken:
                freed.append(holder.id)
            expected.append(taken.setdefault(key, id))
        return expected, freed

    def _claim(
        self,
        worker: int,
        kinds: list[str],
        duration: float,
        limit: int,
        *,
        answered: bool,
        chances: int | None = None,
    ) -> list[Claim]:
        # As a worker does: what still unwinds in its process is left out.
        exclude = {
            claim.job
            for claim in self.ledger.claims
            if claim.worker == worker and not claim.is_over and not claim.cleans
        }
        free = [
            view
            for view in self.ledger.views.values()
            if view.kind in kinds
            and not view.expired
            and view.attempts < view.max_attempts
            and (
                (view.status == "accepted" and view.due)
                or (view.status == "in-progress" and view.lapsed)
            )
            and view.id not in exclude
        ]
        # Equally long due is oldest first, as the rows are.
        free.sort(key=attrgetter("due_left"))
        last = [view for view in free if view.lapsed and view.attempts + 1 == view.max_attempts]
        # Which of several lapsed jobs of a kind comes first is left to the provider.
        lapsed = Counter((view.kind, view in last) for view in free if view.lapsed)
        if max(lapsed.values(), default=0) > 1:
            limit = max(limit, len(free))
            chances = chances and 0
        if chances is not None:
            free = [view for view in free if view not in last[chances:]]
            self._count("last chances put off", len(last[chances:]))
        lease = self._lease(worker, duration)
        jobs = self._ask(
            lambda p: p.claim_jobs(kinds, lease, limit, exclude=exclude, last_chances=chances)
        )
        ids = [job.id for job in jobs]
        due = [view.id for view in free[:limit]]
        promise(ids == due, "a claim takes what is claimable, due longest first", ids, due)
        for job in jobs:
            state = self.ledger.facts[job.id].state
            promise(job.state == state, "an attempt finds the state saved last", job.state, state)
        self._count("claimed", len(ids))
        self._count("claimed lapsed", sum(view.lapsed for view in free[:limit]))
        for id in ids:
            self.ledger.facts[id].attempts += 1
        claims = [Claim(id, lease, worker, self.ledger.now + duration) for id in ids]
        if answered:
            for claim in claims:
                self.ledger.started(claim)
        else:
            self.unanswered.append((worker, lease))
        self._settle(ids)
        for view in map(self.ledger.views.__getitem__, ids):
            held = (view.status, view.locked_by, view.lapsed, view.progress)
            promise(
                held == ("in-progress", lease.token, False, None),
                "a claimed job runs under its token, without progress",
                view,
            )
        return claims

    def _renew(
        self, claims: Sequence[Claim], duration: float, progress: str | None, *, answered: bool
    ) -> None:
        def renewal(claim: Claim) -> Call[LeaseRenewal]:
            lease = attrs.evolve(claim.lease, duration=duration)
            return lambda p: p.renew_lease(claim.job, lease, progress)

        answers = self._ask_each([renewal(claim) for claim in claims])
        held = [claim for claim in claims if self.ledger.holds(claim)]
        for claim, answer in zip(claims, answers, strict=True):
            self._count(f"renewed: {answer.name}")
            expected = self._renewal(claim)
            promise(answer is expected, "a renewal says how things are", answer, expected, claim)
            if answered and answer is not LeaseRenewal.LOST:
                claim.deadline = max(claim.deadline, self.ledger.now + duration)
        self._settle([claim.job for claim in held])
        for claim, answer in zip(claims, answers, strict=True):
            if self.ledger.is_believed(claim):
                self.ledger.worked(claim)
            if claim in held:
                left = self.ledger.views[claim.job].lease_left
                promise(
                    left is not None and left > duration - GRID,
                    "a renewal of a row that is held extends its lease, whatever its status",
                    left,
                    self.ledger.views[claim.job],
                )
            if answer is LeaseRenewal.RENEWED and progress is not None:
                view = self.ledger.views[claim.job]
                promise(
                    view.status != "in-progress" or view.progress == progress,
                    "an acknowledged progress is recorded",
                    view,
                )

    def _renewal(self, claim: Claim) -> LeaseRenewal:
        view = self.ledger.views.get(claim.job)
        if view is None or not self.ledger.holds(claim):
            return LeaseRenewal.LOST
        if view.status == "cancelled":
            return LeaseRenewal.CANCELLED
        return LeaseRenewal.EXPIRED if view.expired else LeaseRenewal.RENEWED

    def _finish(self, claims: Sequence[Claim], *, completes: bool, progress: str | None) -> None:
        def finish(claim: Claim) -> Call[bool]:
            # Each attempt to record has a result of its own: one that overwrites another shows.
            self._results += 1
            value = {"by": claim.lease.token, "number": self._results}
            failure = json.dumps([claim.lease.token])
            result = (
                JobResult.completed(value)
                if completes
                else JobResult.failed(OUTCOME | value, failure=failure)
            )
            return lambda p: p.finish_job(claim.job, claim.lease, result, RETENTION, progress)

        claims = self._decided(claims)
        answers = self._ask_each([finish(claim) for claim in claims])
        touched = []
        for claim, answer in zip(claims, answers, strict=True):
            view = self.ledger.views.get(claim.job)
            may = repeats = False
            if view is not None:
                runs = view.status == "in-progress" and not view.expired
                may = self.ledger.holds(claim) and runs
                repeats = view.finished_by == claim.lease.token
            promise(
                answer == (may or repeats),
                "a result is recorded by the holder of a running job, once",
                answer,
                claim,
                view,
            )
            if may and view is not None:
                touched.append(claim.job)
                self.ledger.finished(view, [] if completes else [claim.lease.token])
            self._count(f"finish: {'recorded' if may else 'repeated' if repeats else 'refused'}")
            claim.is_over = True
        self._settle(touched)
        for id in touched:
            view = self.ledger.views[id]
            promise(
                view.status == ("completed" if completes else "failed")
                and view.finished_by is not None
                and view.locked_by is None,
                "what was answered as recorded is recorded",
                view,
            )

    def _reschedule(
        self, claims: Sequence[Claim], after: float, *, give_back: bool, fails: bool
    ) -> None:
        # One that is due at once goes alone, others each have a time of their own: how those are
        # sorted that travel together is left to the provider. Three, that all are due in 400 s.
        claims = self._decided(claims)[: 3 if after else 1]
        delays = [after + 100 * place for place in range(len(claims))]

        def reschedule(claim: Claim, delay: float) -> Call[bool]:
            failure = json.dumps([claim.lease.token]) if fails else None
            return lambda p: p.reschedule_job(
                claim.job,
                claim.lease,
                delay,
                give_back=give_back,
                retention=RETENTION,
                failure=failure,
                progress="later",
            )

        self._tick()
        answers = self._ask_each(list(map(reschedule, claims, delays)))
        touched = {}
        for claim, delay, answer in zip(claims, delays, answers, strict=True):
            view = self.ledger.views.get(claim.job)
            may = repeats = False
            if view is not None:
                runs = view.status == "in-progress" and not view.expired
                may = self.ledger.holds(claim) and runs
                repeats = view.finished_by == claim.lease.token
            promise(
                answer == (may or repeats),
                "the holder of a running job may have it run later, once",
                answer,
                claim,
                view,
            )
            if may and view is not None:
                touched[claim.job] = (claim, view, delay)
                errors = [claim.lease.token] if fails else []
                self.ledger.rescheduled(view, errors, give_back=give_back)
            self._count(f"later: {'recorded' if may else 'repeated' if repeats else 'refused'}")
            claim.is_over = True
        self._settle(touched)
        for id, (claim, old, delay) in touched.items():
            view = self.ledger.views[id]
            left = view.attempts < view.max_attempts
            kept = RETENTION if view.retention is None else view.retention
            promise(
                (view.status, view.locked_by, view.finished_by, view.progress)
                == ("accepted" if left else "failed", None, claim.lease.token, "later"),
                "a job that is to be run later waits, or has no attempt left",
                view,
            )
            promise(
                abs(view.due_left - delay) < GRID / 2
                and abs(view.expires_left - max(old.expires_left, delay + kept)) < GRID / 2,
                "it waits as long as was asked, and does not expire before",
                old,
                view,
            )
            self._count(f"later: {view.status}")
            self._count("snoozed", give_back)
            self._count("history cut", fails and len(view.attempt_errors) == _HISTORY)

    def _decided(self, claims: Sequence[Claim]) -> list[Claim]:
        """Those of the claims whose answers are the same in whatever order they are asked.

        Only the last end of a claim is remembered: a repeat of an earlier one is recognised before
        the job's holder ends it, and not after that.
        """
        held = {claim.job for claim in claims if self.ledger.holds(claim)}
        return [
            claim
            for claim in claims
            if claim.job not in held
            or self.ledger.views[claim.job].finished_by != claim.lease.token
        ]

    def _save(self, claims: Sequence[Claim], size: int = 0) -> None:
        def save(claim: Claim, state: object) -> Call[bool]:
            return lambda p: p.save_state(claim.job, claim.lease, json.dumps(state))

        states = []
        for claim in claims:
            self._results += 1
            states.append({"of": claim.lease.token, "number": self._results, "x": "x" * size})
        answers = self._ask_each(list(map(save, claims, states)))
        touched = []
        for claim, state, answer in zip(claims, states, answers, strict=True):
            view = self.ledger.views.get(claim.job)
            may = (
                view is not None
                and self.ledger.holds(claim)
                and view.status == "in-progress"
                and not view.expired
            )
            promise(answer == may, "the holder of a running job saves", answer, claim, view)
            self._count(f"state saved: {answer}")
            if may:
                self.ledger.facts[claim.job].state = state
                touched.append(claim.job)
        self._settle(touched)

    def _release(self, claims: Sequence[Claim], *, give_back: bool) -> None:
        def release(claim: Claim) -> Call[bool]:
            return lambda p: p.release_job(claim.job, claim.lease, give_back=give_back)

        answers = self._ask_each([release(claim) for claim in claims])
        held = [claim for claim in claims if self.ledger.holds(claim)]
        for claim, answer in zip(claims, answers, strict=True):
            promise(answer == (claim in held), "only the holder lets go of a row", answer, claim)
            claim.is_over = True
        for claim in held:
            view = self.ledger.views[claim.job]
            self.ledger.handed_back(view, give_back=give_back)
        self._settle([claim.job for claim in held])
        for claim in held:
            view = self.ledger.views[claim.job]
            self._count(f"released: {view.status}")
            self._count("released after ten", view.hand_backs == 10)
            promise(view.locked_by is None, "a released row is held by nobody", view)

    def _sweep_expired(
        self, worker: int, kinds: list[str], duration: float, limit: int, *, answered: bool
    ) -> list[Claim]:
        due = [
            view
            for view in self.ledger.views.values()
            if view.expired and view.is_free and view.kind in kinds
        ]
        due.sort(key=attrgetter("expires_left"))
        if limit < len(due):
            gap = due[limit].expires_left - due[limit - 1].expires_left
            limit = len(due) if gap < _SAME_MOMENT else limit
        ids = sorted(view.id for view in due[:limit])
        lease = self._lease(worker, duration)

        async def sweep(provider: AsyncJobProvider) -> list[AsyncJob]:
            jobs = await provider.claim_expired_jobs(kinds, lease, limit)
            return sorted(jobs, key=lambda job: job.id)

        jobs = self._ask(sweep)
        for job in jobs:
            state = self.ledger.facts[job.id].state
            promise(job.state == state, "a clean-up finds the state saved last", job.state, state)
        taken = [job.id for job in jobs]
        promise(taken == ids, "a sweep takes expired rows that nobody holds", taken, ids)
        self._count("swept", len(ids))
        claims = [Claim(id, lease, worker, self.ledger.now + duration, cleans=True) for id in ids]
        if answered:
            for claim in claims:
                self.ledger.started(claim)
        self._settle(ids)
        for view in map(self.ledger.views.__getitem__, ids):
            promise(
                not view.is_live and view.locked_by == lease.token,
                "a row under clean-up can never run again",
                view,
            )
        return claims if answered else []

    def _delete(self, claims: Sequence[Claim]) -> None:
        def delete(claim: Claim) -> Call[bool]:
            return lambda p: p.delete_expired_job(claim.job, claim.lease)

        answers = self._ask_each([delete(claim) for claim in claims])
        held = [claim for claim in claims if self.ledger.holds(claim)]
        for claim, answer in zip(claims, answers, strict=True):
            promise(
                answer == (claim in held),
                "only its own clean-up deletes a row",
                answer,
                claim,
            )
            self._count(f"deleted: {answer}")
            claim.is_over = True
        self._settle([claim.job for claim in held])
        for claim in held:
            promise(claim.job not in self.ledger.views, "a deleted row is gone", claim)

    def _pass_time(self, seconds: float) -> None:
        self.ledger.now += seconds
        self.pump.clock.jump(seconds)
        for side in self.sides:
            side.pass_time(seconds)

    def _tick(self) -> None:
        """Keep this moment apart from the last one: jobs are sorted by when they were made."""
        self.pump.clock.jump(_TICK)

    def _lease(self, worker: int, duration: float) -> JobLease:
        # Named, not drawn: a replayed history reads the same.
        self._tokens += 1
        name = f"worker-{worker}"
        return JobLease(name, duration, f"{name}/{self._tokens}-{self._tokens:08}")

    def at_work(self) -> list[Claim]:
        """The claims whose workers may count on their leases."""
        return [claim for claim in self.ledger.claims if self.ledger.is_believed(claim)]

    def keyed(self) -> list[View]:
        """The rows with a unique key, those first that have expired."""
        rows = [view for view in self.ledger.views.values() if view.unique_key is not None]
        return sorted(rows, key=lambda view: not view.expired)

    def stale(self) -> list[Claim]:
        """The claims whose lease or body is over."""
        return [claim for claim in self.ledger.claims if not self.ledger.is_believed(claim)]


def some(claims: Sequence[Claim], which: int, number: int) -> list[Claim]:
    """Up to `number` of the claims, from one on, the newest first."""
    newest = list(reversed(claims))
    start = which % len(newest) if newest else 0
    return (newest[start:] + newest[:start])[:number]
