"""Real worker processes that die, block, or have a wrong clock."""

from __future__ import annotations

import signal
from datetime import timedelta
from pathlib import Path

import pytest
from tests.postgres.harness import PROJECT, TENANT, column, kick_off, run, statuses, until, value

from hastetrio.postgres import PostgresJobProvider

from .history import History
from .processes import command
from .workers import completed

HANDLERS = Path(__file__).with_name("process_handlers.py")
LEASE = 1.2
POLL = 0.2


async def submit(
    provider: PostgresJobProvider, kind: str, gate: Path, number: int = 1, **parameters: str
) -> list[str]:
    """Queue jobs that wait for a file; their ids."""
    parameters = {"gate": str(gate)} | parameters
    jobs = [kick_off(kind, parameters=parameters) for _ in range(number)]
    return [job.id for job in await provider.create_jobs(TENANT, PROJECT, jobs)]


async def test_a_killed_workers_jobs_run_elsewhere_within_lease_poll_and_a_second(
    provider: PostgresJobProvider, url: str, history: History, tmp_path: Path
) -> None:
    """SIGKILL, and by the database's clock the jobs are another's in time, but never too soon."""
    gate = tmp_path / "gate"
    async with command(url, "gated", lease=LEASE, poll_interval=POLL) as second:
        # Its slots are for the others' jobs: it is stopped while the first one claims. Between two
        # statements: one under way would time out meanwhile, and be followed by a back-off.
        await until(lambda: is_between_polls(url))
        second.send(signal.SIGSTOP)
        async with command(url, "gated", lease=LEASE, poll_interval=POLL) as first:
            ids = await submit(provider, "gated", gate, 4)
            await until(lambda: len(first.events("job.running")) == 4)
            second.send(signal.SIGCONT)
            await until(lambda: renewed(url, ids))
            killed = value(url, "SELECT clock_timestamp()")
            first.send(signal.SIGKILL)
            leases = dict(run(url, "SELECT id, lease_expires_at FROM async_jobs"))
            await until(lambda: len(second.events("job.running")) == 4)
        gate.touch()
        await completed(url, *ids)
    for id in ids:
        (_, (token, at)) = history.claims(id)
        assert leases[id] <= at <= killed + timedelta(seconds=LEASE + POLL + 1)
        assert f"-{second.pid}-" in token
        assert history.results(id) == [token]


def is_between_polls(url: str) -> bool:
    """Whether the only worker's last claim was answered a moment ago, and the next is to come."""
    rows = run(
        url,
        "SELECT state = 'idle' AND query LIKE 'WITH alone AS %'"
        " AND clock_timestamp() - state_change BETWEEN interval '0.05 s' AND interval '0.1 s' "
        "FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'WITH %'",
    )
    return rows == [(True,)]


def renewed(url: str, ids: list[str]) -> bool:
    """Whether each lease has been extended at least once."""
    rows = run(url, "SELECT id FROM history WHERE by = was_by GROUP BY id")
    return {id for (id,) in rows} >= set(ids)


@pytest.mark.parametrize("kind", ["sleeps", pytest.param("computes", marks=pytest.mark.slow)])
async def test_a_handler_that_blocks_the_loop_is_named_and_its_lease_is_lost(
    provider: PostgresJobProvider, url: str, history: History, tmp_path: Path, kind: str
) -> None:
    """The warning comes while it blocks; its neighbour and it run elsewhere, each with one result.

    The worker that was blocked goes on afterwards.
    """
    gate, done = tmp_path / "gate", tmp_path / "done"
    async with command(url, kind, "gated", "short", lease=LEASE) as first:
        (neighbour,) = await submit(provider, "gated", done)
        await first.logged("job.running", neighbour)
        (id,) = await submit(provider, kind, gate)
        warning = await first.logged("loop.blocked")
        assert not gate.exists()
        assert warning["job"] == id
        assert warning["level"] == "warning"
        assert warning["where"] in lines_of(kind)
        async with command(url, "gated", lease=LEASE) as second:
            await second.logged("job.running", neighbour)
            done.touch()
            await second.logged("job.finished", neighbour)
            # What was blocked has lapsed, so that its own result counts for nothing.
            await until(lambda: value(
                url, "SELECT lease_expires_at < now() FROM async_jobs WHERE id = %s", [id]
            ))  # fmt: skip
            gate.touch()
            assert (await first.logged("job.late", id))["reason"] == "lease-lost"
            await first.logged("job.handed-back", id)
            await first.logged("job.dropped", neighbour)
            await completed(url, id, neighbour)
    for job in (id, neighbour):
        assert len(history.results(job)) == 1
    assert len(history.claims(id)) == 2


