"""The rules: what clients, workers, sweeps and time do, in any order that Hypothesis finds."""

from __future__ import annotations

import sys
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from hastetrio._model import AsyncJob, AsyncJobStatus, CreateAsyncJob
from hastetrio._provider import AsyncJobProvider

from ._history import ALL, OUTCOME, RETENTION, History, some
from ._ledger import Claim, promise
from ._sides import TENANT, given_ids

MOST_JOBS: Final = 8
WORKERS: Final = 3
LONGEST_LEASE: Final = 350.0
WEEK: Final = 7 * 86400.0

# Nobody registers the last kind; its rows go as orphans.
REGISTERED: Final = ["work", "toil"]
ORPHAN: Final = "alien"

which = st.integers(0, 7)
number = st.integers(1, 3)
workers = st.integers(0, WORKERS - 1)
kinds = st.sampled_from([*REGISTERED, *REGISTERED, ORPHAN])
claimed_kinds = st.sampled_from([REGISTERED, ["work"], ["toil"]])
projects = st.sampled_from(["main", "side"])
anyone = st.sampled_from([None, None, "ann", "bob"])
leases = st.sampled_from([150.0, LONGEST_LEASE])
limits = st.sampled_from([ALL, 1, 2])
mostly = st.sampled_from([True, True, True, False])
seldom = mostly.map(lambda value: not value)
last_chances = st.sampled_from([None, 1, 0])
deeds = st.sampled_from(["finish", "renew", "release", "delete", "later", "save"])
delays = st.sampled_from([0.0, 0.0, 125.0, 25.0])
progresses = st.sampled_from([None, "half", "most"])
passing = st.sampled_from([100.0, 200.0, 300.0] * 3 + [400.0, 400.0, 1000.0, 700_000.0])
new_jobs = st.builds(
    CreateAsyncJob,
    kind=kinds,
    claims=st.sampled_from([{"sub": "ann"}, {"sub": "bob"}]),
    retention=st.sampled_from([1050.0, 250.0, 450.0, 5050.0]),
    max_attempts=st.sampled_from([2, 1, 3]),
    unique_key=st.sampled_from([None, None, "nightly", "weekly"]),
)
foreign_rows = st.sampled_from(
    [
        {},
        {"max_attempts": 1, "submitted_by": "ann"},
        {"max_attempts": 12, "expires_at": 250.0},
        {"status": "in-progress", "attempts": 1, "locked_by": "other/1", "lease_expires_at": 150.0},
        {"status": "in-progress", "attempts": 3, "locked_by": "other/2", "lease_expires_at": -50.0},
        {"status": "failed", "error": OUTCOME, "expires_at": 250.0},
        {"status": "completed", "output": {"by": "other"}, "attempts": 1, "expires_at": -50.0},
        {"status": "failed", "error": OUTCOME, "max_attempts": 0, "unique_key": "nightly"},
        {"run_at": 125.0, "attempt_errors": {"not": "a list"}},
        {"max_attempts": 12, "attempt_errors": [*range(12)]},
    ]
)


