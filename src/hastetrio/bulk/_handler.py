"""The handler of `bulk-export`: validates its directories, runs an export step by step."""

from __future__ import annotations

import logging
import math
import os
import string
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import trio

from hastetrio._context import CancelReason, JobContext
from hastetrio._errors import ConfigError, UnstorableValue
from hastetrio._handler import JobHandler
from hastetrio._model import AsyncJob, JobOutput
from hastetrio._operation import Level, Operation, ResultFile
from hastetrio.bulk._directory import JobDirectory, directory_name, open_file
from hastetrio.bulk._export import Export
from hastetrio.bulk._outputs import OutputFile, is_output_name
from hastetrio.bulk._parameters import OUTPUT_FORMAT, parse_parameters

logger = logging.getLogger("hastetrio.bulk")

DEFAULT_BASE_URL: Final = "http://localhost:8000/w/{tenant}/{project}/api/v1/fhir/r4"
DEFAULT_FILE_PATH: Final = "_async/{id}/files/{name}"
DEFAULT_FILE_SIZE: Final = 64 * 1024 * 1024
DEFAULT_LINE_LIMIT: Final = 16 * 1024 * 1024

# Below the 5 s that a worker's default margin and cancel_grace leave a handler to unwind.
_CLEAN_UP_SECONDS: Final = 3.0

# A database that is there answers within milliseconds. One that is away must not hold up the
# export until the lease lapses: what is saved a few seconds later serves as well.
_SAVE_PATIENCE: Final = 1.0

# For these the job has another attempt.
_HANDED_BACK: Final = (CancelReason.SHUTDOWN, CancelReason.LEASE_LOST)


