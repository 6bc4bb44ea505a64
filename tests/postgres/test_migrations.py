"""The schema: made once, whoever asks how often, and refused where it is not understood."""

from __future__ import annotations

import logging
import re
from typing import Any

import psycopg
import pytest
import trio

from hastetrio._errors import ProviderUnavailable, SchemaError
from hastetrio._model import JobResult, LeaseRenewal
from hastetrio._sql import migrations
from hastetrio.postgres import PostgresJobProvider

from .harness import KIND, PROJECT, TENANT, insert, kick_off, new_lease, run, value

NAMES = [name for name, _ in migrations()]


async def migrate(url: str, **options: float) -> list[str]:
    """Migrate as the command does."""
    async with PostgresJobProvider.open(url) as provider:
        return await provider.migrate(**options)


# What makes up a schema, in the catalogue's words.
CATALOGUE = (
    """SELECT 'table', relname, relkind::text, array_to_string(reloptions, ' ')
       FROM pg_class WHERE relnamespace = @""",
    """SELECT relname, attname, format_type(atttypid, atttypmod), attnotnull::text,
              pg_get_expr(adbin, adrelid)
       FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
       LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
       WHERE relnamespace = @ AND relkind = 'r' AND attnum > 0""",
    """SELECT 'constraint', conname, pg_get_constraintdef(oid), convalidated::text
       FROM pg_constraint WHERE connamespace = @""",
    "SELECT 'index', indexdef FROM pg_indexes WHERE schemaname = current_schema()",
    """SELECT 'trigger', pg_get_triggerdef(t.oid) FROM pg_trigger t
       JOIN pg_class c ON c.oid = tgrelid WHERE relnamespace = @ AND NOT tgisinternal""",
    "SELECT 'function', proname, prosrc FROM pg_proc WHERE pronamespace = @",
    """SELECT 'enum', typname, enumlabel FROM pg_enum JOIN pg_type t ON t.oid = enumtypid
       WHERE typnamespace = @""",
    "SELECT 'migration', version::text, name, breaking::text FROM hastetrio_migrations",
)


def catalogue(url: str) -> list[tuple[Any, ...]]:
    """All that the migrations make in the first schema of the search path."""
    statements = [text.replace("@", "current_schema()::regnamespace") for text in CATALOGUE]
    schema = value(url, "SELECT current_schema()::text")
    rows = [row for statement in statements for row in run(url, statement)]
    return sorted(
        tuple(str(cell).replace(f"{schema}.", "").replace(f"'{schema}'", "") for cell in row)
        for row in rows
    )


async def test_a_fresh_database_is_migrated_once_and_then_works(schema_url: str) -> None:
    """The first migration applies everything, the second nothing, and a job can be queued."""
    async with PostgresJobProvider.open(schema_url) as provider:
        assert await provider.pending_migrations() == NAMES
        assert await provider.migrate() == NAMES
        first = catalogue(schema_url)
        assert await provider.migrate() == []
        assert await provider.pending_migrations() == []
        assert await provider.migration_script() == ""
        await provider.check_schema()
        await provider.create_job("acme", "main", kick_off())
    assert catalogue(schema_url) == first
    assert all(row[3] == "True" or row[3] == "true" for row in first if row[0] == "constraint")


