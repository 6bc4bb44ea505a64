"""The connections that clients' calls share, apart from those that leases depend on."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from hastetrio import ConfigError, LeaseRenewal, ProviderUnavailable
from hastetrio.postgres import PostgresJobProvider
from hastetrio.postgres._pool import LanePool

from .harness import KIND, PROJECT, TENANT, insert, kick_off, new_lease, sessions, until


async def test_a_pool_opens_as_many_connections_as_are_busy_at_once(url: str) -> None:
    """One caller after the other costs one connection, and no crowd costs more than the limit."""
    pool = LanePool(url, size=3, budget=20, prepared=True)
    for _ in range(5):
        assert await pool.fetch("SELECT 1", {}) == [(1,)]
    assert len(sessions(url)) == 1
    together, most = 0, 0

    async def call() -> None:
        nonlocal together, most
        async with pool.unit() as connection:
            together += 1
            most = max(most, together)
            await connection.execute("SELECT pg_sleep(0.01)")
            together -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(30):
            nursery.start_soon(call)
    assert most == 3
    assert len(sessions(url)) == 3
    pool.close()
    await until(lambda: not sessions(url))


async def test_a_crowd_of_clients_makes_no_renewal_wait(url: str) -> None:
    """Clients that hold every connection of theirs are told so; leases have one of their own."""
    insert(url)
    async with PostgresJobProvider.open(url, client_connections=2, call_budget=1) as provider:
        lease = new_lease()
        (job,) = await provider.claim_jobs([KIND], lease, 1)
        leave = trio.Event()
        holding: list[int] = []

        async def hold() -> None:
            async with provider._clients.unit() as connection:
                holding.append(connection.pgconn.backend_pid)
                with trio.move_on_after(30):
                    await leave.wait()

        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(hold)
            await until(lambda: len(holding) == 2)
            assert await provider.renew_lease(job.id, lease) is LeaseRenewal.RENEWED
            leave.set()
        assert len(set(holding)) == 2


async def test_a_client_that_gets_no_turn_is_told_so(url: str) -> None:
    """In one line, within the budget, and the next one is served."""
    pool = LanePool(url, size=1, budget=0.5, prepared=True)
    leave = trio.Event()

    async def hold(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with pool._lane():
            task_status.started()
            await leave.wait()

    async with trio.open_nursery() as nursery:
        await nursery.start(hold)
        with pytest.raises(ProviderUnavailable, match="all 1 connections for clients were busy"):
            await pool.fetch("SELECT 1", {})
        leave.set()
    assert await pool.fetch("SELECT 1", {}) == [(1,)]
    pool.close()


async def test_a_cancelled_client_gives_its_turn_back(url: str) -> None:
    """Whether it waited for it or had it."""
    async with PostgresJobProvider.open(url) as provider:
        await provider.create_job(TENANT, PROJECT, kick_off())
        for _ in range(20):
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(provider.count_live_jobs, TENANT, PROJECT)
                await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        assert await provider.count_live_jobs(TENANT, PROJECT) == 1


@pytest.mark.parametrize("name", ["client_connections", "transaction_connections"])
async def test_a_provider_without_connections_is_refused(url: str, name: str) -> None:
    """Whoever waited for one of none would wait for ever."""
    numbers: dict[str, Any] = {name: 0}
    with pytest.raises(ConfigError, match=f"{name} must be at least 1, not 0"):
        async with PostgresJobProvider.open(url, **numbers):
            pass
