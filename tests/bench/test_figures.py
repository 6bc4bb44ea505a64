"""How samples become figures."""

from __future__ import annotations

import math

import pytest

from hastetrio.bench._figures import Latency, Spread, rounded


def test_a_latency_is_made_of_samples_that_were_measured() -> None:
    """The median, the 99th of 100 and the worst, in milliseconds, whatever the order."""
    samples = [number / 1000 for number in range(1, 101)]
    latency = Latency.of([*samples[50:], *samples[:50]])
    assert (latency.p50, latency.p99, latency.max) == pytest.approx((50.0, 99.0, 100.0))


def test_one_sample_is_all_three_figures() -> None:
    """The least a user may ask for."""
    assert Latency.of([0.002]) == Latency(2.0, 2.0, 2.0)


def test_a_spread_keeps_its_rounds_in_their_order() -> None:
    """A reader sees whether the machine became slower on the way."""
    spread = Spread.of([5.0, 1.0, 3.0])
    assert (spread.median, spread.min, spread.max) == (3.0, 1.0, 5.0)
    assert spread.rounds == (5.0, 1.0, 3.0)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, 0.0),
        (0.123456, 0.123),
        (1.23456, 1.23),
        (-1.23456, -1.23),
        (99.96, 100.0),
        (123456.7, 123457),
        (math.inf, math.inf),
    ],
)
def test_a_figure_is_shown_with_three_digits(value: float, shown: float) -> None:
    """More digits would claim what no run can repeat."""
    assert rounded(value) == shown
