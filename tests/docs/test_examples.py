"""Each file of `examples/` does what it says."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import psycopg
import pytest
import trio

from hastetrio import AsyncJob, AsyncJobStatus, AsyncJobWorker, CreateAsyncJob, JobHandler
from hastetrio.memory import MemoryJobProvider
from hastetrio.postgres import PostgresJobProvider
from hastetrio.testing import run_job, run_stored_job

from .blocks import ROOT

FOLDER: Final = ROOT / "examples"

# One is tested with the README, which shows it; the others below.
TESTED: Final = {
    *("count_words", "transcribe", "exactly_once", "cpu_bound", "opentelemetry_spans"),
}


def test_no_example_is_without_a_test() -> None:
    """A new file is executed here, or says where."""
    assert {path.stem for path in FOLDER.glob("*.py")} == TESTED


@pytest.fixture
def example(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The module whose name is the parameter."""
    name = str(request.param)
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))
        sys.modules.pop(name, None)


def of(name: str) -> pytest.MarkDecorator:
    """For this example."""
    return pytest.mark.parametrize("example", [name], indirect=True, ids=[name])


@of("transcribe")
def test_a_transcription_goes_on_where_the_attempt_before_left_off(example: ModuleType) -> None:
    """The service hangs up once and is busy once; no minute is transcribed twice."""
    asked: list[int] = []

    class Shaky(example.Service):  # type: ignore[name-defined, misc]  # imported by its name
        async def transcribe_minute(self, recording: Any, minute: int) -> int:  # noqa: ANN401
            asked.append(minute)
            if len(asked) == 3:
                raise ConnectionResetError
            if len(asked) == 5:
                raise TimeoutError
            return 100

    handler = example.Transcribe(Shaky())
    job = run_job(handler, parameters={"title": "Visit", "minutes": 4})
    assert job.output == {"title": "Visit", "words": 400}
    assert asked == [0, 1, 2, 2, 3, 3]
    assert job.attempts == 3


@of("transcribe")
@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"minutes": 4}, "required"),
        ({"title": "Visit", "minutes": "4"}, "structure"),
        ({"title": "Visit", "minutes": 241}, "value"),
        ({"title": "Visit", "minutes": 4, "language": "la"}, "not-supported"),
    ],
)
def test_what_cannot_be_transcribed_is_not_tried_again(
    example: ModuleType, parameters: dict[str, Any], code: str
) -> None:
    """The client reads which of them it was."""
    job = run_job(example.transcribe, parameters=parameters)
    assert job.status is AsyncJobStatus.FAILED
    assert [issue["code"] for issue in job.error["issue"]] == [code]
    assert job.attempts == 1


async def ended(url: str, handler: JobHandler, parameters: dict[str, Any]) -> AsyncJob:
    """A job of the handler, run by a worker on that database."""
    created = CreateAsyncJob(kind=handler.kind, parameters=parameters, claims={"sub": "me"})
    async with PostgresJobProvider.open(url) as provider:
        job = await provider.create_job("t", "p", created)
        return await run_stored_job(provider, handler, job)


@of("exactly_once")
def test_an_invoice_and_its_job_s_result_are_committed_together(
    example: ModuleType, database_url: str
) -> None:
    """With the table there is one row for the job; without it the job fails and nothing is left."""
    parameters = {"visit": "v1", "minutes": 20}
    failed = trio.run(ended, database_url, example.invoice, parameters)
    assert failed.status is AsyncJobStatus.FAILED
    docstring = example.__doc__ or ""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(docstring.partition("`")[2].partition("`")[0].encode())
        job = trio.run(ended, database_url, example.invoice, parameters)
        assert job.output == {"cents": 3000}
        rows = connection.execute("SELECT visit, cents FROM invoices").fetchall()
    assert rows == [("v1", 3000)]


@of("cpu_bound")
def test_the_work_is_done_by_another_process(example: ModuleType) -> None:
    """There are 25 primes below 100."""
    assert run_job(example.count_primes, parameters={"below": 100}).output == {"count": 25}
    assert [example.primes_below(number) for number in (0, 2, 3, 10)] == [0, 0, 1, 4]


@of("cpu_bound")
async def test_the_process_dies_with_its_job(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is cancelled leaves no process behind."""
    endless = tmp_path / "endless.py"
    endless.write_text(
        "import os, pathlib, time\n"
        "found = pathlib.Path(__file__).with_suffix('.pid')\n"
        "found.with_suffix('.new').write_text(str(os.getpid()))\n"
        "found.with_suffix('.new').rename(found)\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setattr(example, "__file__", str(endless))
    provider = MemoryJobProvider()
    worker = AsyncJobWorker(provider, [example.count_primes])
    written = endless.with_suffix(".pid")
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        created = CreateAsyncJob(kind="count-primes", parameters={"below": 9}, claims={"sub": "me"})
        job = await provider.create_job("t", "p", created)
        with trio.fail_after(30):
            while not written.exists():  # noqa: ASYNC110  # another process makes it
                await trio.sleep(0.005)
            process = int(written.read_text())
            os.kill(process, 0)
            await provider.cancel_job("t", "p", job.id)
            worker.stop()
            with suppress(ProcessLookupError):
                while True:
                    os.kill(process, 0)
                    await trio.sleep(0.005)


def test_each_run_is_a_span_and_its_libraries_spans_are_its_children() -> None:
    """One that fails has the error; a handler's own spans know which run they belong to."""
    pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")
    # The tracer provider of a process can be set once: so in one of its own.
    program = Path(__file__).with_name("span_program.py")
    import json
    import subprocess

    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=60, cwd=FOLDER
    )
    assert done.returncode == 0, done.stderr
    good, bad, inner = json.loads(done.stdout)
    assert good["name"] == "run good"
    assert good["attributes"]["hastetrio.job.outcome"] == "completed"
    assert good["attributes"]["hastetrio.job.attempt"] == 1
    assert good["status"] == "UNSET"
    assert inner["name"] == "query"
    assert inner["parent"] == good["span"]
    assert bad["attributes"]["hastetrio.job.outcome"] == "failed"
    assert bad["status"] == "ERROR"
    assert bad["errors"] == ["ZeroDivisionError"]
