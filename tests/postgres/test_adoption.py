"""A table that a Haste server made, with rows in every state, some of them broken."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from hastetrio._model import JobLease, JobResult
from hastetrio._outcome import abandoned_outcome
from hastetrio.postgres import PostgresJobProvider

from .harness import KIND, PROJECT, TENANT, insert, kick_off, new_lease, run, statuses
from .test_migrations import ADOPTABLE, NAMES

# Rows in order, and rows that break each of the checks, by hand or by a bug of somebody's.
SOUND = {
    "queued": {},
    "running": {
        "status": "'in-progress'",
        "attempts": "1",
        "locked_by": "'haste-1'",
        "lease_expires_at": "now() + interval '1 minute'",
    },
    "lapsed": {
        "status": "'in-progress'",
        "attempts": "1",
        "locked_by": "'haste-1'",
        "lease_expires_at": "now() - interval '1 minute'",
    },
    "completed": {"status": "'completed'", "output": "'{}'", "attempts": "1"},
    "failed": {"status": "'failed'", "error": "'{}'", "attempts": "3"},
    "cancelled": {"status": "'cancelled'", "expires_at": "now()"},
}
BROKEN = {
    "queued without attempts": {"attempts": "3"},
    "queued but held": {
        "locked_by": "'x'",
        "lease_expires_at": "now() - interval '1 minute'",
    },
    "queued with an output": {"output": "'{}'"},
    "queued with half a lock": {"locked_by": "'x'"},
    "queued with a negative limit": {"max_attempts": "-1"},
    "queued with negative attempts": {"attempts": "-2"},
    "running unheld": {"status": "'in-progress'", "attempts": "1"},
    "running with half a lock": {
        "status": "'in-progress'",
        "attempts": "1",
        "lease_expires_at": "now() - interval '1 minute'",
    },
    "lapsed beyond its attempts": {
        "status": "'in-progress'",
        "attempts": "7",
        "locked_by": "'x'",
        "lease_expires_at": "now() - interval '1 minute'",
    },
    "lapsed with a negative limit": {
        "status": "'in-progress'",
        "attempts": "1",
        "max_attempts": "-1",
        "locked_by": "'x'",
        "lease_expires_at": "now() - interval '1 minute'",
    },
    "completed beyond its attempts": {"status": "'completed'", "attempts": "4"},
    "failed with an output": {"status": "'failed'", "output": "'{}'"},
    "cancelled with an output": {"status": "'cancelled'", "output": "'{}'"},
    "cancelled with half a lock": {"status": "'cancelled'", "locked_by": "'x'"},
}


@pytest.fixture
def adopted_url(schema_url: str) -> str:
    """A Haste server's table, filled but not migrated."""
    run(schema_url, ADOPTABLE)
    for number, (id, columns) in enumerate((SOUND | BROKEN).items()):
        # The broken ones are the oldest: whatever trips over them trips at once.
        age = number if id in SOUND else 1000 - number
        insert(
            schema_url,
            id=f"'{id}'",
            created_at=f"now() - interval '{age} seconds'",
            **columns,
        )
    return schema_url


@pytest.fixture
async def adopted(adopted_url: str) -> AsyncIterator[PostgresJobProvider]:
    """A provider on the adopted table."""
    async with PostgresJobProvider.open(adopted_url) as provider:
        await provider.migrate()
        yield provider


