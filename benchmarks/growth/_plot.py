"""One figure with a panel for each measurement, legible in grey."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

from benchmarks.growth._claims import BEFORE, ENDED, OPEN, VACUUMED, Cost
from benchmarks.growth._sweeps import HANDLERS, Swept

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from benchmarks.growth._figures import Spread
    from benchmarks.growth._workers import Drained, Held


def draw(results: Mapping[str, Any], file: Path) -> None:
    """Draw what was measured, as a PNG.

    Raises:
        OSError: The file cannot be written.
    """
    from matplotlib.figure import Figure
    from PIL import Image

    panels: dict[str, Callable[[Any, Any], None]] = {
        "backlog": _backlog,
        "kinds": _kinds,
        "workers": _workers,
        "memory": _memory,
        "sweeps": _sweeps,
        "dead": _dead,
    }
    chosen = [name for name in panels if name in results]
    columns = min(len(chosen), 3)
    rows = -(-len(chosen) // columns)
    figure = Figure(figsize=(3.4 * columns, 2.7 * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for name, one in zip(chosen, axes, strict=False):
        one.tick_params(labelsize=7)
        for side in ("top", "right"):
            one.spines[side].set_visible(False)
        panels[name](one, results[name])
    for one in axes[len(chosen) :]:
        one.set_visible(False)
    file.parent.mkdir(parents=True, exist_ok=True)
    drawn = BytesIO()
    figure.savefig(drawn, dpi=100)
    # It is in greys anyhow, and sixteen of them make a small file.
    Image.open(drawn).convert("L").quantize(16).save(file, optimize=True)


def _label(axes: Any, title: str, x: str, y: str) -> None:  # noqa: ANN401
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.set_ylim(bottom=0)


def _line(axes: Any, x: Sequence[float], spreads: Sequence[Spread], style: str, name: str) -> None:  # noqa: ANN401
    medians = [one.median for one in spreads]
    axes.plot(x, medians, style, color="black", markersize=4, linewidth=1, label=name)
    low, high = [one.low for one in spreads], [one.high for one in spreads]
    axes.fill_between(x, low, high, color="0.85", linewidth=0)


def _costs(axes: Any, costs: Mapping[int, Cost]) -> None:  # noqa: ANN401
    x = list(costs)
    _line(axes, x, [one.call for one in costs.values()], "o-", "claim_jobs")
    _line(axes, x, [one.statement for one in costs.values()], "s--", "its statement")
    axes.legend(fontsize=7, frameon=False)


def _backlog(axes: Any, costs: Mapping[int, Cost]) -> None:  # noqa: ANN401
    _costs(axes, costs)
    axes.set_xscale("log")
    _label(axes, "Claim of 100, by backlog", "jobs queued", "ms")


def _kinds(axes: Any, costs: Mapping[int, Cost]) -> None:  # noqa: ANN401
    _costs(axes, costs)
    _label(axes, "Claim of 100, by kinds", "kinds asked for", "ms")


def _workers(axes: Any, drained: Mapping[int, Drained]) -> None:  # noqa: ANN401
    _line(axes, list(drained), [one.rate for one in drained.values()], "o-", "")
    axes.set_xticks(list(drained))
    _label(axes, "One queue, by workers", "worker processes", "jobs/s")


def _memory(axes: Any, held: Mapping[int, Held]) -> None:  # noqa: ANN401
    axes.plot(list(held), [one.memory / 1e6 for one in held.values()], "o-", color="black")
    _label(axes, "Sleeping jobs in one process", "jobs", "memory, MB")
    other = axes.twinx()
    other.plot(list(held), [one.cpu * 100 for one in held.values()], "s--", color="0.45")
    other.set_ylabel("CPU, % of a core (dashed)", fontsize=8)
    other.set_ylim(bottom=0)
    other.tick_params(labelsize=7)
    other.spines["top"].set_visible(False)


def _sweeps(axes: Any, swept: Mapping[str, Swept]) -> None:  # noqa: ANN401
    for (handler, one), style in zip(swept.items(), ("-", "--"), strict=False):
        at, rows = [look.at for look in one.looks], [look.expired for look in one.looks]
        axes.plot(at, rows, style, color="black", linewidth=1, label=HANDLERS[handler])
        axes.axvline(one.finished_at, color="0.6", linestyle=style, linewidth=0.8)
    axes.legend(fontsize=7, frameon=False)
    _label(axes, "Expired, not yet deleted", "s (grey: last job finished)", "rows")


def _dead(axes: Any, costs: Mapping[str, Cost]) -> None:  # noqa: ANN401
    states = [BEFORE, OPEN, ENDED, VACUUMED]
    for shift, colour, name in ((-0.2, "0.25", "claim_jobs"), (0.2, "0.7", "its statement")):
        spreads = [costs[state].call if shift < 0 else costs[state].statement for state in states]
        axes.bar(
            [position + shift for position in range(len(states))],
            [one.median for one in spreads],
            0.38,
            color=colour,
            label=name,
            yerr=[
                [one.median - one.low for one in spreads],
                [one.high - one.median for one in spreads],
            ],
            error_kw={"linewidth": 0.8},
        )
    axes.set_xticks(range(len(states)), states)
    axes.legend(fontsize=7, frameon=False)
    _label(axes, "Claim beside an open transaction", "transaction", "ms")
