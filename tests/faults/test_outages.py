"""The database goes away and comes back: no loop dies, and what outlives it finishes normally."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.postgres.harness import column, run, sessions, statuses, until

from hastetrio import AsyncJobWorkerConfig, _claims

from .bodies import SHORT, Gated, Lines
from .history import History
from .server import FAST, IMMEDIATE, Server
from .workers import check_untouched, completed, queue, working


@pytest.fixture(autouse=True)
def short_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second after a claim that failed, for five; the virtual tests hold it to its value."""
    monkeypatch.setattr(_claims, "ERROR_BACKOFF", 0.5)


@pytest.mark.parametrize("how", [FAST, IMMEDIATE], ids=["fast", "immediate"])
async def test_a_server_that_restarts_costs_no_job_its_run(
    server: Server, lines: Lines, how: signal.Signals
) -> None:
    """One job runs all the time and one returns while there is no server: one run each."""
    long, short = Gated("long"), Gated("short")
    async with working(server.url, long, short) as (_, worker):
        ids = [*queue(server.url, "long"), *queue(server.url, "short")]
        await until(lambda: long.running and short.running)
        await server.stop(how)
        short.gate.set()
        await lines.wait("job.record-retried", job=ids[1])
        await lines.wait("claim.failed")
        await server.restart()
        await completed(server.url, ids[1])
        later = queue(server.url, "short")
        await completed(server.url, *later)
        long.gate.set()
        await completed(server.url, ids[0])
        assert worker.statistics().totals.claims_failed
    assert [run.reason for run in (*long.ended, *short.ended)] == [None] * 3
    check_untouched(History(server.url), server.url, *ids, *later)


@pytest.mark.slow
async def test_a_restart_longer_than_the_leases_costs_no_attempt(server: Server) -> None:
    """The handler is cancelled in time; on the first contact its job is handed back and runs."""
    gated = Gated()
    async with working(server.url, gated, config=SHORT):
        (id,) = queue(server.url)
        await until(lambda: gated.running)
        await server.stop(FAST)
        await until(lambda: gated.ended)
        gated.gate.set()
        await server.restart()
        await completed(server.url, id)
    assert [str(run.reason) for run in gated.ended] == ["lease-lost", "None"]
    assert column(server.url, id, "attempts") == 1
    assert len(History(server.url).results(id)) == 1


def _some_completed(url: str, ids: list[str], number: int) -> bool:
    return statuses(url, ids).count("completed") >= number


async def test_every_connection_ended_again_and_again_under_load(
    url: str, history: History
) -> None:
    """pg_terminate_backend on all of them, three times while jobs run: one run and result each."""
    config = AsyncJobWorkerConfig(lease_duration=60, poll_interval=0.2, max_concurrent_jobs=5)
    gated = Gated()
    gated.gate.set()
    ended = 0
    async with working(url, gated, config=config):
        ids = queue(url, number=160)
        for share in (40, 80, 120):
            await until(partial(_some_completed, url, ids, share))
            ended += len(run(
                url,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name = 'hastetrio'",
            ))  # fmt: skip
        await completed(url, *ids)
    assert ended >= 9
    assert history.ran_once(ids)


async def test_a_database_that_turns_read_only_and_back(server: Server, lines: Lines) -> None:
    """As at a failover: its connections are left, and all goes on when one may write again."""
    long, short = Gated("long"), Gated("short")
    async with working(server.url, long, short):
        ids = [*queue(server.url, "long"), *queue(server.url, "short")]
        await until(lambda: long.running and short.running)
        server.read_only(True)
        try:
            short.gate.set()
            await lines.wait("job.record-retried", job=ids[1])
            await lines.wait("claim.failed", "read-only")
        finally:
            server.read_only(False)
        await completed(server.url, ids[1])
        later = queue(server.url, "short")
        await completed(server.url, *later)
        long.gate.set()
        await completed(server.url, *ids)
    check_untouched(History(server.url), server.url, *ids, *later)


