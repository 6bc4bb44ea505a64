"""`hastetrio status` on a real database."""

from __future__ import annotations

import json
from typing import Any

import attrs
import psycopg
import pytest

from hastetrio._model import CreateAsyncJob, JobResult
from hastetrio.cli import _status
from hastetrio.postgres import PostgresJobProvider
from hastetrio.postgres._overview import OldestTransaction

from .harness import Run, claim, with_provider


@pytest.fixture(autouse=True)
def database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The commands find the test's database in the environment."""
    monkeypatch.setenv("HASTETRIO_DATABASE_URL", database_url)
    return database_url


def fill(url: str) -> None:
    """One job finished, two waiting, one running, one whose lease has lapsed."""

    async def work(provider: PostgresJobProvider) -> None:
        for kind in ("done", "busy", "lapsing", "lonely", "lonely"):
            new = CreateAsyncJob(kind=kind, claims={"sub": "me"})
            job = await provider.create_job("t", "p", new)
            if kind != "lonely":
                lease = await claim(provider, kind)
            if kind == "done":
                await provider.finish_job(job.id, lease, JobResult.completed(1), 60.0)

    with_provider(url, work)
    with psycopg.connect(url) as connection:
        connection.execute(
            "UPDATE async_jobs SET lease_expires_at = now() - interval '1 minute' "
            "WHERE kind = 'lapsing'"
        )


def test_status_as_json(run: Run, database: str) -> None:
    """Everything a monitor asks, as one document."""
    fill(database)
    status = json.loads(run("status", "--json").stdout)
    counts = {(one["status"], one["kind"]): one["count"] for one in status["counts"]}
    assert counts == {
        ("completed", "done"): 1,
        ("in-progress", "busy"): 1,
        ("in-progress", "lapsing"): 1,
        ("accepted", "lonely"): 2,
    }
    (waiting,) = status["waiting"]
    assert (waiting["kind"], waiting["count"]) == ("lonely", 2)
    assert waiting["oldest_seconds"] >= 0
    assert status["lapsed"] == 1
    assert status["unserved"] == ["lonely"]
    (holder,) = status["holders"]
    assert holder["worker"] == "w1"


def test_status_for_a_person(run: Run, database: str) -> None:
    """The same, in words."""
    fill(database)
    text = run("status").stdout
    assert "completed    done" in text
    assert "WAITING KIND" in text
    assert "w1" in text
    assert "lapsed leases: 1" in text
    assert "kinds that wait while nobody runs them: lonely" in text


def test_an_empty_queue(run: Run) -> None:
    """Nothing to say is said."""
    result = run("status")
    assert (result.exit_code, result.stdout) == (0, "no jobs\n")
    assert json.loads(run("status", "--json").stdout)["counts"] == []


def test_an_open_transaction(run: Run, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is always in the JSON; a person is told of one that has been open for long."""
    with psycopg.connect(database, application_name="reporting") as connection:
        connection.execute("SELECT pg_current_xact_id()")
        pid = connection.info.backend_pid
        oldest = json.loads(run("status", "--json").stdout)["oldest_transaction"]
        assert (oldest["source"], oldest["pid"], oldest["name"]) == ("session", pid, "reporting")
        assert run("status").stdout == "no jobs\n"
        monkeypatch.setattr(_status, "_OLD_SECONDS", 0)
        assert f"SELECT pg_terminate_backend({pid})" in run("status").stdout


SESSION = OldestTransaction(
    "session", 4711, "psql", "ann", "jobs", "idle in transaction", 7500.0, 12
)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {},
            (
                "the transaction of process 4711 (psql, ann, jobs, idle in transaction), "
                "open for 2 h 5 min: end it, or SELECT pg_terminate_backend(4711)"
            ),
        ),
        ({"seconds": 59.0, "transactions": 10**6}, None),
        # Without pg_read_all_stats: no age, no state.
        (
            {"seconds": None, "state": None, "transactions": 123_456},
            (
                "the transaction of process 4711 (psql, ann, jobs), "
                "123,456 transactions old: end it, or SELECT pg_terminate_backend(4711)"
            ),
        ),
        ({"seconds": None, "state": None, "transactions": 99_999}, None),
        (
            {"source": "prepared", "pid": None, "state": None, "name": "two\nlines"},
            (
                "the prepared transaction two lines of ann, "
                "open for 2 h 5 min: in database jobs, COMMIT PREPARED or ROLLBACK PREPARED it"
            ),
        ),
        (
            {"source": "slot", "pid": None, "name": "old", "seconds": None, "state": "inactive"},
            (
                "the replication slot old (inactive), "
                "12 transactions old: see to what reads from it, or drop it"
            ),
        ),
        ({"source": "slot", "name": "new", "seconds": None, "state": "active"}, None),
    ],
)
def test_the_line_on_an_open_transaction(changes: dict[str, Any], line: str | None) -> None:
    """One line says what it is and what to do; none where it is young, or may be."""
    said = _status._held_back(attrs.evolve(SESSION, **changes))
    why = "dead rows stay and claims slow down because of "
    assert said == (None if line is None else why + line)


def test_no_line_where_nothing_is_open() -> None:
    """A database without an open transaction is not worth a word."""
    assert _status._held_back(None) is None
