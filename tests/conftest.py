"""One server a session, one database a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hypothesis
import pytest

from hastetrio.testing._databases import Databases, database_server

if TYPE_CHECKING:
    from collections.abc import Iterator

# A busy machine is no failure, and a failure prints what replays it.
hypothesis.settings.register_profile("hastetrio", deadline=None, print_blob=True, database=None)
hypothesis.settings.load_profile("hastetrio")


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """A PostgreSQL server of this session's own, or the one HASTETRIO_TEST_SERVER names."""
    with database_server() as url:
        yield url


@pytest.fixture(scope="session")
def databases(server_url: str) -> Iterator[Databases]:
    """The databases of this session's tests."""
    with Databases(server_url) as made:
        # Before any test's own loop runs, which would stand still meanwhile.
        made.template  # noqa: B018
        yield made


@pytest.fixture(scope="session")
def template(databases: Databases) -> str:
    """The name of a migrated database to copy from."""
    return databases.template


@pytest.fixture
def database_url(databases: Databases) -> Iterator[str]:
    """A migrated database without rows, this test's own."""
    with databases.migrated() as url:
        yield url


@pytest.fixture
def empty_database_url(databases: Databases) -> Iterator[str]:
    """A database of this test's own without any tables."""
    with databases.empty() as url:
        yield url
