"""psycopg driven by trio: what is documented for asyncio works, and nothing is left behind."""

from __future__ import annotations

import gc

import psycopg
import pytest
import trio
from psycopg.pq import TransactionStatus

from hastetrio._errors import HastetrioError, ProviderUnavailable
from hastetrio.postgres import PostgresJobProvider, TrioConnection, connect, display_dsn
from hastetrio.postgres._unit import open_session, unit

from .harness import kick_off, run, sessions, until, value
from .relay import Relay


async def test_psycopgs_interface_works_inside_a_unit(url: str) -> None:
    """Query, transaction, savepoint, pipeline, executemany, COPY both ways and server cursors."""
    connection = await connect(url)
    async with unit(connection, 10):
        assert isinstance(connection, TrioConnection)
        cursor = await connection.execute("SELECT %s::int + 1", [41])
        assert await cursor.fetchall() == [(42,)]

        await connection.execute("CREATE TEMP TABLE t (n int, s text)")
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with connection.transaction():
                await connection.execute("INSERT INTO t VALUES (1, 'rolled back')")
                raise ZeroDivisionError
        async with connection.transaction():
            await connection.execute("INSERT INTO t VALUES (2, 'kept')")
            with pytest.raises(psycopg.errors.DivisionByZero):
                async with connection.transaction():
                    await connection.execute("SELECT 1/0")
        cursor = await connection.execute("SELECT n FROM t")
        assert await cursor.fetchall() == [(2,)]

        async with connection.pipeline():
            cursors = [await connection.execute("SELECT %s::int", [n]) for n in range(50)]
        assert [await c.fetchone() for c in cursors] == [(n,) for n in range(50)]

        many = connection.cursor()
        await many.executemany("INSERT INTO t VALUES (%s, 'many')", [(n,) for n in range(100)])
        async with many.copy("COPY t FROM STDIN") as copy_in:
            for n in range(1000):
                await copy_in.write_row((n, "copied" * 100))
        size = 0
        async with many.copy("COPY t TO STDOUT") as copy_out:
            async for block in copy_out:
                size += len(block)
        assert size > 600_000

        async with connection.transaction(), connection.cursor("named") as server_side:
            await server_side.execute("SELECT generate_series(1, 500)")
            assert len(await server_side.fetchall()) == 500
    assert connection.pgconn.transaction_status == TransactionStatus.IDLE
    connection.discard()


async def test_large_values_go_both_ways_at_once(url: str) -> None:
    """More than any socket buffer, sent while the answer already comes in."""
    connection = await connect(url)
    text = "0123456789abcdef" * 500_000
    async with unit(connection, 20), connection.pipeline():
        cursors = [await connection.execute("SELECT %s::text", [text]) for _ in range(3)]
        for cursor in cursors:
            assert await cursor.fetchone() == (text,)
    connection.discard()


async def test_the_loop_goes_on_while_a_connection_waits(relay: Relay) -> None:
    """Neither connecting to a silent server nor waiting for an answer holds up other tasks."""
    relay.stall()
    async with trio.open_nursery() as nursery:

        async def attempt() -> None:
            with pytest.raises(psycopg.OperationalError):
                await connect(relay.url, timeout=30)

        nursery.start_soon(attempt)
        await relay.blocked.wait()
        for _ in range(100):
            await trio.lowlevel.checkpoint()
        relay.cut()


async def test_a_connect_that_is_cancelled_leaves_no_connection(url: str, relay: Relay) -> None:
    """The attempt's thread closes what arrives after the caller has gone, and nobody waits."""
    relay.stall()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connect, relay.url)
        await relay.blocked.wait()
        nursery.cancel_scope.cancel()
    relay.resume()
    await until(lambda: relay.open == 0)
    await until(lambda: not sessions(url))
    assert relay.accepted == 1


async def test_a_connect_that_takes_too_long_is_given_up(url: str, relay: Relay) -> None:
    """A silent server costs the given time, and its late answer leaves no connection."""
    relay.stall()
    with pytest.raises(psycopg.OperationalError, match=r"no connection within 0\.2 s"):
        await connect(relay.url, timeout=0.2)
    relay.resume()
    await until(lambda: relay.open == 0)
    await until(lambda: not sessions(url))


async def test_a_session_that_cannot_be_set_up_is_closed(url: str) -> None:
    """A connection that is refused its settings is not left open."""
    with pytest.raises((psycopg.Error, HastetrioError)):
        # statement_timeout takes no number of this size.
        await open_session(url, 1e9)
    await until(lambda: not sessions(url))


async def test_closing_wakes_whoever_waits_on_the_socket(url: str) -> None:
    """A connection discarded under a waiting task fails that task at once."""
    connection = await connect(url)
    with trio.fail_after(10):
        await _discard_under_a_waiter(url, connection)
    assert connection.closed


