"""The statements at 100,000 rows: each walks an index, whatever plan the server has settled on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from hastetrio._sql import _root, query
from hastetrio.postgres._rows import job_query

from .harness import insert, run

QUERIES = sorted(entry.name.removesuffix(".sql") for entry in _root().joinpath("queries").iterdir())
KINDS = [f"kind-{n}" for n in range(50)]
IDS = [f"row-{n}" for n in range(0, 100_000, 1000)]
TEXTS = [None] * len(IDS)

# The protocol's statements, each with parameters as a busy worker sends them.
PARAMETERS: dict[str, dict[str, Any]] = {
    "cancel_job": {"id": "row-7", "tenant": "t1", "project": "p1", "submitted_by": "ann"},
    "claim_expired_jobs": {"kinds": KINDS[:3], "limit": 10, "token": "w/1-x", "lease": 60.0},
    "claim_jobs": {
        "kinds": KINDS,
        "limit": 20,
        "token": "w/1-x",
        "lease": 60.0,
        "exclude": IDS[:3],
        "last_chances": 1,
    },
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
    },
    "delete_expired_jobs": {"ids": IDS, "tokens": IDS},
    "delete_orphans": {"limit": 100},
    "discard_expired_jobs": {"kinds": KINDS[:3], "limit": 1000},
    "fail_abandoned_jobs": {"outcome": "{}", "retention": 60.0, "limit": 100},
    "finish_jobs": {
        "ids": IDS,
        "tokens": IDS,
        "statuses": ["completed"] * len(IDS),
        "outputs": ["{}"] * len(IDS),
        "content_types": ["application/json"] * len(IDS),
        "errors": TEXTS,
        "progress": TEXTS,
        "retentions": [60.0] * len(IDS),
    },
    "forget_claim": {"token": "w/1-x"},
    "read_legible_jobs": {"ids": IDS[:3]},
    "read_job": {"id": "row-7", "tenant": "t1", "project": "p1", "submitted_by": None},
    "release_jobs": {
        "ids": IDS,
        "tokens": IDS,
        "give_back": [True] * len(IDS),
        "cap": 10,
        "outcome": "{}",
        "retention": 60.0,
    },
    "renew_leases": {
        "ids": IDS,
        "tokens": IDS,
        "durations": [60.0] * len(IDS),
        "progress": ["some"] * len(IDS),
    },
    "state_of_jobs": {"ids": IDS, "tokens": IDS},
}
ONE_KIND = PARAMETERS["claim_jobs"] | {"kinds": KINDS[:1]}
CASES = [*PARAMETERS.items(), ("claim_jobs", ONE_KIND)]

# Statements that people ask for, that run once, or that touch no jobs.
OTHERS = {
    "create_migrations",
    "list_jobs",
    "lock_project",
    "lock_schema",
    "overview_counts",
    "overview_holders",
    "read_columns",
    "read_labels",
    "read_migrations",
    "read_unvalidated",
    "record_migration",
    "validate_checks",
}

# 60,000 finished, 34,000 queued, 5,000 running, 500 of them lapsed, 1,000 expired.
FILL = """
ALTER TABLE async_jobs DISABLE TRIGGER USER;
INSERT INTO async_jobs (id, tenant, project, kind, status, attempts, locked_by, lease_expires_at,
                        created_at, expires_at)
SELECT 'row-' || n, 't' || n % 20, 'p' || n % 5, 'kind-' || n / 100 % 50,
       (CASE WHEN n % 100 < 61 THEN 'completed' WHEN n % 100 < 66 THEN 'in-progress'
             ELSE 'accepted' END)::async_job_status,
       (n % 100 < 66)::int,
       CASE WHEN n % 100 BETWEEN 61 AND 65 THEN 'worker/' || n END,
       CASE WHEN n % 100 BETWEEN 61 AND 65 THEN
         now() + CASE WHEN n % 1000 < 100 THEN interval '-1 hour' ELSE interval '1 hour' END END,
       now() - n * interval '1 second',
       now() + CASE WHEN n % 100 = 0 THEN interval '-1 hour' ELSE interval '1 day' END
FROM generate_series(0, 99999) n;
ALTER TABLE async_jobs ENABLE TRIGGER USER;
ANALYZE async_jobs;
"""


@pytest.fixture(scope="module")
def large(server_url: str, template: str) -> Iterator[str]:
    """A database with 100,000 jobs."""
    name = f"hastetrio_large_{os.getpid()}"
    run(server_url, f"CREATE DATABASE {name} TEMPLATE {template}")
    url = make_conninfo(server_url, dbname=name)
    run(url, FILL)
    yield url
    run(server_url, f"DROP DATABASE {name} WITH (FORCE)")


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every node of a plan."""
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def explain(url: str, name: str, parameters: dict[str, Any], mode: str) -> list[dict[str, Any]]:
    """The nodes of the plan that the server makes for a prepared statement."""
    order: list[str] = []

    def place(match: re.Match[str]) -> str:
        if match[1] not in order:
            order.append(match[1])
        return f"${order.index(match[1]) + 1}"

    text = re.sub(r"%\((\w+)\)s", place, job_query(name))
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = psycopg.ClientCursor(connection)
        cursor.execute(f"SET plan_cache_mode = {mode}".encode())
        cursor.execute("SET jit = off")
        cursor.execute(f"PREPARE it AS {text}".encode())
        values = [parameters[key] for key in order]
        places = ", ".join(["%s"] * len(values))
        call = f"EXECUTE it ({places})" if values else "EXECUTE it"
        cursor.execute(f"EXPLAIN (FORMAT JSON) {call}".encode(), values)
        row = cursor.fetchone()
        assert row is not None
        return list(nodes(row[0][0]["Plan"]))


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize(("name", "parameters"), CASES, ids=[name for name, _ in CASES])
def test_no_statement_of_the_protocol_reads_the_table(
    large: str, name: str, parameters: dict[str, Any], mode: str
) -> None:
    """No plan scans async_jobs, and none sorts what it reads from the backlog."""
    found = explain(large, name, parameters, mode)
    table = [node for node in found if node.get("Relation Name") == "async_jobs"]
    assert table
    assert not [node for node in table if node["Node Type"] == "Seq Scan"]
    for node in found:
        if "Sort" in node["Node Type"]:
            # Sorted may be what a limit or a list of ids has already made small.
            assert all(
                child["Plan Rows"] <= 5_000 or child["Node Type"] in ("Append", "Nested Loop")
                for child in node["Plans"]
            )
            assert not [
                below
                for below in nodes(node)
                if below.get("Index Name") == "async_jobs_queue" and below["Plan Rows"] > 5_000
            ]


