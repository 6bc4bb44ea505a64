"""What an attempt keeps for the job's next one, and whether that still fits.

An export that was killed goes on behind the source files it had finished:

- After a finished source file, unless the last time was a moment ago, what was written is brought
  to the disk, and a `ResumePoint` is saved with the job: how many source files are done and a
  digest of what they were, how many resources and bytes each output file has by then, how many
  problems, the claim whose directory holds the files, and when the first attempt began.
- The next attempt takes the files over from that directory, in a way that no late write of the
  earlier attempt can reach them (`JobDirectory.adopt`), each as long as the point says: what was
  written after the point belongs to a source file that is now read from its beginning. Then it
  saves the point anew, under its own claim, and only then deletes what is left of the earlier one.
- Where anything does not fit, it starts anew: the point cannot be read or is of another version,
  the directory is gone, a file of it is too short, a finished source file has changed, the
  parameters or the settings are others. One line of the log says which.

An attempt that is handed back (the worker stops, the lease is lost) leaves its directory where a
point was saved; one whose job is over deletes it. What a crash between two of these steps leaves,
the next attempt deletes, or the job's expiry.

A point is a job's state, so it has at most 64 KiB: a digest instead of names, which thousands of
source files would fill, and for each output file two numbers, some 18 characters. With files of
64 MiB that suffices for about 3,600 of them, 230 GB; beyond, the last point that fitted stands.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

import attrs

from hastetrio._outcome import OperationOutcomeError
from hastetrio._typed import structure
from hastetrio.bulk._instant import parse_instant
from hastetrio.bulk._outputs import OutputFile, is_output_name, new_file
from hastetrio.bulk._parameters import ExportParameters

# To be raised with every change of what a point holds, or of what an export makes of its source.
_VERSION: Final = 1


class Misfit(Exception):
    """An attempt cannot go on where the earlier one ended; the text says why, for the log."""


@attrs.frozen(kw_only=True)
class ResumePoint:
    """How far an attempt was.

    Attributes:
        claim: Whose temporary directory holds the files.
        started: When the first attempt began: a FHIR instant.
        settings: The `settings_digest` of what was asked for.
        sources: How many source files are done.
        digest: The `SourceDigest` of these.
        read: Their bytes.
        problems: How many problems were found in them.
        outputs: For each stem the resources and bytes of its files: count, size, count, size.
        version: Of the format.
    """

    claim: str
    started: str
    settings: str
    sources: int
    digest: str
    read: int
    problems: int
    outputs: dict[str, list[int]]
    version: int = _VERSION

    def to_json(self) -> dict[str, Any]:
        """The point as a job's state."""
        return attrs.asdict(self)

    @classmethod
    def from_json(cls, state: object) -> ResumePoint:
        """The point that a job's state is.

        Raises:
            Misfit: It is none, or of another version.
        """
        version = state.get("version") if isinstance(state, dict) else None
        if version != _VERSION:
            raise Misfit(f"the saved state has version {version!r}, and this is {_VERSION}")
        try:
            point = structure(cls, state)
        except OperationOutcomeError as error:
            raise Misfit(f"the saved state cannot be read: {error}") from None
        if (
            parse_instant(point.started) is None
            or min(point.sources, point.read, point.problems) < 0
        ):
            raise Misfit("the saved state cannot be read: a value is out of range")
        return point

    def files(self) -> dict[str, list[OutputFile]]:
        """The output files, by stem.

        Raises:
            Misfit: They are none that an export could have.
        """
        found: dict[str, list[OutputFile]] = {}
        for stem, numbers in self.outputs.items():
            if len(numbers) % 2 or min(numbers, default=0) < 1:
                raise Misfit("the saved state cannot be read: an output file has no size")
            pairs = zip(numbers[::2], numbers[1::2], strict=True)
            files = [
                attrs.evolve(new_file(stem, number), count=count, size=size)
                for number, (count, size) in enumerate(pairs, 1)
            ]
            if not all(is_output_name(file.name) for file in files):
                raise Misfit("the saved state cannot be read: no export has such a file")
            found[stem] = files
        return found


def numbers_of(files: list[OutputFile]) -> list[int]:
    """The files of one stem as a `ResumePoint` has them."""
    return [number for file in files for number in (file.count, file.size)]


def settings_digest(
    source: Path, parameters: ExportParameters, *, file_size: int, line_limit: int
) -> str:
    """A digest of all that decides, beside the source's content, what an export writes."""
    types = None if parameters.types is None else sorted(parameters.types)
    ignored = [issue.to_json() for issue in parameters.ignored]
    values = [str(source), types, parameters.since, ignored, file_size, line_limit]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
