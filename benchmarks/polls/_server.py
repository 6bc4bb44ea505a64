"""A `serve --worker` process with jobs asleep in it, and what can be seen of it from outside."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

import attrs
import psycopg

LEASE: Final = 6.0
BASE: Final = "/w/bench/polls/api/v1/fhir/r4"

# Jobs nobody runs, asked after in turn with the others: each is then asked after more seldom than
# once a second, which is never refused, and no 429 is taken for a poll.
PARKED: Final = 5000

_START_SECONDS: Final = 60.0

_JOBS: Final = """
INSERT INTO async_jobs (tenant, project, kind, submitted_by)
SELECT 'bench', 'polls', %(kind)s, 'anonymous' FROM generate_series(1, %(count)s) RETURNING id
"""

_SESSIONS: Final = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'hastetrio'
"""


class NotMeasured(Exception):
    """Something went wrong; the text says what."""


@attrs.define
class Server:
    """A process that serves and works.

    Attributes:
        database_url: Where its jobs are.
        port: Where it listens.
        jobs: The ids of all jobs but the one with a file.
        large: The path of the file.
    """

    database_url: str
    port: int
    jobs: list[str]
    large: str

    def get(self, path: str) -> str:
        """The body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with closing(connection):
            connection.request("GET", path)
            return connection.getresponse().read().decode()

    def metrics(self) -> dict[str, float]:
        """What `/metrics` says, by name and labels."""
        lines = [one for one in self.get("/metrics").splitlines() if not one.startswith("#")]
        pairs = (line.rpartition(" ") for line in lines)
        return {name: float(value) for name, _, value in pairs}

    def number(self, statement: str) -> int:
        """The one number that a statement returns."""
        with psycopg.connect(self.database_url) as connection:
            row = connection.execute(statement.encode()).fetchone()
        return 0 if row is None else int(row[0])

    def sessions(self) -> int:
        """How many database connections the process has."""
        return self.number(_SESSIONS)

    @contextmanager
    def slow_downloads(self, count: int) -> Iterator[list[socket.socket]]:
        """Clients that have begun to fetch the file, and read no more of it for now."""
        with ExitStack() as stack:
            clients = []
            for _ in range(count):
                client = stack.enter_context(socket.socket())
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.connect(("127.0.0.1", self.port))
                client.sendall(f"GET {self.large} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
                if not client.recv(100).startswith(b"HTTP/1.1 200"):
                    raise NotMeasured("the file cannot be fetched")
                clients.append(client)
            yield clients


@contextmanager
def serving(database_url: str, jobs: int, folder: Path) -> Iterator[Server]:
    """A server whose jobs are all running.

    Raises:
        NotMeasured: It did not start, or did not start them.
    """
    log = folder / "serve.log"
    command = [
        *(sys.executable, "-m", "hastetrio", "serve", "--worker", "--http", "127.0.0.1:0"),
        *("--handlers", "benchmarks.polls._handlers:HANDLERS", "--lease-duration", str(LEASE)),
        *("--max-concurrent-jobs", str(jobs + 1), "--drain-timeout", "0"),
    ]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HASTETRIO_")}
    with (
        log.open("w") as file,
        subprocess.Popen(
            command,
            env={**kept, "HASTETRIO_DATABASE_URL": database_url},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            port = _until(lambda: _port(process, log), "the server did not start")
            yield _with_jobs(database_url, port, jobs)
            process.send_signal(signal.SIGTERM)
            process.wait(_START_SECONDS)
        except subprocess.TimeoutExpired:
            raise NotMeasured("the server did not stop") from None
        finally:
            if process.poll() is None:
                process.kill()


def _port(process: subprocess.Popen[bytes], log: Path) -> int | None:
    said = log.read_text("utf-8")
    if process.poll() is not None:
        raise NotMeasured(f"the server ended: {said}")
    found = re.search(r"Listening on http://\S+:(\d+)", said)
    return None if found is None else int(found[1])


def _with_jobs(database_url: str, port: int, count: int) -> Server:
    with psycopg.connect(database_url, autocommit=True) as connection:

        def insert(kind: str, count: int) -> list[str]:
            values = {"kind": kind, "count": count}
            return [row[0] for row in connection.execute(_JOBS.encode(), values)]

        ids = [*insert("nap", count), *insert("parked", PARKED)]
        (large,) = insert("large", 1)
        connection.execute("ANALYZE async_jobs")
    server = Server(database_url, port, ids, f"{BASE}/_async/{large}/files/large")
    running = "SELECT count(*) FROM async_jobs WHERE kind = 'nap' AND status = 'in-progress'"
    done = "SELECT count(*) FROM async_jobs WHERE kind = 'large' AND status = 'completed'"
    _until(
        lambda: (server.number(running) == count and server.number(done) == 1) or None,
        "the jobs were not started",
    )
    return server


def _until(look: Callable[[], int | None], otherwise: str) -> int:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end:
        found = look()
        if found is not None:
            return found
        time.sleep(0.05)
    raise NotMeasured(otherwise)
