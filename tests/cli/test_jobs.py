"""`hastetrio jobs` on a real database."""

from __future__ import annotations

import getpass
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from hastetrio._model import AsyncJob, JobResult
from hastetrio._outcome import OperationOutcomeError
from hastetrio.postgres import PostgresJobProvider

from .harness import Run, Start, claim, only_line, with_provider

UNKNOWN = "0000000000000000000000none"


@pytest.fixture(autouse=True)
def database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The commands find the test's database in the environment."""
    monkeypatch.setenv("HASTETRIO_DATABASE_URL", database_url)
    return database_url


def submitted(run: Run, *arguments: str) -> str:
    """Submit a job of kind k; returns its id."""
    result = run("jobs", "submit", "k", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return only_line(result.stdout)


def shown(run: Run, id: str, *arguments: str) -> Any:  # noqa: ANN401  # JSON
    """The job as `show --json` has it."""
    result = run("jobs", "show", id, "--json", *arguments)
    assert result.exit_code == 0
    return json.loads(result.stdout)


def insert(url: str, id: str, **columns: str) -> None:
    """Insert a row as another program would, naming only what it must."""
    row = {"tenant": "system", "project": "system", "kind": "k", "id": id, **columns}
    names = ", ".join(row)
    values = ", ".join(f"%({name})s" for name in row)
    statement = f"INSERT INTO async_jobs ({names}) VALUES ({values})"  # noqa: S608
    with psycopg.connect(url) as connection:
        connection.execute(statement.encode(), row)


def finish(url: str, id: str, result: JobResult, progress: str | None = None) -> None:
    """Run the job of kind k the way a worker would, to this result."""

    async def work(provider: PostgresJobProvider) -> None:
        lease = await claim(provider, "k")
        assert await provider.finish_job(id, lease, result, 60.0, progress)

    with_provider(url, work)


def cancel_in(url: str, id: str) -> None:
    """Cancel a job the way a server would."""

    async def work(provider: PostgresJobProvider) -> AsyncJob | None:
        return await provider.cancel_job("system", "system", id)

    assert with_provider(url, work)


def test_submit_prints_the_id_and_nothing_else(run: Run) -> None:
    """A script takes the output as the id."""
    job = shown(run, submitted(run), "--claims")
    assert job["kind"] == "k"
    assert job["status"] == "accepted"
    assert job["claims"] == {"sub": getpass.getuser()}
    assert job["parameters"] == {}
    assert (job["tenant"], job["project"], job["max_attempts"]) == ("system", "system", 3)


def test_submit_takes_everything_a_kick_off_has(run: Run, tmp_path: Path) -> None:
    """JSON may stand on the line, in a file, or on the standard input."""
    (tmp_path / "claims.json").write_text('{"sub": "\u00e9va", "scope": ["a"]}', encoding="utf-8")
    result = run(
        *("jobs", "submit", "k", "--request", "https://example.org/$x", "--parameters", "@-"),
        *("--claims", "@claims.json", "--retention", "60", "--max-attempts", "7", "--json"),
        *("--tenant", "t", "--project", "p"),
        stdin='{"n": [1, null]}',
    )
    id = json.loads(result.stdout)["id"]
    job = shown(run, id, "--claims", "--tenant", "t", "--project", "p")
    assert job["request"] == "https://example.org/$x"
    assert job["parameters"] == {"n": [1, None]}
    assert job["claims"] == {"sub": "\u00e9va", "scope": ["a"]}
    assert job["submitted_by"] == "\u00e9va"
    assert job["max_attempts"] == 7


REFUSED = [
    (("--parameters", "{"), "not JSON"),
    (("--parameters", "@nowhere.json"), "nowhere.json"),
    (("--parameters", "@binary"), "UTF-8"),
    (("--parameters", "[" * 100_000), "nested"),
    (("--parameters", "NaN"), "parameters"),
    (("--parameters", '"\\u0000"'), "NUL"),
    (("--parameters", '"' + "x" * 50 + '"', "--parameters-limit", "20"), "limit is 20"),
    (("--claims", '{"sub": "' + "x" * 50 + '"}', "--claims-limit", "20"), "limit is 20"),
    (("--claims", "{}"), "sub"),
    (("--claims", "[]"), "claims"),
    (("--retention", "soon"), "--retention"),
    (("--retention", "-1"), "retention"),
    (("--retention", "inf"), "retention"),
    (("--max-attempts", "0"), "max_attempts"),
    (("--tenant", ""), "tenant"),
]


def test_a_job_that_cannot_be_is_refused_in_one_line(run: Run, tmp_path: Path) -> None:
    """Nothing is queued, and the line names what is wrong."""
    (tmp_path / "binary").write_bytes(b"\xff")
    for arguments, word in REFUSED:
        result = run("jobs", "submit", "k", *arguments)
        assert result.exit_code == 2, arguments
        assert word in only_line(result.stderr)
    assert json.loads(run("jobs", "list", "--json").stdout) == []


def test_without_a_login_name_there_is_still_somebody(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's user often has no entry anywhere."""

    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(getpass, "getuser", unknown)
    assert shown(run, submitted(run))["submitted_by"].startswith("uid-")


def test_show_hides_the_claims_unless_asked(run: Run) -> None:
    """They say as whom the job runs; a shared screen should not."""
    id = submitted(run, "--claims", '{"sub": "me", "secret": "hunter2"}')
    assert "claims" not in shown(run, id)
    assert "hunter2" not in run("jobs", "show", id).stdout
    assert "hunter2" not in run("jobs", "list").stdout
    assert "hunter2" in run("jobs", "show", id, "--claims").stdout
    assert shown(run, id, "--claims")["claims"]["secret"] == "hunter2"  # noqa: S105


def test_show_has_every_column_and_iso_times(run: Run, database: str) -> None:
    """What the row says, a person can read."""
    id = submitted(run)
    finish(database, id, JobResult.completed({"n": 1}), "all of it")
    job = shown(run, id)
    assert job["output"] == {"n": 1}
    assert job["progress"] == "all of it"
    assert job["created_at"][10] == "T"
    assert job["finished_at"].endswith("+00:00")
    text = run("jobs", "show", id).stdout
    assert all(f"\n{name} " in f"\n{text}" for name in job)
    assert '"n": 1' in text


def test_an_id_that_is_not_there_is_one_line_and_exit_code_1(run: Run) -> None:
    """Also one that no row could have; the line says where it was looked for."""
    for command in ("show", "cancel", "watch"):
        for id in (UNKNOWN, "a\nb", "\udcff"):
            for arguments in ((), ("--json",)):
                result = run("jobs", command, id, *arguments)
                assert result.exit_code == 1, (command, id)
                assert "'system'" in only_line(result.stderr)
                assert result.stdout == ""


def test_a_row_that_cannot_be_read_is_shown_all_the_same(run: Run, database: str) -> None:
    """It is the row that is wrong: an operator sees it, and it spoils no list."""
    insert(database, "odd", started_at="infinity")
    result = run("jobs", "show", "odd")
    assert result.exit_code == 0
    assert "9999-12-30" in result.stdout
    assert "odd" in run("jobs", "list").stdout


def test_a_key_given_twice_is_refused(run: Run) -> None:
    """Which of two values was meant, nobody can know."""
    result = run("jobs", "submit", "work", "--parameters", '{"a": 1, "b": {"c": 1, "c": 2}}')
    assert result.exit_code == 2
    assert "the key 'c' is given twice" in result.stderr


def test_a_job_of_another_project_is_not_there(run: Run) -> None:
    """Tenant and project are part of the address."""
    id = submitted(run)
    assert run("jobs", "show", id, "--project", "other").exit_code == 1
    assert run("jobs", "cancel", id, "--tenant", "other").exit_code == 1
    assert run("jobs", "show", id).exit_code == 0


def test_ids_that_begin_with_a_dash_work_after_two_dashes(run: Run, database: str) -> None:
    """Other programs make any ids."""
    insert(database, "-x y")
    assert run("jobs", "show", "-x y").exit_code == 2
    for command in (("show",), ("cancel", "--json")):
        result = run("jobs", *command, "--", "-x y")
        assert result.exit_code == 0
        assert "-x y" in result.stdout


def test_list_filters_and_is_newest_first(run: Run, database: str) -> None:
    """The newest is what a person looks for."""
    first = submitted(run)
    finish(database, first, JobResult.completed(1))
    second = submitted(run)
    other = only_line(run("jobs", "submit", "other").stdout)

    def ids(*arguments: str) -> list[str]:
        return [job["id"] for job in json.loads(run("jobs", "list", "--json", *arguments).stdout)]

    assert ids() == [other, second, first]
    assert ids("--kind", "k") == [second, first]
    assert ids("--status", "completed") == [first]
    assert ids("--limit", "1") == [other]
    assert ids("--tenant", "t") == []
    assert "claims" not in run("jobs", "list", "--json").stdout
    lines = run("jobs", "list").stdout.splitlines()
    assert lines[0].split()[:3] == ["ID", "KIND", "STATUS"]
    assert [line.split()[0] for line in lines[1:]] == [other, second, first]


def test_foreign_text_does_not_drive_the_terminal(run: Run, database: str) -> None:
    """A row of another program may hold anything that is text."""
    insert(database, "a\x1b[2Jb", progress="x\ny\x9b")
    for command in (("list",), ("show", "a\x1b[2Jb"), ("cancel", "a\x1b[2Jb")):
        result = run("jobs", *command)
        assert result.exit_code == 0
        assert not {"\x1b", "\x9b"} & set(result.stdout)


def test_cancel_says_what_the_job_was(run: Run) -> None:
    """A second cancel finds nothing: the job is over."""
    id = submitted(run)
    result = run("jobs", "cancel", id)
    assert (result.exit_code, result.stdout) == (0, f"cancelled {id}, which was accepted\n")
    assert run("jobs", "cancel", id).exit_code == 1
    assert run("jobs", "show", id).exit_code == 1


def test_cancel_as_json(run: Run) -> None:
    """The status before is named as that, not mistaken for the status now."""
    id = submitted(run)
    assert json.loads(run("jobs", "cancel", id, "--json").stdout) == {
        "id": id,
        "cancelled": True,
        "status_before": "accepted",
    }


FAILURE = OperationOutcomeError("invalid", "no such patient").add("value", "nor any\nother")


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        (lambda url, id: finish(url, id, JobResult.completed(1), "half"), 0, ()),
        (lambda url, id: finish(url, id, JobResult.failed(FAILURE)), 1, ("failed", "patient; nor")),
        (cancel_in, 1, ("gone",)),
    ],
    ids=["completed", "failed", "cancelled"],
)
@pytest.mark.parametrize("command", ["submit --wait", "watch"])
def test_waiting_ends_with_the_job(
    command: str,
    end: Callable[[str, str], None],
    code: int,
    words: tuple[str, ...],
    run: Run,
    start: Start,
    database: str,
) -> None:
    """The exit code tells a script how the job ended; a failure says why."""
    if command == "watch":
        id = submitted(run)
        process = start("jobs", "watch", id)
        assert process.stdout is not None
        assert "accepted" in process.stdout.readline()
    else:
        process = start("jobs", "submit", "k", "--wait")
        assert process.stdout is not None
        id = process.stdout.readline().strip()
    end(database, id)
    output, errors = process.communicate(timeout=20)
    assert process.returncode == code
    for word in words:
        assert word in errors.splitlines()[-1]
    if code == 0:
        told = output if command == "watch" else errors
        assert "completed" in told.splitlines()[-1]
        assert "half" in told
    if command != "watch":
        assert output == ""


