"""The files of one export: one resource a line, each file of bounded size."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import attrs

from hastetrio.bulk._types import RESOURCE_TYPES

# No resource type begins with a small letter, so no file of resources can have this stem.
ERRORS: Final = "errors"

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


class OutputFiles:
    """Collects lines and writes them in batches.

    A file is open only while a batch is written to it. An export of all 146 types would otherwise
    hold as many descriptors, and a few such jobs the 1,024 that a process usually may have.

    Args:
        directory: Where the files are made.
        file_size: The most bytes of one file. A line longer than that has a file of its own.
    """

    def __init__(self, directory: Path, file_size: int) -> None:
        self._directory = directory
        self._file_size = file_size
        self._files: dict[str, list[OutputFile]] = {}
        self._pending: dict[str, list[bytes]] = {}

    def add(self, stem: str, resource_type: str, line: bytes) -> None:
        """Add one line to the newest file `<stem>.<n>.ndjson`, or to the next."""
        files = self._files.setdefault(stem, [])
        size = len(line) + 1
        if not files or files[-1].size + size > self._file_size:
            files.append(OutputFile(f"{stem}.{len(files) + 1}.ndjson", resource_type))
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
            with (self._directory / name).open("ab") as stream:
                for line in lines:
                    stream.write(line)
                    stream.write(b"\n")
        self._pending.clear()

    def files(self, stem: str) -> list[OutputFile]:
        """The files of one stem, in the order of their numbers."""
        return list(self._files.get(stem, ()))

    def stems(self) -> list[str]:
        """The stems there are files of, in alphabetical order."""
        return sorted(self._files)
