"""From settings to an open provider: a given database, or the embedded one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from hastetrio._settings import Settings

if TYPE_CHECKING:
    from hastetrio.postgres import PostgresJobProvider

_Result = TypeVar("_Result")


def run(
    settings: Settings,
    work: Callable[[PostgresJobProvider], Awaitable[_Result]],
    *,
    schema: bool = True,
) -> _Result:
    """Open a provider, and run `work` with it under trio.

    Args:
        settings: Where the database is.
        work: What to do with the provider.
        schema: Whether the tables must be there, as this program knows them.

    Raises:
        ConfigError: No database was named, or its URL cannot be understood.
        ProviderUnavailable: The database cannot be reached.
        SchemaError: `schema`, and the tables are missing or of another version.
    """
    settings.check_database()
    import trio

    async def main() -> _Result:
        async with open_provider(settings, schema=schema) as provider:
            return await work(provider)

    return trio.run(main)


@asynccontextmanager
async def open_provider(
    settings: Settings, *, schema: bool = True, call_budget: float = 5.0
) -> AsyncIterator[PostgresJobProvider]:
    """A provider on the database that the settings name.

    Args:
        settings: Where the database is.
        schema: Whether the tables must be there, as this program knows them.
        call_budget: The longest one database call may take, seconds.

    Raises:
        ConfigError, ProviderUnavailable, SchemaError: As for `run`.

    Cancellation: starting the embedded server is waited for; then everything is closed.
    """
    async with (
        open_database(settings) as dsn,
        provider_on(dsn, settings, schema=schema, call_budget=call_budget) as provider,
    ):
        yield provider


@asynccontextmanager
async def provider_on(
    dsn: str,
    settings: Settings,
    *,
    schema: bool = True,
    call_budget: float = 5.0,
    client_connections: int = 1,
) -> AsyncIterator[PostgresJobProvider]:
    """A provider on the database at `dsn`, which is the one that the settings name.

    The embedded database is this program's own, so its tables are made or updated on use. A given
    one is never changed unasked.

    Args:
        dsn: Where the database is.
        settings: How to use it.
        schema: Whether the tables must be there, as this program knows them.
        call_budget: The longest one database call may take, seconds.
        client_connections: The most connections for clients' calls.

    Raises:
        ProviderUnavailable, SchemaError: As for `run`.
    """
    from hastetrio.postgres import PostgresJobProvider

    async with PostgresJobProvider.open(
        dsn,
        call_budget=call_budget,
        prepared_statements=settings.prepared_statements,
        parameters_limit=settings.parameters_limit,
        claims_limit=settings.claims_limit,
        client_connections=client_connections,
        transaction_connections=settings.transaction_connections,
    ) as provider:
        if schema and settings.embedded:
            await provider.migrate()
        elif schema:
            await provider.check_schema()
        yield provider


def database_name(settings: Settings) -> str:
    """What to call the database in a log line; never with a password."""
    from hastetrio.postgres import display_dsn

    if settings.database_url is not None:
        return display_dsn(settings.database_url)
    where = "" if settings.data_dir is None else f" in {settings.data_dir}"
    return f"the embedded PostgreSQL{where}"


@asynccontextmanager
async def open_database(settings: Settings) -> AsyncIterator[str]:
    """Where the database is that the settings name; the embedded one runs while the block lasts.

    Raises:
        ConfigError: No database was named, or its URL cannot be understood.

    Cancellation: starting the embedded server is waited for; then it is left again.
    """
    settings.check_database()
    if not settings.embedded:
        assert settings.database_url is not None  # noqa: S101  # check_database
        from hastetrio.postgres import check_dsn

        yield check_dsn(settings.database_url)
        return
    import trio

    from hastetrio.embedded import EmbeddedPostgres

    server = EmbeddedPostgres(settings.data_dir)
    dsn = await trio.to_thread.run_sync(server.start)
    try:
        yield dsn
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(server.stop)
