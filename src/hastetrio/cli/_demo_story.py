"""What the demo does: a database, two workers, a killing, and the proof of what came of it."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs
import click
import psycopg
import trio
from psycopg import sql
from psycopg.conninfo import make_conninfo

from hastetrio._ids import generate_job_id
from hastetrio._model import AsyncJob, AsyncJobStatus, CreateAsyncJob, worker_of
from hastetrio.bulk import BulkExport, sample_directory
from hastetrio.cli._demo_board import Board
from hastetrio.cli._format import echo_table
from hastetrio.embedded import EmbeddedPostgres
from hastetrio.postgres import PostgresJobProvider

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

# What the demo's exports ask for: a handful, of different sizes.
_EXPORTS: Final[tuple[dict[str, str], ...]] = (
    {},
    {"_type": "Patient,Observation"},
    {"_type": "Encounter,Condition,Observation"},
    {"_type": "Observation"},
    {"_type": "Patient,MedicationRequest,Immunization"},
    {"_type": "Condition,Encounter"},
)

_TENANT: Final = "demo"
_WORKERS: Final = ("alpha", "beta")

# Leases are short so that nobody has to wait a minute for them to lapse.
_LEASE: Final = 2.0
_SLOTS: Final = 3

# Seconds an export sleeps after 16 KiB: the whole sample, 27 times that, takes five.
_PACE: Final = 0.18

# How long the worker that came first waits for the other before the killing.
_COMPANY: Final = 2.0

_LOOK: Final = 0.2
_LONGEST: Final = 60.0


@attrs.define
class Verdict:
    """What did not happen; empty when all did."""

    failures: list[str] = attrs.field(factory=list)

    def check(self, happened: bool, failure: str) -> None:
        """Note `failure`, unless it `happened`."""
        if not happened:
            self.failures.append(failure)


async def tell(data_dir: Path | None, output: Path) -> Verdict:
    """Run the demo; what the exports make is left in `output`, and nothing else is left.

    Raises:
        HastetrioError: The embedded server, or the database, cannot be had.

    Cancellation: the workers are killed, the database is dropped, the server is let go.
    """
    started = trio.current_time()
    click.echo("Starting the embedded PostgreSQL ...")
    server = EmbeddedPostgres(data_dir)
    dsn = await trio.to_thread.run_sync(server.start)
    try:
        async with _database(dsn) as url, PostgresJobProvider.open(url) as provider:
            await provider.migrate()
            verdict = await _story(provider, url, output)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(server.stop)
    elapsed = trio.current_time() - started
    if not verdict.failures:
        click.echo(f"\nAll of it happened, in {elapsed:.0f} s. The exports lie in {output}")
    return verdict


@asynccontextmanager
async def _database(server: str) -> AsyncGenerator[str]:
    """A new database on the server, dropped afterwards."""
    name = f"hastetrio_demo_{generate_job_id()[:6].replace('-', '0')}"

    def execute(statement: str) -> None:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(sql.Identifier(name)))

    await trio.to_thread.run_sync(execute, "CREATE DATABASE {}")
    try:
        yield make_conninfo(server, dbname=name)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(execute, "DROP DATABASE {} WITH (FORCE)")


@asynccontextmanager
async def _worker(name: str, url: str, output: Path) -> AsyncGenerator[trio.Process]:
    """A worker process of that name; killed at the end if it still runs."""
    command = [
        *(sys.executable, "-m", "hastetrio", "worker", "--log-level", "warning"),
        *("--export-source", str(sample_directory()), "--export-output", str(output)),
        *("--export-pace", str(_PACE), "--lease-duration", str(_LEASE)),
        *("--poll-interval", "0.5", "--max-concurrent-jobs", str(_SLOTS)),
    ]
    # Only what this worker is to know: a setting of the caller's could change the story.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HASTETRIO_")}
    environment |= {"HOSTNAME": name, "HASTETRIO_DATABASE_URL": url, "HASTETRIO_CONFIG": os.devnull}
    process = await trio.lowlevel.open_process(
        command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def _story(provider: PostgresJobProvider, url: str, output: Path) -> Verdict:
    verdict = Verdict()
    ids = [
        (await provider.create_job(_TENANT, _TENANT, _export(parameters))).id
        for parameters in _EXPORTS
    ]
    click.echo(
        f"Queued {len(ids)} exports of sample FHIR data, and started two workers, "
        f"{' and '.join(_WORKERS)},\nwith {_SLOTS} slots each and leases of {_LEASE:g} s. "
        "The exports are slowed down so that you can watch.\n"
    )
    board = Board(partial(_jobs, provider, ids))
    holders: dict[str, list[str]] = {id: [] for id in ids}
    with trio.move_on_after(_LONGEST) as patience:
        async with _worker(_WORKERS[0], url, output) as a, _worker(_WORKERS[1], url, output) as b:
            processes = dict(zip(_WORKERS, (a, b), strict=True))
            victim = await _wait_for_victim(board, holders)
            processes[victim].kill()
            await processes.pop(victim).wait()
            # Read again: it may have finished one, or claimed one, in its last moment.
            held = {job.id for job in await _jobs(provider, ids) if _holder(job) == victim}
            [(survivor, process)] = processes.items()
            board.say(
                f"Killed {victim} with SIGKILL in the middle of {len(held)} exports. Nobody is "
                f"told:\ntheir leases lapse within {_LEASE:g} s, and {survivor} takes them over."
            )
            jobs = await _wait_until_ended(board, holders)
            process.terminate()
            verdict.check(await process.wait() == 0, f"{survivor} did not stop cleanly")
            _judge(verdict, jobs, held, survivor, output)
    if patience.cancelled_caught:
        verdict.failures.append(f"it took more than {_LONGEST:g} s")
        jobs = await _jobs(provider, ids)
    board.close()
    _show(jobs, holders)
    return verdict


def _export(parameters: dict[str, str]) -> CreateAsyncJob:
    query = "&".join(f"{name}={value}" for name, value in parameters.items())
    return CreateAsyncJob(
        kind=BulkExport.kind,
        request=f"http://localhost:8000/$export{'?' if query else ''}{query}",
        parameters=parameters,
        claims={"sub": _TENANT},
    )


async def _jobs(provider: PostgresJobProvider, ids: list[str]) -> list[AsyncJob]:
    found = {job.id: job for job in await provider.list_jobs(_TENANT, _TENANT)}
    return [found[id] for id in ids if id in found]


async def _wait_for_victim(board: Board, holders: dict[str, list[str]]) -> str:
    """Wait until a worker is in the middle of several exports; returns its name.

    The other worker has a moment to take its share, too; it may be slow to start.
    """
    alone_since: float | None = None
    while True:
        held: dict[str, set[str]] = {name: set() for name in _WORKERS}
        middle = dict.fromkeys(_WORKERS, 0)
        for job in await _look(board, holders):
            if holder := _holder(job):
                held[holder].add(job.id)
                middle[holder] += bool(job.progress)
        for name in _WORKERS:
            if middle[name] >= min(2, len(held[name])) > 0:
                now = trio.current_time()
                alone_since = now if alone_since is None else alone_since
                if all(held.values()) or now - alone_since > _COMPANY:
                    return name
        await trio.sleep(_LOOK)


async def _wait_until_ended(board: Board, holders: dict[str, list[str]]) -> list[AsyncJob]:
    while True:
        jobs = await _look(board, holders)
        if not any(job.status.is_live for job in jobs):
            return jobs
        await trio.sleep(_LOOK)


async def _look(board: Board, holders: dict[str, list[str]]) -> list[AsyncJob]:
    jobs = await board.show()
    for job in jobs:
        token = job.locked_by or job.finished_by
        if token and _host(token) not in holders[job.id][-1:]:
            holders[job.id].append(_host(token))
    return jobs


def _judge(
    verdict: Verdict, jobs: list[AsyncJob], held: set[str], survivor: str, output: Path
) -> None:
    for job in jobs:
        verdict.check(job.status is AsyncJobStatus.COMPLETED, f"{job.id} is {job.status}")
        attempts = 2 if job.id in held else 1
        verdict.check(
            job.attempts == attempts, f"{job.id} took {job.attempts} attempts, not {attempts}"
        )
        if job.id in held:
            by = _host(job.finished_by or "")
            verdict.check(by == survivor, f"{job.id} was finished by {by or 'nobody'}")
        verdict.check(_is_complete(job, output), f"{job.id} lacks output that its manifest names")
    verdict.check(bool(held), "the worker that was killed held nothing")
    left = [path.name for path in output.iterdir() if path.name.startswith(".")]
    verdict.check(not left, f"half-written exports were left: {', '.join(left)}")


def _is_complete(job: AsyncJob, output: Path) -> bool:
    """Whether the files the manifest names are there, with as many lines as it says."""
    manifest: dict[str, Any] = job.output or {}
    entries = manifest.get("output", [])
    for entry in entries:
        path = output / job.id / entry["url"].rpartition("/")[2]
        if not path.is_file() or path.read_bytes().count(b"\n") != entry["count"]:
            return False
    return bool(entries)


def _show(jobs: list[AsyncJob], holders: dict[str, list[str]]) -> None:
    click.echo()
    echo_table(
        ("JOB", "STATUS", "ATTEMPTS", "HELD BY", "SECONDS"),
        [
            (
                job.id,
                job.status.value,
                job.attempts,
                " then ".join(holders[job.id]),
                f"{(job.finished_at - job.started_at).total_seconds():.1f}"
                if job.finished_at and job.started_at
                else None,
            )
            for job in jobs
        ],
    )


def _holder(job: AsyncJob) -> str | None:
    running = job.status is AsyncJobStatus.IN_PROGRESS and job.locked_by
    return _host(running) if running else None


def _host(token: str) -> str:
    """The name the demo gave a worker: the first part of its id."""
    return worker_of(token).partition("-")[0]
