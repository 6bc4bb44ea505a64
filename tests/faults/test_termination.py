"""SIGTERM under load, and everything that can be in the way of a good end."""

from __future__ import annotations

import signal
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.postgres.harness import (
    KIND,
    PROJECT,
    TENANT,
    column,
    kick_off,
    run,
    statuses,
    until,
    value,
)
from tests.postgres.processes import WorkerProcess

from hastetrio import AsyncJobWorker, AsyncJobWorkerConfig
from hastetrio.postgres import PostgresJobProvider
from hastetrio.testing import FaultyProvider

from .bodies import SHORT, Gated
from .history import History
from .network import Network
from .processes import command, ended
from .test_processes import submit
from .workers import completed, queue, working

HOUR = 3600


def has_said(worker: WorkerProcess, event: str, times: int) -> bool:
    """Whether a worker has logged an event so many times."""
    return len(worker.events(event)) >= times


async def test_sigterm_under_load_loses_nothing_and_others_go_on_at_once(
    provider: PostgresJobProvider, url: str, history: History, tmp_path: Path
) -> None:
    """Short jobs end, long ones are cancelled and handed back, and the other worker is woken.

    Both poll once an hour, so that only notifications move a job from one to the other.
    """
    gate = tmp_path / "gate"
    kinds = ("gated", "short", "last-words")
    settings: dict[str, Any] = {"lease": 60, "poll_interval": HOUR, "max_concurrent_jobs": 8}
    async with command(url, *kinds, **settings, drain_timeout=0.5, cancel_grace=5) as first:
        long = await submit(provider, "gated", gate, 3)
        (witty,) = await submit(provider, "last-words", gate)
        await until(lambda: len(first.events("job.running")) == 4)
        async with command(url, *kinds, **settings) as second:
            jobs = [kick_off("short") for _ in range(150)]
            short = [job.id for job in await provider.create_jobs(TENANT, PROJECT, jobs)]
            await until(lambda: statuses(url, short).count("completed") > 20)
            first.send(signal.SIGTERM)
            await until(lambda: first.events("worker.stopping"))
            assert statuses(url, short).count("accepted") > 0
            assert await ended(first) == 0
            left = value(url, "SELECT clock_timestamp()")
            await until(lambda: len(second.events("job.running", None)) >= 3)
            for id in long:
                await second.logged("job.running", id)
            gate.touch()
            await completed(url, *long, *short, witty)
    stopping = first.lines.index(first.events("worker.stopping")[0])
    assert [line for line in first.lines[stopping:] if line.get("event") == "job.running"] == []
    for id in long:
        ((mine, _), (other, at)) = history.claims(id)
        assert (f"-{first.pid}-" in mine, f"-{second.pid}-" in other) == (True, True)
        # At once: long before the lease, or the next poll, would have come.
        assert at < left + timedelta(seconds=10)
        assert (column(url, id, "attempts"), column(url, id, "hand_backs")) == (1, 1)
        assert first.events("job.handed-back", id)[0]["reason"] == "shutdown"
    # What it returned after its cancellation counts: it had not lost its lease.
    ((token, _),) = history.claims(witty)
    assert history.results(witty) == [token]
    # One that a claim under way still took was handed back too, and has run once.
    assert history.ran_once(short)


