"""`hastetrio jobs submit` and `retry`: times, keys, handlers' rules, another try."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from hastetrio._model import JobResult
from hastetrio._outcome import OperationOutcomeError
from hastetrio.postgres import PostgresJobProvider

from .harness import Run, claim, only_line, with_provider

HANDLERS = """
import attrs
from hastetrio import JobContext, JobOutput, RetryPolicy, job_handler

@attrs.frozen
class Words:
    text: str
    times: int = 1

@job_handler("count", parameters=Words, retries=RetryPolicy(attempts=9))
async def count(context: JobContext[Words]) -> JobOutput:
    return JobOutput.json(context.parameters.times)
"""


@pytest.fixture(autouse=True)
def database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The commands find the test's database in the environment."""
    monkeypatch.setenv("HASTETRIO_DATABASE_URL", database_url)
    return database_url


def submitted(run: Run, *arguments: str) -> Any:  # noqa: ANN401  # JSON
    """Submit a job; the job as JSON."""
    result = run("jobs", "submit", *arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def finish(url: str, kind: str, result: JobResult) -> None:
    """Run a job of that kind the way a worker would, to this result."""

    async def work(provider: PostgresJobProvider) -> None:
        lease = await claim(provider, kind)
        (job,) = [
            one
            for one in await provider.list_jobs("system", "system")
            if one.locked_by == lease.token
        ]
        assert await provider.finish_job(job.id, lease, result, 60.0)

    with_provider(url, work)


def test_a_job_is_submitted_for_later(run: Run) -> None:
    """At a time with a zone; it is kept from then on."""
    job = submitted(run, "k", "--run-at", "2100-01-31T04:00:00+01:00", "--retention", "60")
    at = datetime(2100, 1, 31, 3, tzinfo=UTC)
    assert datetime.fromisoformat(job["run_at"]) == at
    assert (datetime.fromisoformat(job["expires_at"]) - at).total_seconds() == 60


def test_a_job_is_submitted_with_a_delay(run: Run) -> None:
    """So many seconds from now, by the clock of whoever submits."""
    before = datetime.now(UTC)
    job = submitted(run, "k", "--delay", "3600")
    waits = (datetime.fromisoformat(job["run_at"]) - before).total_seconds()
    assert 3600 <= waits < 3660


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--delay", "5", "--run-at", "2100-01-01T00:00Z"], "exclude each other"),
        (["--delay", "-1"], "-1"),
        (["--delay", "nan"], "nan"),
        (["--run-at", "2100-01-01T00:00"], "no time with a zone"),
        (["--run-at", "tomorrow"], "no time with a zone"),
        (["--run-at", "0001-01-01T00:00+14:00"], "run_at must be in the years"),
        (["--run-at", "9999-12-31T23:00-10:00"], "run_at must be in the years"),
        (["--unique-key", ""], "unique_key must not be empty"),
        (["--unique-key", "x" * 256], "unique_key has 256 characters"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_queued(
    run: Run, arguments: list[str], complaint: str
) -> None:
    """One line that says what to do, and no job."""
    result = run("jobs", "submit", "k", *arguments)
    assert result.exit_code == 2
    assert complaint in only_line(result.stderr.splitlines()[-1] + "\n")
    assert json.loads(run("jobs", "list", "--json").stdout) == []


def test_a_unique_key_answers_the_job_that_has_it(run: Run, database: str) -> None:
    """While it lives; then the key is free again."""
    first = submitted(run, "k", "--unique-key", "once")
    assert submitted(run, "k", "--unique-key", "once")["id"] == first["id"]
    assert submitted(run, "other", "--unique-key", "once")["id"] != first["id"]
    finish(database, "k", JobResult.completed(1))
    assert submitted(run, "k", "--unique-key", "once")["id"] != first["id"]


def test_a_handler_judges_what_is_submitted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the class that judges its kick-offs; its policy says how many attempts there are."""
    (tmp_path / "submit_handlers.py").write_text(HANDLERS, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    known = ("--handlers", "submit_handlers:count")
    result = run("jobs", "submit", "count", *known, "--parameters", '{"times": "2", "more": 1}')
    assert result.exit_code == 2
    for words in ("text is missing", "times must be a whole number", "more is no parameter"):
        assert words in result.stderr
    assert submitted(run, "count", *known, "--parameters", '{"text": "a"}')["max_attempts"] == 9
    given = ("--parameters", '{"text": "a"}', "--max-attempts", "2")
    assert submitted(run, "count", *known, *given)["max_attempts"] == 2
    result = run("jobs", "submit", "another", *known)
    assert result.exit_code == 0
    assert "No handler for 'another' is known (of: count): queued unjudged" in result.stderr
    assert json.loads(run("jobs", "show", only_line(result.stdout), "--json").stdout)["kind"] == (
        "another"
    )


def test_a_failed_job_is_queued_anew(run: Run, database: str) -> None:
    """As a job of its own, with what the first one had; that one stays as it is."""
    first = submitted(
        run, "k", "--parameters", '{"a": 1}', "--max-attempts", "5", "--unique-key", "once"
    )
    finish(database, "k", JobResult.failed(OperationOutcomeError("value", "no").to_json()))
    result = run("jobs", "retry", first["id"])
    assert (result.exit_code, result.stderr) == (0, "")
    again = json.loads(run("jobs", "show", only_line(result.stdout), "--json", "--claims").stdout)
    assert again["id"] != first["id"]
    assert (again["status"], again["parameters"], again["max_attempts"]) == (
        *("accepted", {"a": 1}, 5),
    )
    assert (
        again["claims"]
        == json.loads(run("jobs", "show", first["id"], "--json", "--claims").stdout)["claims"]
    )
    assert json.loads(run("jobs", "show", first["id"], "--json").stdout)["status"] == "failed"


@pytest.mark.parametrize("status", ["accepted", "completed", "missing"])
def test_only_a_failed_job_is_queued_anew(run: Run, database: str, status: str) -> None:
    """Whoever asks for another learns what it is, and nothing is queued."""
    job = submitted(run, "k")
    if status == "completed":
        finish(database, "k", JobResult.completed(1))
    id = "nowhere" if status == "missing" else job["id"]
    result = run("jobs", "retry", id)
    assert result.exit_code == 1
    assert (f"is {status}" if status != "missing" else "no job") in only_line(result.stderr)
    assert len(json.loads(run("jobs", "list", "--json").stdout)) == 1


def test_what_went_wrong_in_each_attempt_is_shown(run: Run, database: str) -> None:
    """`jobs show` has the history, also for people."""
    job = submitted(run, "k")
    with psycopg.connect(database) as connection:
        connection.execute(
            "UPDATE async_jobs SET attempt_errors = async_jobs_add_error(NULL, 1, %s::jsonb)",
            ['["ConnectionError: away"]'],
        )
    (entry,) = json.loads(run("jobs", "show", job["id"], "--json").stdout)["attempt_errors"]
    assert (entry["attempt"], entry["errors"]) == (1, ["ConnectionError: away"])
    assert "ConnectionError: away" in run("jobs", "show", job["id"]).stdout
