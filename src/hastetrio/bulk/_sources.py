"""The source files of an export: which there are, and whether they are still what they were."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def find_sources(directory: Path) -> dict[str, int]:
    """The source files by name, in alphabetical order, with their sizes in bytes.

    Raises:
        OSError: The directory cannot be read.
    """
    found: dict[str, int] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            if not entry.name.endswith(".ndjson") or entry.name.startswith("."):
                continue
            # Directories too may have such a name; also those of this handler's output, where that
            # lies inside the source.
            if not entry.is_dir():
                found[entry.name] = _size(entry)
    return dict(sorted(found.items()))


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except OSError:
        return 0


def status_of(path: Path) -> os.stat_result | None:
    """The status of a source file, of what it leads to where it is a link; None without any."""
    try:
        return path.stat()
    except OSError:
        return None


class SourceDigest:
    """Tells whether source files are still what they were when they were read.

    By name, size and times, as they were when a file was opened: one that changed while it was
    read has changed since. The time of the last change of the inode cannot be set by programs, so
    that a file which was replaced by one of the same size and modification time is noticed too.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.count = 0

    def add(self, name: str, status: os.stat_result | None) -> None:
        """Add the next file; its status is None where it cannot be had."""
        values = () if status is None else (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        self._hash.update(repr((os.fsencode(name), values)).encode())
        self.count += 1

    def hexdigest(self) -> str:
        """What the files added so far come to."""
        return self._hash.hexdigest()
