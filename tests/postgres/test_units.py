"""Units: finished or their connection discarded, and the next call works."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
import trio
from psycopg.pq import TransactionStatus

from hastetrio._errors import ProviderUnavailable, UnstorableValue
from hastetrio.postgres import PostgresJobProvider
from hastetrio.postgres._unit import Lane, open_session, unit

from .harness import (
    KIND,
    PROJECT,
    TENANT,
    insert,
    kick_off,
    new_lease,
    run,
    sessions,
    statuses,
    until,
    value,
)
from .relay import Relay


@contextmanager
def open_lane(url: str, budget: float = 10.0) -> Iterator[Lane]:
    """A lane of a test's own."""
    lane = Lane(url, budget=budget, prepared=True)
    try:
        yield lane
    finally:
        lane.close()


async def backend(lane: Lane) -> int:
    """The server process that this lane talks to."""
    ((pid,),) = await lane.fetch("SELECT pg_backend_pid()", {})
    return int(pid)


def states(url: str) -> list[str]:
    """The states of the connections of the code under test."""
    return [state for _, state in sessions(url)]


async def test_a_unit_that_outlives_its_budget_costs_its_connection(url: str) -> None:
    """The caller is told in time, the next has a new connection, the server stops the query."""
    with open_lane(url, 30) as own:
        first = await backend(own)
        with pytest.raises(ProviderUnavailable, match=r"did not answer within 0\.1 s"):
            await own.fetch("SELECT pg_sleep(60)", {}, 0.1)
        second = await backend(own)
        assert first != second
        await until(lambda: [pid for pid, _ in sessions(url)] == [second])


async def test_a_transaction_that_outlives_its_budget_leaves_nothing(url: str) -> None:
    """Given up between two statements, a transaction is rolled back by its connection's end."""
    with open_lane(url, 30) as own:
        with pytest.raises(ProviderUnavailable, match="did not answer"):  # noqa: PT012
            async with own.unit(0.1) as connection, connection.transaction():
                await connection.execute(
                    "INSERT INTO async_jobs (tenant, project, kind) VALUES ('a', 'b', 'c')"
                )
                await trio.sleep_forever()
        assert await own.fetch("SELECT count(*) FROM async_jobs", {}) == [(0,)]
        await until(lambda: states(url) == ["idle"])


async def test_the_server_answers_first_and_the_connection_is_kept(url: str) -> None:
    """A statement too slow is ended by the server's own timeout, a little before the budget."""
    with open_lane(url, 0.5) as own:
        first = await backend(own)
        with pytest.raises(ProviderUnavailable, match="statement timeout"):
            await own.fetch("SELECT pg_sleep(60)", {})
        assert await backend(own) == first


async def test_a_provider_recovers_from_a_silent_network(url: str, relay: Relay) -> None:
    """Calls of every lane fail within their budget while nothing moves, and work afterwards."""
    async with PostgresJobProvider.open(relay.url, call_budget=0.4) as provider:
        job = await provider.create_job(TENANT, PROJECT, kick_off())
        lease = new_lease()
        await provider.claim_jobs([KIND], lease, 1)
        await provider.renew_lease(job.id, lease)
        await provider.release_job("no such job", lease)
        relay.stall()
        for call in (
            lambda: provider.count_live_jobs(TENANT, PROJECT),
            lambda: provider.renew_lease(job.id, lease),
            lambda: provider.release_job(job.id, lease),
            # Now on connections yet to be opened.
            lambda: provider.count_live_jobs(TENANT, PROJECT),
            lambda: provider.renew_lease(job.id, lease),
        ):
            with pytest.raises(ProviderUnavailable):
                await call()
        relay.resume()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_it_works, provider)
        # Whether the stalled release was applied, nobody knows; a repeat does no harm.
        await provider.release_job(job.id, lease)
        assert statuses(url, [job.id]) == ["accepted"]


async def _until_it_works(provider: PostgresJobProvider) -> None:
    with trio.fail_after(10):
        while True:
            try:
                await provider.count_live_jobs(TENANT, PROJECT)
            except ProviderUnavailable:
                continue
            return