async def test_adoption_changes_no_row_and_names_the_checks_they_break(
    adopted_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Every old row stays as it was; a check that one breaks holds for new rows, with a warning."""
    columns = run(
        adopted_url,
        "SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute"
        " WHERE attrelid = 'async_jobs'::regclass AND attnum > 0",
    )[0][0]
    before = run(adopted_url, f"SELECT {columns}, xmin FROM async_jobs ORDER BY id")  # noqa: S608
    async with PostgresJobProvider.open(adopted_url) as provider:
        assert await provider.migrate() == NAMES
        await provider.check_schema()
    assert run(adopted_url, f"SELECT {columns}, xmin FROM async_jobs ORDER BY id") == before  # noqa: S608
    unvalidated = {
        name
        for (name,) in run(
            adopted_url,
            "SELECT conname FROM pg_constraint"
            " WHERE conrelid = 'async_jobs'::regclass AND NOT convalidated",
        )
    }
    assert unvalidated == {
        "async_jobs_lock_whole",
        "async_jobs_running_is_held",
        "async_jobs_queued_is_free",
        "async_jobs_attempts_in_range",
        "async_jobs_output_when_completed",
    }
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == len(unvalidated)
    assert all(any(name in line for line in warnings) for name in unvalidated)
    # The rows of a broken check may hold anything: their values stay out of the log.
    assert not any("acme" in line for line in warnings)


async def test_adoption_without_broken_rows_checks_all_of_them(
    adopted_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Where every old row is in order, every check is valid afterwards, without a word."""
    run(adopted_url, "DELETE FROM async_jobs WHERE id = ANY (%s)", [list(BROKEN)])
    async with PostgresJobProvider.open(adopted_url) as provider:
        await provider.migrate()
    rows = run(adopted_url, "SELECT 1 FROM pg_constraint WHERE NOT convalidated")
    assert (rows, caplog.records) == ([], [])


async def test_broken_rows_do_not_keep_sound_ones_from_being_claimed(
    adopted: PostgresJobProvider, adopted_url: str
) -> None:
    """A claim takes what can be run and steps over what cannot; none of it is stopped."""
    new = await adopted.create_job(TENANT, PROJECT, kick_off())
    taken: list[str] = []
    for _ in range(6):
        lease = new_lease()
        jobs = await adopted.claim_jobs([KIND], lease, 4)
        for job in jobs:
            assert await adopted.finish_job(job.id, lease, JobResult.completed({}), 60)
        taken += [job.id for job in jobs]
    assert {"queued", "lapsed", new.id} <= set(taken)
    assert set(taken) - {"queued", "lapsed", new.id} <= {
        "queued but held",
        "queued with an output",
        "queued with half a lock",
        "running with half a lock",
    }
    assert set(statuses(adopted_url, taken)) == {"completed"}


async def test_broken_rows_do_not_keep_abandoned_ones_from_being_failed(
    adopted: PostgresJobProvider, adopted_url: str
) -> None:
    """The sweep fails what lapsed on its last attempt, however many attempts a row claims."""
    run(adopted_url, "UPDATE async_jobs SET attempts = 3 WHERE id = 'lapsed'")
    await adopted.fail_abandoned_jobs(abandoned_outcome(), 60, 100)
    abandoned = ["lapsed", "lapsed beyond its attempts", "lapsed with a negative limit"]
    assert statuses(adopted_url, abandoned) == ["failed"] * 3


async def test_broken_rows_expire_like_all_others(
    adopted: PostgresJobProvider, adopted_url: str
) -> None:
    """Past its expiry every old row is cleaned up and removed, and holds up no other."""
    # As time passes, no check is run; an UPDATE here would run them all.
    run(adopted_url, "ALTER TABLE async_jobs DISABLE TRIGGER USER")
    definitions = run(
        adopted_url,
        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE conrelid = 'async_jobs'::regclass AND contype = 'c'",
    )
    for name, _ in definitions:
        run(adopted_url, f"ALTER TABLE async_jobs DROP CONSTRAINT {name}")
    run(
        adopted_url,
        "UPDATE async_jobs SET expires_at = now() - interval '1 minute',"
        " lease_expires_at = lease_expires_at - interval '1 hour'",
    )
    for name, definition in definitions:
        text = definition.removesuffix(" NOT VALID")
        run(adopted_url, f"ALTER TABLE async_jobs ADD CONSTRAINT {name} {text} NOT VALID")
    removed: list[str] = []
    for _ in range(len(SOUND | BROKEN)):
        lease = new_lease()
        for job in await adopted.claim_expired_jobs([KIND], lease, 4):
            assert await adopted.delete_expired_job(job.id, lease)
            removed.append(job.id)
    assert sorted(removed) == sorted(SOUND | BROKEN)
    assert run(adopted_url, "SELECT id FROM async_jobs") == []


async def test_the_backlog_of_a_haste_server_keeps_its_order(
    adopted_url: str,
) -> None:
    """What the server queued is claimed oldest first, and before what is queued after that."""
    run(adopted_url, "DELETE FROM async_jobs")
    ages = [5, 100, 20, 3000]
    ids = {age: insert(adopted_url, created_at=f"now() - interval '{age} seconds'") for age in ages}
    async with PostgresJobProvider.open(adopted_url) as provider:
        await provider.migrate()
        # The server goes on, and says when it made a row, by a clock of its own.
        late = insert(adopted_url, created_at="now() - interval '1 hour'")
        new = await provider.create_job(TENANT, PROJECT, kick_off())
        claimed = await provider.claim_jobs([KIND], new_lease(), 10)
    oldest_first = [ids[age] for age in sorted(ages, reverse=True)]
    assert [job.id for job in claimed] == [*oldest_first, late, new.id]


async def test_an_old_row_can_be_run_again_later(
    adopted: PostgresJobProvider, adopted_url: str
) -> None:
    """Whatever is wrong with other rows, what was claimed can wait, for the worker's retention."""
    lease = new_lease()
    claimed = [job.id for job in await adopted.claim_jobs([KIND], lease, 100)]
    assert "queued" in claimed
    assert "lapsed" in claimed
    for id in claimed:
        assert await adopted.save_state(id, lease, '{"page": 1}')
        assert await adopted.reschedule_job(
            id, lease, 7 * 86400, give_back=False, retention=60, failure='["no"]'
        )
    assert set(statuses(adopted_url, claimed)) <= {"accepted", "failed"}
    rows = run(
        adopted_url,
        "SELECT expires_at - run_at, attempt_errors -> 0 -> 'errors' FROM async_jobs"
        " WHERE id = ANY (%s)",
        [claimed],
    )
    assert {(kept.total_seconds(), *errors) for kept, errors in rows} == {(60.0, "no")}


async def test_every_old_row_can_be_cancelled(
    adopted: PostgresJobProvider, adopted_url: str
) -> None:
    """A client may cancel any job that has not expired, in whatever shape its row is."""
    for id in SOUND | BROKEN:
        cancelled = await adopted.cancel_job(TENANT, PROJECT, id)
        assert (cancelled is None) == id.startswith("cancelled")
        assert statuses(adopted_url, [id]) == ["cancelled"]


async def test_a_haste_server_goes_on_working_beside_us(
    adopted: PostgresJobProvider, adopted_url: str
) -> None:
    """Rows that the server inserts after the adoption wake us, and foreign keys still hold."""
    lease = JobLease("worker-1", 60)
    async with adopted.watch(["server-made"]) as events:
        await events.receive()
        id = insert(adopted_url, "server-made")
        await events.receive()
    assert [job.id for job in await adopted.claim_jobs(["server-made"], lease, 9)] == [id]
