"""What `overview` says about what waits, and the transaction that holds back vacuum."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from hastetrio.postgres import PostgresJobProvider
from hastetrio.postgres._overview import OldestTransaction

from .harness import insert, run, value


@contextmanager
def transaction(url: str, *statements: str) -> Iterator[int]:
    """These statements are in a transaction that stays open, of the process given."""
    with psycopg.connect(url, application_name="reporting") as connection:
        for statement in statements:
            connection.execute(statement.encode())
        yield connection.info.backend_pid
        connection.rollback()


def let_transactions_pass(url: str) -> None:
    """Others begin and end, so that what was open before is older than whatever begins now."""
    for _ in range(3):
        insert(url)


async def test_jobs_that_wait_for_their_time_are_counted_apart(url: str) -> None:
    """They are queued, and nobody is to be woken, or added, for them."""
    for _ in range(3):
        insert(url, run_at="now() + interval '1 hour'", created_at="now() - interval '2 days'")
    insert(url, run_at="now() - interval '100 s'", created_at="now() - interval '1 day'")
    insert(url, run_at="now() - interval '50 s'")
    insert(url, "later", run_at="now() + interval '1 hour'")
    insert(url, "at once")
    # Neither what is over, nor what runs or ran, waits for anything.
    insert(url, "over", run_at="now() + interval '1 hour'", expires_at="now()")
    insert(url, "done", status="'completed'", run_at="now() + interval '1 hour'")
    async with PostgresJobProvider.open(url) as provider:
        overview = await provider.overview()
    waiting = {one.kind: one for one in overview.waiting}
    assert set(waiting) == {"work", "later", "at once"}
    assert (waiting["work"].count, waiting["work"].delayed) == (2, 3)
    assert 100 <= waiting["work"].oldest_seconds < 200
    assert (waiting["later"].count, waiting["later"].delayed) == (0, 1)
    assert waiting["later"].oldest_seconds == 0
    assert (waiting["at once"].count, waiting["at once"].delayed) == (1, 0)
    assert waiting["at once"].oldest_seconds < 100
    # A kind that only waits for its time lacks no worker.
    assert sorted(overview.unserved) == ["at once", "work"]
    counts = {(one.status.value, one.kind): one.count for one in overview.counts}
    assert counts[("accepted", "work")] == 5


async def oldest(url: str) -> OldestTransaction | None:
    """What a provider's overview names."""
    async with PostgresJobProvider.open(url) as provider:
        return (await provider.overview()).oldest_transaction


@pytest.fixture
def plain_role(url: str) -> Iterator[str]:
    """How to connect as a role that may read the jobs, and other roles' activity not."""
    name = f"plain_{os.getpid()}"
    run(url, f"CREATE ROLE {name}")
    run(url, f"GRANT SELECT ON async_jobs TO {name}")
    yield make_conninfo(url, options=f"-c role={name}")
    run(url, f"DROP OWNED BY {name}")
    run(url, f"DROP ROLE {name}")


WRITES = "SELECT pg_current_xact_id()"
KEEPS_A_SNAPSHOT = ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SELECT 1")


@pytest.mark.parametrize("statements", [[WRITES], KEEPS_A_SNAPSHOT], ids=["writes", "reads"])
async def test_an_open_transaction_is_named(url: str, statements: list[str]) -> None:
    """Whoever has written, or sees the past, is named with what one needs to find it."""
    with transaction(url, *statements) as pid:
        let_transactions_pass(url)
        found = await oldest(url)
    assert found is not None
    assert (found.source, found.pid, found.name) == ("session", pid, "reporting")
    assert found.owner == value(url, "SELECT current_user")
    assert found.database == value(url, "SELECT current_database()")
    assert found.state == "idle in transaction"
    assert found.seconds is not None
    assert found.seconds > 0
    assert found.transactions >= 3


async def test_the_cause_is_named_and_not_who_suffers_from_it(url: str) -> None:
    """A snapshot reaches as far back as the writer before it, which is the one to end."""
    begins, looks = KEEPS_A_SNAPSHOT
    with psycopg.connect(url) as reader:
        reader.execute(begins.encode())
        with transaction(url, WRITES) as writer:
            reader.execute(looks.encode())
            let_transactions_pass(url)
            found = await oldest(url)
        reader.rollback()
    assert found is not None
    assert found.pid == writer