async def test_a_provider_recovers_from_cut_connections(relay: Relay) -> None:
    """A connection cut while idle fails one call at most; one cut in a call fails that call."""
    async with PostgresJobProvider.open(relay.url) as provider:
        await provider.count_live_jobs(TENANT, PROJECT)
        relay.cut()
        await until(lambda: relay.open == 0)
        with pytest.raises(ProviderUnavailable):
            await provider.count_live_jobs(TENANT, PROJECT)
        assert await provider.count_live_jobs(TENANT, PROJECT) == 0
        relay.stall()
        async with trio.open_nursery() as nursery:

            async def fail() -> None:
                with pytest.raises(ProviderUnavailable):
                    await provider.count_live_jobs(TENANT, PROJECT)

            nursery.start_soon(fail)
            await relay.blocked.wait()
            relay.cut()
        relay.resume()
        await _until_it_works(provider)


async def test_a_provider_recovers_when_every_backend_is_terminated(url: str) -> None:
    """After pg_terminate_backend each lane fails once, says so in one line, and works again."""
    async with PostgresJobProvider.open(url) as provider:
        lease = new_lease()

        async def call_each() -> list[str]:
            failures = []
            for call in (
                lambda: provider.count_live_jobs(TENANT, PROJECT),
                lambda: provider.renew_lease("no such job", lease),
                lambda: provider.release_job("no such job", lease),
            ):
                try:
                    await call()
                except ProviderUnavailable as error:
                    failures.append(str(error))
            return failures

        assert await call_each() == []
        assert len(sessions(url)) == 3
        for pid, _ in sessions(url):
            run(url, "SELECT pg_terminate_backend(%s, 5000)", [pid])
        failures = await call_each()
        assert len(failures) == 3
        assert not any("\n" in failure for failure in failures)
        assert await call_each() == []


