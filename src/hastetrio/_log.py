"""What is logged: event names, levels and fields; the JSON form; the job's id on every line.

Neither claims, parameters nor outputs are ever logged. `docs/logging.md` holds the table of
events, and a test holds it to this module.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from hastetrio._errors import ConfigError

if TYPE_CHECKING:
    from typing import TextIO

    from hastetrio._model import AsyncJob

logger: Final = logging.getLogger("hastetrio")

current_job: ContextVar[str | None] = ContextVar("hastetrio_job", default=None)
"""The id of the job whose handler (or clean-up) this code runs in."""

# C0 and C1 controls, and what else Python or a viewer takes for the end of a line.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")

JOB_FIELDS: Final = ("job", "kind", "tenant", "project", "attempt")


@attrs.frozen
class Event:
    """One kind of log line.

    Attributes:
        name: Stable; in the field `event` of every line.
        level: One of logging's levels.
        message: The text, with `%(field)s` for fields.
        fields: The fields beside `event`.
    """

    name: str
    level: int
    message: str
    fields: tuple[str, ...]


def _of_job(name: str, level: int, message: str, *fields: str) -> Event:
    return Event(name, level, f"{message} (%(kind)s %(job)s)", (*JOB_FIELDS, *fields))


_D, _I, _W, _E = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

WORKER_STARTING: Final = Event(
    "worker.starting", _I, "Starting worker %(worker)s for %(kinds)s", ("worker", "kinds")
)
WORKER_STOPPING: Final = Event(
    "worker.stopping", _I, "Stopping worker %(worker)s: %(phase)s", ("worker", "phase")
)
WORKER_STOPPED: Final = Event("worker.stopped", _I, "Worker %(worker)s has stopped", ("worker",))
CLAIM_FAILED: Final = Event(
    "claim.failed", _E, "Failed to claim jobs, will retry: %(error)s", ("error",)
)
WATCH_FAILED: Final = Event(
    "watch.failed", _W, "Watching for wake-ups failed, will retry: %(error)s", ("error",)
)
LOOP_BLOCKED: Final = Event(
    "loop.blocked",
    _W,
    "The event loop has been blocked for %(elapsed).1f s by %(where)s (%(job)s): nothing is "
    "renewed meanwhile",
    ("elapsed", "where", "job"),
)
SWEEP_ABANDONED: Final = Event(
    "sweep.abandoned", _W, "Failed %(count)s abandoned job(s)", ("count",)
)
SWEEP_DISCARDED: Final = Event(
    "sweep.discarded", _D, "Removed %(count)s expired job(s) that needed no clean-up", ("count",)
)
SWEEP_FAILED: Final = Event(
    "sweep.failed", _E, "Failed to sweep %(what)s jobs, will retry: %(error)s", ("what", "error")
)
SWEEP_ORPHANS: Final = Event(
    "sweep.orphans",
    _W,
    "Removed %(count)s job(s) of the kind %(kind)s that expired a week ago and that no worker "
    "cleaned up after",
    ("count", "kind"),
)
JOB_RUNNING: Final = _of_job("job.running", _I, "Running job")
JOB_FINISHED: Final = _of_job(
    "job.finished", _I, "Job %(status)s after %(elapsed).3f s", "status", "elapsed"
)
JOB_RAISED: Final = _of_job("job.raised", _E, "The handler raised an unexpected error")
JOB_TIMED_OUT: Final = _of_job(
    "job.timed-out", _W, "The handler did not end within %(timeout)g s", "timeout"
)
JOB_RETRIED: Final = _of_job(
    "job.retried",
    _W,
    "The attempt failed, to be tried again in %(after).3f s: %(error)s",
    "after",
    "error",
)
JOB_SNOOZED: Final = _of_job("job.snoozed", _I, "To be run again in %(after).3f s", "after")
JOB_MIDDLEWARE_FAILED: Final = _of_job(
    "job.middleware-failed", _E, "A middleware failed, and is passed over: %(error)s", "error"
)
JOB_REJECTED: Final = _of_job(
    "job.rejected", _E, "The handler's result cannot be stored: %(error)s", "error"
)
JOB_LATE: Final = _of_job(
    "job.late",
    _W,
    "The handler went on for %(elapsed).3f s after its cancellation (%(reason)s)",
    "reason",
    "elapsed",
)
JOB_DROPPED: Final = _of_job(
    "job.dropped",
    _I,
    "Job was cancelled or taken over while running (%(reason)s); dropping its result",
    "reason",
)
JOB_NOT_OURS: Final = _of_job(
    "job.not-ours", _W, "Job was no longer this worker's to finish; dropping its result"
)
JOB_HANDED_BACK: Final = _of_job(
    "job.handed-back", _I, "Handed the job back (%(reason)s)", "reason"
)
JOB_CALL_RETRIED: Final = _of_job(
    "job.call-retried", _W, "A handler's call to the storage failed, will retry: %(error)s", "error"
)
JOB_RECORD_RETRIED: Final = _of_job(
    "job.record-retried", _W, "Failed to record the job's end, will retry: %(error)s", "error"
)
JOB_RECORD_FAILED: Final = _of_job(
    "job.record-failed", _E, "Failed to record the job's end; its lease will lapse"
)
JOB_RENEW_FAILED: Final = _of_job(
    "job.renew-failed", _W, "Failed to renew the job's lease, will retry: %(error)s", "error"
)
JOB_RENEWAL_DIED: Final = _of_job("job.renewal-died", _E, "The job's renewal task died")
JOB_REMOVED: Final = _of_job("job.removed", _D, "Removed expired job")
JOB_CLEANUP_FAILED: Final = _of_job(
    "job.cleanup-failed",
    _E,
    "The handler failed to clean up an expired job, will retry: %(error)s",
    "error",
)

EVENTS: Final = tuple(value for value in dict(globals()).values() if isinstance(value, Event))


def log(event: Event, *, trace: BaseException | None = None, **fields: Any) -> None:  # noqa: ANN401
    """Log one event; `trace` is logged whole, with its traceback."""
    if logger.isEnabledFor(event.level):
        logger.log(
            event.level,
            event.message,
            fields,
            # Whole, because logging asks an error whether it is true.
            exc_info=None if trace is None else (type(trace), trace, trace.__traceback__),
            extra={"event": event.name, "fields": fields},
        )


def log_job(
    event: Event,
    job: AsyncJob,
    *,
    trace: BaseException | None = None,
    **fields: Any,  # noqa: ANN401
) -> None:
    """Log one event of a job; `trace` is logged whole, with its traceback."""
    if logger.isEnabledFor(event.level):
        log(
            event,
            trace=trace,
            job=job.id,
            kind=job.kind,
            tenant=job.tenant,
            project=job.project,
            attempt=job.attempts,
            **fields,
        )


def describe(error: BaseException) -> str:
    """An error on one line, for the field `error`."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001  # an error of a handler's describes itself with its code
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class JobFilter(logging.Filter):
    """Puts the id of the running job on every record, as `record.job`; None outside of one.

    `configure` installs it; with a logging set-up of your own, add it to your handlers.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the field; every record passes."""
        if "job" not in record.__dict__:
            fields = record.__dict__.get("fields") or {}
            record.__dict__["job"] = fields.get("job") or current_job.get()
        return True


class TextFormatter(logging.Formatter):
    """One line for people: time, level, logger, the job in brackets, message."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, and a traceback below it where there is one."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        job = getattr(record, "job", None)
        tag, message = "", record.getMessage()
        if hasattr(record, "fields"):
            # An event of this package names its job itself.
            message = _one_line(message)
        elif job:
            tag = f" [{_one_line(job)}]"
        line = f"{when} {record.levelname:<7} {record.name}{tag} {message}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


def _one_line(text: str) -> str:
    """`text` with control characters escaped: ids made by others may be any text."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The object as one line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if event := getattr(record, "event", None):
            line["event"] = event
        if job := getattr(record, "job", None):
            line["job"] = job
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(
    level: str = "info", format: Literal["text", "json"] = "text", stream: TextIO | None = None
) -> None:
    """Log to `stream` (standard error), from `level` on.

    Raises:
        ConfigError: There is no such level or format.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ConfigError(f"log level must be debug, info, warning or error, not {level!r}")
    if format not in ("text", "json"):
        raise ConfigError(f"log format must be text or json, not {format!r}")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.addFilter(JobFilter())
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(number)
