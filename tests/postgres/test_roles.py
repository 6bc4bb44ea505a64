"""The grants that docs/operations.md gives are enough, and no more than that."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from psycopg.conninfo import make_conninfo

from hastetrio import AsyncJobWorker, AsyncJobWorkerConfig, job_handler
from hastetrio._context import JobContext
from hastetrio._errors import ProviderUnavailable
from hastetrio._model import JobOutput
from hastetrio._provider import WatchRestored
from hastetrio.postgres import PostgresJobProvider

from .harness import KIND, PROJECT, TENANT, insert, kick_off, run, statuses, until, value
from .test_migrations import ADOPTABLE, NAMES

DOCUMENT = Path(__file__).parents[2] / "docs" / "operations.md"


class Roles:
    """The document's statements for one database, and how to connect as its roles."""

    def __init__(self, url: str) -> None:
        self.url = url
        section = DOCUMENT.read_text().split("## Roles and grants")[1].split("\n## ")[0]
        database = str(value(url, "SELECT current_database()"))
        self._names = {
            "hastetrio_migrating": f"migrating_{os.getpid()}",
            "hastetrio_working": f"working_{os.getpid()}",
            "TO haste;": f"TO haste_{os.getpid()};",
            "DATABASE jobs": f"DATABASE {database}",
        }
        blocks = re.findall(r"```sql\n(.*?)```", section, re.DOTALL)
        self.migrating_sql, self.adopting_sql, self.working_sql = map(self._own, blocks)
        self.migrating = self._as("hastetrio_migrating")
        self.working = self._as("hastetrio_working")

    def _own(self, text: str) -> str:
        for name, own in self._names.items():
            text = text.replace(name, own)
        return text

    def _as(self, role: str) -> str:
        # The tests' server trusts who is there; one that does not is asked by its owner.
        return make_conninfo(self.url, options=f"-c role={self._names[role]}")

    def drop(self) -> None:
        """Remove the roles and what they own."""
        for kind in ("migrating", "working", "haste"):
            name = f"{kind}_{os.getpid()}"
            if run(self.url, "SELECT 1 FROM pg_roles WHERE rolname = %s", [name]):
                run(self.url, f"DROP OWNED BY {name} CASCADE")
                run(self.url, f"DROP ROLE {name}")


@pytest.fixture
def roles(empty_database_url: str) -> Iterator[Roles]:
    """An empty database where nobody may do anything by default."""
    run(empty_database_url, "REVOKE ALL ON SCHEMA public FROM PUBLIC")
    roles = Roles(empty_database_url)
    try:
        yield roles
    finally:
        roles.drop()


@job_handler(KIND)
async def work(context: JobContext) -> JobOutput:
    """Reports once, and goes on until it is cancelled or, by its parameters, completes."""
    context.report("on its way")
    if context.job.parameters.get("wait"):
        await trio.sleep_forever()
    return JobOutput.json({})


async def test_the_working_role_runs_a_whole_worker_cycle_and_changes_no_table(
    roles: Roles,
) -> None:
    """Create, claim, renew, finish, cancel, sweep, listen and look, with only those grants."""
    run(roles.url, roles.migrating_sql)
    async with PostgresJobProvider.open(roles.migrating) as provider:
        assert await provider.migrate() == NAMES
    run(roles.url, roles.working_sql)
    assert value(roles.working, "SELECT current_user::text").startswith("working_")

    async with PostgresJobProvider.open(roles.working) as provider:
        await provider.check_schema()
        assert await provider.pending_migrations() == []
        async with provider.watch([KIND]) as events:
            assert await events.receive() == WatchRestored()
        config = AsyncJobWorkerConfig(lease_duration=0.9, maintenance_interval=0.1)
        worker = AsyncJobWorker(provider, [work], config)
        expired = insert(roles.working, expires_at="now() - interval '1 minute'")
        orphan = insert(roles.working, "orphan", expires_at="now() - interval '8 days'")
        abandoned = insert(
            roles.working,
            status="'in-progress'",
            attempts="3",
            locked_by="'x'",
            lease_expires_at="now() - interval '1 minute'",
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(worker.run)
            short = await provider.create_job(TENANT, PROJECT, kick_off(), live_limit=10)
            (long,) = await provider.create_jobs(
                TENANT, PROJECT, [kick_off(parameters={"wait": True})]
            )
            await until(lambda: statuses(roles.url, [short.id]) == ["completed"])
            await until(lambda: statuses(roles.url, [abandoned]) == ["failed"])
            await until(lambda: statuses(roles.url, [expired, orphan]) == ["gone", "gone"])
            progress = "SELECT progress FROM async_jobs WHERE id = %s"
            await until(lambda: value(roles.url, progress, [long.id]) == "on its way")
            assert (await provider.overview()).holders
            assert await provider.count_live_jobs(TENANT, PROJECT) == 1
            assert await provider.cancel_job(TENANT, PROJECT, long.id) is not None
            # Cancelled, it has expired: swept as soon as its handler has let go.
            await until(lambda: statuses(roles.url, [long.id]) == ["gone"])
            assert len(await provider.list_jobs(TENANT, PROJECT)) == 2
            worker.stop()
        totals = worker.statistics().totals
        assert (totals.claims_failed, totals.renewals_failed, totals.unrecorded) == (0, 0, 0)

        with pytest.raises(ProviderUnavailable, match="permission denied"):
            await provider._claims.fetch(
                "INSERT INTO hastetrio_migrations VALUES (2, '', true)", {}
            )
    for statement in (
        "DROP TABLE async_jobs",
        "ALTER TABLE async_jobs ADD COLUMN more int",
        "TRUNCATE async_jobs",
        "CREATE TABLE more (n int)",
        "DELETE FROM hastetrio_migrations",
    ):
        with pytest.raises(Exception, match=r"permission denied|must be owner"):
            run(roles.working, statement)


async def test_a_migrating_role_adopts_the_table_it_was_given(roles: Roles) -> None:
    """Without owning the table it is refused in one line; given it, it migrates."""
    run(roles.url, ADOPTABLE)
    run(roles.url, f"CREATE ROLE haste_{os.getpid()}")
    run(roles.url, roles.migrating_sql)
    async with PostgresJobProvider.open(roles.migrating) as provider:
        with pytest.raises(
            ProviderUnavailable, match="must be owner of table async_jobs"
        ) as caught:
            await provider.migrate()
        assert "\n" not in str(caught.value)
        run(roles.url, roles.adopting_sql)
        assert await provider.migrate() == NAMES


async def test_a_role_without_rights_is_told_so_in_one_line(roles: Roles) -> None:
    """A database that may not be touched is no reason to migrate it, and no crash."""
    run(roles.url, roles.migrating_sql)
    async with PostgresJobProvider.open(roles.migrating) as provider:
        await provider.migrate()
    run(roles.url, roles.working_sql)
    run(roles.url, f"REVOKE ALL ON async_jobs FROM working_{os.getpid()}")
    async with PostgresJobProvider.open(roles.working) as provider:
        with pytest.raises(ProviderUnavailable, match="permission denied for table async_jobs"):
            await provider.count_live_jobs(TENANT, PROJECT)