async def test_a_read_only_database_is_left(database_url: str) -> None:
    """A primary that became a standby: unavailable, and its connection is not kept for later."""
    name = value(database_url, "SELECT current_database()")
    with open_lane(database_url) as own:
        await own.fetch("SELECT set_config('default_transaction_read_only', 'on', false)", {})
        first = await backend(own)
        with pytest.raises(ProviderUnavailable, match="read-only"):
            await own.fetch("CREATE TABLE t (n int)", {})
        assert await backend(own) != first
        run(database_url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        run(database_url, "SELECT pg_terminate_backend(%s, 5000)", [await backend(own)])
        with pytest.raises(ProviderUnavailable):
            await own.fetch("SELECT 1", {})
        with pytest.raises(ProviderUnavailable, match="read-only"):
            await own.fetch("SELECT 1", {})
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(
                f"ALTER DATABASE {name} RESET default_transaction_read_only".encode()
            )
        assert await own.fetch("SELECT 1", {}) == [(1,)]


async def test_a_cancel_lands_after_the_statement_that_is_under_way(url: str) -> None:
    """The statement is answered, the connection stays, and only then is the caller cancelled."""
    with open_lane(url) as own:
        first = await backend(own)
        done = []

        async def call() -> None:
            rows = await own.fetch("SELECT pg_sleep(0.1), 7", {})
            done.append(rows[0][1])
            await trio.lowlevel.checkpoint()
            done.append("never")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await until(lambda: states(url) == ["active"])
            nursery.cancel_scope.cancel()
        assert done == [7]
        assert states(url) == ["idle"]
        assert await backend(own) == first


async def test_a_cancel_inside_a_transaction_leaves_it_whole(url: str) -> None:
    """Cancelled between two statements, both are committed and no transaction stays open."""
    with open_lane(url) as own:
        with trio.CancelScope() as scope:
            async with own.unit() as connection, connection.transaction():
                for kind in ("one", "two"):
                    await connection.execute(
                        "INSERT INTO async_jobs (tenant, project, kind) VALUES ('a', 'b', %s)",
                        [kind],
                    )
                    scope.cancel()
            await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        assert run(url, "SELECT kind FROM async_jobs ORDER BY kind") == [("one",), ("two",)]
        assert states(url) == ["idle"]


async def test_a_cancelled_caller_starts_no_unit(url: str) -> None:
    """In a scope that is already cancelled, nothing is sent."""
    with open_lane(url) as own:
        await backend(own)
        with trio.CancelScope() as scope:
            scope.cancel()
            await own.fetch("CREATE TABLE never (n int)", {})
        assert scope.cancelled_caught
        assert value(url, "SELECT to_regclass('never')") is None


async def test_create_job_joins_the_callers_transaction(url: str) -> None:
    """A job queued on a caller's connection is committed or rolled back with it."""
    async with PostgresJobProvider.open(url) as provider:
        connection = await open_session(url, 5)
        kept, given_up = kick_off(), kick_off()
        async with connection.transaction():
            kept_job = await provider.create_job(TENANT, PROJECT, kept, connection=connection)
            assert await provider.read_job(TENANT, PROJECT, kept_job.id) is None
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with connection.transaction():
                await provider.create_job(
                    TENANT, PROJECT, given_up, connection=connection, live_limit=5
                )
                raise ZeroDivisionError
        assert [job.id for job in await provider.list_jobs(TENANT, PROJECT)] == [kept_job.id]
        connection.discard()


async def test_keyboard_interrupt_discards_a_connection_with_a_query_in_flight(url: str) -> None:
    """It pierces shields; the connection it leaves active is not used again."""
    connection = await open_session(url, 5)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        async with unit(connection, 5):
            connection.pgconn.send_query(b"SELECT pg_sleep(60)")
            assert connection.pgconn.transaction_status == TransactionStatus.ACTIVE
            raise KeyboardInterrupt
    assert connection.closed
    await until(lambda: not sessions(url))


INTERRUPTED = """
import sys, trio
from hastetrio.postgres import PostgresJobProvider
async def main():
    async with PostgresJobProvider.open(sys.argv[1], call_budget=60) as provider:
        await provider.count_live_jobs("acme", "main")
        async with provider._clients.unit() as connection:
            print("ready", flush=True)
            await connection.execute("SELECT pg_sleep(60)")
trio.run(main)
"""


async def test_ctrl_c_during_a_statement_ends_the_process_and_its_connection(url: str) -> None:
    """A person need not wait for the budget, and the server is left with nothing."""
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", INTERRUPTED, url],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        await until(lambda: states(url) == ["active"])
        process.send_signal(signal.SIGINT)
        await until(lambda: process.poll() is not None)
        assert process.returncode != 0
        await until(lambda: not sessions(url))
    finally:
        process.kill()
        process.communicate()


async def test_one_lane_runs_one_unit_at_a_time_and_says_when_it_is_busy(url: str) -> None:
    """Whoever waits for a turn longer than the budget is told so; the unit itself is not hurt."""
    with open_lane(url, 0.2) as own:
        entered, leave = trio.Event(), trio.Event()

        async def occupy() -> None:
            async with own.unit(30) as connection:
                await connection.execute("SELECT 1")
                entered.set()
                await leave.wait()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(occupy)
            await entered.wait()
            with pytest.raises(ProviderUnavailable, match=r"busy for 0\.2 s"):
                await own.fetch("SELECT 1", {})
            leave.set()
        assert await own.fetch("SELECT 1", {}) == [(1,)]


async def test_a_value_the_server_refuses_costs_no_connection(url: str) -> None:
    """Bad data is the caller's: told as such, on a connection that goes on."""
    with open_lane(url) as own:
        first = await backend(own)
        for sql in (
            "SELECT 'x'::int",
            "SELECT '\"\\u0000\"'::jsonb",
            "SELECT array_fill(1, ARRAY[2000000000])",
        ):
            with pytest.raises(UnstorableValue):
                await own.fetch(sql, {})
        with pytest.raises(UnstorableValue, match="cannot be sent"):
            await own.fetch("SELECT %(x)s::text", {"x": "\ud800"})
        assert await backend(own) == first


async def test_a_provider_without_prepared_statements_prepares_none(url: str) -> None:
    """Behind a pooler without session state, no statement is prepared, however often it runs."""
    async with PostgresJobProvider.open(url, prepared_statements=False) as provider:
        insert(url)
        for _ in range(8):
            await provider.count_live_jobs(TENANT, PROJECT)
            await provider.create_job(TENANT, PROJECT, kick_off(), live_limit=100)
        rows = await provider._clients.fetch("SELECT count(*) FROM pg_prepared_statements", {})
    assert rows == [(0,)]


async def test_a_provider_opens_no_more_than_four_connections(url: str) -> None:
    """Hundreds of callers share claims, finishes, renewals and reads; all are closed at the end."""
    async with PostgresJobProvider.open(url) as provider:
        jobs = await provider.create_jobs(TENANT, PROJECT, [kick_off() for _ in range(200)])
        lease = new_lease()
        claimed = await provider.claim_jobs([KIND], lease, 200)
        assert len(claimed) == 200

        async def live(id: str) -> None:
            await provider.renew_lease(id, lease)
            await provider.read_job(TENANT, PROJECT, id)
            assert await provider.release_job(id, lease)

        async with trio.open_nursery() as nursery:
            for job in jobs:
                nursery.start_soon(live, job.id)
        assert len(sessions(url)) == 4
    await until(lambda: not sessions(url))