async def test_the_oldest_is_named(url: str) -> None:
    """A snapshot from before a writer's time holds back more than the writer."""
    with transaction(url, *KEEPS_A_SNAPSHOT) as reader:
        let_transactions_pass(url)
        with transaction(url, WRITES):
            let_transactions_pass(url)
            found = await oldest(url)
    assert found is not None
    assert found.pid == reader


async def test_a_transaction_that_holds_nothing_back_is_not_named(url: str) -> None:
    """An idle one that has only read, each statement with a snapshot of its own."""
    with transaction(url, "SELECT 1") as pid:
        let_transactions_pass(url)
        found = await oldest(url)
    assert found is None or found.pid != pid
    # Nor is the session that asks.
    assert found is None or found.name != "hastetrio"


@pytest.mark.parametrize(("statements", "named"), [([WRITES], True), (KEEPS_A_SNAPSHOT, False)])
async def test_a_transaction_in_another_database(
    url: str, server_url: str, statements: list[str], named: bool
) -> None:
    """One that writes holds back every database; one that reads, only its own."""
    with transaction(server_url, *statements) as pid:
        let_transactions_pass(url)
        found = await oldest(url)
    assert (found is not None and found.pid == pid) is named
    if named:
        assert found is not None
        assert found.database == value(server_url, "SELECT current_database()")


async def test_what_a_role_may_not_see_is_not_made_up(url: str, plain_role: str) -> None:
    """Without pg_read_all_stats the process is named, and neither its age nor its state."""
    with transaction(url, WRITES) as pid:
        let_transactions_pass(url)
        found = await oldest(plain_role)
    assert found is not None
    assert (found.pid, found.state, found.seconds) == (pid, None, None)
    assert found.transactions >= 3


@pytest.fixture
def shadowed(url: str) -> Iterator[str]:
    """A way to connect that sees tables of the test's in place of two of the server's views."""
    run(url, "CREATE SCHEMA shadow")
    run(
        url,
        "CREATE TABLE shadow.pg_prepared_xacts"
        " (gid text, prepared timestamptz, owner name, database name, transaction xid)",
    )
    run(
        url,
        "CREATE TABLE shadow.pg_replication_slots"
        " (slot_name name, active_pid integer, database name, active boolean, xmin_ xid)",
    )
    # No column of a table may be called xmin, of a view it may.
    run(url, "ALTER TABLE shadow.pg_replication_slots RENAME TO slots")
    run(
        url,
        "CREATE VIEW shadow.pg_replication_slots AS"
        " SELECT slot_name, active_pid, database, active, xmin_ AS xmin FROM shadow.slots",
    )
    yield make_conninfo(url, options="-c search_path=shadow,pg_catalog,public")
    run(url, "DROP SCHEMA shadow CASCADE")


async def test_a_prepared_transaction_is_named(url: str, shadowed: str) -> None:
    """It outlives its session, and is found by its id."""
    run(
        url,
        "INSERT INTO shadow.pg_prepared_xacts VALUES"
        " ('transfer 7', now() - interval '1 hour', 'ann', 'jobs', pg_current_xact_id()::xid)",
    )
    let_transactions_pass(url)
    found = await oldest(shadowed)
    assert found is not None
    assert found.seconds is not None
    assert 3600 <= found.seconds < 4000
    assert found.transactions >= 3
    assert (found.source, found.pid, found.name, found.owner, found.database, found.state) == (
        ("prepared", None, "transfer 7", "ann", "jobs", None)
    )


async def test_a_replication_slot_is_named(url: str, shadowed: str) -> None:
    """One that holds rows back is; one without an xmin holds none."""
    run(
        url,
        "INSERT INTO shadow.slots VALUES ('standby', NULL, NULL, false, pg_current_xact_id()::xid),"
        " ('streaming', NULL, NULL, true, NULL)",
    )
    let_transactions_pass(url)
    found = await oldest(shadowed)
    assert found is not None
    assert found.transactions >= 3
    assert (found.source, found.name, found.state, found.seconds) == (
        ("slot", "standby", "inactive", None)
    )
