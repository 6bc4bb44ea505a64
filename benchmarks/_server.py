"""The PostgreSQL server that the benchmarks share: their own, thrown away afterwards."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg.conninfo import make_conninfo

from hastetrio.embedded import throw_away_server

if TYPE_CHECKING:
    from collections.abc import Iterator

# What is compared is the cost of the programs, not of the disk: nothing is flushed at a commit.
# Checkpoints are kept out of the rounds, which take seconds.
OPTIONS: Final = (
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "shared_buffers=512MB",
    "max_wal_size=8GB",
    "checkpoint_timeout=1h",
    "max_connections=300",
    "jit=off",
)


@contextmanager
def server() -> Iterator[str]:
    """The conninfo of a server, while the block lasts: BENCH_SERVER's, or one of our own."""
    if given := os.environ.get("BENCH_SERVER"):
        yield given
        return
    with throw_away_server(OPTIONS) as own:
        yield own.start()


@contextmanager
def database(server_url: str, name: str) -> Iterator[str]:
    """The conninfo of a new, empty database on that server, dropped afterwards."""

    def execute(statement: str) -> None:
        with psycopg.connect(server_url, autocommit=True) as connection:
            connection.execute(statement.encode())

    execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    execute(f"CREATE DATABASE {name}")
    try:
        yield make_conninfo(server_url, dbname=name)
    finally:
        execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
