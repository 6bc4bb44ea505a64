"""Poll one `serve --worker` process as fast as it answers, and see that no renewal comes late.

    python -m benchmarks.polls [--seconds 20] [--connections 32] [--jobs 200] [--json FILE]

The process runs jobs that sleep, under leases of 6 s. First it is left alone for so long, then a
new one is asked for statuses by a load generator in a process of its own, while some clients have
stopped in the middle of a large download. Renewals and leases are read from `/metrics`, database
connections from `pg_stat_activity`. Everything is on one machine, and the server's processes and
databases are gone afterwards. Exit status: 1 where a renewal came after half of its lease, a lease
was lost, or a download held a database connection.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks._server import database, server
from benchmarks.polls._figures import Figures, Renewals
from benchmarks.polls._server import BASE, LEASE, NotMeasured, Server, serving
from hastetrio.embedded import EmbeddedUnavailable

_DOWNLOADS: Final = 8
_TWICE: Final = "SELECT count(*) FROM async_jobs WHERE attempts > 1"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit status."""
    options = _options(arguments)
    try:
        with server() as url, tempfile.TemporaryDirectory() as folder:
            figures = _measured(url, options, Path(folder))
    except KeyboardInterrupt:
        return 130
    except (NotMeasured, EmbeddedUnavailable, psycopg.OperationalError, OSError) as error:
        print(f"nothing was measured: {error}", file=sys.stderr)
        return 1
    print(figures.text())
    if options.json:
        options.json.write_text(json.dumps(figures.to_json(), indent=2) + "\n", "utf-8")
    return 1 if figures.problems else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.polls")
    parser.add_argument("--seconds", type=float, default=20, help="how long to poll")
    parser.add_argument("--connections", type=int, default=32, help="polls under way at once")
    parser.add_argument("--jobs", type=int, default=200, help="jobs that run meanwhile")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return parser.parse_args(arguments)


def _measured(url: str, options: argparse.Namespace, folder: Path) -> Figures:
    with _migrated(url, "polls_quiet") as quiet, serving(quiet, options.jobs, folder) as alone:
        time.sleep(options.seconds)
        without = _renewals(alone)
    with _migrated(url, "polls_loaded") as loaded, serving(loaded, options.jobs, folder) as asked:
        # The connections that polls share are there before they are counted.
        _polled(asked, options.connections, 1)
        before = asked.sessions()
        with asked.slow_downloads(_DOWNLOADS) as clients:
            downloading = asked.sessions()
            polls, most = _polled(asked, options.connections, options.seconds)
            for client in clients:
                # They are still there: what was buffered for them has not been taken.
                if not client.recv(100):
                    raise NotMeasured("a stalled download was cut")
        under = _renewals(asked)
    return Figures(
        machine=_machine(),
        settings={
            "seconds": options.seconds,
            "connections": options.connections,
            "jobs": options.jobs,
            "lease_seconds": LEASE,
        },
        polls=polls,
        quiet=without,
        loaded=under,
        sessions={"before": before, "downloading": downloading, "loaded": most},
    )


@contextmanager
def _migrated(url: str, name: str) -> Iterator[str]:
    with database(url, name) as made:
        environ = {**os.environ, "HASTETRIO_DATABASE_URL": made}
        command = [sys.executable, "-m", "hastetrio", "migrate"]
        answer = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        if answer.returncode:
            raise NotMeasured(f"the tables cannot be made: {answer.stderr.strip()}")
        yield made


def _polled(asked: Server, connections: int, seconds: float) -> tuple[dict[str, Any], int]:
    """Poll for so long: the load generator's figures, and the most database connections seen."""
    command = [sys.executable, "-m", "benchmarks.polls._load", "127.0.0.1", str(asked.port)]
    with subprocess.Popen(
        [*command, str(connections)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdin is not None  # noqa: S101  # it was asked for
            assert process.stdout is not None  # noqa: S101
            paths = "".join(f"{BASE}/_async/{id}\n" for id in asked.jobs)
            process.stdin.write(paths + "\n")
            process.stdin.flush()
            if process.stdout.readline() != "asking\n":
                raise NotMeasured("the load generator cannot connect")
            end, most = time.monotonic() + seconds, 0
            while (left := end - time.monotonic()) > 0 and process.poll() is None:
                most = max(most, asked.sessions())
                time.sleep(min(left, 1))
            said, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    if process.returncode:
        raise NotMeasured("the load generator failed")
    polls: dict[str, Any] = json.loads(said)
    return polls, most


def _renewals(of: Server) -> Renewals:
    return Renewals.of(of.metrics(), of.number(_TWICE))


def _machine() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": str(len(os.sched_getaffinity(0))),
    }


if __name__ == "__main__":
    sys.exit(main())
