"""An export streams: its memory does not grow with its input."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from hastetrio.bulk import BulkExport

from .harness import Exported, export, resource

MIB = 1024 * 1024


async def peak_of(handler: BulkExport) -> tuple[int, Exported]:
    """The most memory Python objects took during one export."""
    tracemalloc.start()
    try:
        done = await export(handler)
        return tracemalloc.get_traced_memory()[1], done
    finally:
        tracemalloc.stop()


def write_repeated(path: Path, block: bytes, times: int) -> None:
    """Write a large file without holding it."""
    with path.open("wb") as stream:
        for _ in range(times):
            stream.write(block)


@pytest.mark.parametrize("lines_a_block", [1, 64])
async def test_memory_does_not_grow_with_the_input(
    source: Path, output: Path, lines_a_block: int
) -> None:
    """64 MiB take about as much memory as 1 MiB: a batch of 4 MiB more, not 63."""
    line = resource("Binary", data="x" * (MIB // lines_a_block - 64))
    block = (line + b"\n") * lines_a_block
    handler = BulkExport(source, output)
    write_repeated(source / "x.ndjson", block, 1)
    small, done = await peak_of(handler)
    assert done.counts() == {"Binary": lines_a_block}
    write_repeated(source / "x.ndjson", block, 64)
    large, done = await peak_of(handler)
    assert done.counts() == {"Binary": 64 * lines_a_block}
    assert large < small + 10 * MIB


async def test_a_huge_line_is_skipped_without_being_held(source: Path, output: Path) -> None:
    """A line of 64 MiB is one problem, and takes no more memory than the line limit."""
    with (source / "x.ndjson").open("wb") as stream:
        stream.write(b'{"resourceType":"Binary","data":"')
        for _ in range(64):
            stream.write(b"x" * MIB)
        stream.write(b'"}\n' + resource("Patient") + b"\n")
    peak, done = await peak_of(BulkExport(source, output, line_limit=4 * MIB))
    assert done.counts() == {"Patient": 1}
    assert [issue["code"] for issue in done.problems()] == ["too-long"]
    assert peak < 10 * MIB
