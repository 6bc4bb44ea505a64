"""What the clients and workers of a history know, and what must hold after each of its steps.

The checks look at the stored rows and at what was answered to whom, at no code of a provider.
Each failure begins with the promise that was broken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, Final

import attrs

from hastetrio._model import JobLease

from ._sides import View

_HAND_BACKS: Final = 10
_HISTORY: Final = 10

# Real time that a history on PostgreSQL takes; far less than one step of virtual time.
_SLACK: Final = 20.0


@attrs.define(eq=False)
class Claim:
    """One claim of one job, as its worker believes it to be.

    Attributes:
        job: The job's id.
        lease: What it is held under.
        worker: The number of the worker.
        deadline: Until when the worker may count on it.
        cleans: Whether it is for the clean-up of an expired job.
        is_over: Whether no task of it is left: unwound, or killed with its worker.
        has_cleaned: Whether the clean-up has run.
    """

    job: str
    lease: JobLease
    worker: int
    deadline: float
    cleans: bool = False
    is_over: bool = False
    has_cleaned: bool = False


@attrs.define
class Fact:
    """What history says about one job."""

    attempts: int
    hand_backs: int
    was_cancelled: bool = False
    was_expired: bool = False
    result: tuple[object, ...] | None = None
    state: object = None
    history: Any = None
    artefacts: set[str] = attrs.field(factory=set)


def promise(holds: object, text: str, *seen: object) -> None:
    """Fail with the promise that does not hold, and what was seen instead."""
    if not holds:
        raise AssertionError(": ".join([text, ", and ".join(map(repr, seen))]))


class Ledger:
    """The claims and facts of one history."""

    def __init__(self) -> None:
        self.now = 0.0
        self.claims: list[Claim] = []
        self.facts: dict[str, Fact] = {}
        self.views: dict[str, View] = {}
        self._rows_seen_at = 0.0

    def is_believed(self, claim: Claim) -> bool:
        """Whether the claim's worker is at work on it and may count on its lease."""
        return not claim.is_over and claim.deadline > self.now

    def holds(self, claim: Claim) -> bool:
        """Whether the job's row is held under the claim's token."""
        view = self.views.get(claim.job)
        return view is not None and view.locked_by == claim.lease.token

    def started(self, claim: Claim) -> None:
        """A worker was answered, and begins."""
        self.claims.append(claim)
        self.worked(claim)

    def worked(self, claim: Claim) -> None:
        """A handler left something outside the database."""
        if not claim.cleans:
            artefacts = self.facts[claim.job].artefacts
            artefacts.add(f"{claim.lease.token} {len(artefacts)}")

    def cleaned(self, claim: Claim) -> None:
        """A clean-up removed what the job's handlers had left."""
        self.facts[claim.job].artefacts.clear()
        claim.has_cleaned = True

    def handed_back(self, view: View, *, give_back: bool) -> None:
        """A row that was held has been released."""
        fact = self.facts[view.id]
        if view.status == "in-progress" and give_back and fact.hand_backs < _HAND_BACKS:
            fact.hand_backs += 1
            fact.attempts -= 1

    def rescheduled(self, view: View, errors: Sequence[str], *, give_back: bool) -> None:
        """A row that was held waits for its next attempt."""
        if give_back:
            self.facts[view.id].attempts -= 1
        if errors:
            self.failed(view, errors)

    def finished(self, view: View, errors: Sequence[str]) -> None:
        """A row has its result, and no next attempt."""
        self.facts[view.id].state = None
        if errors:
            self.failed(view, errors)

    def cancelled(self, id: str) -> None:
        """A client has given up a job; its state is for the clean-up."""
        self.facts[id].history = None

    def failed(self, view: View, errors: Sequence[str]) -> None:
        """An attempt has failed; it is the one that `view` shows."""
        fact = self.facts[view.id]
        earlier = fact.history[1 - _HISTORY :] if isinstance(fact.history, list) else []
        fact.history = [*earlier, {"attempt": view.attempts, "errors": [*errors]}]

    def check(self, views: Sequence[View], touched: Collection[str]) -> None:
        """Check every promise, now that the rows are `views`.

        Args:
            views: All rows.
            touched: The ids that this step may have changed.
        """
        before, self.views = self.views, {view.id: view for view in views}
        for view in views:
            old = before.get(view.id)
            promise(
                view.id in touched or (old is not None and old.stored == view.stored),
                "a step changes no other row",
                old,
                view,
            )
            if old is None:
                self.facts[view.id] = Fact(view.attempts, view.hand_backs)
                self.facts[view.id].history = view.attempt_errors
            self._check_shape(view)
            self._check_attempts(view)
            self._check_ending(view)
            self._check_memory(view)
            if old is not None:
                self._check_lease(old, view)
        for id in before.keys() - self.views.keys():
            self._check_gone(before[id], touched)
        self._check_holders()
        self._check_keys()
        self._rows_seen_at = self.now

    def _check_shape(self, view: View) -> None:
        held = view.locked_by is not None
        promise(held == (view.lease_left is not None), "holder and lease go together", view)
        promise(
            (view.status != "in-progress" or held)
            and (view.status != "accepted" or (not held and view.attempts < view.max_attempts)),
            "every job ends terminal or claimable",
            view,
        )

    def _check_attempts(self, view: View) -> None:
        fact = self.facts[view.id]
        promise(0 <= view.attempts <= view.max_attempts, "attempts never exceed max_attempts", view)
        promise(
            view.hand_backs == fact.hand_backs <= _HAND_BACKS,
            "at most ten hand-backs count, each once",
            fact.hand_backs,
            view,
        )
        promise(
            view.attempts == fact.attempts,
            "attempts are the claims not handed back",
            fact.attempts,
            view,
        )

    def _check_ending(self, view: View) -> None:
        fact = self.facts[view.id]
        promise(view.expired or not fact.was_expired, "an expired job stays over", view)
        promise(
            view.status == "cancelled" or not fact.was_cancelled,
            "a cancelled job never yields a result nor runs again",
            view,
        )
        fact.was_expired |= view.expired
        fact.was_cancelled |= view.status == "cancelled"
        if view.status in ("completed", "failed"):
            result = (
                view.status,
                view.output,
                view.output_content_type,
                view.error,
                view.finished_by,
            )
            promise(
                fact.result in (None, result),
                "a recorded result is never overwritten",
                fact.result,
                view,
            )
            fact.result = result
        else:
            promise(
                view.output is None and view.error is None,
                "a job without a recorded result yields none",
                view,
            )
            promise(
                fact.result is None or view.status == "cancelled",
                "a recorded result is never overwritten",
                fact.result,
                view,
            )

    def _check_memory(self, view: View) -> None:
        fact = self.facts[view.id]
        promise(view.state == fact.state, "a state is the one saved last", fact.state, view)
        promise(
            view.attempt_errors == fact.history,
            "the last ten failed attempts are kept",
            fact.history,
            view,
        )

    def _check_keys(self) -> None:
        keys = Counter(
            (view.project, view.kind, view.unique_key)
            for view in self.views.values()
            if view.is_live and view.unique_key is not None
        )
        promise(max(keys.values(), default=1) == 1, "one live job has a key", keys)

    def _check_lease(self, old: View, view: View) -> None:
        if old.locked_by is None or old.locked_by != view.locked_by:
            return
        if old.lease_left is None or view.lease_left is None:
            return
        passed = self.now - self._rows_seen_at
        promise(
            view.lease_left > old.lease_left - passed - _SLACK,
            "a lease never shrinks",
            old.lease_left - passed,
            view,
        )

    def _check_gone(self, old: View, touched: Collection[str]) -> None:
        promise(old.id in touched, "a step changes no other row", old)
        promise(old.expired, "only an expired row goes", old)
        promise(
            not self.facts[old.id].artefacts,
            "an artefact is removed when its row goes",
            self.facts[old.id].artefacts,
            old,
        )

    def _check_holders(self) -> None:
        by_job: dict[str, list[Claim]] = {}
        bodies: dict[tuple[int, str], list[Claim]] = {}
        for claim in self.claims:
            if self.is_believed(claim):
                by_job.setdefault(claim.job, []).append(claim)
            if not claim.is_over and not claim.cleans:
                bodies.setdefault((claim.worker, claim.job), []).append(claim)
        for job, claims in by_job.items():
            promise(
                len(claims) == 1 and self.holds(claims[0]),
                "one holder inside its lease",
                claims,
                self.views.get(job),
            )
        for claims in bodies.values():
            promise(len(claims) == 1, "one body of a job in one process", claims)
