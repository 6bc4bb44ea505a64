"""The table `async_jobs` in plain Python: its rows, their shape, and the walks over them.

Values of JSON are kept as text, as a database would: whoever changes a dict it gave or got changes
no row.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from heapq import nsmallest
from itertools import islice, takewhile
from typing import Final

import attrs

from hastetrio._model import AsyncJob, AsyncJobStatus, JobLease, JobResult
from hastetrio._storable import clean_text, decode_json, encode_json

# Failed attempts that a row remembers.
_HISTORY: Final = 10


@attrs.define(kw_only=True, eq=False)
class Row:
    """One row: the columns of `async_jobs`, with JSON as text and `retention` as seconds."""

    id: str
    tenant: str
    project: str
    kind: str
    status: AsyncJobStatus = AsyncJobStatus.ACCEPTED
    request: str = ""
    parameters: str = "{}"
    claims: str = "{}"
    submitted_by: str = ""
    progress: str | None = None
    output: str | None = None
    output_content_type: str | None = None
    error: str | None = None
    attempts: int = 0
    max_attempts: int = 3
    locked_by: str | None = None
    lease_expires_at: datetime | None = None
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    expires_at: datetime
    retention: float | None = None
    finished_by: str | None = None
    hand_backs: int = 0
    run_at: datetime
    unique_key: str | None = None
    state: str | None = None
    attempt_errors: str | None = None

    @property
    def age(self) -> tuple[datetime, str]:
        """What "newest first" sorts by, from its end."""
        return self.created_at, self.id

    @property
    def turn(self) -> tuple[datetime, datetime, str]:
        """What "due longest" sorts by."""
        return self.run_at, self.created_at, self.id

    @property
    def key(self) -> tuple[str, str, str, str] | None:
        """What no other live row may have; None for a row without a unique key."""
        if self.unique_key is None:
            return None
        return self.tenant, self.project, self.kind, self.unique_key

    def is_expired(self, now: datetime) -> bool:
        """Whether the job is over because its time has passed."""
        return self.expires_at <= now

    def is_lapsed(self, now: datetime) -> bool:
        """Whether somebody held the row and the lease has run out."""
        return self.lease_expires_at is not None and self.lease_expires_at < now

    def hold(self, lease: JobLease, now: datetime) -> None:
        """It is held under `lease`, from now on; a lease only grows."""
        ends = now + timedelta(seconds=lease.duration)
        if self.locked_by == lease.token and self.lease_expires_at is not None:
            ends = max(ends, self.lease_expires_at)
        self.locked_by = lease.token
        self.lease_expires_at = ends

    def take(self, result: JobResult, progress: str | None, now: datetime) -> None:
        """It was finished by whoever holds it, with `result`."""
        self.output = result.output_json
        self.output_content_type = result.content_type
        self.error = result.error_json
        self.state = None
        self.note(result.failure_json, progress, now)

    def note(self, failure: str | None, progress: str | None, now: datetime) -> None:
        """Its holder said how the attempt ended."""
        if failure is not None:
            history = [] if self.attempt_errors is None else decode_json(self.attempt_errors)
            if not isinstance(history, list):
                history = []
            errors = decode_json(failure)
            history.append({"attempt": self.attempts, "at": now.isoformat(), "errors": errors})
            self.attempt_errors = encode_json(history[-_HISTORY:], 2**28, "the history")
        if progress is not None:
            self.progress = clean_text(progress)
        self.finished_by = self.locked_by

    def let_go(self) -> None:
        """Nobody holds the row any more."""
        self.locked_by = None
        self.lease_expires_at = None

    def as_job(self) -> AsyncJob:
        """The row as a value, with JSON of its own."""
        return AsyncJob(
            id=self.id,
            tenant=self.tenant,
            project=self.project,
            kind=self.kind,
            status=self.status,
            request=self.request,
            parameters=decode_json(self.parameters),
            claims=decode_json(self.claims),
            submitted_by=self.submitted_by,
            progress=self.progress,
            output=None if self.output is None else decode_json(self.output),
            output_content_type=self.output_content_type,
            error=None if self.error is None else decode_json(self.error),
            attempts=self.attempts,
            max_attempts=self.max_attempts,
            locked_by=self.locked_by,
            lease_expires_at=self.lease_expires_at,
            created_at=self.created_at,
            updated_at=self.updated_at,
            started_at=self.started_at,
            finished_at=self.finished_at,
            expires_at=self.expires_at,
            finished_by=self.finished_by,
            hand_backs=self.hand_backs,
            run_at=self.run_at,
            unique_key=self.unique_key,
            state=None if self.state is None else decode_json(self.state),
            attempt_errors=None
            if self.attempt_errors is None
            else decode_json(self.attempt_errors),
        )

    def check_shape(self) -> None:
        """Hold what the CHECK constraints of the table hold.

        Raises:
            ValueError: The row has a shape that the protocol knows nothing of.
        """
        free = self.locked_by is None
        for holds, rule in (
            (free == (self.lease_expires_at is None), "has a holder and a lease, or neither"),
            (self.status is not AsyncJobStatus.IN_PROGRESS or not free, "is held while running"),
            (
                self.status is not AsyncJobStatus.ACCEPTED
                or (free and self.attempts < self.max_attempts),
                "is free and has attempts left while queued",
            ),
            (0 <= self.attempts <= self.max_attempts, "has attempts from 0 to max_attempts"),
            (
                self.output is None or self.status is AsyncJobStatus.COMPLETED,
                "has an output only once completed",
            ),
        ):
            if not holds:
                raise ValueError(f"a row {rule}; {self.id} would not")


class Table:
    """All rows by id, with the queued ones of each kind in order and the running ones apart.

    A claim then reads no more rows than it takes, besides the running ones of its kinds, so that
    a test with ten thousand queued jobs measures the worker and not this table.
    """

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self._queued: dict[str, list[tuple[datetime, datetime, str]]] = {}
        self._running: dict[str, dict[str, Row]] = {}
        self._keyed: dict[tuple[str, str, str, str], Row] = {}

    def add(self, row: Row) -> None:
        """Insert a row.

        Raises:
            ValueError: There is one with that id, or a live one with that unique key.
        """
        if row.id in self.rows:
            raise ValueError(f"there is a row with the id {row.id!r} already")
        if row.status.is_live and row.key in self._keyed:
            raise ValueError(f"a live job has the unique key {row.unique_key!r} already")
        self.rows[row.id] = row
        self._enter(row)

    def remove(self, row: Row) -> None:
        """Delete a row."""
        self._leave(row)
        del self.rows[row.id]

    def set_status(self, row: Row, status: AsyncJobStatus) -> None:
        """Change a row's status, and with it the list it stands in."""
        self._leave(row)
        row.status = status
        self._enter(row)

    def held(self, id: str, token: str) -> Row | None:
        """The row, if it is held under the token."""
        row = self.rows.get(id)
        return row if row is not None and row.locked_by == token else None

    def running(self) -> Iterator[Row]:
        """The rows in progress."""
        for rows in self._running.values():
            yield from rows.values()

    def live(self, tenant: str, project: str, now: datetime) -> int:
        """How many jobs of a project are queued or running and have not expired."""
        queued = (self.rows[id] for turns in self._queued.values() for *_, id in turns)
        return sum(
            row.tenant == tenant and row.project == project and not row.is_expired(now)
            for rows in (queued, self.running())
            for row in rows
        )

    def claimable(
        self,
        kinds: Collection[str],
        limit: int,
        chances: int,
        exclude: Collection[str],
        now: datetime,
    ) -> list[Row]:
        """The `limit` rows of the kinds that a claim may take and that are due longest.

        At most `chances` of them are lapsed and on their last attempt.
        """

        def is_free(row: Row) -> bool:
            return (
                row.attempts < row.max_attempts
                and not row.is_expired(now)
                and row.id not in exclude
            )

        found: list[Row] = []
        last: list[Row] = []
        for kind in kinds:
            due = takewhile(lambda turn: turn[0] <= now, self._queued.get(kind, ()))
            queued = (self.rows[id] for *_, id in due)
            found += islice(filter(is_free, queued), limit)
            running = self._running.get(kind, {}).values()
            lapsed = [row for row in running if row.is_lapsed(now) and is_free(row)]
            found += (row for row in lapsed if row.attempts + 1 < row.max_attempts)
            ending = (row for row in lapsed if row.attempts + 1 == row.max_attempts)
            last += nsmallest(chances, ending, key=lambda row: row.lease_expires_at or now)
        found += nsmallest(chances, last, key=lambda row: row.turn)
        return nsmallest(limit, found, key=lambda row: row.turn)

    def unique(self, row: Row, now: datetime) -> Row | None:
        """The live row that has the unique key of a new one; one that is over gives it up."""
        if row.key is None:
            return None
        found = self._keyed.get(row.key)
        if found is not None and found.is_expired(now):
            del self._keyed[row.key]
            found.unique_key = None
            return None
        return found

    def expired(self, before: datetime, now: datetime) -> list[Row]:
        """The rows that expired by `before` and that nobody holds, longest ago first."""
        found = [
            row
            for row in self.rows.values()
            if row.is_expired(before) and (row.locked_by is None or row.is_lapsed(now))
        ]
        return sorted(found, key=lambda row: row.expires_at)

    def _enter(self, row: Row) -> None:
        if row.key is not None and row.status.is_live:
            self._keyed[row.key] = row
        if row.status is AsyncJobStatus.ACCEPTED:
            insort(self._queued.setdefault(row.kind, []), row.turn)
        elif row.status is AsyncJobStatus.IN_PROGRESS:
            self._running.setdefault(row.kind, {})[row.id] = row

    def _leave(self, row: Row) -> None:
        if row.key is not None and self._keyed.get(row.key) is row:
            del self._keyed[row.key]
        if row.status is AsyncJobStatus.ACCEPTED:
            turns = self._queued[row.kind]
            del turns[bisect_left(turns, row.turn)]
        elif row.status is AsyncJobStatus.IN_PROGRESS:
            del self._running[row.kind][row.id]