def rows_read(url: str, name: str, parameters: dict[str, Any]) -> float:
    """How many rows of async_jobs a statement looks at, those it then leaves included."""
    statement = "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) " + job_query(name)
    with psycopg.connect(url) as connection:
        row = connection.execute(statement.encode(), parameters).fetchone()
        assert row is not None
        connection.rollback()
    found = [
        node
        for node in nodes(row[0][0]["Plan"])
        if node.get("Relation Name") == "async_jobs" and node["Node Type"] != "ModifyTable"
    ]
    return sum(
        float(node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
        * int(node["Actual Loops"])
        for node in found
    )


# 5,000 rows run; a project has 2,000 live jobs.
MOST_READ = {"forget_claim": 5_000, "count_live_jobs": 2_000, "create_jobs": 2_000}


@pytest.mark.parametrize(("name", "parameters"), CASES, ids=[name for name, _ in CASES])
def test_no_statement_of_the_protocol_looks_at_many_rows(
    large: str, name: str, parameters: dict[str, Any]
) -> None:
    """Of 100,000 jobs each looks at those it is about, and at few more."""
    assert rows_read(large, name, parameters) <= MOST_READ.get(name, 2_100)


@pytest.mark.parametrize("kinds", [1, 3, 50])
def test_a_claim_reads_no_more_than_it_could_take(large: str, kinds: int) -> None:
    """Whatever the backlog, the rows read are bounded by kinds times the limit, and then some."""
    parameters = PARAMETERS["claim_jobs"] | {"kinds": KINDS[:kinds], "exclude": []}
    read = rows_read(large, "claim_jobs", parameters)
    # Twenty queued and a few lapsed of each kind, those locked and those updated. That a job is
    # on its last attempt is no part of an index: of every lapsed one (a hundred of a kind) it is
    # looked up, but there are never many.
    assert 40 <= read <= 30 * kinds + 60 + 100 * (kinds // 10 or 1)


def test_a_claim_locks_only_the_rows_it_takes(url: str) -> None:
    """While a claim of three is not committed, another finds all other rows free."""
    ids = [insert(url, kind) for kind in ("a", "b") for _ in range(10)]
    parameters = PARAMETERS["claim_jobs"] | {"kinds": ["a", "b"], "limit": 3, "exclude": []}
    with psycopg.connect(url) as claimer, psycopg.connect(url) as other:
        taken = claimer.execute(job_query("claim_jobs").encode(), parameters).fetchall()
        assert len(taken) == 3
        free = other.execute("SELECT id FROM async_jobs FOR UPDATE SKIP LOCKED").fetchall()
        assert len(free) == 17
        assert {row[0] for row in taken} | {id for (id,) in free} == set(ids)


def test_claims_at_the_same_moment_take_all_there_is(url: str) -> None:
    """Claimers that do not see one another's commits share a burst; none is told "nothing"."""
    for _ in range(9):
        for kind in ("a", "b", "c"):
            insert(url, kind)
    parameters = PARAMETERS["claim_jobs"] | {"kinds": ["a", "b", "c"], "limit": 9, "exclude": []}
    taken: list[str] = []
    connections = [psycopg.connect(url) for _ in range(3)]
    try:
        for connection in connections:
            rows = connection.execute(job_query("claim_jobs").encode(), parameters).fetchall()
            taken += [row[0] for row in rows]
    finally:
        for connection in connections:
            connection.close()
    # The first takes nine; those after it look past its locks for their share of each kind.
    assert len(taken) == len(set(taken)) == 27


def test_every_statement_is_known_here() -> None:
    """A new statement is either planned above or named among those that need not be."""
    assert set(QUERIES) == set(PARAMETERS) | OTHERS


@pytest.mark.parametrize("name", QUERIES)
def test_every_statement_says_what_it_guarantees_and_which_index_serves_it(name: str) -> None:
    """Two lines open each file: a sentence on what holds, then the index."""
    first, second, *rest = query(name).splitlines()
    assert re.fullmatch(r"-- [A-Z].*[.:]( Answers \w.*)?", first), first
    assert re.fullmatch(r"-- Index: \S.*\.", second), second
    assert rest
    indexes = set(re.findall(r"async_jobs_\w+", second))
    assert indexes <= {
        "async_jobs_queue",
        "async_jobs_running",
        "async_jobs_expiry",
        "async_jobs_live",
    }
