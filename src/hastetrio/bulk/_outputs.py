"""The files of one export: one resource a line, each file of bounded size."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import attrs

from hastetrio.bulk._types import RESOURCE_TYPES

# No resource type begins with a small letter, so no file of resources can have this stem.
ERRORS: Final = "errors"
_OUTCOME: Final = "OperationOutcome"

_NAME: Final = re.compile(r"([A-Za-z]{1,64})\.[1-9][0-9]{0,8}\.ndjson")


def is_output_name(name: str) -> bool:
    """Whether an export can have a file of that name."""
    found = _NAME.fullmatch(name)
    return found is not None and (found[1] == ERRORS or found[1] in RESOURCE_TYPES)


@attrs.define
class OutputFile:
    """One file of an export.

    Attributes:
        name: Its name, without a directory.
        type: The type of the resources in it.
        count: How many it holds.
        size: Their bytes, line endings included.
    """

    name: str
    type: str
    count: int = 0
    size: int = 0


def new_file(stem: str, number: int) -> OutputFile:
    """A file without any resources."""
    return OutputFile(f"{stem}.{number}.ndjson", _OUTCOME if stem == ERRORS else stem)


class OutputFiles:
    """Collects lines and writes them in batches.

    A file is open only while a batch is written to it. An export of all 146 types would otherwise
    hold as many descriptors, and a few such jobs the 1,024 that a process usually may have.

    Args:
        directory: Where the files are made.
        file_size: The most bytes of one file. A line longer than that has a file of its own.
        files: Those that are there already, by stem; the last of each stem is added to.
    """

    def __init__(
        self, directory: Path, file_size: int, files: Mapping[str, list[OutputFile]] | None = None
    ) -> None:
        self._directory = directory
        self._file_size = file_size
        self._files: dict[str, list[OutputFile]] = dict(files or {})
        self._pending: dict[str, list[bytes]] = {}
        self._unsynced: set[str] = set()

    def add(self, stem: str, line: bytes) -> None:
        """Add one line to the newest file `<stem>.<n>.ndjson`, or to the next."""
        files = self._files.setdefault(stem, [])
        size = len(line) + 1
        if not files or files[-1].size + size > self._file_size:
            files.append(new_file(stem, len(files) + 1))
        file = files[-1]
        file.count += 1
        file.size += size
        self._pending.setdefault(file.name, []).append(line)

    def flush(self) -> None:
        """Write what was added since the last time.

        Raises:
            OSError: A file cannot be written.
        """
        for name, lines in self._pending.items():
            self._unsynced.add(name)
            with (self._directory / name).open("ab") as stream:
                for line in lines:
                    stream.write(line)
                    stream.write(b"\n")
        self._pending.clear()

    def sync(self, check: Callable[[], None]) -> None:
        """Have the disk hold what was written since the last time.

        Args:
            check: Called before each file; it raises to stop.

        Raises:
            OSError: A file cannot be written.
        """
        for name in sorted(self._unsynced):
            check()
            descriptor = os.open(self._directory / name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        self._unsynced.clear()

    def files(self, stem: str) -> list[OutputFile]:
        """The files of one stem, in the order of their numbers."""
        return list(self._files.get(stem, ()))

    def stems(self) -> list[str]:
        """The stems there are files of, in alphabetical order."""
        return sorted(self._files)
