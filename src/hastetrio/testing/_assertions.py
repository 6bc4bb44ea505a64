"""Assertions about a job that has ended, whose failures tell what happened.

pytest rewrites the asserts of this module, so that two outputs are shown with their difference;
the plugin asks for it. They hold without pytest too.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from hastetrio._model import AsyncJobStatus
from hastetrio._strict import is_structured
from hastetrio._typed import unstructure
from hastetrio.testing._finished import attempts_of, issues_of, story, texts_of

if TYPE_CHECKING:
    from hastetrio._model import AsyncJob


class _Anything(Enum):
    ANYTHING = "anything"


_ANYTHING: Final = _Anything.ANYTHING


def assert_completed(job: AsyncJob, *, output: object = _ANYTHING) -> None:
    """The job completed, with this output where one is given.

    Args:
        job: What `run_job` returned, or any job that was read.
        output: The output as JSON, None for its null; or an instance of the attrs class or
            dataclass that the handler returns.

    Raises:
        AssertionError: It did not; the text holds the job's status, issues, earlier attempts and
            the end of its log.
    """
    __tracebackhide__ = True
    _assert_status(job, AsyncJobStatus.COMPLETED)
    if output is not _ANYTHING:
        wanted = unstructure(output) if is_structured(type(output)) else output
        told = f"the output is not the one expected\n{story(job)}"
        assert job.output == wanted, told  # noqa: S101


def assert_failed(
    job: AsyncJob,
    *,
    code: str | None = None,
    text: str | None = None,
    expression: str | None = None,
) -> None:
    """The job failed, with an issue that has all that is given.

    Args:
        job: What `run_job` returned, or any job that was read.
        code: The issue's code, such as "timeout".
        text: A part of what the issue says to the client.
        expression: The path of the element the issue is about.

    Raises:
        AssertionError: It did not; the text holds the job's status, issues, earlier attempts and
            the end of its log.
    """
    __tracebackhide__ = True
    _assert_status(job, AsyncJobStatus.FAILED)
    wanted = [
        f"the code {code!r}" if code is not None else "",
        f"the text {text!r}" if text is not None else "",
        f"the expression {expression!r}" if expression is not None else "",
    ]
    for issue in issues_of(job.error):
        if (
            (code is None or issue.get("code") == code)
            and (text is None or text in str(issue.get("diagnostics")))
            and (expression is None or expression in (issue.get("expression") or ()))
        ):
            return
    what = " and ".join(filter(None, wanted))
    if what:
        raise AssertionError(f"no issue of the job has {what}\n{story(job)}")


def assert_retried(job: AsyncJob, *, times: int | None = None, text: str | None = None) -> None:
    """An attempt at the job failed, and the job was (or will be) tried again.

    Args:
        job: What `run_job` returned, or any job that was read: a queued one too.
        times: How often it was tried again; at least once, where this is not given.
        text: A part of what went wrong in one of the attempts that failed, as an error or as the
            reason of a `RetryLater`.

    Raises:
        AssertionError: It was not; the text holds the job's status, issues, earlier attempts and
            the end of its log.
    """
    __tracebackhide__ = True
    # A job that is queued again has its next attempt to come.
    again = job.attempts if job.status is AsyncJobStatus.ACCEPTED else max(job.attempts - 1, 0)
    if times is None:
        if not again:
            raise AssertionError(f"the job was not tried again\n{story(job)}")
    elif again != times:
        raise AssertionError(f"the job was tried again {again} times, not {times}\n{story(job)}")
    if text is not None and not any(
        text in error for attempt in attempts_of(job) for error in texts_of(attempt)
    ):
        raise AssertionError(f"no attempt failed with the text {text!r}\n{story(job)}")


def _assert_status(job: AsyncJob, wanted: AsyncJobStatus) -> None:
    __tracebackhide__ = True
    if job.status is not wanted:
        raise AssertionError(f"the job is {job.status}, not {wanted}\n{story(job)}")
