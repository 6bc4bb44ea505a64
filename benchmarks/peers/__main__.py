"""Drain no-op jobs with hastetrio, its peers and pgbench, on one server, in turns.

    python -m benchmarks.peers [--rounds N] [--jobs N] [--only KEY] [--json FILE] [--plot FILE]

Every peer gets a virtual environment of its own in a cache folder, made at the first run; one that
cannot be installed is left out, with the reason. Then each round runs ours, a peer, ours, the next
peer and so on, each run in a new database. A run that fails is told and costs no other figure.
BENCH_SERVER may name a server to use instead of an embedded one. Databases, processes and the
server are gone afterwards, also after Ctrl-C, which still reports the rounds that were done.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg

from benchmarks._server import server
from benchmarks.peers._ceiling import find_pgbench
from benchmarks.peers._race import Race
from benchmarks.peers._report import Report
from benchmarks.peers._run import Runner, ended_by_signals
from benchmarks.peers._systems import CEILINGS, PEERS, System
from benchmarks.peers._venvs import NotToBeHad, default_cache, environment_of
from hastetrio.embedded import EmbeddedUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

_FIGURE: Final = Path(__file__).parents[2] / "docs" / "figures" / "peers.png"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status: 0, 1 without any figure, 130 interrupted."""
    options = _options(arguments)
    race: Race | None = None
    left_out: dict[str, str] = {}
    machine: dict[str, str] = {}
    status = 0
    try:
        with ended_by_signals():
            contenders = _contenders(options, left_out)
            with server() as url:
                machine = _machine(url)
                runner = Runner(url, options.timeout)
                race = Race(
                    Path(sys.executable), contenders, runner.run, jobs=options.jobs, say=_say
                )
                for number in range(1, options.rounds + 1):
                    race.round(number)
    except KeyboardInterrupt:
        _say("interrupted: what follows is what was measured until then")
        status = 130
    except (EmbeddedUnavailable, psycopg.OperationalError) as error:
        _say(f"no server: {error}")
        status = 1
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    report = Report(tuple(race.pairs) if race else (), left_out, machine, now)
    if not report.keys:
        _say("nothing was measured")
        return status or 1
    print(report.text())
    if options.json:
        options.json.write_text(report.to_json(), encoding="utf-8")
    # A plot in the documentation is of whole rounds only.
    if options.plot and not status:
        _plot(report, options.plot)
    return status


def _contenders(options: argparse.Namespace, left_out: dict[str, str]) -> list[tuple[System, Path]]:
    contenders = []
    for system in (*PEERS, *CEILINGS):
        if options.only and system.key not in options.only:
            continue
        try:
            contenders.append((system, _program(system, options)))
        except (NotToBeHad, OSError) as error:
            left_out[system.key] = str(error)
            _say(f"{system.key} is left out: {error}")
    return contenders


def _program(system: System, options: argparse.Namespace) -> Path:
    if not system.connections:
        return environment_of(system, options.cache, options.python, _say)
    pgbench = find_pgbench()
    if pgbench is None:
        raise NotToBeHad("there is no pgbench beside the embedded server's programs or on the PATH")
    return pgbench


def _plot(report: Report, file: Path) -> None:
    try:
        report.plot(file)
    except ImportError:
        _say("no plot: matplotlib is missing, pip install 'hastetrio[bench]'")
    else:
        _say(f"plot: {file}")


def _machine(server_url: str) -> dict[str, str]:
    names = ("server_version", "fsync", "synchronous_commit", "shared_buffers", "jit")
    with psycopg.connect(server_url) as connection:
        rows = [connection.execute(f"SHOW {name}".encode()).fetchone() for name in names]
    version, *settings = [str(row[0]) if row else "?" for row in rows]
    told = ", ".join(f"{name} {is_}" for name, is_ in zip(names[1:], settings, strict=True))
    return {
        "machine": f"{os.cpu_count()} cores, {_processor()}, {platform.system()}",
        "server": f"PostgreSQL {version}, {told}",
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    keys = [system.key for system in (*PEERS, *CEILINGS)]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description="No-op jobs drained by hastetrio, its peers and pgbench, in turns.",
    )
    add = parser.add_argument
    add("--rounds", type=_positive, default=5, help="how often each runs [%(default)s]")
    add("--jobs", type=_positive, help="jobs a run, for all [what each does in 3 to 5 s]")
    add("--only", action="append", choices=keys, help="this one only; may be repeated")
    add("--timeout", type=_positive, default=180, help="seconds a run may take [%(default)s]")
    add("--cache", type=Path, default=default_cache(), help="environments' folder [%(default)s]")
    add(
        "--python",
        action="append",
        default=[],
        help="an interpreter for peers that need a later Python; may be repeated",
    )
    add("--json", type=Path, help="write the raw rounds to this file")
    add("--plot", type=Path, default=_FIGURE, help="draw to this PNG [docs/figures/peers.png]")
    add("--no-plot", dest="plot", action="store_const", const=None, help="draw nothing")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
