"""`hastetrio status` on a real database."""

from __future__ import annotations

import json

import psycopg
import pytest

from hastetrio._model import CreateAsyncJob, JobResult
from hastetrio.postgres import PostgresJobProvider

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
