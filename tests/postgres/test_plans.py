"""The statements at 100,000 rows: each walks an index, whatever plan the server has settled on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from hastetrio._sql import _root
from hastetrio.postgres._rows import job_query

from . import plans
from .harness import insert, run
from .plans import KINDS, LATE_AND_OTHERS, LATE_KINDS, MODES, claim

QUERIES = sorted(entry.name.removesuffix(".sql") for entry in _root().joinpath("queries").iterdir())
SIZE = plans.Size(queued=35_000, finished=61_000, running=2_000, lapsed=2_000)

# Statements that people ask for, that run once, or that touch no jobs.
OTHERS = {
    "create_migrations",
    "lock_project",
    "lock_schema",
    "overview_counts",
    "overview_holders",
    "overview_oldest_transaction",
    "read_columns",
    "read_labels",
    "read_migrations",
    "read_unvalidated",
    "record_migration",
    "validate_checks",
}


@pytest.fixture(scope="module", params=["fresh", "none", "stale"])
def large(request: pytest.FixtureRequest, server_url: str, template: str) -> Iterator[str]:
    """100,000 jobs: well known to the planner, unknown, or loaded after it last looked."""
    name = f"hastetrio_large_{os.getpid()}_{request.param}"
    run(server_url, f"CREATE DATABASE {name} TEMPLATE {template}")
    try:
        url = make_conninfo(server_url, dbname=name)
        plans.fill(url, SIZE, statistics=request.param)
        yield url
    finally:
        run(server_url, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="module")
def settings(large: str) -> dict[str, plans.Settings]:
    """What the sessions set for themselves, by statement."""
    return plans.session_settings(large)


@pytest.fixture
def running_settings(url: str) -> dict[str, plans.Settings]:
    """What the sessions set for themselves, by statement, in a database of this test's."""
    return plans.session_settings(url)


@pytest.fixture(scope="module")
def running(large: str) -> list[tuple[str, str]]:
    """A hundred rows that run, by id and token."""
    return plans.held_rows(large, 100)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", plans.NAMES)
def test_a_statement_touches_only_what_it_is_about(
    large: str,
    settings: dict[str, plans.Settings],
    running: list[tuple[str, str]],
    name: str,
    mode: str,
) -> None:
    """Each finds its rows by an index, reads few others, and sorts no backlog."""
    parameters = plans.parameters(running)[name]
    with plans.rolled_back(large, settings[name]) as connection:
        reading = plans.analyze(connection, name, parameters, mode)
    assert reading.looks
    assert reading.faults(SIZE.bounds(name, parameters)) == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "kinds", [KINDS[:1], KINDS[:3], LATE_KINDS[:1], LATE_AND_OTHERS], ids=plans.kinds_id
)
def test_a_claim_reads_no_more_than_it_could_take(
    large: str, settings: dict[str, plans.Settings], kinds: list[str], mode: str
) -> None:
    """Whatever waits, and whatever has lapsed, the rows read are bounded by kinds and limit."""
    parameters = claim(kinds, 20)
    with plans.rolled_back(large, settings["claim_jobs"]) as connection:
        reading = plans.analyze(connection, "claim_jobs", parameters, mode)
    assert reading.faults(SIZE.bounds("claim_jobs", parameters)) == []


def test_what_a_claim_takes_is_found_by_its_key(
    large: str, settings: dict[str, plans.Settings]
) -> None:
    """However many rows the planner thinks that its LIMIT leaves: a prepared plan cannot know."""
    parameters = claim(KINDS, 20)
    # A join is then made by a hash of one side, the table.
    wary = [("enable_nestloop", "off")]
    with plans.rolled_back(large, settings["claim_jobs"] + wary) as connection:
        reading = plans.analyze(connection, "claim_jobs", parameters, "force_generic_plan")
    assert reading.faults(SIZE.bounds("claim_jobs", parameters)) == []


@pytest.mark.parametrize(
    "kinds", [KINDS[:1], KINDS, LATE_KINDS[:1], LATE_AND_OTHERS], ids=plans.kinds_id
)
def test_a_claim_locks_as_many_rows_as_it_takes(
    large: str, settings: dict[str, plans.Settings], kinds: list[str]
) -> None:
    """Also where leases have lapsed, on their last attempt or not."""
    assert plans.taken_and_locked(large, settings["claim_jobs"], claim(kinds, 20)) == (20, 20)


def test_a_claim_locks_only_the_rows_it_takes(url: str) -> None:
    """While a claim of three is not committed, another finds all other rows free."""
    ids = [insert(url, kind) for kind in ("a", "b") for _ in range(10)]
    parameters = claim(["a", "b"], 3)
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
    parameters = claim(["a", "b", "c"], 9)
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
    assert set(QUERIES) == set(plans.NAMES) | OTHERS


