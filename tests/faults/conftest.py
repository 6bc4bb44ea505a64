"""One database whose every change is written down, and a server of our own to stop and restart."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio
from psycopg.conninfo import make_conninfo

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.postgres.harness import run, sessions
from tests.worker import conftest as virtual

from hastetrio.embedded import EmbeddedPostgres
from hastetrio.postgres import PostgresJobProvider

from .bodies import Lines, logged
from .history import History, install
from .network import Network, open_network
from .server import Server

# For the tests in virtual time.
event_log = virtual.event_log
rig = virtual.rig


@pytest.fixture(scope="session")
def faults_database(server_url: str, template: str) -> Iterator[str]:
    """A migrated database for the whole folder."""
    name = f"hastetrio_faults_{os.getpid()}"
    run(server_url, f"CREATE DATABASE {name} TEMPLATE {template}")
    url = make_conninfo(server_url, dbname=name)
    install(url)
    yield url
    run(server_url, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def own_server() -> Iterator[EmbeddedPostgres]:
    """A server that nobody else uses, with a migrated database."""
    # Not pytest's own folder: root's is closed to the account the server runs as.
    root = Path(tempfile.mkdtemp(prefix="hastetrio-faults-", dir="/tmp"))
    root.chmod(0o755)
    # A crash of the server must lose nothing that was committed; one of the machine may.
    options = ("fsync=off", "shared_buffers=16MB", "jit=off", "synchronous_commit=on")
    server = EmbeddedPostgres(root, options=options)
    try:
        url = server.start()

        async def migrate() -> None:
            async with PostgresJobProvider.open(url) as provider:
                await provider.migrate()

        trio.run(migrate)
        install(url)
        yield server
    finally:
        server.stop()
        stopped = server.wait_stopped(20)
        shutil.rmtree(root, ignore_errors=True)
    assert stopped, "the server was left behind"


@pytest.fixture
def lines() -> Iterator[Lines]:
    """The package's log of one test."""
    with logged() as lines:
        yield lines


@pytest.fixture
def server(own_server: EmbeddedPostgres) -> Iterator[Server]:
    """That server, running and without jobs, before and after the test."""
    server = Server(own_server)
    clear(server.url)
    yield server
    server.start()
    assert History(server.url).broken_laws() == {}


@pytest.fixture
def url(faults_database: str) -> Iterator[str]:
    """A migrated database without jobs, whose history is lawful at the end of the test."""
    clear(faults_database)
    yield faults_database
    assert History(faults_database).broken_laws() == {}


@pytest.fixture
def history(url: str) -> History:
    """What happens to the rows of `url`."""
    return History(url)


@pytest.fixture
async def provider(url: str) -> AsyncIterator[PostgresJobProvider]:
    """A provider on `url`."""
    async with PostgresJobProvider.open(url) as provider:
        yield provider


@pytest.fixture
async def network(url: str) -> AsyncIterator[Network]:
    """The way to `url` through a network that can be broken."""
    async with open_network(url) as network:
        yield network


def clear(url: str) -> None:
    """Remove all jobs, and connections that a failed test left."""
    for pid, _ in sessions(url):
        run(url, "SELECT pg_terminate_backend(%s, 5000)", [pid])
    run(url, "TRUNCATE async_jobs, history")
