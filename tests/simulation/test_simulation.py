"""Thousands of random days of a few workers, each replayable from its number."""

from __future__ import annotations

import os

import pytest

from .world import Report, simulate

_FAST = 300
_SLOW = 2400
_CHUNK = 50


def _verdict(report: Report) -> str:
    return "\n".join(
        [
            f"schedule {report.seed}: {report.violation}",
            *report.trace[-100:],
            f"replay: SIMULATION_SEED={report.seed} pytest tests/simulation -k replay",
        ]
    )


def _run(first: int) -> None:
    for seed in range(first, first + _CHUNK):
        report = simulate(seed)
        if report.violation is not None:
            pytest.fail(_verdict(report), pytrace=False)


@pytest.mark.parametrize("first", range(0, _FAST, _CHUNK))
def test_schedules(first: int) -> None:
    """No rule is broken in any of some random schedules."""
    _run(first)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(_FAST, _FAST + _SLOW, _CHUNK))
def test_many_schedules(first: int) -> None:
    """No rule is broken in any of many random schedules."""
    _run(first)


def test_replay() -> None:
    """A schedule is a function of its number; `SIMULATION_SEED` chooses one, to be shown whole."""
    seed = int(os.environ.get("SIMULATION_SEED", "7"))
    first, second = simulate(seed), simulate(seed)
    if "SIMULATION_SEED" in os.environ:
        print("\n".join(first.trace))
    assert first.trace == second.trace
    if first.violation is not None:
        pytest.fail(_verdict(first), pytrace=False)
