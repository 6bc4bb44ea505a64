"""Values: the rules that a job, a lease and a result hold from the moment they are made."""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hastetrio import _ids
from hastetrio._errors import UnstorableValue
from hastetrio._model import (
    FHIR_JSON,
    LONGEST_DURATION,
    OUTPUT_LIMIT,
    PLAIN_JSON,
    AsyncJob,
    AsyncJobStatus,
    CreateAsyncJob,
    JobLease,
    JobOutput,
    JobResult,
    check_duration,
    submitter_of,
    worker_of,
)
from hastetrio._outcome import OUTCOME_LIMIT, OperationOutcomeError

# A loaded machine is no failure, and nothing is written to the folder the tests run in.
unhurried = settings(deadline=None, database=None)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EAST, WEST = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))


def a_job(**values: Any) -> AsyncJob:  # noqa: ANN401
    """A job with the columns that have no default."""
    given: dict[str, Any] = {
        "id": "x",
        "tenant": "t",
        "project": "p",
        "kind": "k",
        "status": AsyncJobStatus.ACCEPTED,
        "request": "",
        "parameters": {},
        "claims": {},
        "submitted_by": "ann",
        "created_at": NOW,
        "updated_at": NOW,
        "expires_at": NOW,
        "run_at": NOW,
    }
    return AsyncJob(**(given | values))


def test_statuses_are_the_labels_of_the_database() -> None:
    """The texts are those of the enum that servers write, and only two of them are live."""
    labels = ["accepted", "in-progress", "completed", "failed", "cancelled"]
    assert [str(status) for status in AsyncJobStatus] == labels
    assert [status.value for status in AsyncJobStatus if status.is_live] == labels[:2]


def test_a_job_has_every_column_a_server_knows() -> None:
    """The 22 columns of the table come first and in order, what the protocol adds behind them."""
    names = [field.name for field in attrs.fields(AsyncJob)]
    assert names[0] == "id"
    assert names[21:] == [
        "expires_at",
        "finished_by",
        "hand_backs",
        "run_at",
        "unique_key",
        "state",
        "attempt_errors",
    ]


def test_values_cannot_be_changed() -> None:
    """What a provider returned stays what it returned."""
    values: list[Any] = [
        a_job(),
        CreateAsyncJob(kind="k", claims={"sub": "a"}),
        JobLease("w", 1.0),
        JobResult.completed(1),
        JobOutput.json(1),
    ]
    for value in values:
        name = next(iter(attrs.asdict(value, recurse=False)))
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(value, name, "other")


def test_private_values_are_not_printed() -> None:
    """Claims, parameters and outputs do not reach a log by printing the value they are part of."""
    secret = {"sub": "ann", "private": "secret-1"}
    values = [
        a_job(claims=secret, parameters=["secret-1"], output="secret-1"),
        CreateAsyncJob(kind="k", claims=secret, parameters=["secret-1"]),
        JobResult.completed("secret-1"),
        JobOutput.json("secret-1"),
    ]
    for value in values:
        assert "secret-1" not in repr(value)


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"https://haste.health/user_id": "u", "sub": "s"}, "u"),
        ({"sub": "s"}, "s"),
        ({"https://haste.health/user_id": "", "sub": "s"}, "s"),
        ({"https://haste.health/user_id": 7, "sub": "s"}, "s"),
        ({"https://haste.health/user_id": None, "sub": "s"}, "s"),
    ],
)
def test_the_submitter_is_the_user_or_else_the_subject(claims: dict[str, Any], name: str) -> None:
    """A user id counts before the subject, as long as it is a text with something in it."""
    assert submitter_of(claims) == name
    assert CreateAsyncJob(kind="k", claims=claims).submitted_by == name


@pytest.mark.parametrize("claims", [{}, {"sub": ""}, {"sub": 7}, {"sub": None}, {"name": "ann"}])
def test_claims_that_name_nobody_are_refused(claims: dict[str, Any]) -> None:
    """A job is always somebody's, and the refusal says which claims would do."""
    with pytest.raises(ValueError, match=r"https://haste\.health/user_id.*sub"):
        CreateAsyncJob(kind="k", claims=claims)