def test_waiting_as_json_prints_the_finished_job(start: Start, database: str, run: Run) -> None:
    """One document, at the end; the exit code as without --json, and no line beside it."""
    process = start("jobs", "submit", "k", "--wait", "--json")
    id = None
    end = time.monotonic() + 20
    while id is None and time.monotonic() < end:
        queued = json.loads(run("jobs", "list", "--json").stdout)
        id = queued[0]["id"] if queued else None
    assert id is not None
    finish(database, id, JobResult.failed(FAILURE))
    output, errors = process.communicate(timeout=20)
    assert json.loads(output)["status"] == "failed"
    assert (errors, process.returncode) == ("", 1)


def test_watch_shows_a_job_that_is_over_at_once(run: Run, database: str) -> None:
    """Watching is also asking how it ended; with --json each change is a line."""
    id = submitted(run)
    finish(database, id, JobResult.completed(1))
    result = run("jobs", "watch", id)
    assert result.exit_code == 0
    assert "completed, attempt 1 of 3" in only_line(result.stdout)
    assert json.loads(only_line(run("jobs", "watch", id, "--json").stdout))["status"] == "completed"


def test_waiting_survives_a_lost_connection(run: Run, start: Start, database: str) -> None:
    """Somebody watches for hours; the database restarts meanwhile."""
    id = submitted(run)
    process = start("jobs", "watch", id)
    assert process.stdout is not None
    process.stdout.readline()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    finish(database, id, JobResult.completed(1))
    _, errors = process.communicate(timeout=20)
    assert (errors, process.returncode) == ("", 0)