class BulkExport(JobHandler):
    r"""Exports a directory of FHIR NDJSON files, and returns a Bulk Data manifest.

    Every file `*.ndjson` directly in `source` is read (not those whose names begin with a dot);
    each line is one resource of any R4 type, and a file may mix types. A job's export is the
    directory `output/<name>`, with files `<Type>.<n>.ndjson`, n from 1. Where something could not
    be exported there are also files `errors.<n>.ndjson`: one OperationOutcome each for the first
    1,000 problems (a malformed line, a file that cannot be read, a parameter that was ignored
    because the client asked for lenient handling), and one that counts the rest.
    `<name>` is the job's id, or `_` and its SHA-256 where the id is not fit for a file name: see
    `directory_name`.

    A line is exported byte for byte, followed by one "\n". Its ending in the source ("\n" or
    "\r\n") is not part of it, nor is a byte order mark at the start of the file.

    The manifest's addresses are `base_url`, a slash and `file_path`; both may hold fields in
    braces: `{tenant}`, `{project}`, `{id}` (the job's), `{directory}` (the export's, for files
    served right from the disk) and `{name}` (the file's). Values are percent-encoded.

    Args:
        source: The directory to export. It must not lie in `output`.
        output: The directory that holds the exports of all jobs; made where it is missing. It may
            lie inside `source`.
        base_url: What the manifest's addresses begin with.
        file_path: What they end with.
        file_size: The most bytes of one output file. A longer line has a file of its own.
        line_limit: The most bytes of one line; a longer one is skipped and listed as a problem.
        requires_access_token: Whether a client must send its token to download the files.
        pace: Seconds to sleep after every 16 KiB. For demonstrations: it makes the export slow
            enough to be watched.

    Raises:
        ConfigError: A value cannot be used; the text names it.
    """

    kind = "bulk-export"

    operation = Operation(
        name="export",
        levels=[Level.SYSTEM],
        scope="system/*.rs",
        definition="http://hl7.org/fhir/uv/bulkdata/OperationDefinition/export",
    )

    def __init__(
        self,
        source: Path,
        output: Path,
        *,
        base_url: str = DEFAULT_BASE_URL,
        file_path: str = DEFAULT_FILE_PATH,
        file_size: int = DEFAULT_FILE_SIZE,
        line_limit: int = DEFAULT_LINE_LIMIT,
        requires_access_token: bool = True,
        pace: float = 0.0,
    ) -> None:
        # Absolute, because the current folder may change before the first job comes.
        self._source = Path(source).absolute()
        self._output = Path(output).absolute()
        _check_directories(self._source, self._output)
        _check_base_url(base_url)
        _check_file_path(file_path)
        self._url = f"{base_url.rstrip('/')}/{file_path.lstrip('/')}"
        self._file_size = _positive(file_size, "file_size")
        self._line_limit = _positive(line_limit, "line_limit")
        self._requires_access_token = bool(requires_access_token)
        if isinstance(pace, bool) or not isinstance(pace, (int, float)):
            raise ConfigError(f"pace must be a number of seconds, not {pace!r}")
        if not math.isfinite(pace) or pace < 0:
            raise ConfigError(
                f"pace must be a finite number of seconds, not negative, not {pace!r}"
            )
        self._pace = float(pace)

    def directory_of(self, job_id: str) -> Path:
        """Where the finished export of a job lies. Nothing is there before it has finished."""
        return self._output / directory_name(job_id)

    def check_parameters(self, parameters: Any, /) -> None:  # noqa: ANN401  # JSON is any value
        """Judge the parameters of a kick-off; see `parse_parameters`.

        Raises:
            OperationOutcomeError: One is not supported, or has a bad value.
        """
        parse_parameters(parameters)

    def open_result(self, job: AsyncJob, name: str, /) -> ResultFile | None:
        """Open a file of a job's finished export; None if there is none of that name.

        Raises:
            OSError: It is there, but cannot be opened.
        """
        file = open_file(self._output, job.id, name) if is_output_name(name) else None
        if file is None:
            return None
        size = os.fstat(file.fileno()).st_size
        return ResultFile(file=file, size=size, content_type=OUTPUT_FORMAT)

    async def run(self, context: JobContext) -> JobOutput:
        """Export once, or go on with the export of an earlier attempt that was cut short.

        Every few seconds, when a source file is finished, a state is saved with the job; the next
        attempt does not read the source files again that were finished by then.

        Raises:
            OperationOutcomeError: A parameter has a bad value, or a directory cannot be used.
            LeaseLost: The job is no longer this claim's.

        Cancellation: the running step ends within about a tenth of a second (a step waiting for a
        slow disk, when the disk answers); then what was written is deleted, in at most 3 seconds;
        but if the job is handed back, and a state was saved, it is left for the next attempt.
        No thread of the job is left. What could not be deleted goes with the job's next attempt,
        or its expiry.
        """
        parameters = parse_parameters(context.job.parameters)
        export = Export(
            self._source,
            self._directory(context.job.id),
            context.claim,
            parameters,
            file_size=self._file_size,
            line_limit=self._line_limit,
            check=trio.from_thread.check_cancelled,
            paced=self._pace > 0,
        )
        try:
            await context.run_sync(export.begin, context.state)
            await _save(context, export)
            while not export.is_done:
                context.report(export.progress)
                await context.run_sync(export.step)
                await _save(context, export)
                if self._pace:
                    await trio.sleep(self._pace)
            await context.run_sync(export.publish)
        finally:
            keep = context.cancel_reason in _HANDED_BACK
            with trio.move_on_after(_CLEAN_UP_SECONDS, shield=True):
                await context.run_sync(export.close, keep)
        context.report(export.summary)
        return JobOutput.json(self._manifest(context.job, export))

    async def expire(self, job: AsyncJob) -> None:
        """Delete the files of a job, finished or not.

        Cancellation: stops between two files; the next call goes on.
        """
        # A deadline that passed while the process stood still is noticed before the thread starts.
        await trio.lowlevel.checkpoint()
        await trio.to_thread.run_sync(self._directory(job.id).remove)

    def _directory(self, job_id: str) -> JobDirectory:
        return JobDirectory(self._output, job_id, trio.from_thread.check_cancelled)

    def _manifest(self, job: AsyncJob, export: Export) -> dict[str, Any]:
        return {
            "transactionTime": export.started,
            "request": job.request,
            "requiresAccessToken": self._requires_access_token,
            "output": [self._item(job, file) for file in export.output],
            "error": [self._item(job, file) for file in export.errors],
        }

    def _item(self, job: AsyncJob, file: OutputFile) -> dict[str, Any]:
        fields = {
            "tenant": job.tenant,
            "project": job.project,
            "id": job.id,
            "directory": directory_name(job.id),
            "name": file.name,
        }
        quoted = {key: quote(value, safe="", errors="replace") for key, value in fields.items()}
        return {"type": file.type, "url": self._url.format_map(quoted), "count": file.count}


