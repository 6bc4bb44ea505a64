"""The benchmark measures what it is told to, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from hastetrio.bench import SECTIONS
from hastetrio.embedded import EmbeddedPostgres

from .harness import Run, Start, only_line

T = TypeVar("T")

# Nothing listens on port 1.
NOT_THERE = "postgresql://someone:hunter2@127.0.0.1:1/jobs"

TINY = ("--jobs=30", "--rounds=2", "--slots=7", "--samples=3", "--seconds=0.3", "--leases=12")
FOREVER = ("--jobs=5000000", "--samples=1000000", "--seconds=3600")


def ask(url: str, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    """The rows of one statement."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), parameters)
        return cursor.fetchall() if cursor.description else []


def rooms(url: str) -> set[str]:
    """The databases and schemas that benchmarks have on a server."""
    names = "SELECT datname FROM pg_database UNION SELECT nspname FROM pg_namespace"
    return {name for (name,) in ask(url, names) if name.startswith("hastetrio_bench_")}


class Running:
    """A benchmark that was started on a server, told apart from others by its sessions' name."""

    def __init__(self, start: Start, server_url: str, *options: str, **environ: str) -> None:
        self.server = server_url
        self._tag = f"bench-test-{os.getpid()}"
        url = make_conninfo(server_url, application_name=self._tag)
        arguments = ("bench", "--json", *FOREVER, *options)
        self.process = start(*arguments, HASTETRIO_DATABASE_URL=url, **environ)

    def until(self, look: Callable[[], T | None]) -> T:
        """Wait until `look` finds something, as long as the benchmark runs."""
        while True:
            found = look()
            if found:
                return found
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.02)

    def database(self) -> str | None:
        """Its database, once it is there."""
        query = (
            "SELECT datname FROM pg_stat_activity WHERE application_name = %s "
            "AND datname LIKE 'hastetrio_bench_%%' AND query ILIKE '%%async_jobs%%'"
        )
        found = ask(self.server, query, self._tag)
        return str(found[0][0]) if found else None

    def has_jobs(self) -> bool:
        """Whether its database has jobs that have been begun."""
        database = self.database()
        if database is None:
            return False
        query = "SELECT 1 FROM async_jobs WHERE status <> 'accepted' LIMIT 1"
        try:
            return bool(ask(make_conninfo(self.server, dbname=database), query))
        except psycopg.Error:
            return False

    def children(self) -> list[int]:
        """The processes it started."""
        # By the thread that started them.
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(one) for task in tasks for one in task.read_text().split()]

    def ended(self) -> tuple[int, str, str]:
        """Its exit code and what it printed, once it has ended."""
        output, errors = self.process.communicate(timeout=60)
        return self.process.returncode, output, errors


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the account of an embedded server can reach."""
    path = Path(tempfile.mkdtemp(prefix="hastetrio-bench-test-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def test_every_section_is_measured_and_nothing_is_left(database_url: str, run: Run) -> None:
    """All figures are in the JSON, in their order; the given database is not touched."""
    result = run("bench", "--json", *TINY, "--database-url", database_url)
    assert (result.exit_code, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert set(report) == {"versions", "machine", "server", "log_level", "sections"}
    assert set(report["versions"]) >= {"hastetrio", "python", "trio", "psycopg", "libpq"}
    assert report["machine"]["cores"] >= 1
    assert (report["server"]["kind"], report["server"]["room"]) == ("given", "database")
    assert set(report["server"]["settings"]) >= {"server_version", "fsync"}
    assert report["log_level"] == "warning"

    sections = report["sections"]
    assert tuple(sections) == SECTIONS
    throughput = sections["throughput"]
    assert (throughput["jobs"], throughput["slots"]) == (30, 7)
    for spread in (throughput["jobs_per_second"], throughput["cpu_us_per_job"]):
        assert len(spread["rounds"]) == 2
        assert 0 < spread["min"] <= spread["median"] <= spread["max"]
    for name in ("pick-up", "cancel"):
        sent, answered = sections[name]["since_sent"], sections[name]["since_answered"]
        assert sections[name]["samples"] == 3
        for latency in (sent, answered):
            assert 0 <= latency["p50"] <= latency["p99"] <= latency["max"]
        assert answered["p50"] < sent["p50"]
    for name in ("idle", "leases"):
        window = sections[name]["window"]
        assert window["seconds"] >= 0.3
        assert window["statements"] >= 0
        assert window["statements_per_minute"] >= 0
        assert window["cpu_percent"] >= 0
    leases = sections["leases"]
    assert (leases["jobs"], leases["lease"], leases["lost"]) == (12, 60.0, 0)
    assert leases["renewals_failed"] == 0
    assert "resident set" in leases["memory_is"]

    assert rooms(database_url) == set()
    assert ask(database_url, "SELECT count(*) FROM async_jobs") == [(0,)]


def test_only_what_was_asked_for_is_measured_and_shown(server_url: str, run: Run) -> None:
    """The table has the chosen sections in the order of measuring, below what the machine is."""
    only = ("--only", "idle", "--only", "throughput")
    result = run("bench", *TINY, *only, "--database-url", server_url, "--log-level", "error")
    assert (result.exit_code, result.stderr) == (0, "")
    head, _, table = result.stdout.partition("\n\n")
    for word in ("hastetrio", "Python", "PostgreSQL", "fsync", "cores", "log level ERROR"):
        assert word in head
    names = [line.split()[0] for line in table.splitlines()]
    assert names == ["SECTION", "throughput", "throughput", "idle", "idle"]
    assert "may be missing" in table
    assert rooms(server_url) == set()


@pytest.mark.parametrize(
    ("options", "fsync"), [((), "off"), pytest.param(("--fsync",), "on", marks=pytest.mark.slow)]
)
def test_without_a_database_the_server_is_thrown_away(
    options: tuple[str, ...], fsync: str, folder: Path, start: Start
) -> None:
    """No server and no file remain; whether its disk was waited for is said."""
    only = ("--only", "pick-up", "--samples", "1")
    process = start("bench", "--json", *only, *options, TMPDIR=str(folder))
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    server = json.loads(output)["server"]
    assert (server["kind"], server["settings"]["fsync"]) == ("throw-away", fsync)
    assert list(folder.iterdir()) == []


def test_an_embedded_server_that_is_kept_is_left_as_it_was(folder: Path, run: Run) -> None:
    """With --data-dir the benchmark is a guest there."""
    server = EmbeddedPostgres(folder, options=("fsync=off", "shared_buffers=17MB"))
    # Held for the test: otherwise the last user's leaving would hide a database left behind.
    dsn = server.start()
    try:
        result = run("bench", "--json", *TINY, "--only=throughput", "--data-dir", str(folder))
        assert (result.exit_code, result.stderr) == (0, "")
        used = json.loads(result.stdout)["server"]
        assert (used["kind"], used["settings"]["shared_buffers"]) == ("embedded", "17MB")
        assert rooms(dsn) == set()
    finally:
        server.stop()
        server.wait_stopped(20)


@pytest.mark.parametrize(
    ("section", "number", "code"),
    [
        ("throughput", signal.SIGINT, 130),
        ("cancel", signal.SIGINT, 130),
        ("leases", signal.SIGINT, 130),
        ("leases", signal.SIGTERM, 143),
        pytest.param("leases", signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_it_silently_with_nothing_left(
    section: str, number: signal.Signals, code: int, server_url: str, start: Start
) -> None:
    """Neither the database outlives it nor the worker process, even one that hangs."""
    jobs = "--jobs=5000" if section == "throughput" else "--leases=5"
    bench = Running(start, server_url, "--only", section, jobs, "--rounds=1000")
    bench.until(bench.has_jobs)
    database = bench.until(bench.database)
    children = bench.children()
    assert len(children) == (section == "leases")
    for child in children:
        os.kill(child, signal.SIGSTOP)
    bench.process.send_signal(number)
    assert bench.ended() == (code, "", "")
    assert ask(server_url, "SELECT 1 FROM pg_database WHERE datname = %s", database) == []
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)


def test_a_signal_ends_a_server_that_is_thrown_away(folder: Path, start: Start) -> None:
    """Interrupted before it has measured anything, perhaps before the server answers."""
    process = start("bench", *FOREVER, TMPDIR=str(folder))
    while not list(folder.iterdir()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (130, "", "")
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_a_lease_that_is_lost_is_counted(server_url: str, start: Start) -> None:
    """The figure that must be 0 is not always 0: here somebody else takes one of five jobs."""
    sizes = ("--leases", "5", "--lease", "3", "--seconds", "4")
    bench = Running(start, server_url, "--only", "leases", *sizes)
    url = make_conninfo(server_url, dbname=bench.until(bench.database))
    steal = (
        "UPDATE async_jobs SET locked_by = 'thief', lease_expires_at = now() + interval '1 hour' "
        "WHERE id = (SELECT min(id) FROM async_jobs WHERE status = 'in-progress' "
        "HAVING count(*) = 5) RETURNING id"
    )
    bench.until(lambda: bench.has_jobs() and ask(url, steal))
    code, output, _ = bench.ended()
    assert code == 0
    assert json.loads(output)["sections"]["leases"]["lost"] == 1


def test_an_error_in_the_middle_is_one_line_and_nothing_is_left(
    server_url: str, start: Start
) -> None:
    """From some moment on the database refuses new jobs; the worker has nothing to complain of."""
    bench = Running(start, server_url, "--only", "pick-up")
    bench.until(bench.has_jobs)
    database = bench.until(bench.database)
    url = make_conninfo(server_url, dbname=database)
    refuse = "BEGIN RAISE EXCEPTION 'no more jobs'; END"
    ask(url, f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $${refuse}$$")
    ask(
        url,
        "CREATE TRIGGER refuse BEFORE INSERT ON async_jobs "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse()",
    )
    code, output, errors = bench.ended()
    assert (code, output) == (3, "")
    line = only_line(errors)
    assert line.startswith("hastetrio: ")
    assert "no more jobs" in line
    assert ask(server_url, "SELECT 1 FROM pg_database WHERE datname = %s", database) == []


@pytest.mark.slow
def test_a_worker_process_that_dies_is_one_line_and_nothing_is_left(
    server_url: str, start: Start
) -> None:
    """At once, though its window lasts an hour; the exit code says what killed it."""
    bench = Running(start, server_url, "--only", "leases", "--leases", "5")
    bench.until(bench.has_jobs)
    database = bench.until(bench.database)
    [child] = bench.children()
    os.kill(child, signal.SIGKILL)
    code, output, errors = bench.ended()
    assert (code, output) == (1, "")
    assert "worker process ended by itself, with exit code -9" in only_line(errors)
    assert ask(server_url, "SELECT 1 FROM pg_database WHERE datname = %s", database) == []


@pytest.mark.slow
def test_the_worker_process_does_not_outlive_a_benchmark_that_was_killed(
    server_url: str, folder: Path, start: Start
) -> None:
    """SIGKILL leaves no time to clean up: the database stays, the process must not."""
    sizes = ("--only", "leases", "--leases", "5")
    bench = Running(start, server_url, *sizes, TMPDIR=str(folder))
    bench.until(bench.has_jobs)
    database = bench.until(bench.database)
    [child] = bench.children()
    bench.process.kill()
    bench.process.communicate()
    try:
        while True:
            try:
                state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                break
            if state == "Z":
                break
            time.sleep(0.02)
    finally:
        ask(server_url, f'DROP DATABASE "{database}" WITH (FORCE)')


@pytest.mark.parametrize(
    "wrong",
    [
        ("--only", "speed"),
        ("--jobs", "0"),
        ("--jobs", "many"),
        ("--rounds", "0"),
        ("--slots", "0"),
        ("--slots", "100001"),
        ("--samples", "0"),
        ("--seconds", "0"),
        ("--seconds", "nan"),
        ("--seconds", "inf"),
        ("--leases", "100001"),
        ("--lease", "0.5"),
        ("--lease", "nan"),
        ("--fsync", "--database-url", NOT_THERE),
        ("--fsync", "--data-dir", "somewhere"),
    ],
    ids=" ".join,
)
def test_a_size_that_cannot_be_is_refused_at_once(
    wrong: tuple[str, ...], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line that names the option, before anything is started."""
    monkeypatch.setattr("trio.run", pytest.fail)
    result = run("bench", *wrong)
    assert (result.exit_code, result.stdout) == (2, "")
    assert wrong[0] in only_line(result.stderr)


