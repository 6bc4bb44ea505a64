"""Reading lines in bounded pieces."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastetrio.bulk._lines import SourceFile

Found = list[tuple[int, bytes | None, int]]


def read_all(path: Path, *, chunk: int, limit: int = 1000) -> Found:
    """Every line of a file."""
    file = SourceFile(path, line_limit=limit, chunk=chunk)
    found: Found = []
    try:
        while not file.at_end:
            found += [(line.number, line.data, line.size) for line in file.read()]
    finally:
        file.close()
    return found


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that each example writes anew."""
    return tmp_path_factory.mktemp("lines") / "x.ndjson"


@given(
    parts=st.lists(
        st.sampled_from(
            [b"\n", b"\r\n", b"\r", b" ", b"{}", b"\xef\xbb\xbf", b"abcdefghij", b"\xff"]
        )
    ),
    chunk=st.integers(3, 12),
)
def test_chunks_do_not_show_in_the_lines(path: Path, parts: list[bytes], chunk: int) -> None:
    """Wherever chunks end, the lines are those of the whole file."""
    data = b"".join(parts)
    path.write_bytes(data)
    limit = 15
    expected: Found = []
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        line = raw.removesuffix(b"\r")
        if len(line) > limit:
            expected.append((number, None, 0))
        elif line.strip():
            expected.append((number, line, 0))
    found = read_all(path, chunk=chunk, limit=limit)
    assert [(number, line, 0) for number, line, _ in found] == expected


def test_a_line_beyond_the_limit_is_skipped_and_measured(path: Path) -> None:
    """A huge line costs nothing but its place, and the next one is read."""
    path.write_bytes(b"a\n" + b"x" * 5000 + b"\nb")
    assert read_all(path, chunk=64) == [(1, b"a", 1), (2, None, 5000), (3, b"b", 1)]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b""])
@pytest.mark.parametrize("chunk", [3, 16, 17, 64])
def test_the_limit_counts_the_line_without_its_ending(
    path: Path, ending: bytes, chunk: int
) -> None:
    """A line of exactly the limit is read, and one byte more is too long, whatever ends it."""
    path.write_bytes(b"x" * 16 + ending)
    assert read_all(path, chunk=chunk, limit=16) == [(1, b"x" * 16, 16)]
    ((_, data, _),) = read_all(path, chunk=chunk, limit=15)
    assert data is None


def test_a_file_that_grows_has_an_end(path: Path) -> None:
    """What is appended after the opening is not read, or an export of its own output never ends."""
    path.write_bytes(b"a\nb\n")
    file = SourceFile(path, line_limit=100, chunk=4)
    found: list[bytes | None] = []
    while not file.at_end and len(found) < 10:
        found += [line.data for line in file.read()]
        with path.open("ab") as stream:
            stream.write(b"c\nd\n")
    file.close()
    assert found == [b"a", b"b"]


def test_a_fifo_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    """A named pipe must not hang the export."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        SourceFile(tmp_path / "pipe", line_limit=100)