def sample_directory() -> Path:
    """The directory of the shipped sample: NDJSON of 60 made-up patients and what belongs to them.

    Made by `tools/make_sample.py`. All of it is synthetic.
    """
    return Path(str(files("hastetrio.bulk") / "sample"))


async def _save(context: JobContext, export: Export) -> None:
    """Save the export's state with the job, if there is a new one.

    Raises:
        LeaseLost: The job is no longer this claim's.
    """
    state = export.take_state()
    if state is None:
        return
    try:
        with trio.move_on_after(_SAVE_PATIENCE) as scope:
            await context.save_state(state)
    except UnstorableValue as error:
        logger.warning("the export saves no more how far it is: %s", error)
        export.stop_saving()
        return
    if not scope.cancelled_caught:
        await context.run_sync(export.saved)


def _check_directories(source: Path, output: Path) -> None:
    if not source.is_dir():
        raise ConfigError(f"the source of bulk-export is not a directory: {source}")
    if not os.access(source, os.R_OK | os.X_OK):
        raise ConfigError(f"the source of bulk-export may not be read: {source}")
    if output.exists() and not output.is_dir():
        raise ConfigError(f"the output of bulk-export is not a directory: {output}")
    # A job's id names its directory in the output. If the source lay there, the job of that name
    # would put its export in the source's place.
    if source.resolve().is_relative_to(output.resolve()):
        raise ConfigError(
            f"the source of bulk-export must not be its output or lie in it: {source}"
        )
    existing = next(parent for parent in (output, *output.parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"the output of bulk-export may not be written: {output}")


def _fields(template: object, what: str, allowed: set[str]) -> set[str]:
    """The fields a template holds."""
    if not isinstance(template, str):
        raise ConfigError(f"{what} must be text, not {template!r}")
    try:
        parsed = [
            (name, f"{spec}{conversion or ''}")
            for _, name, spec, conversion in string.Formatter().parse(template)
            if name is not None
        ]
    except ValueError as error:
        raise ConfigError(f"{what} is not a template: {error}: {template!r}") from None
    for name, extra in parsed:
        if name not in allowed or extra:
            known = ", ".join(f"{{{field}}}" for field in sorted(allowed))
            raise ConfigError(f"{what} may hold {known} and no other braces: {template!r}")
    return {name for name, _ in parsed}


def _check_base_url(base_url: str) -> None:
    _fields(base_url, "base_url", {"tenant", "project"})
    try:
        parts = urlsplit(base_url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise ConfigError(
            f"base_url must be an absolute http or https URL without a query, not {base_url!r}"
        )


def _check_file_path(file_path: str) -> None:
    fields = _fields(file_path, "file_path", {"tenant", "project", "id", "directory", "name"})
    if "name" not in fields or not fields & {"id", "directory"}:
        raise ConfigError(
            f"file_path must hold {{name}}, and {{id}} or {{directory}}, not {file_path!r}"
        )


def _positive(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{what} must be a whole number of bytes, at least 1, not {value!r}")
    return value