def test_a_kick_off_has_the_seeds_defaults() -> None:
    """A day of retention and three attempts, unless it says otherwise."""
    job = CreateAsyncJob(kind="k", claims={"sub": "a"})
    assert (job.retention, job.max_attempts, job.request, job.parameters) == (86400, 3, "", {})
    whole = CreateAsyncJob(kind="k", claims={"sub": "a"}, retention=60)
    assert type(whole.retention) is float


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"kind": ""}, "kind must not be empty"),
        ({"claims": []}, "claims must be a JSON object"),
        ({"claims": "ann"}, "claims must be a JSON object"),
        ({"retention": 0}, "retention .* more than 0"),
        ({"retention": -1}, "retention .* more than 0"),
        ({"retention": math.nan}, "retention must be a finite"),
        ({"retention": math.inf}, "retention must be a finite"),
        ({"retention": "1h"}, "retention must be a number"),
        ({"retention": True}, "retention must be a number"),
        ({"retention": LONGEST_DURATION * 2}, "retention must be at most"),
        ({"max_attempts": 0}, "max_attempts must be from 1 to 1000, not 0"),
        ({"max_attempts": 1001}, "max_attempts must be from 1 to 1000"),
        ({"max_attempts": 1.5}, "max_attempts must be a whole number"),
        ({"max_attempts": True}, "max_attempts must be a whole number"),
        ({"run_at": datetime(2026, 1, 1)}, "run_at must be a time with a zone"),  # noqa: DTZ001
        ({"run_at": "2026-01-01T00:00:00Z"}, "run_at must be a time with a zone"),
        ({"run_at": 60}, "run_at must be a time with a zone, not 60"),
        ({"run_at": date(2026, 1, 1)}, "run_at must be a time with a zone"),
        (
            {"run_at": datetime(1969, 12, 31, tzinfo=UTC)},
            "run_at must be in the years 1970 to 9900",
        ),
        ({"run_at": datetime(9901, 1, 1, tzinfo=UTC)}, "run_at must be in the years 1970 to 9900"),
        ({"run_at": datetime(1, 1, 1, tzinfo=EAST)}, "run_at must be in the years 1970 to 9900"),
        ({"run_at": datetime.max.replace(tzinfo=WEST)}, "run_at must be in the years 1970 to"),
        ({"unique_key": ""}, "unique_key must not be empty; leave it out instead"),
    ],
)
def test_a_kick_off_that_makes_no_sense_is_refused(values: dict[str, Any], text: str) -> None:
    """The error is one line that names the value."""
    with pytest.raises(ValueError, match=text) as caught:
        CreateAsyncJob(**({"kind": "k", "claims": {"sub": "a"}} | values))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"kind": "a\0"}, "kind"),
        ({"kind": "x" * 256}, "kind"),
        ({"kind": 7}, "kind"),
        ({"request": "\ud800"}, "request"),
        ({"request": "x" * 8193}, "request"),
        ({"claims": {"sub": "a\0"}}, "submitter"),
        ({"claims": {"sub": "x" * 1025}}, "submitter"),
        ({"unique_key": "a\0"}, "unique_key"),
        ({"unique_key": "\ud800"}, "unique_key"),
        ({"unique_key": "x" * 256}, "unique_key"),
        ({"unique_key": 7}, "unique_key"),
    ],
)
def test_a_kick_off_whose_texts_cannot_be_stored_is_refused(
    values: dict[str, Any], name: str
) -> None:
    """What no column can hold fails before anything is sent, and by name."""
    with pytest.raises(UnstorableValue, match=name):
        CreateAsyncJob(**({"kind": "k", "claims": {"sub": "a"}} | values))


@pytest.mark.parametrize(
    "run_at",
    [
        None,
        NOW,
        datetime(1970, 1, 1, tzinfo=EAST),
        datetime(9900, 12, 31, 23, 59, 59, tzinfo=WEST),
    ],
)
def test_a_kick_off_may_name_its_time_and_its_key(run_at: datetime | None) -> None:
    """A time with any zone, past or to come; a key of 255 characters; by default neither."""
    given = CreateAsyncJob(kind="k", claims={"sub": "a"}, run_at=run_at, unique_key="x" * 255)
    assert (given.run_at, given.unique_key) == (run_at, "x" * 255)
    plain = CreateAsyncJob(kind="k", claims={"sub": "a"})
    assert (plain.run_at, plain.unique_key) == (None, None)


@unhurried
@given(st.floats(1e-6, LONGEST_DURATION) | st.integers(1, int(LONGEST_DURATION)))
def test_a_duration_is_float_seconds(value: float) -> None:
    """Whole and broken numbers of seconds are taken as they are."""
    seconds = check_duration(value, "it")
    assert seconds == value
    assert type(seconds) is float


def test_a_duration_of_nothing_is_taken_where_it_makes_sense() -> None:
    """Zero is refused unless it is asked for; less than zero always is."""
    assert check_duration(0, "it", zero=True) == 0
    with pytest.raises(ValueError, match="it must be a finite number of seconds, more than 0"):
        check_duration(0, "it")
    with pytest.raises(ValueError, match="it must be a finite number of seconds, not negative"):
        check_duration(-0.1, "it", zero=True)


def test_a_duration_too_long_for_any_clock_is_refused() -> None:
    """Ten years are the most, and a number that no float can hold is refused in the same words."""
    assert check_duration(LONGEST_DURATION, "it") == LONGEST_DURATION
    for value in (LONGEST_DURATION + 1, 10**400):
        with pytest.raises(ValueError, match="it must be at most 315360000 seconds"):
            check_duration(value, "it")


