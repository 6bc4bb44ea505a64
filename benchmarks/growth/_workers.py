"""What worker processes do together, and what many held jobs cost one of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import attrs
import psycopg

from benchmarks.growth import _jobs
from benchmarks.growth._figures import Spread, table
from benchmarks.growth._processes import workers

if TYPE_CHECKING:
    from collections.abc import Sequence

_SLOTS = 100

# Seconds between looks whether all is done, and the longest to wait for it.
_LOOK = 0.02
_PATIENCE = 300.0


@attrs.frozen
class Drained:
    """How fast a number of processes drained a queue.

    Attributes:
        rate: Jobs a second.
        cpu: Microseconds of the processes' own CPU time a job.
    """

    rate: Spread
    cpu: Spread


def by_workers(
    server_url: str, counts: Sequence[int], jobs: int, rounds: int
) -> dict[int, Drained]:
    """How fast one queue of no-op jobs is drained, by worker processes."""
    rates: dict[int, list[float]] = {count: [] for count in counts}
    costs: dict[int, list[float]] = {count: [] for count in counts}
    with _jobs.migrated(server_url, "growth_workers") as url:
        for number in range(rounds):
            first = number % len(counts)
            for count in (*counts[first:], *counts[:first]):
                seconds, cpu = _drain(url, count, jobs)
                rates[count].append(jobs / seconds)
                costs[count].append(cpu / jobs * 1e6)
    return {count: Drained(Spread.of(rates[count]), Spread.of(costs[count])) for count in counts}


def _drain(url: str, count: int, jobs: int) -> tuple[float, float]:
    """Seconds from the word to begin until no job is left, and the processes' CPU seconds."""
    _jobs.run(url, "TRUNCATE async_jobs")
    _jobs.queue(url, jobs)
    config = {"max_concurrent_jobs": _SLOTS}
    with (
        workers(url, count, handler="no-op", kinds=_jobs.kinds(1), config=config) as processes,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        before = sum(one.cpu() for one in processes)
        began = time.perf_counter()
        for one in processes:
            one.begin()
        _until(
            connection,
            "SELECT NOT EXISTS (SELECT 1 FROM async_jobs WHERE status = 'accepted')"
            " AND NOT EXISTS (SELECT 1 FROM async_jobs WHERE status = 'in-progress')",
        )
        seconds = time.perf_counter() - began
        return seconds, sum(one.cpu() for one in processes) - before


def _until(connection: psycopg.Connection[tuple[bool]], question: str) -> None:
    end = time.perf_counter() + _PATIENCE
    while True:
        row = connection.execute(question.encode()).fetchone()
        if row is not None and row[0]:
            return
        if time.perf_counter() > end:
            raise RuntimeError(f"not done after {_PATIENCE:.0f} s")
        time.sleep(_LOOK)


@attrs.frozen
class Held:
    """What a number of sleeping jobs cost the worker that holds them.

    Attributes:
        memory: Bytes of the process.
        cpu: The share of one core, in the window.
        lost: Leases that lapsed.
    """

    memory: int
    cpu: float
    lost: int


def by_held_jobs(
    server_url: str, counts: Sequence[int], window: float, lease: float
) -> dict[int, Held]:
    """Memory and CPU of one worker process, by sleeping jobs; 0 jobs are measured too.

    Args:
        server_url: The server.
        counts: Numbers of jobs.
        window: Seconds over which CPU time is counted, some renewals long.
        lease: The leases' duration in seconds.
    """
    found = {}
    for count in (0, *counts):
        with _jobs.migrated(server_url, "growth_held") as url:
            _jobs.queue(url, count)
            found[count] = _hold(url, count, window, lease)
    return found


def _hold(url: str, count: int, window: float, lease: float) -> Held:
    config = {"max_concurrent_jobs": max(count, 1), "lease_duration": lease, "cancel_grace": 30.0}
    with (
        workers(url, 1, handler="sleeper", kinds=_jobs.kinds(1), config=config) as (process,),
        psycopg.connect(url, autocommit=True) as connection,
    ):
        process.begin()
        _until(
            connection,
            f"SELECT count(*) = {count} FROM async_jobs WHERE status = 'in-progress'",  # noqa: S608
        )
        # The first renewals of all jobs come together, and tasks are made for them.
        time.sleep(lease / 3 + 2)
        before, began = process.cpu(), time.perf_counter()
        time.sleep(window)
        cpu = (process.cpu() - before) / (time.perf_counter() - began)
        row = connection.execute(
            "SELECT count(*) FROM async_jobs"
            " WHERE status = 'in-progress' AND lease_expires_at > now()"
        ).fetchone()
        held = row[0] if row else 0
        return Held(process.memory(), cpu, count - held)


def workers_table(drained: dict[int, Drained], jobs: int, rounds: int) -> str:
    """By worker processes, with what one alone does as the measure."""
    base = drained[min(drained)].rate.median
    return table(
        f"{jobs:,} no-op jobs drained, by worker processes of {_SLOTS} slots ({rounds} rounds)",
        ("processes", "jobs/s", "against one", "CPU us/job, all of them"),
        [
            (f"{count}", one.rate.text(0), f"{one.rate.median / base:.2f}x", one.cpu.text(0))
            for count, one in drained.items()
        ],
    )


def held_table(held: dict[int, Held], window: float, lease: float) -> str:
    """By sleeping jobs."""
    base = held[0].memory
    return table(
        f"Sleeping jobs in one worker process (leases of {lease:g} s, over {window:g} s)",
        ("jobs", "memory MB", "KB a job", "CPU % of a core", "leases lost"),
        [
            (
                *(f"{count:,}", f"{one.memory / 1e6:.1f}"),
                f"{(one.memory - base) / count / 1000:.1f}" if count else "-",
                *(f"{one.cpu * 100:.2f}", f"{one.lost}"),
            )
            for count, one in held.items()
        ],
    )