async def _discard_under_a_waiter(url: str, connection: TrioConnection) -> None:
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(psycopg.OperationalError):
                await connection.execute("SELECT pg_sleep(60)")

        nursery.start_soon(wait)
        await until(lambda: [state for _, state in sessions(url)] == ["active"])
        connection.discard()
        connection.discard()


async def test_hostile_database_defaults_change_nothing(database_url: str) -> None:
    """Whatever a database sets for its sessions, ours set what the statements rely on."""
    name = value(database_url, "SELECT current_database()")
    for setting in (
        "default_transaction_isolation = 'serializable'",
        "timezone = 'America/St_Johns'",
        "datestyle = 'SQL, DMY'",
        "intervalstyle = 'sql_standard'",
        "statement_timeout = '1ms'",
        "jit = on",
        "client_encoding = 'latin1'",
    ):
        run(database_url, f"ALTER DATABASE {name} SET {setting}")
    connection = await open_session(database_url, 4.0)
    async with unit(connection, 5):
        cursor = await connection.execute(
            "SELECT current_setting('transaction_isolation'), current_setting('TimeZone'),"
            " split_part(current_setting('datestyle'), ',', 1), current_setting('intervalstyle'),"
            " current_setting('statement_timeout'), current_setting('jit'),"
            " current_setting('client_encoding'), current_setting('application_name')"
        )
        assert await cursor.fetchone() == (
            "read committed", "UTC", "ISO", "postgres", "3600ms", "off", "UTF8", "hastetrio",
        )  # fmt: skip
    connection.discard()
    async with PostgresJobProvider.open(database_url) as provider:
        job = await provider.create_job("acme", "main", kick_off())
        again = await provider.read_job("acme", "main", job.id)
    assert again == job
    assert (job.expires_at - job.created_at).total_seconds() == 86400


async def test_connections_are_closed_and_collected_without_a_warning(
    url: str, recwarn: pytest.WarningsRecorder
) -> None:
    """Closed by a provider, discarded in a unit or given up: none is found by its finaliser."""
    async with PostgresJobProvider.open(url) as provider:
        await provider.count_live_jobs("acme", "main")
        async with provider.watch(["work"]) as events:
            await events.receive()
    connection = await connect(url)
    connection.discard()
    del connection
    gc.collect()
    assert not recwarn.list
    await until(lambda: not sessions(url))


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://ann:secret@db.example:5433/jobs", "user=ann dbname=jobs host=db.example port=5433"),  # noqa: E501
        ("postgresql://ann:se%63ret@db/jobs?sslmode=require&passfile=secret", "user=ann dbname=jobs host=db"),  # noqa: E501
        ("host=db user=ann password='secret' sslpassword=secret dbname=jobs", "host=db user=ann dbname=jobs"),  # noqa: E501
        ("postgresql://ann@a,b/jobs?password=secret", "user=ann dbname=jobs host=a,b port=,"),
        ("sslkey=secret options='-c x=secret'", "(libpq's defaults)"),
        ("", "(libpq's defaults)"),
        ("password=sec ret", "(not a PostgreSQL connection string)"),
        ("postgresql://ann:secret/x@db/jobs", "host=ann dbname=x@db/jobs"),
        ("postgres://[secret", "(not a PostgreSQL connection string)"),
    ],
)  # fmt: skip
def test_a_database_is_named_without_its_password(dsn: str, shown: str) -> None:
    """Neither form of connection string shows a password, a key or options."""
    text = display_dsn(dsn)
    assert "secret" not in text
    if shown.startswith("("):
        assert text == shown
    else:
        assert sorted(text.split()) == sorted(shown.split())


@pytest.mark.parametrize(
    "dsn",
    [
        "host=/nonexistent user=ann password=hunter2",
        "postgresql://ann:hunter2@127.0.0.1:1/jobs?connect_timeout=2",
        "password=x hunter2",
        "postgresql://ann:hunter2/x@db/jobs",
        "postgresql://ann:hunter2@db:hunter2/jobs",
        "postgresql://127.0.0.1:hunter2/jobs",
        "postgresql://ann:hunter2/x@/jobs",
        "hunter2=1",
    ],
)
async def test_errors_hold_no_password(dsn: str) -> None:
    """An error about a connection, also about its text, is one line without the secret in it."""
    async with PostgresJobProvider.open(dsn, call_budget=2) as provider:
        for call in (
            provider.count_live_jobs("acme", "main"),
            provider.check_schema(),
            provider.migrate(),
        ):
            with pytest.raises(ProviderUnavailable) as caught:
                await call
            error: BaseException | None = caught.value
            while error is not None:
                assert "hunter2" not in str(error)
                error = error.__cause__ or (
                    None if error.__suppress_context__ else error.__context__
                )
            assert "\n" not in str(caught.value)
