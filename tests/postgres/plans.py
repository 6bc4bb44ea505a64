"""What a statement did in a large table: the plan the server chose, and the rows it touched.

Statements are run, not only planned (EXPLAIN with ANALYZE, rolled back): an estimate can be small
where the work is not. Their sessions have the settings of a worker's own.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import psycopg
import trio

from hastetrio.postgres import PostgresJobProvider
from hastetrio.postgres._rows import job_query

if TYPE_CHECKING:
    from hastetrio.postgres._connection import TrioConnection

KINDS = [f"kind-{n}" for n in range(50)]
MODES = ["force_custom_plan", "force_generic_plan"]
TOKEN = "w/1-x"  # noqa: S105  # names a claim

Settings: TypeAlias = list[tuple[str, str]]

_numbers = itertools.count(1)

# Kinds apart, so that claims meet lapsed leases only where a test wants them to. They are few: the
# more kinds, the fewer rows of one the planner expects, and the fewer of its mistakes show.
LATE_KINDS = [f"late-{n}" for n in range(2)]
LATE_AND_OTHERS = [*LATE_KINDS, *KINDS[:48]]


def kinds_id(kinds: Sequence[str]) -> str:
    """What a test calls these kinds."""
    return f"{len(kinds)}-{'lapsed' if kinds[0] in LATE_KINDS else 'queued'}"


def claim(kinds: Sequence[str], limit: int, *, exclude: Sequence[str] = ()) -> dict[str, Any]:
    """The parameters of a claim."""
    return {
        "kinds": list(kinds),
        "limit": limit,
        "token": TOKEN,
        "lease": 60.0,
        "exclude": list(exclude),
        "last_chances": 1,
    }


def parameters(running: Sequence[tuple[str, str]], limit: int = 20) -> dict[str, dict[str, Any]]:
    """The protocol's statements by name, each with parameters as a busy worker sends them.

    Args:
        running: Ids and tokens of rows that are held.
        limit: The most jobs to claim.
    """
    ids, tokens = [id for id, _ in running], [token for _, token in running]
    texts = [None] * len(ids)
    one = {"id": "row-7", "tenant": "t7", "project": "p2"}
    return {
        "cancel_job": {**one, "submitted_by": ""},
        "claim_expired_jobs": {"kinds": KINDS[:3], "limit": 10, "token": TOKEN, "lease": 60.0},
        "claim_jobs": claim(KINDS, limit, exclude=ids[:3]),
        "count_live_jobs": {"tenant": "t1", "project": "p1"},
        "create_jobs": {
            "tenant": "t1",
            "project": "p1",
            "live_limit": 10,
            "ids": ["new-1", "new-2"],
            "kinds": KINDS[:2],
            "requests": ["", ""],
            "parameters": ["{}", "{}"],
            "claims": ["{}", "{}"],
            "submitters": ["ann", "ann"],
            "retentions": [60.0, 60.0],
            "max_attempts": [3, 3],
            "run_ats": [None, "2030-01-01 00:00+00"],
            "unique_keys": [None, "key-1"],
            "places": [0, 1],
        },
        "delete_expired_jobs": {"ids": ids, "tokens": tokens},
        "delete_orphans": {"limit": 100},
        "discard_expired_jobs": {"kinds": KINDS[:3], "limit": 100},
        "fail_abandoned_jobs": {"outcome": "{}", "retention": 60.0, "limit": 100},
        "finish_jobs": {
            "ids": ids,
            "tokens": tokens,
            "statuses": ["completed"] * len(ids),
            "outputs": ["{}"] * len(ids),
            "content_types": ["application/json"] * len(ids),
            "errors": texts,
            "progress": texts,
            "retentions": [60.0] * len(ids),
            "failures": ['["it broke"]'] * len(ids),
        },
        "forget_claim": {"token": TOKEN},
        "free_unique_keys": {
            "tenant": "t1",
            "project": "p1",
            "kinds": KINDS[:1],
            "unique_keys": ["key-1"],
        },
        "keep_claim": {"id": (ids or [""])[0], "token": (tokens or [""])[0]},
        "list_jobs": {
            "tenant": "t1",
            "project": "p1",
            "status": None,
            "kind": None,
            "submitted_by": None,
            "limit": 50,
            "before_id": None,
            "before_created_at": None,
        },
        "read_legible_jobs": {"ids": ids[:3]},
        "read_unique_jobs": {
            "tenant": "t1",
            "project": "p1",
            "kinds": KINDS[:1],
            "unique_keys": ["key-1"],
        },
        "reschedule_jobs": {
            "ids": ids,
            "tokens": tokens,
            "afters": [60.0] * len(ids),
            "give_back": [False] * len(ids),
            "failures": ['["it broke"]'] * len(ids),
            "progress": texts,
            "retentions": [60.0] * len(ids),
            "outcome": "{}",
        },
        "retry_job": {**one, "new_id": "new-1", "submitted_by": None},
        "save_states": {"ids": ids, "tokens": tokens, "states": ["{}"] * len(ids)},
        "read_job": {**one, "submitted_by": None},
        "release_jobs": {
            "ids": ids,
            "tokens": tokens,
            "give_back": [True] * len(ids),
            "cap": 10,
            "outcome": "{}",
            "retention": 60.0,
        },
        "renew_leases": {
            "ids": ids,
            "tokens": tokens,
            "durations": [60.0] * len(ids),
            "progress": ["some"] * len(ids),
        },
        "state_of_jobs": {"ids": ids, "tokens": tokens},
        "was_recorded": {"id": (ids or [""])[0], "token": (tokens or [""])[0]},
    }


NAMES = sorted(parameters([]))

# Sent on the connections that clients' calls share; the others on a worker's own.
CLIENT_STATEMENTS = {
    "cancel_job",
    "count_live_jobs",
    "create_jobs",
    "free_unique_keys",
    "list_jobs",
    "read_job",
    "read_legible_jobs",
    "read_unique_jobs",
    "retry_job",
}

# Sent on the connections of handlers' transactions, which keep the database's own settings.
HANDLER_STATEMENTS = {"keep_claim", "was_recorded"}


@attrs.frozen
class Size:
    """How many rows of each state a table has. Lapsed are those whose leases have lapsed."""

    queued: int
    finished: int
    running: int
    lapsed: int

    def bounds(self, name: str, parameters: Mapping[str, Any]) -> tuple[float, float]:
        """The most rows of a table of this size a statement may read, and may sort at once."""
        kinds, limit = len(parameters.get("kinds", ())), parameters.get("limit", 0)
        rows = len(parameters.get("ids", ()))
        live = (self.queued + self.running) / 20 * 1.1 + 300
        if name == "claim_jobs":
            # Looked up: queued and lapsed ones and a last chance of each kind. Then those it takes
            # are locked, and updated.
            found = kinds * (2 * limit + 1)
            return found + 3 * limit, found
        by_name = {
            "cancel_job": 2.0,
            # Expired ones of other kinds lie between those of its own.
            "claim_expired_jobs": 2 * limit + self.finished / 500,
            "discard_expired_jobs": 2 * limit + self.finished / 500,
            "count_live_jobs": live,
            "create_jobs": parameters.get("live_limit", 0),
            "forget_claim": self.running + self.lapsed,
            "read_job": 1.0,
            "keep_claim": 1.0,
            "was_recorded": 1.0,
            "retry_job": 1.0,
            "read_unique_jobs": 1.0,
            "free_unique_keys": 3.0,
        }
        return by_name.get(name, 2 * (rows + limit)), rows or limit


def fill(url: str, size: Size, *, statistics: str) -> None:
    """Fill an empty table, and let the planner know about it or not.

    One in five hundred of the finished has expired. Of the lapsed, in kinds of their own, a third
    each have more attempts, one and none.

    Args:
        url: The database.
        size: The rows to make.
        statistics: "none": the table was never analyzed. "stale": only when it held nothing but
            finished jobs. "fresh": it is afterwards.
    """
    queued, running = size.queued, size.running
    late = size.queued + size.finished + size.running
    total = late + size.lapsed
    with psycopg.connect(url, autocommit=True) as connection:
        # A bulk load is seen by autovacuum a minute later; here it stays as it is.
        connection.execute("ALTER TABLE async_jobs SET (autovacuum_enabled = false)")
        connection.execute("ALTER TABLE async_jobs DISABLE TRIGGER USER")
        if statistics == "stale":
            connection.execute(
                "INSERT INTO async_jobs (tenant, project, kind, status, created_at, expires_at) "
                "SELECT 't1', 'p1', 'kind-' || n % 3, 'completed', now() - interval '2 days', "
                "now() + n * interval '1 second' FROM generate_series(1, 3000) n"
            )
            connection.execute("ANALYZE async_jobs")
        # Statuses are spread over the table, as they are where jobs come and go.
        connection.execute(
            f"""
            INSERT INTO async_jobs (id, tenant, project, kind, status, attempts, locked_by,
                                    lease_expires_at, created_at, finished_at, expires_at)
            SELECT 'row-' || n, 't' || n % 20, 'p' || n % 5,
                   CASE WHEN status <> 'lapsed' THEN 'kind-' || n / 7 % 50
                        ELSE 'late-' || n % 2 END,
                   CASE status WHEN 'lapsed' THEN 'in-progress' ELSE status END::async_job_status,
                   CASE status WHEN 'accepted' THEN 0 WHEN 'lapsed' THEN 1 + n / 2 % 3 ELSE 1 END,
                   CASE WHEN status IN ('in-progress', 'lapsed') THEN 'w/' || n % 9 || '-y' END,
                   CASE status WHEN 'in-progress' THEN now() + interval '1 hour'
                               WHEN 'lapsed' THEN now() - interval '1 minute' END,
                   now() - n * interval '1 millisecond',
                   CASE WHEN status = 'completed' THEN now() END,
                   CASE WHEN status = 'completed' AND n % 500 = 0
                        THEN now() - interval '1 hour' ELSE now() + interval '1 day' END
            FROM (
              SELECT n, CASE WHEN n > {late} THEN 'lapsed'
                             WHEN n * 7919::bigint % {late} < {queued} THEN 'accepted'
                             WHEN n * 7919::bigint % {late} < {queued + running} THEN 'in-progress'
                             ELSE 'completed' END AS status
              FROM generate_series(1, {total}) n) made
            """.encode()  # noqa: S608
        )
        # A few that wait, of the late kinds too.
        connection.execute(
            b"INSERT INTO async_jobs (tenant, project, kind) "
            b"SELECT 't1', 'p1', 'late-' || n % 2 FROM generate_series(1, 200) n"
        )
        connection.execute("ALTER TABLE async_jobs ENABLE TRIGGER USER")
        if statistics == "fresh":
            connection.execute("ANALYZE async_jobs")


def held_rows(url: str, count: int) -> list[tuple[str, str]]:
    """Ids and tokens of rows that run."""
    with psycopg.connect(url) as connection:
        return [
            (str(id), str(token))
            for id, token in connection.execute(
                "SELECT id, locked_by FROM async_jobs "
                "WHERE status = 'in-progress' AND lease_expires_at > now() LIMIT %s",
                [count],
            )
        ]


def session_settings(url: str) -> dict[str, Settings]:
    """What a provider's sessions set for themselves, by statement: the plans depend on it."""

    async def read(connection: TrioConnection) -> Settings:
        cursor = await connection.execute(
            "SELECT name, setting FROM pg_settings WHERE source = 'session'"
            " AND name !~ 'timeout|interval|encoding|application'"
        )
        return [(str(name), str(value)) for name, value in await cursor.fetchall()]

    async def both() -> tuple[Settings, Settings]:
        async with PostgresJobProvider.open(url) as provider:
            async with provider._claims.unit() as connection:
                worker = await read(connection)
            async with provider._clients.unit() as connection:
                client = await read(connection)
            return worker, client

    worker, client = trio.run(both)
    settings = {name: client if name in CLIENT_STATEMENTS else worker for name in NAMES}
    return settings | {name: [] for name in HANDLER_STATEMENTS}