class ProviderMachine(History):
    """Clients, three workers, their sweeps, zombies, crashes, lost answers, and time."""

    def __init__(self) -> None:
        super().__init__()
        self.deployed = self.failed_often = False

    # Clients

    @initialize(jobs=st.lists(new_jobs, min_size=2, max_size=3), claimed=mostly)
    def begin(self, jobs: list[CreateAsyncJob], claimed: bool) -> None:
        """There are jobs, and mostly somebody has begun."""
        self._create("main", jobs, None)
        if claimed:
            self._claim(0, REGISTERED, LONGEST_LEASE, ALL, answered=True)

    @precondition(lambda self: len(self.ids) < MOST_JOBS)
    @rule(
        project=projects,
        job=new_jobs,
        live_limit=st.sampled_from([None, None, 1, 2, 3]),
        delay=st.sampled_from([None, None, 125.0, 325.0, -175.0]),
    )
    def create(
        self,
        project: str,
        job: CreateAsyncJob,
        live_limit: int | None,
        delay: float | None = None,
    ) -> None:
        """A client kicks a job off, for now, for later, or for a time that has passed."""
        self._create(project, [job], live_limit, delay)

    @precondition(lambda self: len(self.ids) < MOST_JOBS)
    @rule(
        project=projects,
        jobs=st.lists(new_jobs, min_size=2, max_size=3),
        delay=st.sampled_from([None, 225.0]),
    )
    def create_several(self, project: str, jobs: list[CreateAsyncJob], delay: float | None) -> None:
        """A server queues several at once, of which some may share a key."""
        self._create(project, jobs, None, delay)

    @precondition(lambda self: len(self.ids) < MOST_JOBS and self.keyed())
    @rule(which=which, live_limit=st.sampled_from([None, 1]))
    def create_again(self, which: int, live_limit: int | None) -> None:
        """A client that heard no answer, or has not looked for long, asks for the same again."""
        keyed = self.keyed()
        view = keyed[which % len(keyed)]
        job = CreateAsyncJob(
            kind=view.kind, claims={"sub": view.submitted_by or "ann"}, unique_key=view.unique_key
        )
        self._create(view.project, [job], live_limit)

    @precondition(lambda self: len(self.ids) < MOST_JOBS and self.ids)
    @rule(which=which, elsewhere=seldom, submitted_by=anyone)
    def retry(self, which: int, elsewhere: bool, submitted_by: str | None) -> None:
        """A client asks for a job again: one that failed, its own, of that project."""
        failed = [view.id for view in self.ledger.views.values() if view.status == "failed"]
        ids = [*failed, *self.ids]
        id = ids[which % len(ids)]
        view = self.ledger.views.get(id)
        project = "main" if view is None else view.project
        project = {"main": "side", "side": "main"}[project] if elsewhere else project
        new = self._new_ids(1)

        async def ask(provider: AsyncJobProvider) -> AsyncJob | None:
            with given_ids(new):
                return await provider.retry_job(TENANT, project, id, submitted_by=submitted_by)

        self._tick()
        job = self._ask(ask)
        may = (
            view is not None
            and view.status == "failed"
            and not view.expired
            and view.project == project
            and submitted_by in (None, view.submitted_by)
        )
        promise((job is not None) == may, "a job that has failed can be retried", job, view)
        self._count(f"retried: {may}")
        if not may or view is None:
            self._settle([])
            return
        self.ids += new
        self._settle(new)
        made = self.ledger.views[new[0]]
        promise(
            (made.status, made.attempts, made.max_attempts, made.unique_key, made.state)
            == ("accepted", 0, max(view.max_attempts, 1), None, None)
            and made.attempt_errors is None
            and (made.kind, made.submitted_by, made.retention)
            == (view.kind, view.submitted_by, view.retention)
            and made.due,
            "a retried job is a new one with all its attempts",
            view,
            made,
        )

    @precondition(lambda self: len(self.ids) < MOST_JOBS)
    @rule(kind=kinds, columns=foreign_rows)
    def insert(self, kind: str, columns: dict[str, Any]) -> None:
        """A foreign program inserts a row, and names few of its columns."""
        (id,) = self._new_ids(1)
        self._tick()
        for side in self.sides:
            side.insert({"id": id, "tenant": TENANT, "project": "main", "kind": kind} | columns)
        self.ids.append(id)
        self._settle([id])

    @rule(which=which, elsewhere=seldom, submitted_by=anyone)
    def cancel(self, which: int, elsewhere: bool, submitted_by: str | None) -> None:
        """A client cancels a job; one of another project or submitter it cannot."""
        id = self.ids[which % len(self.ids)]
        view = self.ledger.views.get(id)
        project = "main" if view is None else view.project
        project = {"main": "side", "side": "main"}[project] if elsewhere else project
        job = self._ask(lambda p: p.cancel_job(TENANT, project, id, submitted_by=submitted_by))
        may = (
            view is not None
            and not view.expired
            and view.status != "cancelled"
            and view.project == project
            and submitted_by in (None, view.submitted_by)
        )
        promise((job is not None) == may, "a job that is shown can be cancelled, once", job, view)
        if job is not None and view is not None:
            self._count(f"cancelled: {view.status}")
            was = (job.status.value, job.output, job.error, job.progress, job.locked_by)
            promise(
                was == (view.status, view.output, view.error, view.progress, view.locked_by),
                "a cancel answers the job as it was",
                job,
                view,
            )
        if may:
            self.ledger.cancelled(id)
        self._settle([id] if may else [])
        if may:
            status = self.ledger.views[id].status
            promise(status == "cancelled", "a cancelled job is cancelled", status)

    @rule(
        project=projects,
        status=st.sampled_from([None, *AsyncJobStatus]),
        kind=st.sampled_from([None, *REGISTERED]),
        submitted_by=anyone,
        limit=limits,
    )
    def look(
        self,
        project: str,
        status: AsyncJobStatus | None,
        kind: str | None,
        submitted_by: str | None,
        limit: int,
    ) -> None:
        """A client reads a list, page by page."""
        shown = [
            view.id
            for view in self._shown(project)
            if status in (None, view.status)
            and kind in (None, view.kind)
            and submitted_by in (None, view.submitted_by)
        ]

        async def pages(provider: AsyncJobProvider) -> list[str]:
            found: list[AsyncJob] = []
            while True:
                page = await provider.list_jobs(
                    TENANT,
                    project,
                    status=status,
                    kind=kind,
                    submitted_by=submitted_by,
                    limit=limit,
                    before=found[-1] if found else None,
                )
                found += page
                if len(page) < limit:
                    return [job.id for job in found]

        found = self._ask(pages)
        promise(found == shown, "pages hold what is shown, newest first", found, shown)

    # Workers

    @rule(worker=workers, duration=leases, chances=last_chances, answered=mostly)
    def claim(self, worker: int, duration: float, chances: int | None, answered: bool) -> None:
        """An idle worker claims whatever there is; its answer may be lost."""
        self._claim(worker, REGISTERED, duration, ALL, answered=answered, chances=chances)

    @rule(
        worker=workers,
        kinds=claimed_kinds,
        duration=leases,
        limit=st.integers(1, 2),
        chances=last_chances,
    )
    def claim_few(
        self, worker: int, kinds: list[str], duration: float, limit: int, chances: int | None
    ) -> None:
        """A worker with a slot or two claims the oldest of some kinds."""
        self._claim(worker, kinds, duration, limit, answered=True, chances=chances)

    @rule(worker=workers, duration=leases)
    def claim_unanswered(self, worker: int, duration: float) -> None:
        """A claim's answer is lost, and the worker hands back what it took, as soon as it can."""
        self._claim(worker, REGISTERED, duration, ALL, answered=False)
        self.forget(which=0, answered=True)

    @precondition(lambda self: self.unanswered)
    @rule(which=which, answered=mostly)
    def forget(self, which: int, answered: bool) -> None:
        """A worker hands back what its unanswered claim took, however long ago."""
        entry = self.unanswered[-1 - which % len(self.unanswered)]
        lease = entry[1]
        taken = [
            view.id
            for view in self.ledger.views.values()
            if view.status == "in-progress" and view.locked_by == lease.token
        ]
        count = self._ask(lambda p: p.forget_claim(lease))
        promise(count == len(taken), "a forgotten claim hands back what it holds", count, taken)
        self._count("forgotten", len(taken))
        for id in taken:
            self.ledger.facts[id].attempts -= 1
        if answered:
            self.unanswered.remove(entry)
        self._settle(taken)

    @precondition(lambda self: self.at_work())
    @rule(which=which, number=number, duration=leases, progress=progresses, answered=mostly)
    def renew(
        self, which: int, number: int, duration: float, progress: str | None, answered: bool
    ) -> None:
        """Renewals go out in one batch; their answers may be lost."""
        claims = some(self.at_work(), which, number)
        self._renew(claims, duration, progress, answered=answered)

    @precondition(lambda self: self.at_work())
    @rule(which=which, number=number, completes=mostly, progress=progresses)
    def finish(self, which: int, number: int, completes: bool, progress: str | None) -> None:
        """Bodies have ended, and their results are recorded in one batch."""
        claims = some(self.at_work(), which, number)
        self._finish(claims, completes=completes, progress=progress)

    @precondition(lambda self: self.at_work())
    @rule(which=which, number=number, give_back=mostly)
    def release(self, which: int, number: int, give_back: bool) -> None:
        """Bodies have unwound, and their jobs are let go of in one batch."""
        self._release(some(self.at_work(), which, number), give_back=give_back)

    @precondition(lambda self: self.at_work())
    @rule(which=which, number=number, after=delays, fails=mostly)
    def run_again_later(self, which: int, number: int, after: float, fails: bool) -> None:
        """Attempts have failed, and ask for another one; with delays or without, in one batch."""
        claims = some(self.at_work(), which, number)
        self._reschedule(claims, after, give_back=False, fails=fails)

    @precondition(lambda self: self.at_work())
    @rule(which=which, number=number, after=delays)
    def snooze(self, which: int, number: int, after: float) -> None:
        """What jobs wait for has not happened yet: they come again, at no cost."""
        claims = some(self.at_work(), which, number)
        self._reschedule(claims, after, give_back=True, fails=False)

    @precondition(lambda self: self.at_work())
    @rule(which=which, number=number, large=seldom)
    def save(self, which: int, number: int, large: bool) -> None:
        """Handlers leave states for their next attempts, in one batch."""
        self._save(some(self.at_work(), which, number), 60_000 if large else 0)

    @precondition(lambda self: self.stale())
    @rule(which=which, number=number, deed=deeds)
    def act_late(self, which: int, number: int, deed: str) -> None:
        """A zombie acts, a late request arrives, or one whose answer was lost is repeated."""
        self._act_late(some(self.stale(), which, number), deed)

    @precondition(lambda self: self.at_work())
    @rule(other=workers, chances=last_chances, deed=deeds)
    def overtake(self, other: int, chances: int | None, deed: str) -> None:
        """All work is paused beyond its leases; another worker takes it; and the paused go on."""
        paused = self.at_work()
        for claim in paused:
            if claim.cleans:
                self.ledger.cleaned(claim)
        self.time_passes(400.0)
        self._claim(other, REGISTERED, LONGEST_LEASE, ALL, answered=True, chances=chances)
        self._sweep_expired(other, REGISTERED, LONGEST_LEASE, ALL, answered=True)
        self._act_late(paused, deed)

    @precondition(lambda self: self.at_work())
    @rule(deed=deeds)
    def outlast(self, deed: str) -> None:
        """Jobs run on, their leases renewed in time, until their own time has passed."""
        for _ in range(4):
            self._renew(self.at_work(), LONGEST_LEASE, None, answered=True)
            self.time_passes(300.0)
        self._act_late(self.at_work(), deed)

    def _act_late(self, claims: list[Claim], deed: str) -> None:
        if deed == "finish":
            self._finish(claims, completes=True, progress="late")
        elif deed == "renew":
            self._renew(claims, LONGEST_LEASE, "late", answered=True)
        elif deed == "release":
            self._release(claims, give_back=True)
        elif deed == "later":
            self._reschedule(claims, 125.0, give_back=False, fails=True)
        elif deed == "save":
            self._save(claims)
        else:
            self._delete([claim for claim in claims if claim.has_cleaned])

    @precondition(lambda self: not self.deployed)
    @rule(worker=workers, kind=st.sampled_from(REGISTERED))
    def deploy_again_and_again(self, worker: int, kind: str) -> None:
        """A job meets more deployments than give its attempt back."""
        self.deployed = True
        for _ in range(12):
            claims = self._claim(worker, [kind], LONGEST_LEASE, 1, answered=True)
            if not claims:
                return
            self._release(claims, give_back=True)

    @precondition(lambda self: not self.failed_often)
    @rule(worker=workers, kind=st.sampled_from(REGISTERED))
    def fail_again_and_again(self, worker: int, kind: str) -> None:
        """A job fails more often than it remembers, for a reason that costs it no attempt."""
        self.failed_often = True
        for _ in range(12):
            claims = self._claim(worker, [kind], LONGEST_LEASE, 1, answered=True)
            if not claims:
                return
            self._reschedule(claims, 0.0, give_back=True, fails=True)

    @precondition(lambda self: self.ledger.claims or self.unanswered)
    @rule(worker=workers)
    def crash(self, worker: int) -> None:
        """A worker is killed: no task of it is left, but its requests may still arrive."""
        for claim in self.ledger.claims:
            claim.is_over |= claim.worker == worker
        self.unanswered = [entry for entry in self.unanswered if entry[0] != worker]

    # Sweeps and time

    @rule(limit=limits)
    def sweep_abandoned(self, limit: int) -> None:
        """A sweep fails what was abandoned on its last attempt, until a round is short."""
        due = [
            view.id
            for view in self.ledger.views.values()
            if view.status == "in-progress"
            and view.lapsed
            and view.attempts >= view.max_attempts
            and not view.expired
        ]
        left = len(due)
        while True:
            count = self._ask(lambda p: p.fail_abandoned_jobs(OUTCOME, RETENTION, limit))
            promise(count == min(limit, left), "a sweep fails what is abandoned", count, due)
            left -= count
            if count < limit:
                break
        self._count("abandoned", len(due))
        self._settle(due)
        for id in due:
            status = self.ledger.views[id].status
            promise(status == "failed", "an abandoned job has failed", status)

    @rule(worker=workers, kinds=claimed_kinds, duration=leases, limit=limits, answered=mostly)
    def sweep_expired(
        self, worker: int, kinds: list[str], duration: float, limit: int, answered: bool
    ) -> None:
        """A sweep takes expired jobs for their clean-up; its answer may be lost."""
        self._sweep_expired(worker, kinds, duration, limit, answered=answered)

    @precondition(lambda self: any(claim.cleans for claim in self.at_work()))
    @rule(which=which, number=number, deletes=mostly)
    def clean(self, which: int, number: int, deletes: bool) -> None:
        """Clean-ups run inside their leases, and their rows go; or not yet."""
        due = some([claim for claim in self.at_work() if claim.cleans], which, number)
        for claim in due:
            self.ledger.cleaned(claim)
        if deletes:
            self._delete(due)

    @precondition(lambda self: self.at_work())
    @rule(which=which)
    def delete_too_early(self, which: int) -> None:
        """Somebody takes a job that has not expired for one that has."""
        (claim,) = some(self.at_work(), which, 1)
        if not self.ledger.views[claim.job].expired:
            deleted = self._ask(lambda p: p.delete_expired_job(claim.job, claim.lease))
            promise(not deleted, "only an expired row goes", claim)
            self._settle([])

    @rule(limit=limits)
    def sweep_orphans(self, limit: int) -> None:
        """A worker's whole sweep: its own kinds, and then the rows of kinds nobody registers."""
        self._clean_all()
        due = [v for v in self.ledger.views.values() if v.is_free and v.expires_left <= -WEEK]
        left = len(due)
        while True:
            counts = self._ask(lambda p: p.delete_orphans(limit))
            expected = {ORPHAN: min(limit, left)} if left else {}
            promise(counts == expected, "orphans go, and nothing else", counts, due)
            left -= sum(counts.values())
            if sum(counts.values()) < limit:
                break
        self._count("orphans", len(due))
        self._settle([view.id for view in due])

    @rule(limit=limits)
    def discard(self, limit: int) -> None:
        """A worker for which that kind needs no clean-up: its expired rows go at once."""
        views = self.ledger.views.values()
        due = [v for v in views if v.kind == ORPHAN and v.is_free and v.expired]
        left = len(due)
        while True:
            count = self._ask(lambda p: p.discard_expired_jobs([ORPHAN], limit))
            promise(count == min(limit, left), "expired rows go, and nothing else", count, due)
            left -= count
            if count < limit:
                break
        self._count("discarded", len(due))
        self._settle([view.id for view in due])

    @rule(seconds=passing)
    def time_passes(self, seconds: float) -> None:
        """Nobody does anything for so long."""
        self._pass_time(seconds)
        self._settle([])

    def teardown(self) -> None:
        """All workers die, and another drains what is there: nothing may be stuck or left over."""
        if sys.exc_info()[0] is not None or not self.ids:
            return
        for worker in range(WORKERS):
            self.crash(worker)
        self.time_passes(400.0)
        self.sweep_abandoned(ALL)
        claims = self._claim(WORKERS, REGISTERED, LONGEST_LEASE, ALL, answered=True)
        self._finish(claims, completes=True, progress=None)
        stuck = [
            view
            for view in self.ledger.views.values()
            if view.is_live and not view.expired and view.kind != ORPHAN
        ]
        promise(not stuck, "every job ends terminal or claimable", stuck)
        self.time_passes(100_000.0)
        self._clean_all()
        self.time_passes(700_000.0)
        self.sweep_orphans(ALL)
        promise(not self.ledger.views, "nothing is left behind", self.ledger.views)

    def _clean_all(self) -> None:
        claims = self._sweep_expired(0, REGISTERED, LONGEST_LEASE, ALL, answered=True)
        for claim in claims:
            self.ledger.cleaned(claim)
        self._delete(claims)