@contextmanager
def limited_role(url: str) -> Iterator[tuple[str, str]]:
    """A role that may work but is no superuser, so that limits hold for it; its URL and name."""
    name = f"limited_{os.getpid()}"
    run(url, f"CREATE ROLE {name} LOGIN")
    run(url, f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {name}")
    try:
        yield make_conninfo(url, user=name), name
    finally:
        run(url, f"DROP OWNED BY {name}")
        run(url, f"DROP ROLE {name}")


async def test_a_server_out_of_connections(url: str, history: History, lines: Lines) -> None:
    """Every connection ended and none to be had (53300), until there are some again."""
    long, short = Gated("long"), Gated("short")
    with limited_role(url) as (limited, name):
        async with working(limited, long, short):
            ids = [*queue(url, "long"), *queue(url, "short")]
            await until(lambda: long.running and short.running)
            run(url, f"ALTER ROLE {name} CONNECTION LIMIT 0")
            for pid, _ in sessions(url):
                run(url, "SELECT pg_terminate_backend(%s, 5000)", [pid])
            short.gate.set()
            await lines.wait("job.record-retried", "too many connections", ids[1])
            await lines.wait("claim.failed")
            run(url, f"ALTER ROLE {name} CONNECTION LIMIT -1")
            later = queue(url, "short")
            await completed(url, ids[1], *later)
            long.gate.set()
            await completed(url, *ids)
    check_untouched(history, url, *ids, *later)


async def test_statements_that_time_out(url: str, history: History, lines: Lines) -> None:
    """Somebody locks the whole table, as a migration would; the server ends what waits for it."""
    long, short = Gated("long"), Gated("short")
    async with working(url, long, short, call_budget=0.3):
        ids = [*queue(url, "long"), *queue(url, "short")]
        await until(lambda: long.running and short.running)
        before = {pid for pid, _ in sessions(url)}
        with psycopg.connect(url) as bystander:
            bystander.execute("LOCK TABLE async_jobs IN ACCESS EXCLUSIVE MODE")
            short.gate.set()
            await lines.wait("job.record-retried", "timeout", ids[1])
            await lines.wait("claim.failed", "timeout")
        later = queue(url, "short")
        await completed(url, ids[1], *later)
        long.gate.set()
        await completed(url, *ids)
        # The server spoke before the client lost patience, so no connection was lost.
        assert {pid for pid, _ in sessions(url)} >= before
    check_untouched(history, url, *ids, *later)


@contextmanager
def failing_statements(url: str, sqlstate: str) -> Iterator[None]:
    """Every statement that writes rows fails with this SQLSTATE while the block lasts."""
    run(
        url,
        "CREATE FUNCTION break_writes() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f"  RAISE EXCEPTION 'injected %', TG_OP USING ERRCODE = '{sqlstate}'; END $$;"
        "CREATE TRIGGER break_writes BEFORE UPDATE OR DELETE ON async_jobs"
        "  FOR EACH STATEMENT EXECUTE FUNCTION break_writes()",
    )
    try:
        yield
    finally:
        run(url, "DROP TRIGGER break_writes ON async_jobs; DROP FUNCTION break_writes")


@pytest.mark.parametrize(
    "sqlstate",
    [
        pytest.param("40001", id="serialization failure"),
        pytest.param("40P01", id="deadlock"),
        *(
            pytest.param(state, id=what, marks=pytest.mark.slow)
            for state, what in {
                "57014": "query cancelled",
                "53100": "disk full",
                "53200": "out of memory",
                "55P03": "lock not available",
                "57P01": "admin shutdown",
                "57P03": "cannot connect now",
                "42501": "insufficient privilege",
                "42P01": "undefined table",
                "58030": "io error",
                "P0001": "a trigger of the host's",
                "XX000": "internal error",
            }.items()
        ),
    ],
)
async def test_errors_of_the_server_end_no_loop(
    url: str, history: History, lines: Lines, sqlstate: str
) -> None:
    """Claims, renewals, finishes and both sweeps fail for a while, and then go on: one run each."""
    config = AsyncJobWorkerConfig(
        lease_duration=3, poll_interval=0.2, maintenance_interval=0.2, max_concurrent_jobs=5
    )
    long, short = Gated("long"), Gated("short")
    async with working(url, long, short, config=config):
        ids = [*queue(url, "long"), *queue(url, "short")]
        await until(lambda: long.running and short.running)
        with failing_statements(url, sqlstate):
            short.gate.set()
            for event in ("job.record-retried", "claim.failed", "job.renew-failed"):
                await lines.wait(event, "injected")
            for what in ("expired", "abandoned"):
                await lines.wait("sweep.failed", what)
        later = queue(url, "short")
        await completed(url, ids[1], *later)
        run(url, "UPDATE async_jobs SET expires_at = now() WHERE id = %s", [ids[1]])
        await until(lambda: statuses(url, [ids[1]]) == ["gone"])
        long.gate.set()
        await completed(url, ids[0])
    assert [run.reason for run in (*long.ended, *short.ended)] == [None] * 3
    check_untouched(history, url, ids[0], *later)
    assert len(history.results(ids[1])) == 1


async def test_a_dead_listener_is_replaced_and_followed_by_a_claim(
    url: str, history: History
) -> None:
    """What was queued while nobody listened is found at once, with the next poll an hour away."""
    gated = Gated()
    gated.gate.set()
    listeners = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'hastetrio' AND query LIKE 'LISTEN%'"
    )
    config = AsyncJobWorkerConfig(poll_interval=3600)
    async with working(url, gated, config=config) as (_, worker):
        await until(lambda: worker.statistics().totals.claims_empty)
        for _ in range(3):
            await until(lambda: run(url, listeners))
            ((listener,),) = run(url, listeners)
            # Nothing of the worker runs between these two, so that it cannot listen again before.
            run(url, "SELECT pg_terminate_backend(%s, 5000)", [listener])
            (id,) = queue(url)
            await completed(url, id)
            check_untouched(history, url, id)
