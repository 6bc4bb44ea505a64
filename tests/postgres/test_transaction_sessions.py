"""The connections of handlers' transactions: few, shared, clean, and replaced when they break."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from psycopg.errors import DivisionByZero
from psycopg.rows import dict_row

from hastetrio import CreateAsyncJob, JobContext, JobOutput, LeaseLost
from hastetrio.postgres import TrioConnection

from .effects import (
    DONE,
    LONG,
    effects_table,
    is_clean,
    is_waiting,
    notes,
    perform,
    performing,
    write,
)
from .harness import PROJECT, TENANT, kick_off, run, statuses, until, value


@pytest.fixture(autouse=True)
def _effects(url: str) -> Iterator[None]:
    with effects_table(url):
        yield


async def test_a_connection_kept_beyond_its_block_reaches_nobody_elses_transaction(
    url: str,
) -> None:
    """The session serves the next block; what the last one kept of it is refused."""

    async def script(context: JobContext) -> JobOutput:
        async with context.transaction() as kept:
            first = kept.info.backend_pid
        async with context.transaction() as connection:
            assert connection.info.backend_pid == first
            with pytest.raises(RuntimeError, match="block only"):
                await write(kept, "stray")
            with pytest.raises(RuntimeError, match="takes the connection"):
                await context.finish(kept, DONE)
            await write(connection)
            return await context.finish(connection, DONE)

    (await perform(url, script)).check_both("written")


async def seen(connection: TrioConnection) -> Any:  # noqa: ANN401  # as the row factory makes it
    """Whose rows the session sees, and as whom it sees them."""
    cursor = await connection.execute(
        "SELECT coalesce(current_setting('app.tenant', true), '') AS tenant,"
        " current_user::text AS role"
    )
    return await cursor.fetchone()


async def test_what_a_handler_sets_is_gone_for_the_next(url: str) -> None:
    """Its role, a setting that says whose rows it sees, a row factory: theirs, and in no way."""
    role = value(url, "SELECT 'reader_' || pg_backend_pid()")
    me = value(url, "SELECT current_user::text")
    found: list[Any] = []

    async def script(context: JobContext) -> JobOutput:
        async with context.transaction() as connection:
            # A name that PostgreSQL made itself.
            await connection.execute(f"SET app.tenant = 'a'; SET ROLE {role}")
            found.append(await seen(connection))
            # The commit asks for the job's row, as somebody who may.
            await connection.execute("SET LOCAL ROLE NONE")
        async with context.transaction() as connection:
            connection.row_factory = dict_row  # type: ignore[assignment]
            found.append(await seen(connection))
            await write(connection)
            return await context.finish(connection, DONE)

    run(url, f"CREATE ROLE {role}")
    try:
        stage = await perform(url, script)
    finally:
        run(url, f"DROP ROLE {role}")
    stage.check_both("written")
    assert found == [("a", role), {"tenant": "", "role": me}]


async def test_transactions_wait_for_a_connection_and_a_cancelled_wait_leaves_nothing(
    url: str,
) -> None:
    """Two at once on two connections; one that gives up waiting takes no place from the third."""
    order: list[str] = []
    leave = {name: trio.Event() for name in ("first", "second", "third")}

    async def hold(
        context: JobContext,
        name: str,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        async with context.transaction() as connection:
            await write(connection, name)
            order.append(name)
            task_status.started()
            await leave[name].wait()

    async def script(context: JobContext) -> JobOutput:
        async with trio.open_nursery() as nursery:
            await nursery.start(hold, context, "first")
            await nursery.start(hold, context, "second")
            async with trio.open_nursery() as impatient:
                impatient.start_soon(hold, context, "impatient")
                await trio.testing.wait_all_tasks_blocked()
                impatient.cancel_scope.cancel()
            order.append("gave up")
            nursery.start_soon(hold, context, "third")
            await trio.testing.wait_all_tasks_blocked()
            leave["first"].set()
            await until(lambda: "third" in order)
            leave["second"].set()
            leave["third"].set()
        async with context.transaction() as connection:
            return await context.finish(connection, DONE)

    stage = await perform(url, script, transaction_connections=2)
    stage.check_both("first", "second", "third")
    assert order == ["first", "second", "gave up", "third"]


async def test_connections_are_kept_and_broken_ones_are_replaced_unnoticed(url: str) -> None:
    """Blocks share them; what broke while nobody used it costs no job anything.

    Its neighbours are replaced too: in a network that swallows all, each would cost a wait.
    """
    pids: list[int] = []

    async def script(context: JobContext) -> JobOutput:
        async with context.transaction() as first, context.transaction() as second:
            pids.extend([first.info.backend_pid, second.info.backend_pid])
        # The one that was used last is used first.
        run(url, "SELECT pg_terminate_backend(%s, 5000)", [pids[0]])
        async with context.transaction() as connection:
            pids.append(connection.info.backend_pid)
            await write(connection)
        async with context.transaction() as connection:
            pids.append(connection.info.backend_pid)
            return await context.finish(connection, DONE)

    (await perform(url, script)).check_both("written")
    assert pids[2] == pids[3]
    assert len(set(pids)) == 3
    assert value(url, "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(%s)", [pids]) == 0


async def test_what_is_undone_costs_no_connection(url: str) -> None:
    """An error, a failed statement, a cancel: the session is rolled back, and serves the next."""
    pids: list[int] = []

    async def script(context: JobContext) -> JobOutput:
        with suppress(ZeroDivisionError):
            async with context.transaction() as connection:
                pids.append(connection.info.backend_pid)
                await write(connection)
                assert 1 / 0
        with suppress(DivisionByZero):
            async with context.transaction() as connection:
                pids.append(connection.info.backend_pid)
                await write(connection)
                await connection.execute("SELECT 1 / 0")
        with trio.CancelScope() as scope:
            async with context.transaction() as connection:
                pids.append(connection.info.backend_pid)
                await write(connection)
                scope.cancel()
                await trio.sleep_forever()
        async with context.transaction() as connection:
            pids.append(connection.info.backend_pid)
            return await context.finish(connection, DONE)

    (await perform(url, script)).check_both()
    assert len(set(pids)) == 1


async def test_of_two_transactions_at_once_only_what_stands_with_the_result_is_kept(
    url: str,
) -> None:
    """The second waits for the first one's result at its commit, and then there is no claim."""
    lost: list[str] = []

    async def script(context: JobContext) -> object:
        finished = trio.Event()
        async with trio.open_nursery() as nursery:

            async def other() -> None:
                try:
                    async with context.transaction() as connection:
                        await write(connection, "beside")
                        await finished.wait()
                except LeaseLost:
                    lost.append("beside")

            nursery.start_soon(other)
            async with context.transaction() as connection:
                await write(connection)
                output = await context.finish(connection, DONE)
                finished.set()
                await until(lambda: is_waiting(url))
        return output

    stage = await perform(url, script)
    stage.check_both("written")
    assert (stage.errors, lost) == ([None], ["beside"])


async def test_many_jobs_in_few_transactions_are_each_done_once(url: str) -> None:
    """Forty jobs at once over four connections, which is what the server sees."""
    most = 0

    async def script(context: JobContext) -> JobOutput:
        nonlocal most
        async with context.transaction() as connection:
            await write(connection, context.job.id)
            await context.finish(connection, DONE)
            most = max(most, open_transactions(url))
        return DONE

    async with performing(url, script, config=attrs.evolve(LONG, max_concurrent_jobs=40)) as stage:
        jobs: list[CreateAsyncJob] = [kick_off() for _ in range(39)]
        made = await stage.provider.create_jobs(TENANT, PROJECT, jobs)
        ids = [stage.id, *(job.id for job in made)]
        await until(lambda: len(stage.errors) == 40 and not stage.worker.statistics().held)
    assert statuses(url, ids) == ["completed"] * 40
    assert notes(url) == sorted(ids)
    assert stage.worker.statistics().totals.completed == 40
    assert most <= 4
    assert is_clean(url)


def open_transactions(url: str) -> int:
    """How many transactions of handlers are open."""
    return int(
        value(
            url,
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = 'hastetrio' AND state LIKE 'idle in transaction%'",
        )
    )
