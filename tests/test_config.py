"""A worker's settings: their defaults, their limits, and the numbers that follow from them."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hastetrio._config import AsyncJobWorkerConfig
from hastetrio._errors import ConfigError

# A loaded machine is no failure, and nothing is written to the folder the tests run in.
unhurried = settings(deadline=None, database=None)

DURATIONS = ("poll_interval", "lease_duration", "maintenance_interval", "retention")
WAITS = ("drain_timeout", "cancel_grace")
SIZES = ("max_concurrent_jobs", "output_limit", "outcome_limit", "progress_limit", "thread_limit")


def test_the_defaults_are_those_that_are_documented() -> None:
    """A worker that is told nothing behaves as the documentation says."""
    assert attrs.asdict(AsyncJobWorkerConfig()) == {
        "poll_interval": 1,
        "lease_duration": 60,
        "max_concurrent_jobs": 4,
        "maintenance_interval": 60,
        "retention": 86400,
        "drain_timeout": 20,
        "cancel_grace": 5,
        "output_limit": 16 * 1024 * 1024,
        "outcome_limit": 64 * 1024,
        "progress_limit": 1000,
        "thread_limit": 40,
    }


def test_every_setting_is_tried_here() -> None:
    """A new setting without a test of its limits is noticed."""
    names = {field.name for field in attrs.fields(AsyncJobWorkerConfig)}
    assert names == {*DURATIONS, *WAITS, *SIZES}


@pytest.mark.parametrize(
    "value", [-1, math.nan, math.inf, -math.inf, "1", None, True, 1e12, 10**400]
)
@pytest.mark.parametrize("name", [*DURATIONS, *WAITS])
def test_a_duration_that_makes_no_sense_is_refused_by_name(name: str, value: Any) -> None:  # noqa: ANN401
    """The error is one line that begins with the setting's name."""
    with pytest.raises(ConfigError, match=f"^{name} must be") as caught:
        AsyncJobWorkerConfig(**{name: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", DURATIONS)
def test_an_interval_of_nothing_is_refused(name: str) -> None:
    """A loop that never waits, or a lease that never holds, is a mistake."""
    with pytest.raises(ConfigError, match=name):
        AsyncJobWorkerConfig(**{name: 0})


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_of_nothing_is_a_choice(name: str) -> None:
    """Who will not wait for running jobs says so."""
    assert getattr(AsyncJobWorkerConfig(**{name: 0}), name) == 0


@pytest.mark.parametrize("value", [0, -1, 1.5, "4", None, True, 10**12])
@pytest.mark.parametrize("name", SIZES)
def test_a_number_that_makes_no_sense_is_refused_by_name(name: str, value: Any) -> None:  # noqa: ANN401
    """The error is one line that begins with the setting's name."""
    with pytest.raises(ConfigError, match=f"^{name} must be a whole number from") as caught:
        AsyncJobWorkerConfig(**{name: value})
    assert "\n" not in str(caught.value)


def test_a_lease_too_short_to_be_renewed_is_refused() -> None:
    """A renewal at a third of the lease must come before the margin at its end."""
    assert AsyncJobWorkerConfig(lease_duration=0.7).lease_duration == 0.7
    with pytest.raises(
        ConfigError, match=r"lease_duration must be at least 0\.7 seconds, not 0\.6"
    ):
        AsyncJobWorkerConfig(lease_duration=0.6)


@pytest.mark.parametrize(
    ("lease", "margin", "budget"),
    [(0.7, 0.2, 0.7 / 6), (2, 0.2, 2 / 6), (3, 0.3, 0.5), (30, 3, 5), (60, 5, 5), (3600, 5, 5)],
)
def test_margin_and_budget_follow_from_the_lease(
    lease: float, margin: float, budget: float
) -> None:
    """A tenth from 0.2 to 5 seconds to unwind in; a sixth, at most 5, for one database call."""
    config = AsyncJobWorkerConfig(lease_duration=lease)
    assert config.margin == pytest.approx(margin)
    assert config.call_budget == pytest.approx(budget)


@unhurried
@given(st.floats(0.7, 1e8))
def test_a_worker_always_has_time_for_a_second_renewal(lease: float) -> None:
    """One that fails and takes its whole budget still leaves room before the deadline."""
    config = AsyncJobWorkerConfig(lease_duration=lease)
    first = lease / 3
    assert config.margin < first
    assert first + config.call_budget < lease - config.margin
