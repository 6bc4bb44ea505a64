"""`python -m benchmarks.growth`: measure, print tables, and draw them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks._server import server
from benchmarks.growth import _claims, _figures, _plot, _sweeps, _workers

_PARTS: Final = ("backlog", "kinds", "workers", "memory", "sweeps", "dead")
_PICTURE: Final = Path(__file__).parents[2] / "docs" / "figures" / "growth.png"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is asked for; returns the exit code."""
    options = _options(arguments)
    results: dict[str, Any] = {}
    tables: list[str] = []
    with server() as url:
        facts = _figures.machine(url)
        for name in options.only or _PARTS:
            _say(f"measuring: {name}")
            began = time.perf_counter()
            results[name], text = _measure(url, name, options)
            tables.append(text)
            _say(f"  took {time.perf_counter() - began:.0f} s")
    print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    print("\n" + "\n\n".join(tables))
    if options.json:
        told = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "machine": facts,
            "sizes": {key: value for key, value in vars(options).items() if _is_size(value)},
            "results": results,
        }
        options.json.write_text(json.dumps(told, indent=2, default=attrs.asdict) + "\n")
    if options.plot:
        try:
            _plot.draw(results, options.plot)
        except ImportError:
            _say("no plot: matplotlib is missing; install the extra `bench`")
        else:
            _say(f"drawn: {options.plot}")
    return 0


def _measure(url: str, name: str, options: argparse.Namespace) -> tuple[Any, str]:
    """One measurement, and its table."""
    o = options

    def backlog() -> tuple[Any, str]:
        costs = _claims.by_backlog(url, sorted(o.backlogs), o.rounds)
        return costs, _claims.backlog_table(costs)

    def kinds() -> tuple[Any, str]:
        costs = _claims.by_kinds(url, sorted(o.kinds), o.kinds_backlog, o.rounds)
        return costs, _claims.kinds_table(costs, o.kinds_backlog)

    def workers() -> tuple[Any, str]:
        drained = _workers.by_workers(url, sorted(o.workers), o.jobs, o.drains)
        return drained, _workers.workers_table(drained, o.jobs, o.drains)

    def memory() -> tuple[Any, str]:
        held = _workers.by_held_jobs(url, sorted(o.held), o.window, o.lease)
        return held, _workers.held_table(held, o.window, o.lease)

    def sweeps() -> tuple[Any, str]:
        sizes = (o.sweep_processes, o.retention, o.sweep_interval)
        swept = _sweeps.by_handler(url, o.sweep_jobs, *sizes)
        return swept, _sweeps.sweeps_table(swept, *sizes)

    def dead() -> tuple[Any, str]:
        costs = _claims.by_dead_rows(url, o.dead, o.rounds)
        return costs, _claims.dead_table(costs, o.dead)

    parts: dict[str, Callable[[], tuple[Any, str]]] = {
        "backlog": backlog,
        "kinds": kinds,
        "workers": workers,
        "memory": memory,
        "sweeps": sweeps,
        "dead": dead,
    }
    return parts[name]()


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.growth",
        description="Measure how the cost of a job grows. BENCH_SERVER names a server to use;"
        " without it there is one of our own, thrown away afterwards.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--only", nargs="+", choices=_PARTS, help="measure these alone")
    add("--rounds", type=_positive, default=60, help="claims of each kind that count")
    numbers: dict[str, Any] = {"type": _positive, "nargs": "+", "metavar": "N"}
    add("--backlogs", default=[1000, 10_000, 100_000, 1_000_000], help="jobs queued", **numbers)
    add("--kinds", default=[1, 3, 10, 30, 100], help="kinds asked for", **numbers)
    add("--kinds-backlog", type=_positive, default=100_000, help="jobs queued for --kinds")
    add("--workers", default=[1, 2, 3, 4], help="worker processes", **numbers)
    add("--jobs", type=_positive, default=30_000, help="jobs drained by --workers")
    add("--drains", type=_positive, default=5, help="rounds of --workers")
    add("--held", default=[100, 1000, 3000, 10_000], help="sleeping jobs", **numbers)
    add("--window", type=_positive, default=60, help="seconds of CPU time for --held")
    add("--lease", type=_positive, default=60, help="seconds of lease for --held")
    add("--sweep-jobs", type=_positive, default=60_000, help="jobs finished and swept")
    add("--sweep-processes", type=_positive, default=2, help="worker processes that do both")
    add("--sweep-interval", type=float, default=1.0, help="seconds between sweeps")
    add("--retention", type=float, default=1.0, help="seconds a finished job is kept")
    add("--dead", type=_positive, default=100_000, help="jobs worked through in --only dead")
    add("--json", type=Path, metavar="FILE", help="write all figures there")
    add("--plot", type=Path, metavar="PNG", default=_PICTURE, help="where to draw")
    add("--no-plot", dest="plot", action="store_const", const=None, help="draw nothing")
    return parser.parse_args(arguments)


def _is_size(value: object) -> bool:
    return isinstance(value, (int, float, list))


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
