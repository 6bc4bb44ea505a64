"""An export that is cancelled stops, with its threads, and leaves nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from hastetrio.bulk import BulkExport
from hastetrio.bulk._directory import JobDirectory
from hastetrio.bulk._export import Export
from hastetrio.bulk._lines import Line, SourceFile

from .harness import export, make_job, names_in, resource, write_lines


def busy_threads() -> int:
    """How many threads work for this trio run."""
    return int(trio.to_thread.current_default_thread_limiter().borrowed_tokens)


async def test_a_cancel_between_steps_leaves_no_file(source: Path, output: Path) -> None:
    """Cancelled in the middle, the export is gone and so are its threads."""
    write_lines(source / "x.ndjson", [resource("Patient", n, x="x" * 900) for n in range(100)])
    seen: list[list[str]] = []
    with trio.CancelScope() as scope:

        def cancel_at_third(_: str) -> None:
            seen.append(names_in(output))
            if len(seen) == 3:
                scope.cancel()

        await export(BulkExport(source, output, pace=1e-9), on_report=cancel_at_third)
    assert scope.cancelled_caught
    assert seen[-1] == [".job-1.abcd1234.tmp"]
    assert len(seen) == 3
    assert names_in(output) == []
    assert busy_threads() == 0


async def test_a_cancel_stops_a_step_at_its_next_chunk(
    source: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of a cancelled job reads and writes nothing more, and is waited for."""
    write_lines(source / "x.ndjson", [resource("Binary", n, x="x" * 90_000) for n in range(12)])
    read = SourceFile.read
    reading, go_on = trio.Event(), threading.Event()
    reads: list[int] = []

    def slow_read(file: SourceFile) -> Iterator[Line]:
        reads.append(file.bytes_read)
        trio.from_thread.run_sync(reading.set)
        assert go_on.wait(60)
        return read(file)

    monkeypatch.setattr(SourceFile, "read", slow_read)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def cancel_while_reading() -> None:
            await reading.wait()
            assert busy_threads() == 1
            nursery.cancel_scope.cancel()
            go_on.set()

        await export(BulkExport(source, output))
    assert nursery.cancel_scope.cancelled_caught
    assert reads == [0]
    assert names_in(output) == []
    assert busy_threads() == 0


async def test_a_lapsed_lease_is_noticed_before_the_next_step(
    source: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadline that passed while the process stood still stops the job before it does more."""
    write_lines(source / "x.ndjson", [resource("Patient")])
    steps: list[Export] = []
    monkeypatch.setattr(Export, "step", steps.append)
    with trio.CancelScope() as scope:

        def lapse(_: str) -> None:
            scope.deadline = trio.current_time() - 1

        await export(BulkExport(source, output), on_report=lapse)
    assert scope.cancelled_caught
    assert steps == []
    assert names_in(output) == []


async def test_an_error_leaves_no_file(
    source: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected error passes on as it is, after the half export was deleted."""
    write_lines(source / "x.ndjson", [resource("Patient")])

    def broken(_: JobDirectory, claim: str) -> None:
        raise ZeroDivisionError(claim)

    monkeypatch.setattr(JobDirectory, "publish", broken)
    with pytest.raises(ZeroDivisionError):
        await export(BulkExport(source, output))
    assert names_in(output) == []
    assert busy_threads() == 0


async def test_a_clean_up_that_takes_too_long_is_given_up(
    source: Path, output: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """A cancelled export that cannot delete its files in time leaves them to expiry."""
    write_lines(source / "x.ndjson", [resource("Patient", n, x="x" * 900) for n in range(100)])
    deleting = threading.Event()
    discard = JobDirectory.discard

    def slow_discard(directory: JobDirectory, claim: str) -> None:
        deleting.set()
        trio.from_thread.run(trio.sleep, 60)
        discard(directory, claim)

    monkeypatch.setattr(JobDirectory, "discard", slow_discard)
    with trio.CancelScope() as scope:
        await export(BulkExport(source, output, pace=1), on_report=lambda _: scope.cancel())
    assert scope.cancelled_caught
    assert deleting.is_set()
    assert trio.current_time() < 60
    assert names_in(output) == [".job-1.abcd1234.tmp"]
    await BulkExport(source, output).expire(make_job())
    assert names_in(output) == []


async def test_exports_at_the_same_time_do_not_meet(source: Path, output: Path) -> None:
    """One handler serves several jobs at once; each has its own files and its own failures."""
    write_lines(source / "x.ndjson", [resource("Patient", n, x="x" * 900) for n in range(40)])
    write_lines(source / "y.ndjson", [resource("Device", n) for n in range(7)])
    handler = BulkExport(source, output, pace=1e-9)
    counts: dict[str, dict[str, int]] = {}

    async def one(job_id: str, types: str) -> None:
        done = await export(handler, job_id=job_id, parameters={"_type": types})
        counts[job_id] = done.counts()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one, "a", "Patient")
        nursery.start_soon(one, "b", "Device")
        nursery.start_soon(one, "c", "Patient,Device")
    assert counts == {"a": {"Patient": 40}, "b": {"Device": 7}, "c": {"Patient": 40, "Device": 7}}
    assert names_in(output) == ["a", "b", "c"]
