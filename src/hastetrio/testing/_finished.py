"""A job that was run to its end, and all that a test may want to know of the run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import attrs

from hastetrio._model import AsyncJob
from hastetrio.testing._logs import log_lines

# Lines of the log in a failed assertion: a traceback through a handler and two libraries fits.
_LAST_LINES: Final = 40


@attrs.frozen(kw_only=True, eq=False, repr=False)
class FinishedJob(AsyncJob):
    """A job as it ended, and what was seen of its run.

    Attributes:
        progress_texts: Every text the handler reported, in order and as it is stored, over all
            attempts. `progress` is the last.
        logs: What was logged during the run: hastetrio's events, and what the handler and the
            libraries it uses logged, from INFO on, or from where a logger's own level says. A
            logger that does not propagate to the root is left out. `run_time` of a record is the
            seconds since the start, on the run's clock: virtual ones of `run_job`.
    """

    progress_texts: tuple[str, ...] = ()
    logs: tuple[logging.LogRecord, ...] = ()

    @property
    def log_text(self) -> str:
        """The logs, one line a record: seconds, level, logger, message; with tracebacks."""
        return log_lines(self.logs)

    def __repr__(self) -> str:
        # pytest shows the first 240 characters in a failed `assert job.output == ...`.
        parts = [headline(self), *issue_lines(self.error)]
        if errors := [record for record in self.logs if record.levelno >= logging.ERROR]:
            parts.append("logged " + " ".join(_last_line(errors[-1]).split()))
        return f"FinishedJob({'; '.join(parts)})"


def _last_line(record: logging.LogRecord) -> str:
    """The error of a record that has a traceback, else its message."""
    if record.exc_info and record.exc_info[1] is not None:
        return logging.Formatter().formatException(record.exc_info).splitlines()[-1]
    return record.getMessage()


def headline(job: AsyncJob) -> str:
    """Kind, status and attempts on one line."""
    return f"{job.kind} {job.status} at attempt {job.attempts} of {job.max_attempts}"


def issues_of(outcome: object) -> list[Mapping[str, Any]]:
    """The issues of an OperationOutcome as stored; foreign rows may hold anything."""
    issues = outcome.get("issue") if isinstance(outcome, Mapping) else None
    return [i for i in issues if isinstance(i, Mapping)] if isinstance(issues, list) else []


def issue_lines(outcome: object) -> list[str]:
    """One line an issue: its code, what it says, and the element it is about."""
    lines = []
    for issue in issues_of(outcome):
        where = issue.get("expression")
        place = f" (at {', '.join(map(str, where))})" if isinstance(where, list) and where else ""
        lines.append(f"{issue.get('code')}: {issue.get('diagnostics')}{place}")
    return lines


def attempts_of(job: AsyncJob) -> list[Mapping[str, Any]]:
    """The history of failed attempts, oldest first; foreign rows may hold anything."""
    history = job.attempt_errors
    return [a for a in history if isinstance(a, Mapping)] if isinstance(history, list) else []


def texts_of(attempt: Mapping[str, Any]) -> list[str]:
    """What went wrong in one attempt of the history."""
    texts = attempt.get("errors")
    return list(map(str, texts)) if isinstance(texts, list) else []


def story(job: AsyncJob) -> str:
    """What is known of a job, for the person who reads a failed assertion."""
    lines = [headline(job)]
    lines += [f"  issue: {line}" for line in issue_lines(job.error)]
    for attempt in attempts_of(job):
        lines.append(f"  attempt {attempt.get('attempt')}: {'; '.join(texts_of(attempt))}")
    if job.output is not None:
        lines.append(f"  output: {_short(job.output)}")
    if job.progress is not None:
        lines.append(f"  progress: {job.progress}")
    if isinstance(job, FinishedJob) and job.logs:
        log = job.log_text.splitlines()
        lines.append(
            "  log:" if len(log) <= _LAST_LINES else f"  log, the last {_LAST_LINES} lines:"
        )
        lines += [f"    {line}" for line in log[-_LAST_LINES:]]
    return "\n".join(lines)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 500 else f"{text[:500]}..."
