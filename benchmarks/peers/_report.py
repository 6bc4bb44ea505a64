"""What the rounds say: medians and spreads, the table, the JSON and the plot."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any, Final

import attrs

from benchmarks.peers._run import Outcome
from benchmarks.peers._systems import CEILINGS, OURS, PEERS, System

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_SYSTEMS: Final = {system.key: system for system in (OURS, *PEERS, *CEILINGS)}

WHAT_IS_TIMED: Final = """\
Timed, alike for all: from the first line of the first job's handler until the database shows no job
left (looked at every 2 ms once the last handler has started; "tail" is that last part of it).
pgbench: its transactions. CPU: the system's own process over the same span, not the server's.
Log level WARNING, one process each. A run of ours comes right before each run of another; the ratio
is that of the two, as the median over the rounds (least..most)."""


@attrs.frozen
class Spread:
    """A median with the least and the most of what it is the median of."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """The spread of some values; None of no values."""
        if not values:
            return None
        return cls(statistics.median(values), min(values), max(values))


@attrs.frozen
class Pair:
    """A run of ours and the run of another system right after it.

    Attributes:
        round: Which round, from 1.
        system: The other system's key.
        ours: What ours measured; None if that run failed.
        other: What the other measured; None if that run failed.
        errors: Why runs failed.
    """

    round: int
    system: str
    ours: Outcome | None
    other: Outcome | None
    errors: tuple[str, ...] = ()


@attrs.frozen
class Report:
    """Everything measured.

    Attributes:
        pairs: The rounds.
        left_out: Systems that did not run, with the reason.
        machine: What it ran on.
        at: When, in ISO 8601.
    """

    pairs: tuple[Pair, ...]
    left_out: dict[str, str]
    machine: dict[str, str]
    at: str

    @property
    def keys(self) -> list[str]:
        """The systems with at least one figure, ours first."""
        found = [OURS.key, *dict.fromkeys(pair.system for pair in self.pairs)]
        return [key for key in found if self.outcomes(key)]

    def outcomes(self, key: str) -> list[Outcome]:
        """All figures of a system."""
        found = [
            pair.ours if key == OURS.key else pair.other
            for pair in self.pairs
            if key in (OURS.key, pair.system)
        ]
        return [outcome for outcome in found if outcome is not None]

    def rates(self, key: str) -> Spread | None:
        """Jobs a second of a system."""
        return Spread.of([outcome.rate for outcome in self.outcomes(key)])

    def ratio(self, key: str) -> Spread | None:
        """How many times as many jobs a second ours did, over the pairs where both ran."""
        return Spread.of(
            [
                pair.ours.rate / pair.other.rate
                for pair in self.pairs
                if pair.system == key and pair.ours is not None and pair.other is not None
            ]
        )

    def text(self) -> str:
        """What a person reads."""
        parts = [
            "\n".join(f"{name}: {value}" for name, value in self.machine.items()),
            self._table(),
            WHAT_IS_TIMED,
        ]
        notes = self._notes()
        if notes:
            parts.append("\n".join(notes))
        failures = [f"left out: {key}: {why}" for key, why in self.left_out.items()]
        failures += [
            f"failed in round {pair.round}: {error}" for pair in self.pairs for error in pair.errors
        ]
        if failures:
            parts.append("\n".join(failures))
        return "\n\n".join(parts)

    def _table(self) -> str:
        head = (
            *("system", "setting", "keeps of a job", "runs", "jobs/s", "least..most"),
            *("CPU us/job", "tail ms", "ours/it", "least..most", "must", "aim", "verdict"),
        )
        return _aligned([head, *(self._row(_SYSTEMS[key]) for key in self.keys)], left=3)

    def _row(self, system: System) -> tuple[str, ...]:
        outcomes = self.outcomes(system.key)
        rates = Spread.of([outcome.rate for outcome in outcomes])
        cpu = Spread.of([outcome.cpu_per_job for outcome in outcomes])
        tail = statistics.median(outcome.tail for outcome in outcomes)
        ratio = self.ratio(system.key)
        assert rates is not None  # noqa: S101  # only systems with figures have a row
        assert cpu is not None  # noqa: S101
        return (
            *(system.title, system.setting, system.keeps, str(len(outcomes))),
            *(f"{rates.median:,.0f}", f"{rates.least:,.0f}..{rates.most:,.0f}"),
            f"{cpu.median:,.1f}" if system.connections else f"{cpu.median:,.0f}",
            "" if system.connections else f"{tail * 1000:,.0f}",
            f"{ratio.median:.2f}x" if ratio else "",
            f"{ratio.least:.2f}..{ratio.most:.2f}" if ratio else "",
            f"{system.must:g}x" if system.must else "",
            f"{system.aim:g}x" if system.aim else "",
            verdict(ratio, system),
        )

    def _notes(self) -> list[str]:
        lines = []
        for key in self.keys:
            outcome = self.outcomes(key)[0]
            if outcome.python:
                packages = ", ".join(f"{name} {is_}" for name, is_ in outcome.versions.items())
                lines.append(f"{key}: Python {outcome.python}, {packages}, {outcome.jobs:,} jobs")
            else:
                lines.append(f"{key}: {outcome.jobs:,} jobs, one claim and one finish for 100")
            if remark := _SYSTEMS[key].remark:
                lines.append(f"  {remark}")
        return lines

    def to_json(self) -> str:
        """The raw rounds, and what the table says of them."""
        value: dict[str, Any] = {
            "at": self.at,
            "machine": self.machine,
            "systems": {
                key: {
                    "jobs_per_second": _json(self.rates(key)),
                    "cpu_us_per_job": _json(
                        Spread.of([one.cpu_per_job for one in self.outcomes(key)])
                    ),
                    "ours_to_it": _json(self.ratio(key)),
                    "must": _SYSTEMS[key].must,
                    "aim": _SYSTEMS[key].aim,
                }
                for key in self.keys
            },
            "rounds": [attrs.asdict(pair) for pair in self.pairs],
            "left_out": self.left_out,
        }
        return json.dumps(value, indent=2) + "\n"

    def plot(self, file: Path) -> None:
        """Draw each system's jobs a second with their spread, as a PNG.

        Raises:
            OSError: The file cannot be written.
        """
        from matplotlib.figure import Figure

        keys = sorted(self.keys, key=lambda key: spread_of(self, key).median)
        figure = Figure(figsize=(7.5, 0.45 * len(keys) + 1.1))
        axes = figure.subplots()
        for position, key in enumerate(keys):
            rates = spread_of(self, key)
            ours = key == OURS.key
            axes.plot([rates.least, rates.most], [position, position], color="0.45", linewidth=2)
            for outcome in self.outcomes(key):
                axes.plot(outcome.rate, position, marker="|", color="0.45", markersize=7)
            axes.plot(
                rates.median,
                position,
                marker="D" if ours else "o",
                markersize=8,
                color="black",
                markerfacecolor="black" if ours else "white",
            )
            axes.annotate(
                f"{rates.median:,.0f}",
                (rates.most, position),
                xytext=(9, 0),
                textcoords="offset points",
                verticalalignment="center",
                fontsize=9,
            )
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.margins(x=0.15)
        titles = [f"{_SYSTEMS[key].title} ({_SYSTEMS[key].setting})" for key in keys]
        axes.set_yticks(range(len(keys)), titles, fontsize=9)
        axes.set_xlabel("no-op jobs a second, one process, log scale (median, every run)")
        axes.grid(axis="x", color="0.9")
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=110, bbox_inches="tight")


def spread_of(report: Report, key: str) -> Spread:
    """The rates of a system that has figures."""
    rates = report.rates(key)
    assert rates is not None  # noqa: S101  # it has figures
    return rates


def verdict(ratio: Spread | None, system: System) -> str:
    """How a ratio stands to its figures: "aim", "must" or "MISSED"; empty if there are none."""
    if ratio is None or system.must is None or system.aim is None:
        return ""
    if ratio.median >= system.aim:
        return "aim"
    return "must" if ratio.median >= system.must else "MISSED"


def _json(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else attrs.asdict(spread)


def _aligned(rows: Sequence[Sequence[str]], *, left: int) -> str:
    """Rows in columns, the first `left` of them to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["-" * width for width in widths]
    lines = []
    for row in [rows[0], rule, *rows[1:]]:
        cells = [
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
