"""Brings the database's tables up to date, and says whether this program can work with them.

The migrations are `sql/migrations/*.sql`, applied in order, each once and in one transaction.
Each says on its first line whether a program that does not know it can go on working:
`-- compatible: additive` or `-- compatible: breaking`.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs
import psycopg
from psycopg import errors

from hastetrio._errors import ProviderUnavailable, SchemaError
from hastetrio._model import AsyncJobStatus
from hastetrio._sql import migrations, query
from hastetrio.postgres._unit import one_line, open_session, translate, unit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from hastetrio.postgres._connection import TrioConnection

_log = logging.getLogger("hastetrio.postgres")

# A migration waits for locks and may build an index over a large table.
_BUDGET: Final = 600.0
_CONNECT_BUDGET: Final = 5.0


@attrs.frozen
class _Applied:
    version: int
    name: str
    breaking: bool


async def migrate(dsn: str, lock_timeout: float) -> list[str]:
    """Apply the migrations the database lacks; see `PostgresJobProvider.migrate`."""
    applied: list[str] = []
    async with _session(dsn) as connection:
        await connection.execute(
            "SELECT set_config('statement_timeout', '0', false),"
            " set_config('lock_timeout', %s, false)",
            [f"{lock_timeout * 1000:.0f}"],
        )
        try:
            async with connection.transaction():
                # One migration at a time; a second one then finds nothing left to do.
                await connection.execute(query("lock_schema"))
                await connection.execute(query("create_migrations"))
                for version, name, text in await _missing(connection):
                    if version == 1:
                        await _check_adoption(connection)
                    await connection.execute(text.encode())
                    await connection.execute(
                        query("record_migration"),
                        {"version": version, "name": name, "breaking": _is_breaking(text)},
                    )
                    applied.append(name)
        except errors.LockNotAvailable:
            raise ProviderUnavailable(
                f"a lock was not had within {lock_timeout:g} s, and nothing was changed: "
                "try again when the database is quieter, or with a longer lock timeout"
            ) from None
        if applied:
            await _validate(connection)
    return applied


async def pending(dsn: str) -> list[str]:
    """The names of the migrations the database lacks."""
    async with _session(dsn) as connection:
        return [name for _, name, _ in await _missing(connection)]


async def script(dsn: str) -> str:
    """The SQL that `migrate` would run."""
    async with _session(dsn) as connection:
        missing = await _missing(connection)
    if not missing:
        return ""
    parts = ["BEGIN;"]
    parts += [query(name).strip() + ";" for name in ("lock_schema", "create_migrations")]
    for version, name, text in missing:
        breaking = str(_is_breaking(text)).lower()
        parts.append(text.strip())
        parts.append(
            "INSERT INTO hastetrio_migrations (version, name, breaking) "  # noqa: S608
            f"VALUES ({version}, '{name}', {breaking});"
        )
    parts.append("COMMIT;")
    parts.append(query("validate_checks").strip() + ";")
    return "\n\n".join(parts) + "\n"


async def check(dsn: str, *, warn: bool = True) -> None:
    """Check that this program can work with the tables; see `PostgresJobProvider.check_schema`."""
    async with _session(dsn) as connection:
        if missing := await _missing(connection, warn=warn):
            names = ", ".join(name for _, name, _ in missing)
            raise SchemaError(
                f"the database's tables are not up to date (missing: {names}): "
                "run `hastetrio migrate`"
            )


async def _missing(connection: TrioConnection, *, warn: bool = True) -> list[tuple[int, str, str]]:
    known = [(int(name[:4]), name, text) for name, text in migrations()]
    applied = await _applied(connection)
    newest = known[-1][0]
    for entry in applied:
        if entry.version > newest and entry.breaking:
            raise SchemaError(
                f"the database was migrated by a newer hastetrio ({entry.name}), and this one "
                "cannot work with it: upgrade this program"
            )
    newer = [entry.name for entry in applied if entry.version > newest]
    if newer and warn:
        _log.warning(
            "The database was migrated by a newer hastetrio (%s); going on, since that only adds",
            ", ".join(newer),
        )
    versions = {entry.version for entry in applied}
    return [entry for entry in known if entry[0] not in versions]


async def _applied(connection: TrioConnection) -> list[_Applied]:
    try:
        async with connection.transaction():
            cursor = await connection.execute(query("read_migrations"))
            return [_Applied(*row) for row in await cursor.fetchall()]
    except errors.UndefinedTable:
        return []


def _is_breaking(text: str) -> bool:
    return text.splitlines()[0].strip() == "-- compatible: breaking"


# What a Haste server's table must be like to be adopted: its columns and their types.
_TEXT: Final = frozenset({"text", "varchar", "bpchar"})
_JSON: Final = frozenset({"jsonb"})
_TIME: Final = frozenset({"timestamptz"})
_COUNT: Final = frozenset({"int4"})
_ADOPTABLE: Final[dict[str, frozenset[str]]] = {
    **dict.fromkeys(("id", "tenant", "project", "kind", "request", "submitted_by"), _TEXT),
    **dict.fromkeys(("progress", "output_content_type", "locked_by"), _TEXT),
    **dict.fromkeys(("parameters", "claims", "output", "error"), _JSON),
    **dict.fromkeys(("attempts", "max_attempts"), _COUNT),
    **dict.fromkeys(("lease_expires_at", "created_at", "updated_at", "started_at"), _TIME),
    **dict.fromkeys(("finished_at", "expires_at"), _TIME),
    "status": frozenset({"async_job_status"}),
}

# Differences that one error names.
_MOST_NAMED: Final = 3


async def _check_adoption(connection: TrioConnection) -> None:
    """Refuse a table `async_jobs` that is not a Haste server's; nothing to check without one."""
    cursor = await connection.execute(query("read_columns"))
    found: dict[str, Any] = dict(await cursor.fetchall())
    if not found:
        return
    wrong = [
        f"{name} is {found.get(name, 'missing')}, not {' or '.join(sorted(types))}"
        for name, types in _ADOPTABLE.items()
        if found.get(name) not in types
    ]
    cursor = await connection.execute(query("read_labels"))
    labels = {label for (label,) in await cursor.fetchall()}
    if missing := [status.value for status in AsyncJobStatus if status.value not in labels]:
        wrong.append(f"async_job_status lacks {', '.join(missing)}")
    if len(wrong) > _MOST_NAMED:
        wrong[_MOST_NAMED:] = [f"and {len(wrong) - _MOST_NAMED} more"]
    if wrong:
        raise SchemaError(
            f"there is a table async_jobs that is no Haste server's ({'; '.join(wrong)}): "
            "give hastetrio a schema of its own by the search_path, or rename that table"
        )


async def _validate(connection: TrioConnection) -> None:
    """Check the old rows of an adopted table; what they break stays unchecked, and is named."""
    cursor = await connection.execute(query("read_unvalidated"))
    for (name,) in await cursor.fetchall():
        try:
            await connection.execute(f'ALTER TABLE async_jobs VALIDATE CONSTRAINT "{name}"')
        except errors.CheckViolation as error:
            _log.warning(
                "Some older rows of async_jobs break %s, which holds for new rows only: %s",
                name,
                one_line(error),
            )
        except psycopg.Error as error:
            _log.warning(
                "%s holds for new rows; the older ones could not be looked at: %s",
                name,
                one_line(error),
            )


@asynccontextmanager
async def _session(dsn: str) -> AsyncGenerator[TrioConnection]:
    try:
        connection = await open_session(dsn, _CONNECT_BUDGET)
    except psycopg.Error as error:
        raise ProviderUnavailable(f"the database cannot be reached: {one_line(error)}") from None
    try:
        async with unit(connection, _BUDGET):
            yield connection
    except psycopg.Error as error:
        raise translate(error) from error
    finally:
        connection.discard()