@attrs.frozen
class Reading:
    """What one run of a statement did.

    Attributes:
        nodes: The nodes of its plan, with what each of them actually did.
        blocks: The pages it looked at, of tables and indexes.
    """

    nodes: tuple[dict[str, Any], ...]
    blocks: int

    @property
    def looks(self) -> list[dict[str, Any]]:
        """The nodes that read async_jobs."""
        return [
            node
            for node in self.nodes
            if node.get("Relation Name") == "async_jobs" and node["Node Type"] != "ModifyTable"
        ]

    @property
    def rows_read(self) -> float:
        """How many rows of async_jobs it looked at, those it then left included."""
        return sum(
            (float(node["Actual Rows"]) + _removed(node)) * int(node["Actual Loops"])
            for node in self.looks
        )

    @property
    def most_sorted(self) -> float:
        """The most rows that went into one sort."""
        return max(
            (
                float(child["Actual Rows"]) * int(child["Actual Loops"])
                for node in self.nodes
                if "Sort" in node["Node Type"]
                for child in node["Plans"]
            ),
            default=0.0,
        )

    def faults(self, bounds: tuple[float, float]) -> list[str]:
        """What is wrong with it, in words; nothing, if all is well.

        Args:
            bounds: The most rows it may read, and may sort at once.
        """
        most_read, most_sorted = bounds
        found = [
            f"{node['Node Type']} on async_jobs"
            for node in self.looks
            if not re.fullmatch("Index( Only)? Scan|Bitmap Heap Scan", node["Node Type"])
        ]
        if self.rows_read > most_read:
            found.append(f"reads {self.rows_read:.0f} rows, more than {most_read:.0f}")
        if self.most_sorted > most_sorted:
            found.append(f"sorts {self.most_sorted:.0f} rows, more than {most_sorted:.0f}")
        # An index entry that no condition rules out shows only here: a path down an index and a
        # row's page are about six, and each row written adds to five indexes.
        if self.blocks > 100 + 50 * most_read:
            found.append(f"looks at {self.blocks} pages for {most_read:.0f} rows")
        return found