@pytest.mark.parametrize("name", QUERIES)
def test_every_statement_says_what_it_guarantees_and_which_index_serves_it(name: str) -> None:
    """Two lines open each file: a sentence on what holds, then the index."""
    file = _root().joinpath("queries", f"{name}.sql")
    first, second, *rest = file.read_text(encoding="utf-8").splitlines()
    assert re.fullmatch(r"-- [A-Z].*[.:]( Answers \w.*)?", first), first
    assert re.fullmatch(r"-- Index: \S.*\.", second), second
    assert rest
    indexes = set(re.findall(r"async_jobs_\w+", second))
    assert indexes <= {
        "async_jobs_due",
        "async_jobs_running",
        "async_jobs_expiry",
        "async_jobs_live",
        "async_jobs_project",
        "async_jobs_unique_key",
    }


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_a_claim_reads_no_job_that_waits_for_its_time(
    database_url: str, running_settings: dict[str, plans.Settings], known: bool
) -> None:
    """Tens of thousands in front, older than what is due, cost it nothing."""
    # Statistics outlive a TRUNCATE: the shared database is to have none.
    url = database_url
    run(url, "ALTER TABLE async_jobs SET (autovacuum_enabled = false)")
    run(
        url,
        "INSERT INTO async_jobs (id, tenant, project, kind, created_at, run_at) "
        "SELECT 'row-' || n, 't1', 'p1', 'kind-' || n % 2, now() - interval '1 day', "
        "now() + interval '1 hour' + n * interval '1 s' FROM generate_series(1, 30000) n",
    )
    due = [insert(url, f"kind-{n % 2}") for n in range(10)]
    if known:
        run(url, "ANALYZE async_jobs")
    size = plans.Size(queued=len(due), finished=0, running=0, lapsed=0)
    for kinds in (["kind-0"], ["kind-0", "kind-1"], ["kind-0", "kind-1", "none"]):
        parameters = claim(kinds, 5)
        for mode in MODES:
            with plans.rolled_back(url, running_settings["claim_jobs"]) as connection:
                reading = plans.analyze(connection, "claim_jobs", parameters, mode)
            assert reading.faults(size.bounds("claim_jobs", parameters)) == [], (kinds, mode)
    run(url, "UPDATE async_jobs SET run_at = now() + interval '1 hour' WHERE id = ANY (%s)", [due])
    for mode in MODES:
        with plans.rolled_back(url, running_settings["claim_jobs"]) as connection:
            reading = plans.analyze(connection, "claim_jobs", claim(["kind-0", "kind-1"], 5), mode)
        # Where nothing is due, nothing is read.
        assert reading.faults((0, 0)) == [], mode


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_a_unique_key_is_found_among_tens_of_thousands(
    database_url: str, running_settings: dict[str, plans.Settings], known: bool
) -> None:
    """Of one project and kind, live and over; a new job's statements read only its own."""
    url = database_url
    run(url, "ALTER TABLE async_jobs SET (autovacuum_enabled = false)")
    run(
        url,
        "INSERT INTO async_jobs (tenant, project, kind, unique_key, status, expires_at) "
        "SELECT 't1', 'p1', 'kind-1', 'key-' || n / 2, "
        "CASE n % 2 WHEN 0 THEN 'accepted' ELSE 'completed' END::async_job_status, "
        "now() + (n - 1000) * interval '1 s' FROM generate_series(2, 30001) n",
    )
    if known:
        run(url, "ANALYZE async_jobs")
    where = {"tenant": "t1", "project": "p1", "kinds": ["kind-1"], "unique_keys": ["key-7000"]}
    over = where | {"unique_keys": ["key-7"]}
    for name, parameters, most in (
        ("read_unique_jobs", where, 1),
        ("free_unique_keys", where, 1),
        ("read_unique_jobs", over, 1),
        ("free_unique_keys", over, 3),
    ):
        for mode in MODES:
            with plans.rolled_back(url, running_settings[name]) as connection:
                reading = plans.analyze(connection, name, parameters, mode)
            assert reading.looks
            assert reading.faults((most, most)) == [], (name, mode)


@pytest.mark.parametrize("mode", MODES)
def test_one_job_of_a_large_project_is_found_by_its_key(
    database_url: str, running_settings: dict[str, plans.Settings], mode: str
) -> None:
    """Not by walking the project, which a planner without statistics takes for as good."""
    url = database_url
    run(url, "ALTER TABLE async_jobs SET (autovacuum_enabled = false)")
    run(
        url,
        "INSERT INTO async_jobs (id, tenant, project, kind, status, created_at, finished_at) "
        "SELECT 'row-' || n, 't1', 'p1', 'kind-1', 'completed', now() - n * interval '1 s', now() "
        "FROM generate_series(1, 40000) n",
    )
    where = {"id": "row-7", "tenant": "t1", "project": "p1", "submitted_by": None}
    count = {"tenant": "t1", "project": "p1"}
    for name, parameters in (
        ("read_job", where),
        ("cancel_job", where),
        ("count_live_jobs", count),
    ):
        with plans.rolled_back(url, running_settings[name]) as connection:
            reading = plans.analyze(connection, name, parameters, mode)
        assert reading.faults((3, 3)) == [], name