def lines_of(kind: str) -> set[str]:
    """The lines of code that block, by the name of their function."""
    lines = HANDLERS.read_text().splitlines()
    begin = lines.index(f"async def {kind}(context: JobContext) -> JobOutput:") + 1
    return {f"{HANDLERS}:{number} ({kind})" for number in range(begin, begin + 6)}


@pytest.mark.slow
async def test_a_clean_up_whose_worker_dies_is_repeated_and_never_doubled(
    provider: PostgresJobProvider, url: str, tmp_path: Path
) -> None:
    """Killed in the middle, it runs again under another; no client sees the row meanwhile."""
    gate, log = tmp_path / "gate", tmp_path / "log"
    (id,) = await submit(provider, "remover", gate, log=str(log))

    async def is_hidden() -> bool:
        return (
            await provider.read_job(TENANT, PROJECT, id) is None
            and await provider.list_jobs(TENANT, PROJECT) == []
            and await provider.count_live_jobs(TENANT, PROJECT) == 0
            and await provider.cancel_job(TENANT, PROJECT, id) is None
        )

    def entries() -> list[list[str]]:
        return [line.split() for line in log.read_text().splitlines()] if log.exists() else []

    async with command(url, "remover", lease=LEASE, maintenance_interval=0.2) as first:
        await completed(url, id)
        run(url, "UPDATE async_jobs SET expires_at = now()")
        await until(lambda: len(entries()) == 1)
        assert await is_hidden()
        async with command(url, "remover", lease=LEASE, maintenance_interval=0.2) as second:
            # It sweeps five times a second, and leaves alone what is being cleaned up.
            since = value(url, "SELECT clock_timestamp()")
            await until(lambda: value(
                url,
                "SELECT count(*) > 5 FROM history WHERE by = was_by AND at > %s", [since]
            ))  # fmt: skip
            assert entries() == [["begin", str(first.pid)]]
            first.send(signal.SIGKILL)
            await until(lambda: len(entries()) == 2)
            assert entries()[1] == ["begin", str(second.pid)]
            assert await is_hidden()
            gate.touch()
            await until(lambda: statuses(url, [id]) == ["gone"])
    assert entries()[2:] == [["end", str(second.pid)]]


SHIFTED = """
import datetime, time
_shift = {hours} * 3600
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + _shift
time.time_ns = lambda: _time_ns() + _shift * 10**9

class _Shifted(datetime.datetime):
    __slots__ = ()  # C extensions check its size.

    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls):
        return cls.now(datetime.timezone.utc).replace(tzinfo=None)

    @classmethod
    def today(cls):
        return cls.now()

datetime.datetime = _Shifted
"""


@pytest.mark.slow
async def test_a_wrong_clock_has_no_effect(
    provider: PostgresJobProvider, url: str, history: History, tmp_path: Path
) -> None:
    """One worker is five hours ahead and one seven behind: leases and expiry are the database's."""
    gate = tmp_path / "gate"
    environments = {}
    for name, hours in {"ahead": 5, "behind": -7}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "sitecustomize.py").write_text(SHIFTED.format(hours=hours))
        environments[name] = {"PYTHONPATH": str(tmp_path / name)}
    settings = {"lease": LEASE, "maintenance_interval": 0.2, "retention": 3600}
    kept = (await submit(provider, "gated", gate))[0]
    async with command(url, "gated", environment=environments["ahead"], **settings) as ahead:
        await ahead.logged("job.running", kept)
        async with command(url, "gated", environment=environments["behind"], **settings) as behind:
            for worker, hours in ((ahead, 5), (behind, -7)):
                said = worker.lines[-1]["time"]
                off = value(url, "SELECT extract(epoch FROM %s::timestamptz - now())", [said])
                assert abs(off - hours * 3600) < 600
            # Renewed over several leases under the eyes of the other, it stays where it is.
            since = value(url, "SELECT clock_timestamp()")
            await until(lambda: value(
                url, "SELECT count(*) >= 7 FROM history WHERE by = was_by AND at > %s", [since]
            ))  # fmt: skip
            ahead.send(signal.SIGKILL)
            await behind.logged("job.running", kept)
            gate.touch()
            await completed(url, kept)
            assert value(
                url,
                "SELECT finished_at BETWEEN now() - interval '1 minute' AND now()"
                " AND expires_at - finished_at BETWEEN interval '1 hour' AND interval '1 day'"
                " FROM async_jobs",
            )
    assert len(history.claims(kept)) == 2
    assert column(url, kept, "attempts") == 2
