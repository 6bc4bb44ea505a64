"""A worker process that exports is killed, and another goes on, on PostgreSQL."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from tests.postgres.harness import column, run, until
from tests.postgres.processes import WorkerProcess

from hastetrio import CreateAsyncJob
from hastetrio.bulk import BulkExport
from hastetrio.postgres import PostgresJobProvider

from .export_process import _FILE_SIZE
from .harness import export, files_in, names_in, resource, write_lines

SCRIPT = Path(__file__).with_name("export_process.py")


@asynccontextmanager
async def exporting(
    url: str, source: Path, output: Path, *stop_in: str
) -> AsyncIterator[WorkerProcess]:
    """A worker process, killed at the end of the block if not before."""
    process = await trio.lowlevel.open_process(
        [sys.executable, str(SCRIPT), url, str(source), str(output), *stop_in],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        async with trio.open_nursery() as nursery:
            worker = WorkerProcess(process)
            nursery.start_soon(worker.follow)
            yield worker
            # What it has said is read to its end.
            process.kill()
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    await stream.aclose()


def names_opened(worker: WorkerProcess) -> list[str]:
    """The source files it has opened."""
    return [line["name"] for line in worker.events("opened")]


async def test_an_export_resumed_after_a_kill_redoes_no_finished_file(
    database_url: str, source: Path, output: Path, tmp_path: Path
) -> None:
    """SIGKILL in the third of four files: the next process opens two of them, and ends equal."""
    for place, name in enumerate("abcd"):
        lines = [
            resource(kind, n, text="x" * 200)
            for n in range(100 * place, 100 * place + 100)
            for kind in ("Patient", "Device")
        ]
        write_lines(source / f"{name}.ndjson", [*lines, b"rubbish"])
    created = CreateAsyncJob(kind="bulk-export", claims={"sub": "u"})
    async with PostgresJobProvider.open(database_url) as provider:
        job = await provider.create_job("t", "p", created)
        async with exporting(database_url, source, output, "c.ndjson") as first:
            await first.logged("stopped")
            assert names_opened(first) == ["a.ndjson", "b.ndjson", "c.ndjson"]
            first.send(signal.SIGKILL)
            await first.process.wait()
        (left,) = names_in(output)
        state = column(database_url, job.id, "state")
        # It was killed behind what it had saved.
        assert state["sources"] == 2
        sizes = {name: len(data) for name, data in files_in(output / left).items()}
        assert sum(sizes.values()) > sum(sum(one[1::2]) for one in state["outputs"].values())
        run(database_url, "UPDATE async_jobs SET lease_expires_at = now() - interval '1 s'")
        async with exporting(database_url, source, output) as second:
            await until(lambda: column(database_url, job.id, "status") == "completed")
        assert names_opened(second) == ["c.ndjson", "d.ndjson"]
        done = await provider.read_job("t", "p", job.id)
    assert done is not None
    assert done.attempts == 2
    assert names_in(output) == [job.id]
    whole = await export(BulkExport(source, tmp_path / "whole", file_size=_FILE_SIZE))
    assert files_in(output / job.id) == files_in(whole.directory)
    assert done.output["transactionTime"] == state["started"]
    items = [
        [{**item, "url": item["url"].rpartition("/")[2]} for item in manifest[key]]
        for manifest in (done.output, whole.manifest)
        for key in ("output", "error")
    ]
    assert items[:2] == items[2:]