def _removed(node: Mapping[str, Any]) -> float:
    return float(
        node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    )


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


@contextmanager
def rolled_back(url: str, settings: Settings) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A connection with a worker's settings whose transaction comes to nothing."""
    with psycopg.connect(url, cursor_factory=psycopg.ClientCursor) as connection:
        for name, value in settings:
            connection.execute("SELECT set_config(%s, %s, true)", [name, value])
        yield connection
        connection.rollback()


def analyze(
    connection: psycopg.Connection[tuple[Any, ...]],
    name: str,
    parameters: Mapping[str, Any],
    mode: str,
) -> Reading:
    """Run a prepared statement once, with a plan of this kind, and undo it."""
    order: list[str] = []

    def place(match: re.Match[str]) -> str:
        if match[1] not in order:
            order.append(match[1])
        return f"${order.index(match[1]) + 1}"

    statement = f"it_{next(_numbers)}"
    text = re.sub(r"%\((\w+)\)s", place, job_query(name))
    values = [parameters[key] for key in order]
    places = ", ".join(["%s"] * len(values))
    call = f"EXECUTE {statement} ({places})" if values else f"EXECUTE {statement}"
    with connection.transaction(force_rollback=True):
        connection.execute(f"SET LOCAL plan_cache_mode = {mode}".encode())
        connection.execute(f"PREPARE {statement} AS {text}".encode())
        row = connection.execute(
            f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {call}".encode(), values
        ).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    return Reading(tuple(_nodes(plan)), plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def taken_and_locked(
    url: str, settings: Settings, parameters: Mapping[str, Any]
) -> tuple[int, int]:
    """How many rows a claim takes, and how many it locks while its transaction is open."""
    with rolled_back(url, settings) as claimer, psycopg.connect(url) as other:
        taken = len(claimer.execute(job_query("claim_jobs").encode(), parameters).fetchall())
        row = claimer.execute("SELECT pg_current_xact_id()::xid::text").fetchone()
        assert row is not None
        # Whoever locks or updates a row leaves its transaction's number in the version others see.
        locked = other.execute(
            "SELECT count(*) FROM async_jobs WHERE xmax = %s::xid", [row[0]]
        ).fetchone()
        assert locked is not None
        return taken, int(locked[0])
