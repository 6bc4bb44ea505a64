"""The ceiling: pgbench sends our own claim and finish statements, and nothing else.

Each of its transactions is one claim of 100 jobs and one finish of the same 100, as two statements
of their own, prepared. The claim is wrapped so that it answers the ids in one row, which is all
that pgbench can carry from one statement to the next; nothing runs in between.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import trio

from benchmarks.peers._children import end
from benchmarks.peers._ours import queue_jobs
from hastetrio._sql import query
from hastetrio.embedded import EmbeddedUnavailable, find_binaries
from hastetrio.postgres import PostgresJobProvider
from hastetrio.postgres._rows import job_query

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.peers._adapter import Server

BATCH: Final = 100

_TOKEN: Final = "pgbench/1-aaaaaaaa"  # noqa: S105  # a claim's token, no secret


def _repeated(literal: str) -> str:
    return f"array_fill({literal}, ARRAY[{BATCH}])"


_CLAIM: Final = {
    "kinds": "ARRAY['noop']",
    "exclude": "ARRAY[]::text[]",
    "limit": str(BATCH),
    "last_chances": "1",
    "token": f"'{_TOKEN}'",
    "lease": "60",
}
_FINISH: Final = {
    "ids": ":ids",
    "tokens": _repeated(f"'{_TOKEN}'::text"),
    "statuses": _repeated("'completed'::text"),
    "outputs": _repeated("""'{"ok": 1}'::text"""),
    "content_types": _repeated("'application/json'::text"),
    "errors": _repeated("NULL::text"),
    "progress": _repeated("NULL::text"),
    "retentions": _repeated("86400::float8"),
    "failures": _repeated("NULL::text"),
}


def script() -> str:
    """The pgbench script: one claim, one finish.

    Raises:
        ValueError: A statement has a parameter that is not known here.
    """
    claim = _filled(job_query("claim_jobs"), _CLAIM)
    finish = _filled(query("finish_jobs"), _FINISH)
    return (
        f"WITH claimed AS (\n{claim}\n)\n"
        f"SELECT coalesce(array_agg(id), '{{}}') AS ids FROM claimed \\gset\n{finish};\n"
    )


def _filled(statement: str, values: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        try:
            return values[match[1]]
        except KeyError:
            raise ValueError(
                f"the statement takes a parameter {match[1]!r}, for which pgbench has no value: "
                "give it one in benchmarks/peers/_ceiling.py"
            ) from None

    # A colon in a comment would be a variable of pgbench's.
    lines = [line.partition("--")[0].rstrip() for line in statement.splitlines()]
    text = "\n".join(line for line in lines if line)
    return re.sub(r"%\((\w+)\)[sbt]", value, text).replace("%%", "%")


def find_pgbench() -> Path | None:
    """The pgbench beside the embedded server's programs, or on the PATH."""
    try:
        beside = find_binaries().folder / "pgbench"
        if os.access(beside, os.X_OK):
            return beside
    except EmbeddedUnavailable:
        pass
    found = shutil.which("pgbench")
    return Path(found) if found else None


@attrs.frozen
class Pgbench:
    """pgbench on one database.

    Args:
        program: Where it is.
        server: Tells the database.
        timeout: Seconds one run may take.
    """

    program: Path
    server: Server
    timeout: float

    def prepare(self, jobs: int) -> None:
        """Make our tables and queue that many jobs."""

        async def prepare() -> None:
            async with PostgresJobProvider.open(self.server.conninfo) as provider:
                await queue_jobs(provider, jobs)

        trio.run(prepare)

    def run(self, connections: int, jobs: int) -> tuple[float, float]:
        """Drain the jobs; returns the seconds of the transactions and pgbench's CPU seconds.

        Raises:
            ValueError: The jobs do not come out even, pgbench failed, or it says no rate.
            subprocess.TimeoutExpired: It took too long, and was ended.
        """
        if jobs % (connections * BATCH):
            raise ValueError(
                f"{jobs} jobs do not come out even in batches of {BATCH} over {connections} "
                "connections"
            )
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "claim_and_finish.sql"
            file.write_text(script(), encoding="utf-8")
            command = [
                str(self.program),
                *("--no-vacuum", "--protocol=prepared", f"--file={file}"),
                *(f"--client={connections}", f"--jobs={min(connections, 2)}"),
                f"--transactions={jobs // (connections * BATCH)}",
                *(f"--host={self.server.host}", f"--port={self.server.port}"),
                *(f"--username={self.server.user}", self.server.database),
            ]
            before = _children_cpu()
            said = self._call(command)
            return _seconds(said), _children_cpu() - before

    def _call(self, command: list[str]) -> str:
        environment = {name: os.environ[name] for name in os.environ if name[:2] != "PG"}
        if self.server.password:
            environment["PGPASSWORD"] = self.server.password
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment | {"LC_ALL": "C"},
            start_new_session=True,
        ) as process:
            try:
                said, _ = process.communicate(timeout=self.timeout)
            finally:
                end(process)
        if process.returncode:
            lines = said.strip().splitlines() or ["no word"]
            # The first error is the reason, the last says only that the run was aborted.
            raise ValueError(next((line for line in lines if "error" in line.lower()), lines[-1]))
        return said


def _seconds(said: str) -> float:
    """How long the transactions took, connecting left out, from what pgbench prints."""
    rate = re.search(r"tps = ([\d.]+) \(without initial", said)
    count = re.search(r"actually processed: (\d+)", said)
    if rate is None or count is None or not float(rate[1]):
        raise ValueError(f"pgbench printed no rate: {said.strip()[-200:]}")
    return int(count[1]) / float(rate[1])


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
