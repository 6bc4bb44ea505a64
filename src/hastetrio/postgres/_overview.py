"""How the queue stands, for an operator's eye."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from hastetrio._model import AsyncJobStatus, worker_of
from hastetrio._sql import query

if TYPE_CHECKING:
    from hastetrio.postgres._pool import LanePool
    from hastetrio.postgres._unit import Lane


@attrs.frozen
class StatusCount:
    """How many jobs of a kind have a status."""

    status: AsyncJobStatus
    kind: str
    count: int


@attrs.frozen
class KindWaiting:
    """What is queued of a kind.

    Attributes:
        kind: The kind.
        count: Jobs that are due.
        oldest_seconds: How long the longest due has waited; 0 where none is.
        delayed: Jobs that wait for their time (`run_at`).
    """

    kind: str
    count: int
    oldest_seconds: float
    delayed: int = 0


@attrs.frozen
class Holder:
    """A worker that holds leases, and in how many seconds the next of them lapses."""

    worker: str
    kinds: tuple[str, ...]
    jobs: int
    next_lapse_seconds: float


@attrs.frozen
class OldestTransaction:
    """What keeps vacuum from removing the most dead rows.

    Attributes:
        source: A session's open transaction, a prepared one, or what a replication slot holds.
        pid: The server's process; None for a prepared transaction and an unused slot.
        name: The session's application, the prepared transaction's id, or the slot's name.
        owner: The role; None where there is none.
        database: Where it is; None for what belongs to no database.
        state: The session's state, such as "idle in transaction"; "active" or "inactive" of a slot.
            None where this role may not see it.
        seconds: How long the transaction has been open; None of a slot, and where this role may not
            see it (it lacks `pg_read_all_stats`).
        transactions: How many transactions began since: what they left dead stays.
    """

    source: Literal["session", "prepared", "slot"]
    pid: int | None
    name: str | None
    owner: str | None
    database: str | None
    state: str | None
    seconds: float | None
    transactions: int


@attrs.frozen
class QueueOverview:
    """How the queue stands.

    Attributes:
        counts: Jobs that have not expired, by status and kind.
        waiting: What is queued, by kind.
        lapsed: Running jobs whose lease has lapsed: another worker may take them.
        holders: The workers that hold running jobs.
        oldest_transaction: What holds back vacuum the most; None if nothing does.
    """

    counts: tuple[StatusCount, ...]
    waiting: tuple[KindWaiting, ...]
    lapsed: int
    holders: tuple[Holder, ...]
    oldest_transaction: OldestTransaction | None = None

    @property
    def unserved(self) -> tuple[str, ...]:
        """Kinds of which jobs are due while nobody runs them."""
        served = {kind for holder in self.holders for kind in holder.kinds}
        return tuple(w.kind for w in self.waiting if w.count and w.kind not in served)


async def read_overview(lane: Lane | LanePool) -> QueueOverview:
    """Read the table once and say how it stands."""
    counts = []
    waiting = []
    lapsed = 0
    async with lane.unit() as connection, connection.transaction():
        # Read in its own order, also where a session's other statements are kept to indexes.
        await connection.execute("SET LOCAL enable_seqscan = on")
        rows = await (await connection.execute(query("overview_counts"))).fetchall()
    for label, kind, count, delayed, oldest, kind_lapsed in rows:
        status = AsyncJobStatus(label)
        counts.append(StatusCount(status, kind, count))
        lapsed += kind_lapsed
        if status is AsyncJobStatus.ACCEPTED:
            waiting.append(KindWaiting(kind, count - delayed, max(oldest or 0.0, 0.0), delayed))
    workers: dict[str, list[tuple[str, int, float]]] = {}
    for token, kind, jobs, lapse in await lane.fetch(query("overview_holders"), {}):
        workers.setdefault(worker_of(token), []).append((kind, jobs, lapse))
    holders = tuple(
        Holder(
            worker=worker,
            kinds=tuple(sorted({kind for kind, _, _ in rows})),
            jobs=sum(jobs for _, jobs, _ in rows),
            next_lapse_seconds=min(lapse for _, _, lapse in rows),
        )
        for worker, rows in sorted(workers.items())
    )
    transactions = await lane.fetch(query("overview_oldest_transaction"), {})
    return QueueOverview(
        tuple(counts),
        tuple(waiting),
        lapsed,
        holders,
        OldestTransaction(*transactions[0]) if transactions else None,
    )
