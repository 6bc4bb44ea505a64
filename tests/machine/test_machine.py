"""Random histories on the providers: each step keeps every promise, and all providers agree.

A failing run prints its history, as short as it gets, as calls of the rules, and a line
`@reproduce_failure(...)`: put that on `ProviderMachine`, and the next run replays the history.
`--hypothesis-seed` repeats a whole run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from hastetrio._model import CreateAsyncJob

from ._machine import REGISTERED, ProviderMachine
from ._pump import Pump
from ._sides import MemorySide, PostgresSide, Side

STEPS = 40

# What thousands of steps must have met, or they prove little.
EVENTS = (
    "abandoned",
    "cancelled: accepted",
    "cancelled: completed",
    "cancelled: in-progress",
    "claimed lapsed",
    "creation refused",
    "deleted: False",
    "deleted: True",
    "finish: recorded",
    "finish: refused",
    "finish: repeated",
    "forgotten",
    "history cut",
    "key found",
    "key freed",
    "last chances put off",
    "later: accepted",
    "later: failed",
    "later: recorded",
    "later: refused",
    "later: repeated",
    "orphans",
    "released after ten",
    "released: accepted",
    "released: cancelled",
    "released: failed",
    "renewed: CANCELLED",
    "renewed: EXPIRED",
    "renewed: LOST",
    "renewed: RENEWED",
    "retried: False",
    "retried: True",
    "snoozed",
    "state saved: False",
    "state saved: True",
    "swept",
)


@pytest.fixture
def pump() -> Iterator[Pump]:
    """A trio run that moves when the machine steps."""
    with Pump() as pump:
        yield pump


@pytest.fixture
def memory(pump: Pump) -> Side:
    """The memory provider in virtual time."""
    return MemorySide(pump)


@pytest.fixture
def postgres(pump: Pump, database_url: str) -> Iterator[Side]:
    """The PostgreSQL provider, on rows whose times are moved back."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield PostgresSide(pump, connection, database_url)


def machine_of(pump: Pump, *sides: Side) -> type[ProviderMachine]:
    """The machine on these providers."""

    class Machine(ProviderMachine):
        pass

    Machine.pump, Machine.sides, Machine.tally = pump, sides, Counter()
    return Machine


def run_histories(machine: type[ProviderMachine], number: int) -> Counter[str]:
    """Run so many histories; returns what came about in them."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=number,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=False,
            print_blob=True,
            database=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
    return machine.tally


def test_a_history_in_memory_keeps_every_promise(pump: Pump, memory: Side) -> None:
    """Whatever clients, workers, crashes and time do, the memory provider keeps the contract."""
    run_histories(machine_of(pump, memory), 100)


def test_both_providers_agree_on_a_history(pump: Pump, memory: Side, postgres: Side) -> None:
    """PostgreSQL answers as the memory provider does, and holds the same rows, after each step."""
    run_histories(machine_of(pump, memory, postgres), 30)


def test_a_last_chance_put_off_leaves_its_place_to_another(
    pump: Pump, memory: Side, postgres: Side
) -> None:
    """Of two jobs on their last attempt one is taken, and a queued one of any kind beside it."""
    history = machine_of(pump, memory, postgres)()
    work, toil = (
        CreateAsyncJob(kind=kind, claims={"sub": "ann"}, max_attempts=2) for kind in REGISTERED
    )
    history.begin(jobs=[work, toil], claimed=True)
    history.time_passes(400.0)
    history.create(project="main", job=work, live_limit=None)
    oldest, _, queued = history.ids
    history.claim_few(worker=1, kinds=REGISTERED, duration=150.0, limit=2, chances=1)
    held = [claim.job for claim in history.at_work()]
    assert held == [oldest, queued]


@pytest.mark.slow
def test_many_histories_in_memory_keep_every_promise(pump: Pump, memory: Side) -> None:
    """Tens of thousands of steps keep the contract, and met all that can come about."""
    met = run_histories(machine_of(pump, memory), 500)
    assert set(EVENTS) - set(+met) == set(), f"never met in {met['steps']} steps"


@pytest.mark.slow
def test_both_providers_agree_on_many_histories(pump: Pump, memory: Side, postgres: Side) -> None:
    """They agree over thousands of steps."""
    met = run_histories(machine_of(pump, memory, postgres), 150)
    assert met["steps"] > 2000
