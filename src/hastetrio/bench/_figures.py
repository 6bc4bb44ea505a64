"""Figures as values: how several measurements are put into a few numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Protocol, TypeAlias

import attrs

Row: TypeAlias = tuple[str, float | None, str, str]
"""A line of the table: the measure, its value, its unit, and what else there is to say."""


class Section(Protocol):
    """What one section measured: an attrs class whose fields go into the JSON."""

    def rows(self) -> list[Row]:
        """The lines of the table."""


@attrs.frozen
class Spread:
    """What several rounds gave."""

    median: float
    min: float
    max: float
    rounds: tuple[float, ...]

    @classmethod
    def of(cls, rounds: Sequence[float]) -> Spread:
        """The spread of at least one round."""
        return cls(statistics.median(rounds), min(rounds), max(rounds), tuple(rounds))

    def __str__(self) -> str:
        return f"{rounded(self.min):,} to {rounded(self.max):,}"


@attrs.frozen
class Latency:
    """How long something took, milliseconds."""

    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latency:
        """The latency that at least one sample, in seconds, shows."""
        ordered = sorted(seconds)
        return cls(*(1000 * _percentile(ordered, share) for share in (0.5, 0.99, 1.0)))

    def row(self, name: str, more: str) -> Row:
        """The line of the table."""
        tail = f"p99 {rounded(self.p99)}, most {rounded(self.max)}"
        return (f"{name}, p50", rounded(self.p50), "ms", f"{tail} {more}")


def rounded(value: float) -> float:
    """`value` with three significant digits; larger numbers to the next whole one."""
    if not value or not math.isfinite(value):
        return value
    digits = 2 - math.floor(math.log10(abs(value)))
    return round(value, digits) if digits > 0 else round(value)


def _percentile(ordered: Sequence[float], share: float) -> float:
    # The nearest rank: a time that was measured, not one between two.
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1]