@pytest.mark.slow
async def test_a_stuck_handler_is_left_behind_by_name_and_keeps_its_lease_until_then(
    provider: PostgresJobProvider, url: str, history: History, tmp_path: Path
) -> None:
    """Nobody runs its job beside it; when the process has ended (with 1) its lease lapses."""
    gate = tmp_path / "gate"
    async with command(url, "stuck", lease=1.2, drain_timeout=1, cancel_grace=0.2) as first:
        (id,) = await submit(provider, "stuck", gate)
        await first.logged("job.running", id)
        async with command(url, "stuck", lease=1.2) as second:
            first.send(signal.SIGTERM)
            # Drain, grace and two seconds: more than two leases.
            assert await ended(first) == 1
            assert second.events("job.running") == []
            (last,) = [line for line in first.lines if "leaving without" in line["message"]]
            assert id in last["message"]
            lapses = column(url, id, "lease_expires_at")
            await second.logged("job.running", id)
            gate.touch()
            await completed(url, id)
    (_, (_, at)) = history.claims(id)
    assert at >= lapses
    renewed = (
        "SELECT count(*) FROM history WHERE by = was_by AND by LIKE %s",
        [f"%-{first.pid}-%"],
    )
    assert value(url, *renewed) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("signals", [1, 2])
async def test_a_worker_whose_database_is_away_still_ends(
    provider: PostgresJobProvider,
    url: str,
    history: History,
    network: Network,
    tmp_path: Path,
    signals: int,
) -> None:
    """Within drain, grace and two seconds; its jobs wait for their leases and run elsewhere."""
    gate = tmp_path / "gate"
    drain = 0.3 if signals == 1 else 600
    kinds = ("gated", "last-words")
    settings: dict[str, Any] = {"drain_timeout": drain, "cancel_grace": 0.5}
    async with command(network.url, *kinds, lease=3, **settings) as first:
        ids = [*await submit(provider, "gated", gate), *await submit(provider, "last-words", gate)]
        await until(lambda: len(first.events("job.running")) == 2)
        network.stall(new=True)
        for number in range(1, signals + 1):
            first.send(signal.SIGTERM)
            await until(partial(has_said, first, "worker.stopping", number))
        assert await ended(first, 10) == 0
        for id in ids:
            assert first.events("job.record-failed", id)
    assert statuses(url, ids) == ["in-progress"] * 2
    gated, words = Gated("gated"), Gated("last-words")
    gated.gate.set()
    words.gate.set()
    async with working(url, gated, words, config=SHORT):
        await completed(url, *ids)
    assert all(column(url, id, "attempts") == 2 for id in ids)


@pytest.mark.slow
async def test_a_hand_back_that_fails_leaves_the_job_to_its_lease(
    url: str, history: History
) -> None:
    """The worker ends all the same, and another runs the job when the lease has lapsed."""
    first, second = Gated(), Gated()
    second.gate.set()
    async with (
        PostgresJobProvider.open(url) as provider,
        PostgresJobProvider.open(url) as other,
        trio.open_nursery() as nursery,
    ):
        faulty = FaultyProvider(provider)
        faulty.fail("release_job")
        leaving = AsyncJobWorker(faulty, [first], SHORT)
        await nursery.start(leaving.run)
        (id,) = queue(url)
        await until(lambda: first.running)
        staying = AsyncJobWorker(other, [second], SHORT)
        await nursery.start(staying.run)
        leaving.stop()
        leaving.stop()
        await completed(url, id)
        staying.stop()
    assert leaving.statistics().totals.unrecorded == 1
    assert [str(run.reason) for run in first.ended] == ["shutdown"]
    assert [run.attempt for run in second.ended] == [2]
    assert len(history.results(id)) == 1


async def test_cancels_are_heard_while_a_worker_drains(url: str, history: History) -> None:
    """Its watch goes on until the last handler has left."""
    gated = Gated()
    config = AsyncJobWorkerConfig(lease_duration=60, poll_interval=HOUR, drain_timeout=HOUR)
    async with working(url, gated, config=config) as (provider, worker):
        (id,) = queue(url)
        run(url, "SELECT pg_notify('async_jobs_queued', %s)", [KIND])
        await until(lambda: gated.running)
        worker.stop()
        await provider.cancel_job(TENANT, PROJECT, id)
        await until(lambda: gated.ended)
    assert [str(run.reason) for run in gated.ended] == ["cancelled"]
    assert (statuses(url, [id]), history.results(id)) == (["cancelled"], [])
