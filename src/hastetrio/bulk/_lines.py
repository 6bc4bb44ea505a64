"""The lines of NDJSON files, read in bounded pieces."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import attrs

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

# Large enough that system calls cost nothing beside parsing, small enough to hold for every job.
CHUNK: Final = 256 * 1024


@attrs.frozen
class Line:
    """One line of a source file, without its ending.

    Attributes:
        number: Counted from 1.
        data: Its bytes; None for a line beyond the limit, which was skipped unread.
        size: How many bytes it has.
    """

    number: int
    data: bytes | None = attrs.field(repr=False)
    size: int


class SourceFile:
    r"""One file, read chunk by chunk. Its methods block: call them in a thread.

    A line ends with "\n" or "\r\n", or with the file; blank lines are left out, and a byte order
    mark before the first line is not part of it. The file is read as far as it reached when it
    was opened, so that one that keeps growing (the output of this very job, say) has an end.

    Args:
        path: The file. A symbolic link to a file is followed.
        line_limit: The most bytes a line may have.
        chunk: How many bytes one `read` takes at most.

    Attributes:
        status: What the file was when it was opened.

    Raises:
        OSError: It cannot be opened, or it is not a regular file.
    """

    def __init__(self, path: Path, *, line_limit: int, chunk: int = CHUNK) -> None:
        # Without O_NONBLOCK the opening of a FIFO would wait for a writer, for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.status: Final = os.fstat(descriptor)
        if not stat.S_ISREG(self.status.st_mode):
            os.close(descriptor)
            raise OSError("not a regular file")
        self._file: BinaryIO = os.fdopen(descriptor, "rb", buffering=0)
        self._unread = self.status.st_size
        self._line_limit = line_limit
        self._chunk = chunk
        self._number = 0
        self._parts: list[bytes] = []
        self._size = 0
        self._first = True
        self.bytes_read = 0
        self.at_end = False

    def read(self) -> Iterator[Line]:
        """The lines completed by one more chunk; `at_end` says when there is no more.

        Raises:
            OSError: The file cannot be read.
        """
        data = self._file.read(min(self._chunk, self._unread))
        self._unread -= len(data)
        self.bytes_read += len(data)
        if not data:
            self.at_end = True
            if self._size:
                yield from self._take()
            return
        if self._first:
            # A chunk is never shorter than the mark, unless the whole file is.
            self._first = False
            data = data.removeprefix(_BYTE_ORDER_MARK)
        pieces = data.split(b"\n")
        for piece in pieces[:-1]:
            self._hold(piece)
            yield from self._take()
        self._hold(pieces[-1])

    def close(self) -> None:
        """Close the file. Closing it again is fine."""
        self._file.close()

    def _hold(self, piece: bytes) -> None:
        self._size += len(piece)
        # One byte more may be the "\r" of the ending.
        if self._size > self._line_limit + 1:
            self._parts.clear()
        elif piece:
            self._parts.append(piece)

    def _take(self) -> Iterator[Line]:
        size, self._size = self._size, 0
        parts, self._parts = self._parts, []
        self._number += 1
        if size > self._line_limit + 1:
            yield Line(self._number, None, size)
            return
        line = (parts[0] if len(parts) == 1 else b"".join(parts)).removesuffix(b"\r")
        if not line.strip():
            return
        yield Line(self._number, line if len(line) <= self._line_limit else None, len(line))
