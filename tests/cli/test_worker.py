"""`hastetrio worker` as a process: it runs jobs, and each signal ends it the way it should."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path

import psycopg
import pytest
import trio
from psycopg.conninfo import make_conninfo

from hastetrio._model import AsyncJob, AsyncJobStatus, CreateAsyncJob
from hastetrio.postgres import PostgresJobProvider

from .harness import Run, Start, only_line, with_provider

MODULE = """
import time
from pathlib import Path

import trio
from hastetrio import JobOutput, job_handler

@job_handler("quick")
async def quick(context):
    return JobOutput.json({"attempt": context.attempt})

@job_handler("gated")
async def gated(context):
    while not Path("go").exists():
        await trio.sleep(0.02)
    return JobOutput.json("done")

@job_handler("endless")
async def endless(context):
    await trio.sleep_forever()

@job_handler("stuck")
async def stuck(context):
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()

@job_handler("blocking")
async def blocking(context):
    Path("blocked").touch()
    time.sleep(600)

everything = [quick, gated, endless, stuck, blocking]
"""

DRAINING = "once more to hurry"
HURRYING = "cancelled and handed back"


@pytest.fixture(autouse=True)
def module(tmp_path: Path) -> None:
    """The handlers, in the current folder."""
    (tmp_path / "worker_handlers.py").write_text(MODULE)


def start_worker(start: Start, url: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a worker with all the handlers above."""
    return start(
        *("worker", "--handlers", "worker_handlers:everything", "--poll-interval", "0.2"),
        *arguments,
        HASTETRIO_DATABASE_URL=url,
    )


def wait_for_line(process: subprocess.Popen[str], word: str) -> None:
    """Read the worker's log up to the line that has this word."""
    assert process.stderr is not None
    for line in process.stderr:
        if word in line:
            return
    pytest.fail(f"the worker ended without a line that has {word!r}")


def submit(url: str, kind: str) -> str:
    """Queue a job of a kind."""

    async def work(provider: PostgresJobProvider) -> AsyncJob:
        return await provider.create_job(
            "system", "system", CreateAsyncJob(kind=kind, claims={"sub": "me"})
        )

    return with_provider(url, work).id


def job_once(url: str, id: str, status: AsyncJobStatus) -> AsyncJob:
    """The job, as soon as it has this status."""

    async def work(provider: PostgresJobProvider) -> AsyncJob:
        with trio.fail_after(20):
            while True:
                job = await provider.read_job("system", "system", id)
                assert job is not None
                if job.status is status:
                    return job
                await trio.sleep(0.02)

    return with_provider(url, work)


