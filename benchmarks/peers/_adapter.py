"""An adapter's side of a run. Only the standard library: it runs in every peer's environment.

An adapter is a program of its own, run by the interpreter of the peer's environment. It reads its
order, makes the schema, queues the jobs, says that it is ready, and is told to go. It starts its
worker, whose handler calls `Run.job` and does nothing else; it is told to stop once the database
shows every job as done, and says what that cost. Who tells it is `benchmarks.peers._run`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any
from urllib.parse import quote


@dataclass(frozen=True)
class Server:
    """Where the run's database is, in the forms that drivers take.

    Attributes:
        host: The server's host, or the folder of its socket.
        port: The server's port.
        user: As whom to connect.
        password: That user's password; empty for none.
        database: The name of the database, which is new and empty.
    """

    host: str
    port: int
    user: str
    password: str
    database: str

    @property
    def conninfo(self) -> str:
        """The database for libpq."""
        parts = {
            "host": self.host,
            "port": str(self.port),
            "user": self.user,
            "password": self.password,
            "dbname": self.database,
        }
        quoted = {
            name: value.replace("\\", "\\\\").replace("'", "\\'") for name, value in parts.items()
        }
        return " ".join(f"{name}='{value}'" for name, value in quoted.items() if value)

    @property
    def url(self) -> str:
        """The database as a URL; the folder of a socket is a parameter of it."""
        login = quote(self.user, safe="")
        if self.password:
            login += ":" + quote(self.password, safe="")
        if self.host.startswith("/"):
            place = f"localhost:{self.port}/{self.database}?host={quote(self.host, safe='')}"
        else:
            place = f"{self.host}:{self.port}/{self.database}"
        return f"postgresql://{login}@{place}"


class Run:
    """One run: how many jobs, on which server, and the talk with the program that measures.

    Attributes:
        jobs: How many jobs to queue and drain.
        server: Where.
    """

    def __init__(self) -> None:
        # The talk has a file of its own: what a peer prints goes to standard error.
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        order: dict[str, Any] = json.loads(self._told())
        self.jobs: int = order["jobs"]
        self.server = Server(**order["server"])
        self._started = 0
        self._first = 0.0
        self._cpu_before = 0.0

    def ready(self, *distributions: str) -> None:
        """Say that the jobs are queued, and wait until told to go. Blocks.

        Args:
            distributions: The packages whose versions belong in the report.
        """
        self._say(
            event="ready",
            python=".".join(map(str, sys.version_info[:3])),
            versions={name: version(name) for name in distributions},
        )
        self._told()

    def job(self) -> None:
        """A handler's first line: counts it. The clocks start with the first job."""
        if not self._started:
            self._cpu_before = time.process_time()
            self._first = time.monotonic()
        self._started += 1
        if self._started == self.jobs:
            # From here on the database is looked at; not before, which would slow the run.
            self._say(event="all started", first=self._first, last=time.monotonic())

    def wait_for_stop(self) -> None:
        """Wait until told that every job is done, and say what they cost. Blocks: use a thread."""
        self._told()
        cpu = time.process_time() - self._cpu_before
        self._say(event="done", cpu=cpu, started=self._started)

    def _say(self, **message: object) -> None:
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()

    def _told(self) -> str:
        line = sys.stdin.readline()
        if not line:
            # Nobody measures any more: leave nothing running.
            os._exit(1)
        return line


def chunks(count: int, size: int) -> list[range]:
    """`range(count)` in pieces of at most `size`."""
    return [range(start, min(start + size, count)) for start in range(0, count, size)]
