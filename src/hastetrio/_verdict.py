"""What the end of a run means for its job: a result to record, or another attempt later."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from hastetrio import _log
from hastetrio._context import CancelReason
from hastetrio._errors import UnstorableOutput, UnstorableValue
from hastetrio._log import describe, log_job
from hastetrio._middleware import RunOutcome
from hastetrio._model import JobOutput, JobResult
from hastetrio._outcome import (
    Issue,
    IssueType,
    OperationOutcomeError,
    fitting_outcome,
    internal_error_outcome,
    unstorable_outcome,
)
from hastetrio._retry import DEFAULT_POLICY, RetryLater, Snooze
from hastetrio._storable import clean_text
from hastetrio._strict import is_structured
from hastetrio._typed import ParameterMismatch, unstructure

if TYPE_CHECKING:
    from hastetrio._context import JobContext
    from hastetrio._handler import JobHandler
    from hastetrio._model import AsyncJob

# What of one attempt's errors is kept with the job: leaves of a group, and characters of each.
_MOST_ERRORS: Final = 10
_LONGEST_ERROR: Final = 500


class JobTimeout(OperationOutcomeError):
    """A handler did not end within its `timeout`; the job fails with code `timeout`."""

    def __init__(self, timeout: float) -> None:
        super().__init__(
            IssueType.TIMEOUT, f"The job was stopped: it may run for {timeout:g} s at a time."
        )
        self.timeout = timeout


@attrs.frozen
class Later:
    """A job that is to be run again.

    Attributes:
        after: Seconds from now.
        give_back: Whether the attempt does not count.
        failure: For the history of attempts, a JSON array of texts; None where nothing failed.
    """

    after: float
    give_back: bool
    failure: str | None = None


def split(
    error: BaseException, kind: type[BaseException]
) -> tuple[BaseException | None, BaseException | None]:
    """The part of `error` that is of `kind`, and the rest; either may be None."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(kind)
    return (error, None) if isinstance(error, kind) else (None, error)


def verdict_of_value(
    value: object, job: AsyncJob, handler: JobHandler, *, output_limit: int, outcome_limit: int
) -> JobResult | Later:
    """What a job comes to whose handler returned `value`."""
    try:
        # An output first: it is what nearly all return.
        if isinstance(value, JobOutput):
            output = value
        elif isinstance(value, (RetryLater, Snooze)):
            return verdict_of_error(value, job, handler, outcome_limit=outcome_limit)
        else:
            output = output_of(value)
        return JobResult.completed(output.value, output.content_type, limit=output_limit)
    except UnstorableValue as error:
        log_job(_log.JOB_REJECTED, job, error=describe(error))
        return JobResult.failed(unstorable_outcome(str(error)), failure=failure_of(error))


def output_of(value: object) -> JobOutput:
    """What a handler returned as an output.

    Raises:
        UnstorableValue: It is none.
    """
    if isinstance(value, JobOutput):
        return value
    if _is_output(value):
        return JobOutput.json(unstructure(value))
    raise UnstorableValue(
        f"the handler returned {type(value).__name__}, not a JobOutput or an instance of an attrs "
        "class or dataclass"
    )


def _is_output(value: object) -> bool:
    return not isinstance(value, type) and (
        isinstance(value, JobOutput) or is_structured(type(value))
    )


