"""A small soak that went well, and copies of it for tests to doctor."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import psycopg
import pytest
import trio
from psycopg.conninfo import make_conninfo

from hastetrio import AsyncJobWorker, AsyncJobWorkerConfig, CreateAsyncJob
from hastetrio._model import AsyncJob, JobLease
from hastetrio._outcome import abandoned_outcome
from hastetrio.postgres import PostgresJobProvider

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools import soak_handlers
from tools.soak_audit import audit
from tools.soak_evidence import Evidence, Journal, install_history, load

LEASE = 5.0
JOBS = {
    "done": ("quick", {}),
    "told": ("report", {"steps": 2, "seconds": 0}),
    "refused": ("outcome", {}),
    "broken": ("error", {}),
    "cancelled": ("sleep", {"seconds": 600}),
}
_numbers = itertools.count(1)


@attrs.define
class World:
    """What a small soak left: in a database and a folder, which a test may doctor."""

    url: str
    folder: Path
    jobs: dict[str, str]

    def rules(self, *, emptied: bool = False) -> set[str]:
        """The rules that the audit finds broken."""
        return {violation.rule for violation in audit(self.load(), emptied=emptied)}

    def load(self) -> Evidence:
        """Everything there is."""
        return load(self.url, self.folder, LEASE)

    def sql(self, statement: str, job: str = "done") -> None:
        """Change something of a job without leaving a trace in its history."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SET session_replication_role = replica")
            done = connection.execute(statement.encode(), {"id": self.jobs[job]})
            assert done.rowcount > 0

    def edit(self, name: str, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
        """Change the lines of a file; None leaves one out. Some line must change."""
        path = self.folder / name
        old = [json.loads(line) for line in path.read_text().splitlines()]
        new = [changed for line in old if (changed := change(dict(line))) is not None]
        assert new != old
        path.write_text("".join(json.dumps(line) + "\n" for line in new))

    def add(self, name: str, **line: object) -> None:
        """Add a line to a file."""
        with (self.folder / name).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def line(self, name: str, **fields: object) -> dict[str, Any]:
        """The one line of a file that has these fields."""
        lines = [json.loads(line) for line in (self.folder / name).read_text().splitlines()]
        (found,) = [line for line in lines if fields.items() <= line.items()]
        return found  # type: ignore[no-any-return]

    def effect(self, job: str) -> Path:
        """The one file that a job left."""
        (path,) = (self.folder / "effects" / self.jobs[job]).iterdir()
        return path


def _new(kind: str, parameters: dict[str, Any], max_attempts: int = 3) -> CreateAsyncJob:
    return CreateAsyncJob(
        kind=kind, parameters=parameters, claims={"sub": "soak"}, max_attempts=max_attempts
    )


async def _until(condition: Callable[[], Awaitable[object]]) -> None:
    while not await condition():  # noqa: ASYNC110  # files and rows set no event
        await trio.sleep(0.01)


async def _live(provider: PostgresJobProvider) -> bool:
    return not await provider.count_live_jobs("soak", "soak")


async def _small_soak(url: str, folder: Path) -> dict[str, str]:
    """One worker is killed with two jobs, of which one was abandoned; another does the rest."""
    journal = Journal(folder)
    async with PostgresJobProvider.open(url) as provider:
        kept: dict[str, AsyncJob] = {}

        async def create(name: str, job: CreateAsyncJob) -> None:
            kept[name] = await provider.create_job("soak", "soak", job)
            journal.write("created", jobs=[kept[name].id])

        journal.write("spawn", worker="s0n1")
        await create("retried", _new("quick", {}))
        await create("abandoned", _new("quick", {}, max_attempts=1))
        records = soak_handlers.Records(folder)
        for job in await provider.claim_jobs(["quick"], JobLease("s0n1-1-aaaaaa", 0.05), 2):
            soak_handlers.Body(records, "run", job, None)
        journal.write("kill", worker="s0n1")
        journal.write("exit", worker="s0n1", code=-9)
        await _until(lambda: provider.fail_abandoned_jobs(abandoned_outcome(), 3600, 10))
        for name, (kind, parameters) in JOBS.items():
            await create(name, _new(kind, parameters))
        journal.write("spawn", worker="s1n1")
        config = AsyncJobWorkerConfig(
            lease_duration=LEASE, poll_interval=0.05, maintenance_interval=0.05
        )
        worker = AsyncJobWorker(provider, soak_handlers.HANDLERS, config, worker_id="s1n1-1-aaaaaa")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            path = folder / "records" / "s1n1.jsonl"

            async def has_begun() -> bool:
                return path.exists() and kept["cancelled"].id in path.read_text()

            await _until(has_begun)
            journal.write("asked", job=kept["cancelled"].id)
            assert await provider.cancel_job("soak", "soak", kept["cancelled"].id)
            journal.write("cancelled", job=kept["cancelled"].id)
            await _until(lambda: _live(provider))

            async def is_cleaned_up() -> bool:
                return worker.statistics().totals.cleaned_up == 1

            await _until(is_cleaned_up)
            journal.write("term", worker="s1n1")
            worker.stop()
        journal.write("exit", worker="s1n1", code=0)
    return {name: job.id for name, job in kept.items()}


@pytest.fixture(scope="module")
def original(server_url: str, template: str) -> Iterator[World]:
    """A small soak without a fault that matters."""
    name = f"hastetrio_soak_{os.getpid()}"
    folder = Path(tempfile.mkdtemp(prefix="hastetrio-soak-test-"))
    (folder / "effects").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(soak_handlers.FOLDER, str(folder))
        patch.setattr(soak_handlers, "_records", None)
        with psycopg.connect(server_url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
            url = make_conninfo(server_url, dbname=name)
            install_history(url)
            yield World(name, folder, trio.run(_small_soak, url, folder))
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
    shutil.rmtree(folder)


@pytest.fixture
def world(original: World, server_url: str, tmp_path: Path) -> Iterator[World]:
    """A copy of it, to be doctored."""
    name = f"{original.url}_{next(_numbers)}"
    folder = tmp_path / "soak"
    shutil.copytree(original.folder, folder)
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {original.url}".encode())
        yield World(make_conninfo(server_url, dbname=name), folder, original.jobs)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