def running(url: str, kind: str) -> str:
    """Queue a job, and wait until a worker runs it."""
    id = submit(url, kind)
    job_once(url, id, AsyncJobStatus.IN_PROGRESS)
    return id


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code and the rest of the log; no traceback is ever in it."""
    _, errors = process.communicate(timeout=20)
    assert "Traceback" not in errors
    return process.returncode, errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_runs_jobs_and_leaves_clean(
    number: signal.Signals, start: Start, run: Run, database_url: str
) -> None:
    """From the command line to a result and back; a signal to an idle worker is no error."""
    process = start_worker(start, database_url)
    result = run("--database-url", database_url, "jobs", "submit", "quick", "--wait", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["output"] == {"attempt": 1}
    process.send_signal(number)
    assert ended(process)[0] == 0


def test_the_first_signal_lets_running_jobs_finish(
    start: Start, database_url: str, tmp_path: Path
) -> None:
    """A deployment costs no job its attempt."""
    process = start_worker(start, database_url)
    id = running(database_url, "gated")
    process.send_signal(signal.SIGTERM)
    wait_for_line(process, DRAINING)
    (tmp_path / "go").touch()
    assert ended(process)[0] == 0
    assert job_once(database_url, id, AsyncJobStatus.COMPLETED).output == "done"


def test_the_second_signal_hands_running_jobs_back(start: Start, database_url: str) -> None:
    """Whoever is in a hurry loses no job either: it waits for the next worker, attempt returned."""
    process = start_worker(start, database_url, "--drain-timeout", "600")
    id = running(database_url, "endless")
    process.send_signal(signal.SIGTERM)
    wait_for_line(process, DRAINING)
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 0
    assert job_once(database_url, id, AsyncJobStatus.ACCEPTED).attempts == 0


def test_a_handler_that_will_not_leave_is_named_and_left_behind(
    start: Start, database_url: str
) -> None:
    """The process ends within its time, and says which job to look at."""
    process = start_worker(start, database_url, "--drain-timeout", "0", "--cancel-grace", "0.1")
    id = running(database_url, "stuck")
    process.send_signal(signal.SIGTERM)
    code, errors = ended(process)
    assert code == 1
    assert id in errors.splitlines()[-1]


def test_a_handler_that_blocks_the_event_loop_cannot_keep_the_process(
    start: Start, database_url: str, tmp_path: Path
) -> None:
    """The commonest mistake in a handler; the end does not depend on the loop it blocks."""
    process = start_worker(start, database_url, "--drain-timeout", "0", "--cancel-grace", "0.1")
    wait_for_line(process, "Starting")
    running(database_url, "blocking")
    process.send_signal(signal.SIGTERM)
    code, errors = ended(process)
    assert code == 1
    assert "blocks the event loop" in errors.splitlines()[-1]


def test_the_third_signal_leaves_at_once(start: Start, database_url: str) -> None:
    """However long the grace is."""
    process = start_worker(start, database_url, "--drain-timeout", "600", "--cancel-grace", "600")
    running(database_url, "stuck")
    for word in (DRAINING, HURRYING):
        process.send_signal(signal.SIGTERM)
        wait_for_line(process, word)
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 1


def test_a_signal_ends_a_worker_that_is_still_connecting(start: Start) -> None:
    """As process 1 of a container, nothing else would."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        process = start_worker(start, f"postgresql://127.0.0.1:{port}/jobs")
        connection, _ = server.accept()
        with connection:
            process.send_signal(signal.SIGTERM)
            code, errors = ended(process)
    assert code == 0
    assert "while starting" in errors


def test_no_log_line_has_the_password(start: Start, database_url: str) -> None:
    """Also at debug; and each line of a JSON log is JSON."""
    url = make_conninfo(database_url, password="hunter2")  # noqa: S106
    process = start_worker(start, url, "--log-level", "debug", "--log-format", "json")
    id = submit(database_url, "quick")
    job_once(database_url, id, AsyncJobStatus.COMPLETED)
    process.send_signal(signal.SIGTERM)
    _, errors = ended(process)
    assert "hunter2" not in errors
    lines = [json.loads(line) for line in errors.splitlines()]
    assert any("Connected" in line["message"] for line in lines)


def test_the_settings_reach_the_worker(start: Start, database_url: str) -> None:
    """A flag, a variable and the file each change how the worker behaves."""
    Path("hastetrio.toml").write_text("max_concurrent_jobs = 1\nkinds = ['endless', 'quick']")
    process = start_worker(start, database_url, "--lease-duration", "7")
    id = running(database_url, "endless")
    with psycopg.connect(database_url) as connection:
        row = connection.execute(
            "SELECT lease_expires_at - started_at BETWEEN '6 s' AND '8 s' "
            "FROM async_jobs WHERE id = %s",
            [id],
        ).fetchone()
    assert row == (True,)
    process.kill()


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        ((), 2, "no handlers"),
        (("--handlers", "worker_handlers:nothing"), 2, "worker_handlers:nothing"),
        (("--handlers", "worker_handlers:everything", "--kinds", "odd"), 2, "gated"),
        (("--handlers", "worker_handlers:everything"), 3, "127.0.0.1"),
    ],
)
def test_a_worker_that_cannot_start_says_why_in_one_line(
    arguments: tuple[str, ...], code: int, word: str, run: Run
) -> None:
    """What to mend comes first; then whether the database is there."""
    result = run("--database-url", "postgresql://127.0.0.1:1/jobs", "worker", *arguments)
    assert result.exit_code == code
    assert word in only_line(result.stderr)