def verdict_of_error(
    error: BaseException, job: AsyncJob, handler: JobHandler, *, outcome_limit: int
) -> JobResult | Later:
    """What a job comes to whose handler raised `error`; logs what nobody expected."""
    asked = _asked(error)
    if isinstance(asked, Snooze):
        return Later(asked.seconds, give_back=True)
    after = _wait(error, asked, job, handler)
    failure = failure_of(error if asked is None else asked)
    if after is not None:
        return Later(after, give_back=False, failure=failure)
    if asked is not None:
        text = f"The job was given up after {job.attempts} attempts"
        reason = f": {asked.reason}" if asked.reason else "."
        issues: tuple[Issue, ...] = (Issue(IssueType.TRANSIENT, text + reason),)
        return JobResult.failed(
            fitting_outcome(issues, outcome_limit), limit=outcome_limit, failure=failure
        )
    if isinstance(error, UnstorableOutput):
        # As if the handler had returned it.
        log_job(_log.JOB_REJECTED, job, error=describe(error))
        return JobResult.failed(unstorable_outcome(str(error)), failure=failure)
    if isinstance(error, JobTimeout):
        log_job(_log.JOB_TIMED_OUT, job, timeout=error.timeout, trace=error.__cause__)
    issues = _issues_of(error)
    if not issues:
        log_job(_log.JOB_RAISED, job, trace=error)
        return JobResult.failed(internal_error_outcome(), failure=failure)
    if split(error, OperationOutcomeError)[1] is not None:
        log_job(_log.JOB_RAISED, job, trace=error)
    outcome = fitting_outcome(issues, outcome_limit)
    return JobResult.failed(outcome, limit=outcome_limit, failure=failure)


def outcome_of(
    handler: JobHandler, context: JobContext[Any], value: object, error: BaseException | None
) -> RunOutcome:
    """How a run ended, for middlewares; the same rules, without a result."""
    reason = context.cancel_reason
    if context.is_finished:
        return RunOutcome("completed", error, reason)
    if error is not None:
        others = split(error, trio.Cancelled)[1]
        interrupted = others is not None and split(others, KeyboardInterrupt)[0] is not None
        if others is None or reason is not None or interrupted:
            return RunOutcome("cancelled", others, reason)
        error = others
    else:
        error = value if isinstance(value, (RetryLater, Snooze)) else None
        if reason is not None and reason is not CancelReason.SHUTDOWN:
            return RunOutcome("cancelled", error, reason)
        if error is None:
            return RunOutcome("completed" if _is_output(value) else "failed", None, reason)
    asked = _asked(error)
    if isinstance(asked, Snooze):
        return RunOutcome("snoozed", asked, reason)
    again = _wait(error, asked, context.job, handler) is not None
    return RunOutcome("retried" if again else "failed", error, reason)


def failure_of(error: BaseException) -> str:
    """What went wrong, for the history of attempts: the leaves of groups, as JSON texts."""
    texts: list[str] = []
    _collect(error, texts)
    return json.dumps(texts, ensure_ascii=False)


def _collect(error: BaseException, texts: list[str]) -> None:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            _collect(part, texts)
    elif len(texts) < _MOST_ERRORS:
        text = error.reason if isinstance(error, RetryLater) and error.reason else describe(error)
        texts.append(clean_text(text, _LONGEST_ERROR))


def _asked(error: BaseException) -> RetryLater | Snooze | None:
    """The wish to be run again that `error` is, or that is all there is in a group."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, (RetryLater, Snooze)) else None


def _wait(
    error: BaseException, asked: RetryLater | None, job: AsyncJob, handler: JobHandler
) -> float | None:
    """Seconds until the next attempt; None if there is to be none."""
    policy = handler.retries
    attempts = job.max_attempts if policy is None else min(policy.attempts, job.max_attempts)
    if job.attempts >= attempts:
        return None
    if asked is not None:
        return (
            asked.after
            if asked.after is not None
            else (policy or DEFAULT_POLICY).wait(job.attempts)
        )
    if policy is None or isinstance(error, ParameterMismatch) or not policy.covers(error):
        return None
    return policy.wait(job.attempts)


def _issues_of(error: BaseException | None) -> tuple[Issue, ...]:
    """The issues of every OperationOutcomeError in `error`, in their order."""
    if isinstance(error, OperationOutcomeError):
        return error.issues
    if isinstance(error, BaseExceptionGroup):
        return tuple(issue for part in error.exceptions for issue in _issues_of(part))
    return ()