async def migrate_first(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Migrate as the first release did."""
    from hastetrio.postgres import _migrate

    with monkeypatch.context() as patch:
        patch.setattr(_migrate, "migrations", lambda: migrations()[:1])
        assert await migrate(url) == NAMES[:1]


async def test_a_queue_of_the_first_release_goes_on_in_its_order(
    schema_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row is changed, what waited is claimed oldest first, and then what comes after."""
    await migrate_first(schema_url, monkeypatch)
    ages = [30, 10, 50, 20, 40]
    ids = {age: insert(schema_url, created_at=f"now() - interval '{age} s'") for age in ages}
    insert(schema_url, status="'completed'", output="'{}'", attempts="1")
    columns = run(
        schema_url,
        "SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute"
        " WHERE attrelid = 'async_jobs'::regclass AND attnum > 0",
    )[0][0]
    rows = f"SELECT {columns}, xmin, ctid FROM async_jobs ORDER BY id"  # noqa: S608
    before = run(schema_url, rows)
    assert await migrate(schema_url) == NAMES[1:]
    assert run(schema_url, rows) == before
    async with PostgresJobProvider.open(schema_url) as provider:
        new = await provider.create_job(TENANT, PROJECT, kick_off())
        overdue = insert(schema_url, run_at="now() - interval '1 day'")
        claimed = await provider.claim_jobs([KIND], new_lease(), 10)
    oldest_first = [ids[age] for age in sorted(ages, reverse=True)]
    assert [job.id for job in claimed] == [overdue, *oldest_first, new.id]
    nothing = {(job.unique_key, job.state, job.attempt_errors) for job in claimed}
    assert nothing == {(None, None, None)}


async def test_a_job_that_runs_meanwhile_is_finished_under_its_old_claim(
    schema_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that began before the migration renews and records after it, as does its zombie."""
    await migrate_first(schema_url, monkeypatch)
    lease = new_lease()
    held = {
        "status": "'in-progress'",
        "attempts": "1",
        "locked_by": f"'{lease.token}'",
        "lease_expires_at": "now() + interval '1 minute'",
    }
    done, later, lapsed = (insert(schema_url, **held) for _ in range(3))
    assert await migrate(schema_url) == NAMES[1:]
    async with PostgresJobProvider.open(schema_url) as provider:
        assert await provider.renew_lease(done, lease) is LeaseRenewal.RENEWED
        assert await provider.finish_job(done, lease, JobResult.completed(1), 60)
        assert await provider.reschedule_job(
            later, lease, 0, give_back=False, retention=60, failure='["no"]'
        )
        run(
            schema_url,
            "UPDATE async_jobs SET lease_expires_at = now() - interval '1 s'"
            " WHERE lease_expires_at IS NOT NULL",
        )
        taken = await provider.claim_jobs([KIND], new_lease(), 10)
        assert {job.id for job in taken} == {later, lapsed}
        assert not await provider.finish_job(lapsed, lease, JobResult.completed(1), 60)


async def test_two_migrations_at_once_apply_each_migration_once(schema_url: str) -> None:
    """Several migrations started together wait for one another; one does the work."""
    applied: list[str] = []

    async def one() -> None:
        applied.extend(await migrate(schema_url))

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(one)
    assert applied == NAMES


async def test_a_lock_not_had_in_time_changes_nothing_and_says_so(schema_url: str) -> None:
    """A migration that meets a lock gives up with one clear line, and can be tried again."""
    run(schema_url, ADOPTABLE)
    run(schema_url, "INSERT INTO async_jobs DEFAULT VALUES")
    before = run(schema_url, "SELECT * FROM async_jobs")
    with psycopg.connect(schema_url) as other:
        other.execute("SELECT 1 FROM async_jobs FOR UPDATE")
        with pytest.raises(
            ProviderUnavailable, match=r"lock.* 0\.1 s, and nothing was changed"
        ) as it:
            await migrate(schema_url, lock_timeout=0.1)
    assert "\n" not in str(it.value)
    assert run(schema_url, "SELECT * FROM async_jobs") == before
    assert value(schema_url, "SELECT to_regclass('hastetrio_migrations')") is None
    assert await migrate(schema_url) == NAMES


async def test_a_lock_held_while_old_rows_are_checked_is_not_blamed_on_the_rows(
    schema_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checking old rows needs a lock too; a warning about it does not call good rows bad."""
    from hastetrio.postgres import _migrate

    async with PostgresJobProvider.open(schema_url) as provider:
        await provider.migrate()
        run(
            schema_url,
            "ALTER TABLE async_jobs DROP CONSTRAINT async_jobs_lock_whole, ADD CONSTRAINT"
            " async_jobs_lock_whole CHECK (locked_by IS NOT NULL OR true) NOT VALID",
        )
        with psycopg.connect(schema_url) as other:
            other.execute("LOCK TABLE async_jobs IN SHARE ROW EXCLUSIVE MODE")
            async with _migrate._session(schema_url) as connection:
                await connection.execute("SET lock_timeout = 100")
                await _migrate._validate(connection)
    (record,) = caplog.records
    assert "break" not in record.getMessage()
    assert "async_jobs_lock_whole" in record.getMessage()


async def test_the_script_makes_the_same_schema_as_the_migration(
    schema_url: str, shared_database: str
) -> None:
    """What `migrate --sql` prints, run by hand, leaves the database as `migrate` does."""
    async with PostgresJobProvider.open(schema_url) as provider:
        script = await provider.migration_script()
        run(schema_url, script)
        assert await provider.migrate() == []
        await provider.check_schema()
        await provider.create_job("acme", "main", kick_off())
    assert catalogue(schema_url) == catalogue(shared_database)


async def test_an_empty_database_is_told_to_be_migrated(schema_url: str) -> None:
    """Without tables, the check and every call say which command to run."""
    async with PostgresJobProvider.open(schema_url) as provider:
        for call in (
            provider.check_schema(),
            provider.create_job("acme", "main", kick_off()),
            provider.count_live_jobs("acme", "main"),
        ):
            with pytest.raises(SchemaError, match="run `hastetrio migrate`") as caught:
                await call
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize("breaking", [False, True])
async def test_a_newer_schema_is_accepted_if_it_only_adds(
    schema_url: str, caplog: pytest.LogCaptureFixture, breaking: bool
) -> None:
    """A schema from the future is used with a warning if additive, refused by name if breaking."""
    async with PostgresJobProvider.open(schema_url) as provider:
        await provider.migrate()
        run(
            schema_url,
            "INSERT INTO hastetrio_migrations VALUES (9999, '9999_from_the_future', %s)",
            [breaking],
        )
        if breaking:
            for call in (provider.check_schema(), provider.migrate()):
                with pytest.raises(SchemaError, match=r"9999_from_the_future.*upgrade this"):
                    await call
        else:
            await provider.check_schema()
            assert "9999_from_the_future" in caplog.text
            assert {record.levelno for record in caplog.records} == {logging.WARNING}
            assert await provider.migrate() == []


async def test_a_database_in_progress_of_another_version_is_named(schema_url: str) -> None:
    """A missing migration is named by the check."""
    async with PostgresJobProvider.open(schema_url) as provider:
        await provider.migrate()
        run(schema_url, "DELETE FROM hastetrio_migrations")
        with pytest.raises(SchemaError, match=re.escape(NAMES[0])):
            await provider.check_schema()


async def test_migrations_may_be_run_again_over_their_own_work(schema_url: str) -> None:
    """A schema whose record of migrations was lost is migrated again to the same schema."""
    await migrate(schema_url)
    before = catalogue(schema_url)
    run(schema_url, "DELETE FROM hastetrio_migrations")
    await migrate(schema_url)
    assert catalogue(schema_url) == before


async def test_by_hand_tenant_project_and_kind_are_enough(url: str) -> None:
    """A row that names three columns is a whole job, with an id like any other."""
    run(
        url,
        "INSERT INTO async_jobs (tenant, project, kind)"
        " SELECT 'acme', 'main', 'work' FROM generate_series(1, 200)",
    )
    ids = [id for (id,) in run(url, "SELECT id FROM async_jobs")]
    assert len(set(ids)) == 200
    assert all(re.fullmatch(r"[0-9a-z][0-9a-z-]{25}", id) for id in ids)
    # Random in every place, or nearly so: 200 draws of 36 characters.
    assert all(len({id[place] for id in ids}) > 20 for place in range(26))
    async with PostgresJobProvider.open(url) as provider:
        job = await provider.read_job("acme", "main", ids[0])
    assert job is not None
    assert (job.attempts, job.max_attempts, job.parameters, job.claims) == (0, 3, {}, {})
    assert (job.expires_at - job.created_at).total_seconds() == 86400
    assert job.run_at == job.created_at
    assert (job.unique_key, job.state, job.attempt_errors) == (None, None, None)


async def test_a_server_that_knows_only_the_22_columns_inserts_unchanged(url: str) -> None:
    """A row of a Haste server, naming its own 22 columns, is claimed and read like any other."""
    run(
        url,
        """
        INSERT INTO async_jobs (id, tenant, project, kind, status, request, parameters, claims,
          submitted_by, progress, output, output_content_type, error, attempts, max_attempts,
          locked_by, lease_expires_at, created_at, updated_at, started_at, finished_at, expires_at)
        VALUES ('-Server made/1', 'acme', 'main', 'work', 'accepted', 'https://x/$export',
          '{"a": 1}', '{"sub": "ann"}', 'ann', NULL, NULL, NULL, NULL, 0, 5, NULL, NULL, now(),
          now(), NULL, NULL, now() + interval '1 hour')
        """,
    )
    async with PostgresJobProvider.open(url) as provider:
        job = await provider.read_job("acme", "main", "-Server made/1")
        claimed = await provider.claim_jobs([KIND], new_lease(), 10)
    assert job is not None
    assert [one.id for one in claimed] == [job.id]
    assert job.run_at == job.created_at
    assert (job.max_attempts, job.request, job.hand_backs) == (5, "https://x/$export", 0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("DROP COLUMN claims", "claims is missing"),
        ("ALTER COLUMN parameters TYPE text", "parameters is text"),
        ("ALTER COLUMN status TYPE text", "status is text"),
        ("ALTER COLUMN attempts TYPE bigint", "attempts is int8"),
        ("ALTER COLUMN expires_at TYPE timestamp", "expires_at is timestamp"),
    ],
)
async def test_a_table_of_somebody_elses_is_refused_by_name(
    schema_url: str, change: str, named: str
) -> None:
    """A table that only bears the name is left alone, and the error says what is different."""
    run(schema_url, ADOPTABLE)
    run(schema_url, f"ALTER TABLE async_jobs {change}")
    before = run(schema_url, "SELECT relname FROM pg_class ORDER BY relname")
    with pytest.raises(SchemaError, match=named) as caught:
        await migrate(schema_url)
    assert "search_path" in str(caught.value)
    assert run(schema_url, "SELECT relname FROM pg_class ORDER BY relname") == before


async def test_an_enum_with_other_labels_is_refused_by_name(schema_url: str) -> None:
    """A status type that lacks a label is named, not met as a failing statement."""
    run(schema_url, ADOPTABLE.replace("'in-progress'", "'in_progress'"))
    with pytest.raises(SchemaError, match="in-progress"):
        await migrate(schema_url)


async def test_a_schema_of_ones_own_is_the_way_around_another_table(schema_url: str) -> None:
    """What the refusal advises works: another table of that name lies in another schema."""
    schema = value(schema_url, "SELECT current_schema()::text")
    run(schema_url, "CREATE TABLE async_jobs (id int)")
    run(schema_url, f"CREATE SCHEMA {schema}_own")
    try:
        own = psycopg.conninfo.make_conninfo(
            schema_url, options=f"-c search_path={schema}_own,{schema}"
        )
        assert await migrate(own) == NAMES
        async with PostgresJobProvider.open(own) as provider:
            await provider.create_job("acme", "main", kick_off())
    finally:
        run(schema_url, f"DROP SCHEMA {schema}_own CASCADE")


def test_migrations_are_numbered_and_say_what_they_break() -> None:
    """Numbers rise one by one from 1, and each first line says whether it only adds."""
    assert [int(name[:4]) for name in NAMES] == list(range(1, len(NAMES) + 1))
    for _, text in migrations():
        assert text.splitlines()[0] in ("-- compatible: additive", "-- compatible: breaking")


ADOPTABLE = """
CREATE TYPE async_job_status AS ENUM
  ('accepted', 'in-progress', 'completed', 'failed', 'cancelled');
CREATE TABLE tenants (id text PRIMARY KEY);
CREATE TABLE projects (tenant text REFERENCES tenants, id text, PRIMARY KEY (tenant, id));
INSERT INTO tenants VALUES ('acme');
INSERT INTO projects VALUES ('acme', 'main');
CREATE TABLE async_jobs (
  id text PRIMARY KEY DEFAULT gen_random_uuid()::text,
  tenant text NOT NULL DEFAULT 'acme' REFERENCES tenants,
  project text NOT NULL DEFAULT 'main',
  kind text NOT NULL DEFAULT 'work',
  status async_job_status NOT NULL DEFAULT 'accepted',
  request text NOT NULL DEFAULT '',
  parameters jsonb NOT NULL DEFAULT '{}',
  claims jsonb NOT NULL DEFAULT '{}',
  submitted_by text NOT NULL DEFAULT 'ann',
  progress text,
  output jsonb,
  output_content_type text,
  error jsonb,
  attempts integer NOT NULL DEFAULT 0,
  max_attempts integer NOT NULL DEFAULT 3,
  locked_by text,
  lease_expires_at timestamptz,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  started_at timestamptz,
  finished_at timestamptz,
  expires_at timestamptz NOT NULL DEFAULT now() + interval '1 day',
  FOREIGN KEY (tenant, project) REFERENCES projects (tenant, id)
);
CREATE INDEX async_jobs_claim_idx ON async_jobs (kind, status, created_at);
"""
"""The table as a Haste server makes it; with defaults, for the sake of short tests."""
