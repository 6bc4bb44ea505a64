"""What is done to rows that a claim holds: renewed, finished, released, deleted, in batches."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from hastetrio._errors import ProviderUnavailable, UnstorableValue
from hastetrio._model import DAY, JobLease, JobResult, LeaseRenewal
from hastetrio._outcome import OUTCOME_LIMIT, abandoned_outcome
from hastetrio._provider import JobFinish
from hastetrio._sql import query
from hastetrio._storable import clean_text, encode_json
from hastetrio.postgres._arrays import text_array
from hastetrio.postgres._batch import Batcher, split
from hastetrio.postgres._unit import RowAtFault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastetrio.postgres._unit import Lane

_MEBIBYTE: Final = 1024 * 1024

# Hand-backs that give the attempt back. A job that drives its host into SIGTERM, or one that
# meets many deployments, must still run out of attempts some day.
_HAND_BACKS: Final = 10

# How long to leave a row alone that somebody else has locked, in seconds.
_LOCKED_ROW_PAUSE: Final = (0.005, 0.02)

# A result's share of a call's budget: a slow network carries 1 MiB in this many seconds.
_SECONDS_PER_MEBIBYTE: Final = 0.5

_AGAIN: Final = "again"
_OVER: Final = ("cancelled", "expired")

_RENEWALS: Final = {
    "renewed": LeaseRenewal.RENEWED,
    "cancelled": LeaseRenewal.CANCELLED,
    "expired": LeaseRenewal.EXPIRED,
    "lost": LeaseRenewal.LOST,
    # A renewal in flight while the same claim's finish was recorded; nobody waits for it.
    "recorded": LeaseRenewal.LOST,
}


@attrs.frozen
class _Renewal:
    id: str
    token: str
    duration: float
    progress: str | None


@attrs.frozen
class _Release:
    id: str
    token: str
    give_back: bool


@attrs.frozen
class _Deletion:
    id: str
    token: str


@attrs.frozen
class _Reschedule:
    id: str
    token: str
    after: float
    give_back: bool
    retention: float
    failure: str | None
    progress: str | None


@attrs.frozen
class _State:
    id: str
    token: str
    state: str


class HeldRows:
    """The calls on rows that a claim holds, turned into batches.

    Args:
        finishes: The connection for finishes, releases and deletions.
        renewals: The connection for renewals, which wait for nothing else.
        budget: Seconds one call may take.
    """

    def __init__(self, finishes: Lane, renewals: Lane, budget: float) -> None:
        self._finishes = finishes
        self._renewals = renewals
        self._budget = budget
        self._finish = Batcher(self._send_finishes, size=lambda item: item.size)
        self._release = Batcher(self._send_releases)
        self._delete = Batcher(self._send_deletes)
        self._reschedule = Batcher(self._send_reschedules)
        self._save = Batcher(self._send_states, size=lambda item: len(item.state))
        self._renew = Batcher(self._send_renewals)

    async def serve(
        self,
        scope: trio.CancelScope,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Send what is asked for, until `scope` is cancelled."""
        with scope:
            async with trio.open_nursery() as nursery:
                batchers = (self._finish, self._release, self._delete, self._renew)
                for run in (*(one.run for one in batchers), self._reschedule.run, self._save.run):
                    await nursery.start(run)
                task_status.started()

    async def renew(self, id: str, lease: JobLease, progress: str | None) -> LeaseRenewal:
        """Extend a lease; see `AsyncJobProvider.renew_lease`."""
        item = _Renewal(id, lease.token, lease.duration, _clean(progress))
        return _RENEWALS[await self._until_unlocked(self._renew, item)]

    async def finish(
        self, id: str, lease: JobLease, result: JobResult, retention: float, progress: str | None
    ) -> bool:
        """Record a result, fenced; see `AsyncJobProvider.finish_job`."""
        item = JobFinish(id, lease, result, retention, progress)
        return await self._until_unlocked(self._finish, item) == "recorded"

    async def finish_many(self, finishes: Sequence[JobFinish]) -> list[bool]:
        """Record several results; see `AsyncJobProvider.finish_jobs`."""
        recorded: set[tuple[Any, ...]] = set()
        for items in split(finishes, lambda item: item.size):
            # Which row is at fault is found out where each is asked about alone.
            with suppress(UnstorableValue, RowAtFault):
                recorded.update(await self._record(items))
        return [(finish.id, finish.token) in recorded for finish in finishes]

    async def release(self, id: str, lease: JobLease, *, give_back: bool) -> bool:
        """Let go of a job; see `AsyncJobProvider.release_job`."""
        item = _Release(id, lease.token, give_back)
        return await self._until_unlocked(self._release, item) == "released"

    async def reschedule(
        self,
        id: str,
        lease: JobLease,
        after: float,
        *,
        give_back: bool,
        retention: float,
        failure: str | None,
        progress: str | None,
    ) -> bool:
        """Queue a job again for later; see `AsyncJobProvider.reschedule_job`."""
        item = _Reschedule(id, lease.token, after, give_back, retention, failure, _clean(progress))
        return await self._until_unlocked(self._reschedule, item) == "recorded"

    async def save_state(self, id: str, lease: JobLease, state: str) -> bool:
        """Keep a state with a running job; see `AsyncJobProvider.save_state`."""
        item = _State(id, lease.token, state)
        return await self._until_unlocked(self._save, item) == "saved"

    async def delete(self, id: str, lease: JobLease) -> bool:
        """Delete an expired job; see `AsyncJobProvider.delete_expired_job`."""
        return await self._until_unlocked(self._delete, _Deletion(id, lease.token)) == "deleted"

    async def _until_unlocked(self, batcher: Batcher[Any, str], item: object) -> str:
        """Ask, and ask again while somebody else's transaction holds the row."""
        answer = await batcher.ask(item)
        if answer != _AGAIN:
            return answer
        with trio.CancelScope(relative_deadline=self._budget):
            while answer == _AGAIN:
                await trio.sleep(random.uniform(*_LOCKED_ROW_PAUSE))  # noqa: S311
                answer = await batcher.ask(item)
            return answer
        raise ProviderUnavailable("another transaction holds the job's row")

    async def _send_finishes(self, items: Sequence[JobFinish]) -> list[str]:
        recorded = await self._record(items)
        return await self._complete(self._finishes, items, dict.fromkeys(recorded, "recorded"))

    async def _record(self, items: Sequence[JobFinish]) -> list[tuple[Any, ...]]:
        """Record results in one statement; id and token of what is recorded."""
        parameters = finish_parameters(items)
        size = sum(item.size for item in items)
        budget = self._budget + size / _MEBIBYTE * _SECONDS_PER_MEBIBYTE
        return await self._finishes.fetch(query("finish_jobs"), parameters, budget)

    async def _send_releases(self, items: Sequence[_Release]) -> list[str]:
        parameters = {
            "ids": text_array(item.id for item in items),
            "tokens": text_array(item.token for item in items),
            "give_back": [item.give_back for item in items],
            "cap": _HAND_BACKS,
            "outcome": encode_json(abandoned_outcome(), OUTCOME_LIMIT, "the outcome"),
            "retention": DAY,
        }
        rows = await self._finishes.fetch(query("release_jobs"), parameters)
        states = await self._complete(self._finishes, items, dict.fromkeys(rows, "released"))
        # Cancelled or expired and still ours means that the row was locked by somebody.
        return [_AGAIN if state in _OVER else state for state in states]

    async def _send_reschedules(self, items: Sequence[_Reschedule]) -> list[str]:
        parameters = {
            "ids": text_array(item.id for item in items),
            "tokens": text_array(item.token for item in items),
            "afters": [float(item.after) for item in items],
            "give_back": [item.give_back for item in items],
            "failures": text_array(item.failure for item in items),
            "progress": text_array(item.progress for item in items),
            "retentions": [float(item.retention) for item in items],
            "outcome": encode_json(abandoned_outcome(), OUTCOME_LIMIT, "the outcome"),
        }
        rows = await self._finishes.fetch(query("reschedule_jobs"), parameters)
        return await self._complete(self._finishes, items, dict.fromkeys(rows, "recorded"))

    async def _send_states(self, items: Sequence[_State]) -> list[str]:
        parameters = {
            "ids": text_array(item.id for item in items),
            "tokens": text_array(item.token for item in items),
            "states": text_array(item.state for item in items),
        }
        rows = await self._finishes.fetch(query("save_states"), parameters)
        return await self._complete(self._finishes, items, dict.fromkeys(rows, "saved"))

    async def _send_renewals(self, items: Sequence[_Renewal]) -> list[str]:
        parameters = {
            "ids": text_array(item.id for item in items),
            "tokens": text_array(item.token for item in items),
            "durations": [item.duration for item in items],
            "progress": text_array(item.progress for item in items),
        }
        rows = await self._renewals.fetch(query("renew_leases"), parameters)
        answers = {(id, token): state for id, token, state in rows}
        states = await self._complete(self._renewals, items, dict(answers))
        # Cancelled or expired and still ours, but not extended: the row was locked by somebody.
        return [
            _AGAIN if state in _OVER and (item.id, item.token) not in answers else state
            for item, state in zip(items, states, strict=True)
        ]

    async def _send_deletes(self, items: Sequence[_Deletion]) -> list[str]:
        parameters = {
            "ids": text_array(item.id for item in items),
            "tokens": text_array(item.token for item in items),
        }
        rows = await self._finishes.fetch(query("delete_expired_jobs"), parameters)
        states = await self._complete(self._finishes, items, dict.fromkeys(rows, "deleted"))
        # Ours, expired and still there: it was locked. Ours and not expired: no longer to delete.
        return [
            _AGAIN if state in _OVER else "kept" if state == _AGAIN else state for state in states
        ]

    async def _complete(
        self,
        lane: Lane,
        items: Sequence[JobFinish | _Release | _Renewal | _Deletion | _Reschedule | _State],
        answers: dict[tuple[Any, ...], str],
    ) -> list[str]:
        """The answers in the order of the items; of rows not answered, what became of them.

        Answers go by id and token: a zombie's finish may stand in one batch with its successor's.
        """
        missing = [item for item in items if (item.id, item.token) not in answers]
        if missing:
            parameters = {
                "ids": text_array(item.id for item in missing),
                "tokens": text_array(item.token for item in missing),
            }
            rows = await lane.fetch(query("state_of_jobs"), parameters)
            answers |= {(id, token): state for id, token, state in rows}
        return [answers.get((item.id, item.token), "lost") for item in items]


def _clean(progress: str | None) -> str | None:
    return None if progress is None else clean_text(progress)


def finish_parameters(items: Sequence[JobFinish]) -> dict[str, Any]:
    """The parameters of finish_jobs.sql."""
    return {
        "ids": text_array(item.id for item in items),
        "tokens": text_array(item.token for item in items),
        "statuses": text_array(item.result.status.value for item in items),
        "outputs": text_array(item.result.output_json for item in items),
        "content_types": text_array(item.result.content_type for item in items),
        "errors": text_array(item.result.error_json for item in items),
        "progress": text_array(_clean(item.progress) for item in items),
        # Floats all: psycopg refuses a list of mixed numbers.
        "retentions": [float(item.retention) for item in items],
        "failures": text_array(item.result.failure_json for item in items),
    }
