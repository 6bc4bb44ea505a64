"""The statements over 1,000,000 queued and 500,000 finished jobs of 50 kinds."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from psycopg.conninfo import make_conninfo

from . import plans
from .harness import run
from .plans import KINDS, LATE_AND_OTHERS, LATE_KINDS, MODES, claim

pytestmark = pytest.mark.slow

SIZE = plans.Size(queued=1_000_000, finished=500_000, running=10_000, lapsed=30_000)

# A claim for a hundred slots.
LIMIT = 100


@pytest.fixture(scope="module")
def loaded(server_url: str, template: str) -> Iterator[str]:
    """The jobs, loaded after the planner last looked; filled once, it takes half a minute."""
    name = f"hastetrio_million_{os.getpid()}"
    run(server_url, f"CREATE DATABASE {name} TEMPLATE {template}")
    try:
        url = make_conninfo(server_url, dbname=name)
        plans.fill(url, SIZE, statistics="stale")
        yield url
    finally:
        run(server_url, f"DROP DATABASE {name} WITH (FORCE)")


# In this order, which pytest keeps for a module's fixture.
@pytest.fixture(scope="module", params=["loaded", "analyzed"])
def large(request: pytest.FixtureRequest, loaded: str) -> str:
    """The jobs, right after they were loaded, and after ANALYZE."""
    if request.param == "analyzed":
        run(loaded, "ANALYZE async_jobs")
    return loaded


@pytest.fixture(scope="module")
def settings(loaded: str) -> dict[str, plans.Settings]:
    """What the sessions set for themselves, by statement."""
    return plans.session_settings(loaded)


@pytest.fixture(scope="module")
def running(loaded: str) -> list[tuple[str, str]]:
    """A hundred rows that run, by id and token."""
    return plans.held_rows(loaded, 100)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", plans.NAMES)
def test_a_statement_touches_only_what_it_is_about(
    large: str,
    settings: dict[str, plans.Settings],
    running: list[tuple[str, str]],
    name: str,
    mode: str,
) -> None:
    """Each finds its rows by an index, reads few others, and sorts no backlog."""
    parameters = plans.parameters(running, LIMIT)[name]
    with plans.rolled_back(large, settings[name]) as connection:
        reading = plans.analyze(connection, name, parameters, mode)
    assert reading.looks
    assert reading.faults(SIZE.bounds(name, parameters)) == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "kinds", [KINDS[:1], KINDS[:3], KINDS, LATE_KINDS[:1], LATE_AND_OTHERS], ids=plans.kinds_id
)
def test_a_claim_reads_no_more_than_it_could_take(
    large: str, settings: dict[str, plans.Settings], kinds: list[str], mode: str
) -> None:
    """Whatever waits, and whatever has lapsed, the rows read are bounded by kinds and limit."""
    parameters = claim(kinds, LIMIT)
    with plans.rolled_back(large, settings["claim_jobs"]) as connection:
        reading = plans.analyze(connection, "claim_jobs", parameters, mode)
    assert reading.faults(SIZE.bounds("claim_jobs", parameters)) == []


def test_what_a_claim_takes_is_found_by_its_key(
    large: str, settings: dict[str, plans.Settings]
) -> None:
    """However many rows the planner thinks that its LIMIT leaves: a prepared plan cannot know."""
    parameters = claim(KINDS, LIMIT)
    # A join is then made by a hash of one side, the table.
    wary = [("enable_nestloop", "off")]
    with plans.rolled_back(large, settings["claim_jobs"] + wary) as connection:
        reading = plans.analyze(connection, "claim_jobs", parameters, "force_generic_plan")
    assert reading.faults(SIZE.bounds("claim_jobs", parameters)) == []


@pytest.mark.parametrize(
    "kinds", [KINDS[:1], KINDS, LATE_KINDS[:1], LATE_AND_OTHERS], ids=plans.kinds_id
)
def test_a_claim_locks_as_many_rows_as_it_takes(
    large: str, settings: dict[str, plans.Settings], kinds: list[str]
) -> None:
    """A hundred, of one kind or of fifty, also where 30,000 leases have lapsed."""
    parameters = claim(kinds, LIMIT)
    assert plans.taken_and_locked(large, settings["claim_jobs"], parameters) == (LIMIT, LIMIT)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", sorted(set(plans.NAMES) - plans.CLIENT_STATEMENTS))
def test_no_plan_hangs_on_the_settings_alone(
    loaded: str, running: list[tuple[str, str]], name: str, mode: str
) -> None:
    """Behind a pooler the session's settings may be lost; known statistics are then enough."""
    run(loaded, "ANALYZE async_jobs")
    parameters = plans.parameters(running, LIMIT)[name]
    with plans.rolled_back(loaded, []) as connection:
        reading = plans.analyze(connection, name, parameters, mode)
    assert reading.faults(SIZE.bounds(name, parameters)) == []