def test_each_lease_has_a_token_of_its_own() -> None:
    """Two claims of one worker are told apart, and each says whose it is."""
    leases = [JobLease("host-1-abc", 60.0) for _ in range(100)]
    assert len({lease.token for lease in leases}) == 100
    assert len({lease.claim for lease in leases}) == 100
    for lease in leases:
        assert re.fullmatch(r"host-1-abc/\d+-[0-9a-z]{8}", lease.token)
        assert lease.token.endswith(lease.claim)
        assert len(lease.claim) == 8
        assert worker_of(lease.token) == "host-1-abc"


def test_a_renewal_keeps_the_token_of_its_claim() -> None:
    """A lease of another length under the same token is made by changing the duration alone."""
    lease = JobLease("w", 60.0)
    assert attrs.evolve(lease, duration=600.0).token == lease.token


@pytest.mark.parametrize(
    ("token", "worker"), [("a/b/7-abcdefgh", "a/b"), ("haste-worker-3", "haste-worker-3"), ("", "")]
)
def test_the_worker_of_a_foreign_token_is_the_whole_text(token: str, worker: str) -> None:
    """Holders that other programs wrote are shown as they are."""
    assert worker_of(token) == worker


def test_ids_are_fit_for_urls_and_command_lines() -> None:
    """26 characters of 0-9, a-z and -, never beginning with what would read as an option."""
    ids = {_ids.generate_job_id() for _ in range(2000)}
    assert len(ids) == 2000
    for id in ids:
        assert re.fullmatch("[0-9a-z][0-9a-z-]{25}", id)
    assert any("-" in id for id in ids)


@pytest.mark.parametrize(("host", "shown"), [("web-1", "web-1"), ("", "worker"), (None, "worker")])
def test_a_worker_is_named_after_its_host_and_process(
    monkeypatch: pytest.MonkeyPatch, host: str | None, shown: str
) -> None:
    """Host, process and six random characters: two workers of one process differ."""
    if host is None:
        monkeypatch.delenv("HOSTNAME", raising=False)
    else:
        monkeypatch.setenv("HOSTNAME", host)
    monkeypatch.setattr("os.getpid", lambda: 42)
    names = {_ids.generate_worker_id() for _ in range(50)}
    assert len(names) == 50
    for name in names:
        assert re.fullmatch(rf"{shown}-42-[0-9a-z]{{6}}", name)


def test_a_result_holds_checked_json() -> None:
    """A completed result has an output and how it is served; a failed one an outcome."""
    completed = JobResult.completed({"a": [1]}, FHIR_JSON)
    assert completed.status is AsyncJobStatus.COMPLETED
    assert (completed.output, completed.content_type) == ({"a": [1]}, FHIR_JSON)
    assert (completed.outcome, completed.error_json) == (None, None)
    assert JobResult.completed(1).content_type == PLAIN_JSON
    failed = JobResult.failed({"resourceType": "OperationOutcome"})
    assert failed.status is AsyncJobStatus.FAILED
    assert failed.outcome == {"resourceType": "OperationOutcome"}
    assert (failed.output, failed.content_type) == (None, None)
    error = OperationOutcomeError("invalid", "no")
    assert JobResult.failed(error).outcome == error.to_json()


def test_a_result_that_was_made_does_not_change() -> None:
    """A handler that goes on changing what it returned changes no result."""
    output = {"a": 1}
    result = JobResult.completed(output)
    output["a"] = 2
    assert result.output == {"a": 1}


def test_a_result_beyond_its_limit_is_refused() -> None:
    """16 MiB of output and 64 KiB of outcome by default, and what a worker sets instead."""
    text = "x" * (OUTPUT_LIMIT - 2)
    assert JobResult.completed(text).output == text
    with pytest.raises(UnstorableValue, match=r"the output .* limit is 16,777,216"):
        JobResult.completed(text + "x")
    with pytest.raises(UnstorableValue, match=r"the output .* limit is 10"):
        JobResult.completed("x" * 9, limit=10)
    with pytest.raises(UnstorableValue, match=r"the outcome .* limit is 65,536"):
        JobResult.failed({"x": "x" * OUTCOME_LIMIT})
    with pytest.raises(UnstorableValue, match=r"the outcome .* limit is 10"):
        JobResult.failed({"x": "x" * 9}, limit=10)


@pytest.mark.parametrize("output", ["a\0", "\ud800", math.nan, object()])
def test_a_result_that_cannot_be_stored_is_refused(output: object) -> None:
    """What the database would refuse never becomes a result."""
    with pytest.raises(UnstorableValue):
        JobResult.completed(output)


def test_an_output_says_how_it_is_served() -> None:
    """Resources are FHIR, everything else is plain JSON; a resource is a dict."""
    resource = {"resourceType": "Patient"}
    assert JobOutput.resource(resource) == JobOutput(resource, "application/fhir+json")
    assert JobOutput.json([1]) == JobOutput([1], "application/json")
    wrong: Any
    for wrong in ([], "x", None):
        with pytest.raises(TypeError, match="a resource is a dict"):
            JobOutput.resource(wrong)
