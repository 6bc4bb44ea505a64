"""One run of one system: a new database, its jobs queued, the clock, the check that all is done.

What is timed, alike for all: from the first line of the first job's handler to the moment at which
the database shows no job left. Starting up and queueing are outside, recording the last job is
inside. For pgbench, which has no handler, it is the time of its transactions. CPU is that of the
system's own process with its threads over the same span, and never the server's.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self

import attrs
import psycopg

from benchmarks._server import database
from benchmarks.peers._adapter import Server
from benchmarks.peers._ceiling import BATCH, Pgbench
from benchmarks.peers._children import end
from benchmarks.peers._venvs import complaint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.peers._systems import System

_ROOT: Final = Path(__file__).parents[2]
_LOOK_EVERY: Final = 0.002
_LEAVE_TIMEOUT: Final = 30.0

# A finish steps over rows that another connection's claim holds for a moment. A worker asks again,
# pgbench does not: 2 to 9 % of the jobs with four connections, none with one. Not counted.
_LEAST_RECORDED: Final = 0.5

# Settings of the environment that would reach some of the systems and not others.
_KEPT_OUT: Final = ("PG", "PYTHON", "OBAN_", "PGQUEUER_", "PROCRASTINATE_", "HASTETRIO_", "RUST_")


class RunFailed(Exception):
    """A run gave no figure; the text says why."""


@attrs.frozen(kw_only=True)
class Outcome:
    """What one run measured.

    Attributes:
        system: The key of the system.
        jobs: How many jobs were drained.
        seconds: How long that took.
        cpu: CPU seconds of the system's process.
        tail: Seconds of these from the start of the last handler on; 0 for pgbench.
        python: The version of its Python; empty for pgbench.
        versions: The versions of the packages that did the work.
    """

    system: str
    jobs: int
    seconds: float
    cpu: float
    tail: float = 0.0
    python: str = ""
    versions: dict[str, str] = attrs.field(factory=dict)

    @property
    def rate(self) -> float:
        """Jobs a second."""
        return self.jobs / self.seconds

    @property
    def cpu_per_job(self) -> float:
        """Microseconds of CPU a job."""
        return self.cpu / self.jobs * 1e6


@attrs.frozen
class Runner:
    """Runs systems on one server.

    Args:
        server: The server's conninfo.
        timeout: Seconds one run may take; one that takes longer has failed.
    """

    server: str
    timeout: float

    def run(self, system: System, interpreter: Path, jobs: int) -> Outcome:
        """Drain that many jobs once.

        Args:
            system: What drains them.
            interpreter: The Python of its adapter, or the program pgbench.
            jobs: How many.

        Raises:
            RunFailed: There is no figure.
        """
        # Several benchmarks may share a server.
        name = f"hastetrio_peers_{os.getpid()}"
        try:
            with (
                database(self.server, name) as url,
                psycopg.connect(url, autocommit=True) as connection,
            ):
                # The tables are said to be small when the jobs are gone, and are not: what is left
                # is found through an index, by the same means for all.
                connection.execute("SET enable_seqscan = off")
                run = self._ceiling if system.connections else self._adapter
                outcome = run(system, interpreter, jobs, connection)
                recorded = _count(connection, system)
                if system.connections and recorded >= _LEAST_RECORDED * jobs:
                    return attrs.evolve(outcome, jobs=recorded)
                if recorded != jobs:
                    raise RunFailed(f"{recorded} of {jobs} jobs are recorded as done")
                return outcome
        except psycopg.Error as error:
            raise RunFailed(f"the database: {complaint(str(error))}") from error

    def _adapter(
        self,
        system: System,
        interpreter: Path,
        jobs: int,
        connection: psycopg.Connection[tuple[Any, ...]],
    ) -> Outcome:
        deadline = time.monotonic() + self.timeout
        command = [
            *(str(interpreter), "-m", f"benchmarks.peers.{system.module}"),
            *system.arguments,
        ]
        with _Adapter(command, deadline) as adapter:
            server = dataclasses.asdict(server_of(connection.info))
            adapter.tell(json.dumps({"jobs": jobs, "server": server}))
            ready = adapter.hear("ready")
            connection.execute("ANALYZE")
            adapter.tell("go")
            started = adapter.hear("all started")
            last = _wait_until_done(connection, system, jobs, deadline)
            adapter.tell("stop")
            done = adapter.hear("done")
            adapter.wait()
        if done["started"] != jobs:
            raise RunFailed(f"{done['started']} handlers ran for {jobs} jobs")
        return Outcome(
            system=system.key,
            jobs=jobs,
            seconds=last - float(started["first"]),
            cpu=float(done["cpu"]),
            tail=last - float(started["last"]),
            python=str(ready["python"]),
            versions=dict(ready["versions"]),
        )

    def _ceiling(
        self,
        system: System,
        program: Path,
        jobs: int,
        connection: psycopg.Connection[tuple[Any, ...]],
    ) -> Outcome:
        pgbench = Pgbench(program, server_of(connection.info), self.timeout)
        # Claims side by side would get less than a batch each at the queue's end.
        pgbench.prepare(jobs + (system.connections - 1) * BATCH)
        connection.execute("ANALYZE")
        try:
            seconds, cpu = pgbench.run(system.connections, jobs)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise RunFailed(str(error)) from error
        return Outcome(system=system.key, jobs=jobs, seconds=seconds, cpu=cpu)


def server_of(info: psycopg.ConnectionInfo) -> Server:
    """The server and database of a connection."""
    return Server(info.host, info.port, info.user, info.password, info.dbname)


def _wait_until_done(
    connection: psycopg.Connection[tuple[Any, ...]], system: System, jobs: int, deadline: float
) -> float:
    """Look until no job is left; the time of the look that found none."""
    while True:
        looked = time.monotonic()
        parameters = {"jobs": jobs} if "%(jobs)s" in system.left else None
        row = connection.execute(system.left.encode(), parameters).fetchone()
        if row is not None and row[0] is False:
            return looked
        if looked > deadline:
            left = jobs - _count(connection, system)
            raise RunFailed(f"{left} of {jobs} jobs were not recorded in time")
        time.sleep(_LOOK_EVERY)


def _count(connection: psycopg.Connection[tuple[Any, ...]], system: System) -> int:
    row = connection.execute(system.recorded.encode()).fetchone()
    return 0 if row is None else int(row[0])


class _Adapter:
    """The adapter's process, and the talk with it; ended with the block, whatever happens."""

    def __init__(self, command: list[str], deadline: float) -> None:
        self._deadline = deadline
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed in __exit__
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(_KEPT_OUT)
        }
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=_ROOT,
            env=environment,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end(self._process)
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101  # it was asked for
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None  # noqa: S101  # it was asked for
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except OSError:
            raise RunFailed(self._last_words()) from None

    def hear(self, event: str) -> dict[str, Any]:
        """The adapter's next message, which must be this one."""
        try:
            line = self._lines.get(timeout=max(0.0, self._deadline - time.monotonic()))
        except queue.Empty:
            raise RunFailed(f"not {event} in time; {self._last_words()}") from None
        if not line:
            raise RunFailed(self._last_words())
        message: dict[str, Any] = json.loads(line)
        if message["event"] != event:
            raise RunFailed(f"said {message['event']!r} instead of {event!r}")
        return message

    def wait(self) -> None:
        """Let the adapter leave; one that does not is none of the figure's business."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LEAVE_TIMEOUT)

    def _last_words(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        self._errors.seek(0)
        said = complaint(self._errors.read().decode("utf-8", "replace"))
        return f"the adapter said: {said}" if said else "the adapter said nothing"


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM end the block like Ctrl-C, so that everything is cleaned up."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
