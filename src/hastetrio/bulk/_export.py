"""One export, from the source's lines to the finished files, in steps of bounded length."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs

from hastetrio._outcome import Issue, IssueType, OperationOutcomeError, outcome_json
from hastetrio.bulk._directory import JobDirectory
from hastetrio.bulk._instant import instant_now
from hastetrio.bulk._lines import CHUNK, Line, SourceFile
from hastetrio.bulk._outputs import ERRORS, OutputFile, OutputFiles
from hastetrio.bulk._parameters import ExportParameters
from hastetrio.bulk._resource import LineProblem, parse_resource
from hastetrio.bulk._resume import Misfit, ResumePoint, numbers_of, settings_digest
from hastetrio.bulk._sources import SourceDigest, find_sources, status_of

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

# Seconds of work that a killed export may lose, beside a source file it had begun: one that takes
# less saves nothing, and costs no call. Bringing 147 files to the disk took 0.45 s where this was
# measured (one of every type, 3 ms each), nine hundredths of the time; so where it is slow it is
# done less often, for a twentieth of the time at most.
SAVE_SECONDS: Final = 5.0
_SAVE_SHARE: Final = 20


class Export:
    """One attempt at one export. Its methods block: call them one at a time, in threads.

    Attributes:
        started: The manifest's `transactionTime`. It stays that of the first attempt: an export
            "SHALL include any matching resources modified up to and including this instant"
            (https://hl7.org/fhir/uv/bulkdata/STU2/export.html), and its finished source files were
            read then. With a later time a client that asks for what changed since would never get
            what changed in between. That the rest may be newer is a SHOULD NOT, as it is of
            every export here: a source file may change until it is opened.
        is_done: Whether all source files were read.

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
        self._settings = settings_digest(
            source, parameters, file_size=file_size, line_limit=line_limit
        )
        self._digest = SourceDigest()
        self._adopted: str | None = None
        self._point: ResumePoint | None = None
        self._is_named = False
        self._next_save = time.monotonic() + SAVE_SECONDS
        self.started = instant_now()
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

    def begin(self, state: object = None) -> None:
        """Look at the source, and make a place for the files; an empty one, if `state` fits not.

        Args:
            state: What an earlier attempt saved; None if none did.

        Raises:
            OperationOutcomeError: The source cannot be read, or the output not be written.
        """
        self._scan()
        if state is not None:
            try:
                self._resume(ResumePoint.from_json(state))
            except (Misfit, OSError) as error:
                logger.warning("the export starts anew: %s", error)
            else:
                return
        try:
            temporary = self._directory.begin(self._claim)
        except OSError as error:
            raise _unwritable(error) from None
        self._outputs = OutputFiles(temporary, self._file_size)
        for issue in self._parameters.ignored:
            self._problem(issue)

    def step(self) -> None:
        """Export for about a tenth of a second, or 4 MiB, whichever is less.

        With a source file's end it may end earlier: then there is a state to save.

        Raises:
            OperationOutcomeError: The output cannot be written.
        """
        outputs = self._opened()
        until = time.monotonic() + _STEP_SECONDS
        enough = self._done + self._step_bytes
        while not self.is_done and self._done < enough and time.monotonic() < until:
            self._check()
            self._read_chunk()
            if self._is_save_due():
                break
        try:
            outputs.flush()
            if self._is_save_due():
                self._mark(outputs)
        except OSError as error:
            raise _unwritable(error) from None

    def take_state(self) -> dict[str, Any] | None:
        """What to save with the job now; None if there is nothing new."""
        point, self._point = self._point, None
        if point is None:
            return None
        # From here on a later attempt may be told of this one's directory, whoever ends this one.
        self._is_named = True
        return point.to_json()

    def saved(self) -> None:
        """The state is saved: what is left of an earlier attempt goes."""
        adopted, self._adopted = self._adopted, None
        if adopted is not None:
            try:
                self._directory.forget(adopted)
            except OSError:
                # The job's next attempt deletes it, or its expiry.
                logger.warning("files of an earlier attempt could not be deleted", exc_info=True)

    def stop_saving(self) -> None:
        """A state cannot be saved, and later ones are larger. The last that was stands."""
        self._next_save = math.inf

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

    def close(self, keep: bool = False) -> None:
        """Close what is open, and delete whatever was written and not published.

        Args:
            keep: Whether there may be another attempt: what it can go on with is left.
        """
        if self._current is not None:
            self._current.close()
        if keep and self._is_named:
            return
        try:
            self._directory.discard(self._claim)
            if self._adopted is not None and not keep:
                self._directory.forget(self._adopted)
        except OSError:
            # The next attempt, or the job's expiry, deletes it.
            logger.warning("files of a stopped export could not be deleted", exc_info=True)

    def _opened(self) -> OutputFiles:
        if self._outputs is None:
            raise RuntimeError("begin() comes first")
        return self._outputs

    def _scan(self) -> None:
        try:
            found = find_sources(self._source)
        except OSError as error:
            logger.error("the source directory cannot be read: %s (%s)", self._source, error)
            raise OperationOutcomeError(
                IssueType.EXCEPTION, "The data to export cannot be read at the moment.", "fatal"
            ) from None
        # Popped from the end: the files are read in alphabetical order.
        self._names = list(reversed(found))
        self._total = sum(found.values())
        self.is_done = not self._names

    def _resume(self, point: ResumePoint) -> None:
        """Go on where an earlier attempt ended.

        Raises:
            Misfit: It cannot be gone on with.
            OSError: Its files cannot be taken over.
        """
        if point.settings != self._settings:
            raise Misfit("the parameters or the settings are others")
        outputs = point.files()
        digest = SourceDigest()
        for name in self._names[: -point.sources - 1 : -1]:
            self._check()
            digest.add(name, status_of(self._source / name))
        if digest.hexdigest() != point.digest:
            raise Misfit("a source file that was finished has changed")
        temporary = self._directory.adopt(
            point.claim,
            self._claim,
            full={file.name: file.size for files in outputs.values() for file in files[:-1]},
            last={files[-1].name: files[-1].size for files in outputs.values()},
        )
        self._outputs = OutputFiles(temporary, self._file_size, outputs)
        self._adopted = point.claim
        self._digest = digest
        self._problems = point.problems
        self._done = point.read
        self.started = point.started
        logger.info("the export goes on behind %d of %d files", digest.count, len(self._names))
        del self._names[len(self._names) - digest.count :]
        self.is_done = not self._names
        # Under this claim's name, before anything is written.
        self._point = attrs.evolve(point, claim=self._claim)

    def _is_save_due(self) -> bool:
        between_files = self._current is None and not self.is_done
        return between_files and time.monotonic() >= self._next_save

    def _mark(self, outputs: OutputFiles) -> None:
        """Have a state saved that says how far the export is: between two source files.

        Raises:
            OSError: An output file cannot be written.
        """
        begun = time.monotonic()
        # After a power loss a file may have its size, and not its data, if it was not brought to
        # the disk: https://docs.kernel.org/admin-guide/ext4.html, "data=writeback".
        outputs.sync(self._check)
        now = time.monotonic()
        self._next_save = now + max(SAVE_SECONDS, _SAVE_SHARE * (now - begun))
        self._point = ResumePoint(
            claim=self._claim,
            started=self.started,
            settings=self._settings,
            sources=self._digest.count,
            digest=self._digest.hexdigest(),
            read=self._done,
            problems=self._problems,
            outputs={stem: numbers_of(outputs.files(stem)) for stem in outputs.stems()},
        )

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
        name = self._names.pop()
        if self._current is None:
            self._digest.add(name, status_of(self._source / name))
        else:
            self._digest.add(name, self._current.status)
            self._done += self._current.bytes_read - before
            self._current.close()
            self._current = None
        self.is_done = not self._names

    def _export_line(self, name: str, line: Line) -> None:
        try:
            resource_type, resource, data = parse_resource(line, self._line_limit)
        except LineProblem as problem:
            self._problem(Issue(problem.code, f"{name} line {line.number:,}: {problem.text}."))
            return
        if self._parameters.wants(resource):
            self._opened().add(resource_type, data)

    def _problem(self, issue: Issue) -> None:
        self._problems += 1
        if self._problems <= MOST_PROBLEMS:
            self._write_outcome(issue)

    def _write_outcome(self, issue: Issue) -> None:
        outcome = outcome_json((issue,))
        line = json.dumps(outcome, ensure_ascii=False, separators=(",", ":")).encode()
        self._opened().add(ERRORS, line)


def _unwritable(error: OSError) -> OperationOutcomeError:
    """What the client learns when the output cannot be written; the log has the path."""
    logger.error("the export cannot be written: %s", error)
    return OperationOutcomeError(IssueType.NO_STORE, "The export could not be written.", "fatal")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f}"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
