"""Runs real workers under real faults for as long as told, and judges what is left of the jobs.

    python tools/soak.py [--seconds N] [--seed N] [--workers N]

Worker processes are killed, stopped over their leases, told to end; their database is restarted,
stopped immediately, its connections are ended; clients cancel; jobs expire. Then all is calm, the
workers finish what is left, and an audit compares the rows, every change of every row, and what
each body of each job wrote down. The exit status is the verdict: 0, or 1 with each promise that
was not kept in a line. The seed that is printed replays the schedule of faults. It needs nothing
but this repository, and leaves nothing behind, also when it is interrupted.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).parents[1]))

from hastetrio.embedded import EmbeddedUnavailable
from tools.soak_run import Options, Report, Soak

# Violations that are printed; a broken rule breaks for many jobs alike.
_SHOWN = 30


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a soak; returns the exit status."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.seconds <= 0 or parsed.rate <= 0 or parsed.workers < 1 or parsed.lease < 1:
        parser.error("--seconds and --rate must be above 0, --workers and --lease at least 1")
    options = Options(
        seconds=parsed.seconds,
        seed=random.randrange(10**6) if parsed.seed is None else parsed.seed,  # noqa: S311
        workers=parsed.workers,
        rate=parsed.rate,
        lease=parsed.lease,
        calm=parsed.calm,
    )
    _say(f"seed {options.seed}")
    folder = Path(tempfile.mkdtemp(prefix="hastetrio-soak-"))
    folder.chmod(0o755)  # Root's server runs as another account.
    kept = False
    report: Report | int = 1
    try:
        try:
            report = trio.run(_run, options, folder)
        except* EmbeddedUnavailable as unavailable:
            error: BaseException = unavailable
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            _say(str(error))
        if isinstance(report, int):
            return report
        kept = parsed.keep
        _print(report, options)
        return 1 if report.violations else 0
    finally:
        if kept:
            _say(f"kept: {folder}")
        else:
            shutil.rmtree(folder)


async def _run(options: Options, folder: Path) -> Report | int:
    """The report, or the exit status for the signal that ended it."""
    came: list[int] = []
    report: Report | None = None
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_obey, signals, came, nursery.cancel_scope)
            report = await Soak(options, folder, _say).run()
            nursery.cancel_scope.cancel()
    return 128 + came[0] if report is None else report


async def _obey(signals: AsyncIterator[int], came: list[int], scope: trio.CancelScope) -> None:
    async for number in signals:
        if not came:
            _say(f"{signal.Signals(number).name}: ending the workers and the server")
        came.append(number)
        scope.cancel()


def _print(report: Report, options: Options) -> None:
    width = max(map(len, report.figures))
    for name, figure in report.figures.items():
        print(f"  {name:<{width}}  {figure:>10}")
    for violation in report.violations[:_SHOWN]:
        print(f"  {violation}")
    if len(report.violations) > _SHOWN:
        print(f"  and {len(report.violations) - _SHOWN} more")
    replay = f"--seed {options.seed} --seconds {options.seconds:g} --workers {options.workers}"
    if report.violations:
        print(f"soak: FAILED, {len(report.violations)} violation(s); faults replayed by {replay}")
    else:
        print(f"soak: every promise kept; faults replayed by {replay}")


def _say(line: str) -> None:
    print(f"soak: {line}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="soak", description="Real workers under real faults, and an audit of what is left."
    )
    add = parser.add_argument
    add("--seconds", type=float, default=120.0, help="how long faults go on [%(default)s]")
    add("--seed", type=int, help="replays a schedule of faults [a random one]")
    add("--workers", type=int, default=4, help="worker processes [%(default)s]")
    add("--rate", type=float, default=30.0, help="jobs created a second [%(default)s]")
    add("--lease", type=float, default=2.5, help="the workers' lease, seconds [%(default)s]")
    add("--calm", type=float, default=90.0, help="time to finish what is left [%(default)s]")
    add("--keep", action="store_true", help="keep the folder with records, logs and journal")
    return parser


if __name__ == "__main__":
    sys.exit(main())
