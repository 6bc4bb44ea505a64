"""One export, from the source's lines to the finished files, in steps of bounded length."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

from hastetrio._outcome import Issue, IssueType, OperationOutcomeError, outcome_json
from hastetrio.bulk._directory import JobDirectory
from hastetrio.bulk._lines import CHUNK, Line, SourceFile
from hastetrio.bulk._outputs import ERRORS, OutputFile, OutputFiles
from hastetrio.bulk._parameters import ExportParameters
from hastetrio.bulk._types import RESOURCE_TYPES

logger = logging.getLogger("hastetrio.bulk")

# Between two steps the client's progress is renewed. Ten times a second is finer than any renewal
# of a lease writes it, and a thread's start (some 50 microseconds) vanishes beside it. A cancel
# does not wait for the step: it is noticed after every chunk, a few milliseconds of parsing.
_STEP_SECONDS: Final = 0.1
_STEP_BYTES: Final = 4 * 1024 * 1024

# A paced export must have something to show: the shipped sample then takes some twenty steps.
PACED_BYTES: Final = 16 * 1024

# Enough to find out what is wrong with a source; one that is all wrong costs no more than this.
MOST_PROBLEMS: Final = 1000

_OUTCOME: Final = "OperationOutcome"


class _Problem(Exception):
    """What is wrong with one line."""

    def __init__(self, code: IssueType, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Export:
    """One attempt at one export. Its methods block: call them one at a time, in threads.

    Args:
        source: The directory to export.
        directory: Where the files go.
        claim: The attempt's claim.
        parameters: What is asked for.
        file_size: The most bytes of one output file.
        line_limit: The most bytes of one line.
        check: Called between two chunks; it raises to stop.
        paced: Whether to take small steps.
    """

    def __init__(
        self,
        source: Path,
        directory: JobDirectory,
        claim: str,
        parameters: ExportParameters,
        *,
        file_size: int,
        line_limit: int,
        check: Callable[[], None],
        paced: bool = False,
    ) -> None:
        self._source = source
        self._directory = directory
        self._claim = claim
        self._parameters = parameters
        self._file_size = file_size
        self._line_limit = line_limit
        self._check = check
        self._chunk = PACED_BYTES if paced else CHUNK
        self._step_bytes = PACED_BYTES if paced else _STEP_BYTES
        self._names: list[str] = []
        self._current: SourceFile | None = None
        self._outputs: OutputFiles | None = None
        self._problems = 0
        self._total = 0
        self._done = 0
        self.is_done = False

    @property
    def progress(self) -> str:
        """How far the export is, for the client."""
        percent = 100 if self._done >= self._total else 100 * self._done // self._total
        return f"Exporting: {percent} % ({_megabytes(self._done)} of {_megabytes(self._total)} MB)"

    @property
    def summary(self) -> str:
        """What was exported, for the client."""
        files = self.output
        resources = sum(file.count for file in files)
        text = f"{_counted(resources, 'resource')} in {_counted(len(files), 'file')}"
        if self._problems:
            text += f", {_counted(self._problems, 'problem')}"
        return f"Exported: 100 % ({text})"

    @property
    def output(self) -> list[OutputFile]:
        """The files of exported resources, ordered by type and number."""
        if self._outputs is None:
            return []
        stems = [stem for stem in self._outputs.stems() if stem != ERRORS]
        return [file for stem in stems for file in self._outputs.files(stem)]

    @property
    def errors(self) -> list[OutputFile]:
        """The files of OperationOutcomes that say what could not be exported."""
        return [] if self._outputs is None else self._outputs.files(ERRORS)

    def begin(self) -> None:
        """Look at the source, and make an empty place for the files.

        Raises:
            OperationOutcomeError: The source cannot be read, or the output not be written.
        """
        self._scan()
        try:
            temporary = self._directory.begin(self._claim)
        except OSError as error:
            raise _unwritable(error) from None
        self._outputs = OutputFiles(temporary, self._file_size)
        for issue in self._parameters.ignored:
            self._problem(issue)

    def step(self) -> None:
        """Export for about a tenth of a second, or 4 MiB, whichever is less.

        Raises:
            OperationOutcomeError: The output cannot be written.
        """
        outputs = self._opened()
        until = time.monotonic() + _STEP_SECONDS
        enough = self._done + self._step_bytes
        while not self.is_done and self._done < enough and time.monotonic() < until:
            self._check()
            self._read_chunk()
        try:
            outputs.flush()
        except OSError as error:
            raise _unwritable(error) from None

    def publish(self) -> None:
        """Give the files their final place.

        Raises:
            OperationOutcomeError: They cannot be moved there.
        """
        outputs = self._opened()
        more = self._problems - MOST_PROBLEMS
        try:
            if more > 0:
                text = (
                    f"{more:,} more problems are not listed; these are the first {MOST_PROBLEMS:,}."
                )
                self._write_outcome(Issue(IssueType.INCOMPLETE, text))
            outputs.flush()
            self._directory.publish(self._claim)
        except OSError as error:
            raise _unwritable(error) from None

    def close(self) -> None:
        """Close what is open, and delete whatever was written and not published."""
        if self._current is not None:
            self._current.close()
        try:
            self._directory.discard(self._claim)
        except OSError:
            # The next attempt, or the job's expiry, deletes it.
            logger.warning("files of a stopped export could not be deleted", exc_info=True)

    def _opened(self) -> OutputFiles:
        if self._outputs is None:
            raise RuntimeError("begin() comes first")
        return self._outputs

    def _scan(self) -> None:
        try:
            with os.scandir(self._source) as entries:
                for entry in entries:
                    if not entry.name.endswith(".ndjson") or entry.name.startswith("."):
                        continue
                    # Directories too may have such a name; also those of this handler's output,
                    # where that lies inside the source.
                    if entry.is_dir():
                        continue
                    self._names.append(entry.name)
                    self._total += _size(entry)
        except OSError as error:
            logger.error("the source directory cannot be read: %s (%s)", self._source, error)
            raise OperationOutcomeError(
                IssueType.EXCEPTION, "The data to export cannot be read at the moment.", "fatal"
            ) from None
        # Popped from the end: the names are read in alphabetical order.
        self._names.sort(reverse=True)
        self.is_done = not self._names

    def _read_chunk(self) -> None:
        name = self._names[-1]
        before = 0
        try:
            if self._current is None:
                path = self._source / name
                self._current = SourceFile(path, line_limit=self._line_limit, chunk=self._chunk)
            before = self._current.bytes_read
            for line in self._current.read():
                self._export_line(name, line)
        except OSError as error:
            logger.warning("a source file cannot be read: %s (%s)", self._source / name, error)
            gone = isinstance(error, FileNotFoundError)
            code = IssueType.NOT_FOUND if gone else IssueType.EXCEPTION
            text = f"{name} cannot be read; what is missing from it was not exported."
            self._problem(Issue(code, text))
            self._next_file(before)
            return
        if self._current.at_end:
            self._next_file(before)
        else:
            self._done += self._current.bytes_read - before

    def _next_file(self, before: int) -> None:
        if self._current is not None:
            self._done += self._current.bytes_read - before
            self._current.close()
            self._current = None
        self._names.pop()
        self.is_done = not self._names

    def _export_line(self, name: str, line: Line) -> None:
        try:
            resource_type, resource, data = _parse(line, self._line_limit)
        except _Problem as problem:
            self._problem(Issue(problem.code, f"{name} line {line.number:,}: {problem.text}."))
            return
        if self._parameters.wants(resource):
            self._opened().add(resource_type, resource_type, data)

    def _problem(self, issue: Issue) -> None:
        self._problems += 1
        if self._problems <= MOST_PROBLEMS:
            self._write_outcome(issue)

    def _write_outcome(self, issue: Issue) -> None:
        outcome = outcome_json((issue,))
        line = json.dumps(outcome, ensure_ascii=False, separators=(",", ":")).encode()
        self._opened().add(ERRORS, _OUTCOME, line)


def _refuse(constant: str) -> NoReturn:
    raise _Problem(IssueType.STRUCTURE, f"not JSON ({constant} is no number)")


def _ignore(number: str) -> None:  # noqa: ARG001  # called by json
    return None


# Numbers are not looked at: nothing here needs them, and int() refuses one of more than 4,300
# digits, which JSON allows. One decoder for all lines: json.loads would make one for each.
_DECODER: Final = json.JSONDecoder(parse_constant=_refuse, parse_int=_ignore, parse_float=_ignore)


def _parse(line: Line, limit: int) -> tuple[str, dict[str, Any], bytes]:
    """The type of the resource a line holds, the resource, and the line's bytes.

    The problems say where and of what kind, never what the line says: it may be about a patient.

    Raises:
        _Problem: It holds none.
    """
    data = line.data
    if data is None:
        text = f"{line.size:,} bytes, and the limit is {limit:,}"
        raise _Problem(IssueType.TOO_LONG, text)
    try:
        value = _DECODER.decode(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        text = f"not UTF-8 (byte {error.start + 1:,})"
        raise _Problem(IssueType.STRUCTURE, text) from None
    except json.JSONDecodeError as error:
        text = f"not JSON (character {error.pos + 1:,}: {error.msg})"
        raise _Problem(IssueType.STRUCTURE, text) from None
    except RecursionError:
        raise _Problem(IssueType.STRUCTURE, "nested too deeply") from None
    if not isinstance(value, dict):
        raise _Problem(IssueType.STRUCTURE, "not a JSON object")
    resource_type = value.get("resourceType")
    if not isinstance(resource_type, str):
        raise _Problem(IssueType.REQUIRED, "no resourceType")
    if resource_type not in RESOURCE_TYPES:
        raise _Problem(IssueType.VALUE, "its resourceType is no FHIR R4 resource type")
    return resource_type, value, data


def _unwritable(error: OSError) -> OperationOutcomeError:
    """What the client learns when the output cannot be written; the log has the path."""
    logger.error("the export cannot be written: %s", error)
    return OperationOutcomeError(IssueType.NO_STORE, "The export could not be written.", "fatal")


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except OSError:
        return 0


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f}"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