def test_a_server_out_of_reach_is_one_line(run: Run) -> None:
    """As for every command: exit code 3, and no password."""
    result = run("bench", *TINY, "--database-url", NOT_THERE)
    assert (result.exit_code, result.stdout) == (3, "")
    assert "hunter2" not in only_line(result.stderr)


def test_a_url_that_is_none_is_refused_without_repeating_it(run: Run) -> None:
    """As for every command: exit code 2, and no password."""
    result = run("bench", *TINY, "--database-url", "password=hunter2 x")
    assert (result.exit_code, result.stdout) == (2, "")
    line = only_line(result.stderr)
    assert "postgresql://" in line
    assert "hunter2" not in line


def test_a_terminal_sees_the_progress_and_the_output_stays_clean(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bar goes to the terminal of the standard error, so that --json can be piped on."""
    package = Path(sys.modules["hastetrio"].__path__[0]).resolve().parent
    path = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("HASTETRIO_DATABASE_URL", server_url)
    only = ("--only", "throughput", "--only", "idle")
    command = [sys.executable, "-m", "hastetrio", "bench", "--json", *TINY, *only]
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        output, _ = process.communicate(timeout=60)
    # The few lines of a bar fit into the terminal's buffer, so nobody had to read meanwhile.
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert process.returncode == 0
    assert list(json.loads(output)["sections"]) == ["throughput", "idle"]
    for name in ("throughput", "idle"):
        assert name in shown
    assert shown.count("100%") >= 2
