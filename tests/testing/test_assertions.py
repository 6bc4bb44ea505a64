"""The assertions: when they hold, and what a person reads when they do not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest

import hastetrio.testing
from hastetrio import (
    AsyncJob,
    AsyncJobStatus,
    JobContext,
    JobOutput,
    OperationOutcomeError,
    job_handler,
)
from hastetrio.testing import assert_completed, assert_failed, assert_retried, run_job

COMPLETED, FAILED = AsyncJobStatus.COMPLETED, AsyncJobStatus.FAILED
NOW = datetime(2026, 11, 30, tzinfo=UTC)

STORED = AsyncJob(
    id="1",
    tenant="t",
    project="p",
    kind="work",
    status=COMPLETED,
    request="",
    parameters={},
    claims={"sub": "secret"},
    submitted_by="secret",
    output={"n": 1},
    attempts=1,
    created_at=NOW,
    updated_at=NOW,
    expires_at=NOW,
    run_at=NOW,
)

OUTCOME = {
    "resourceType": "OperationOutcome",
    "issue": [
        {"severity": "error", "code": "required", "diagnostics": "is missing", "expression": ["a"]},
        {"severity": "error", "code": "value", "diagnostics": "is too small", "expression": ["b"]},
    ],
}
REFUSED = attrs.evolve(STORED, status=FAILED, output=None, error=OUTCOME)

HISTORY = [
    {"attempt": 1, "at": "2026-11-30T00:00:00Z", "errors": ["ConnectionError: 503", "other"]},
    {"attempt": 2, "at": "2026-11-30T00:01:00Z", "errors": ["TimeoutError"]},
]
THIRD = attrs.evolve(STORED, attempts=3, attempt_errors=HISTORY)


def refused(call: Callable[[], None]) -> str:
    """What the assertion says that does not hold."""
    with pytest.raises(AssertionError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda: assert_completed(STORED),
        lambda: assert_completed(STORED, output={"n": 1}),
        lambda: assert_completed(attrs.evolve(STORED, output=None), output=None),
        lambda: assert_failed(REFUSED),
        lambda: assert_failed(REFUSED, code="value"),
        lambda: assert_failed(REFUSED, text="too small", code="value", expression="b"),
        lambda: assert_retried(THIRD),
        lambda: assert_retried(THIRD, times=2, text="503"),
        lambda: assert_retried(attrs.evolve(THIRD, status=FAILED), times=2, text="Timeout"),
        lambda: assert_retried(
            attrs.evolve(THIRD, status=AsyncJobStatus.ACCEPTED, attempts=2), times=2
        ),
        lambda: assert_retried(STORED, times=0),
    ],
)
def test_they_hold(call: Callable[[], None]) -> None:
    """For any job, read from anywhere."""
    call()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: assert_completed(REFUSED), "the job is failed, not completed"),
        (lambda: assert_completed(STORED, output=None), "the output is not the one expected"),
        (lambda: assert_completed(STORED, output={"n": 2}), "the output is not the one expected"),
        (lambda: assert_failed(STORED), "the job is completed, not failed"),
        (lambda: assert_failed(REFUSED, code="timeout"), "no issue of the job has the code 'tim"),
        (
            lambda: assert_failed(REFUSED, code="value", expression="a"),
            "no issue of the job has the code 'value' and the expression 'a'",
        ),
        (lambda: assert_failed(REFUSED, text="big"), "no issue of the job has the text 'big'"),
        (
            lambda: assert_failed(attrs.evolve(REFUSED, error="not ours"), code="value"),
            "no issue of the job has the code 'value'",
        ),
        (lambda: assert_retried(STORED), "the job was not tried again"),
        (lambda: assert_retried(THIRD, times=1), "the job was tried again 2 times, not 1"),
        (lambda: assert_retried(THIRD, text="504"), "no attempt failed with the text '504'"),
        (
            lambda: assert_retried(attrs.evolve(THIRD, attempt_errors="not ours"), text="503"),
            "no attempt failed with the text '503'",
        ),
    ],
)
def test_they_do_not_hold(call: Callable[[], None], told: str) -> None:
    """And the first line says which part of it does not."""
    assert refused(call).startswith(told)


def test_a_failure_tells_the_issues_and_the_attempts() -> None:
    """Enough to see what happened without running it again; no claims are shown."""
    job = attrs.evolve(THIRD, status=FAILED, output=None, error=OUTCOME, progress="half")
    told = refused(lambda: assert_completed(job)).splitlines()
    assert told == [
        "the job is failed, not completed",
        "work failed at attempt 3 of 3",
        "  issue: required: is missing (at a)",
        "  issue: value: is too small (at b)",
        "  attempt 1: ConnectionError: 503; other",
        "  attempt 2: TimeoutError",
        "  progress: half",
    ]


def test_a_failure_tells_the_end_of_the_log() -> None:
    """Of a job that was run here: where the handler broke, whatever came before."""

    @job_handler("broken")
    async def broken(context: JobContext) -> JobOutput:
        for number in range(100):
            logging.getLogger("tests.chatty").info("line %d", number)
        raise ValueError("the cause")

    told = refused(lambda: assert_completed(run_job(broken), output=1))
    assert "  issue: exception: The job failed with an internal error." in told
    assert "  log, the last 40 lines:" in told
    assert "    ValueError: the cause" in told
    assert "line 99" in told
    assert "line 1\n" not in told


def test_they_take_what_run_job_returns() -> None:
    """The way most tests use them."""

    @job_handler("picky")
    async def picky(context: JobContext) -> JobOutput:
        if not context.job.parameters:
            raise OperationOutcomeError("required", "Say what.")
        return JobOutput.json(context.job.parameters)

    assert_completed(run_job(picky, parameters=[1]), output=[1])
    assert_failed(run_job(picky), code="required", text="Say what")


def test_a_long_output_is_cut() -> None:
    """A failure is read by a person."""
    job = attrs.evolve(STORED, output="x" * 100_000)
    told = refused(lambda: assert_failed(job))
    assert len(told) < 1000
    assert "..." in told


def test_other_names_are_not_there() -> None:
    """The assertions are imported late, and a slip of the pen is still an AttributeError."""
    room: Any = hastetrio.testing
    with pytest.raises(AttributeError, match="has no attribute 'assert_complete'"):
        room.assert_complete  # noqa: B018
    assert {"assert_completed", "assert_failed", "assert_retried", "run_job"} <= set(dir(room))
