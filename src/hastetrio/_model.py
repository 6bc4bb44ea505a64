"""Values: what a job is, what a kick-off records, what a lease and a result are.

Durations are float seconds, times are aware datetimes, and every class is frozen.
"""

from __future__ import annotations

import math
from datetime import datetime
from enum import Enum, StrEnum
from typing import Any, Final

import attrs

from hastetrio._ids import generate_token
from hastetrio._outcome import OUTCOME_LIMIT, Json, OperationOutcomeError
from hastetrio._storable import check_text, decode_json, encode_json

OUTPUT_LIMIT: Final = 16 * 1024 * 1024
DAY: Final = 86400.0
DEFAULT_ATTEMPTS: Final = 3

# What may be added to a job's start, and still be a time that Python knows.
_FIRST_YEAR: Final = 1970
_LAST_YEAR: Final = 9900

# Characters a submitter's name may have.
SUBMITTER_LIMIT: Final = 1024

# Ten years: far beyond any retention meant, and well inside what timestamptz can add.
LONGEST_DURATION: Final = 3650 * DAY

_USER_ID_CLAIM: Final = "https://haste.health/user_id"

FHIR_JSON: Final = "application/fhir+json"
PLAIN_JSON: Final = "application/json"


class AsyncJobStatus(StrEnum):
    """Where a job is in its life; the labels of the enum `async_job_status`."""

    ACCEPTED = "accepted"
    IN_PROGRESS = "in-progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_live(self) -> bool:
        """Whether the job may still run: queued, or claimed and running."""
        return self in (AsyncJobStatus.ACCEPTED, AsyncJobStatus.IN_PROGRESS)


def check_duration(value: object, what: str, *, zero: bool = False) -> float:
    """`value` as float seconds.

    Raises:
        ValueError: It is not a number, not finite, negative (or zero), or longer than ten years.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{what} must be a number of seconds, not {value!r}")  # noqa: TRY004
    try:
        seconds = float(value)
    except OverflowError:
        raise ValueError(f"{what} must be at most {LONGEST_DURATION:.0f} seconds") from None
    if not math.isfinite(seconds) or seconds < 0 or (seconds == 0 and not zero):
        least = "not negative" if zero else "more than 0"
        raise ValueError(f"{what} must be a finite number of seconds, {least}, not {value!r}")
    if seconds > LONGEST_DURATION:
        raise ValueError(f"{what} must be at most {LONGEST_DURATION:.0f} seconds, not {value!r}")
    return seconds


def submitter_of(claims: Json) -> str:
    """Whom the claims name: `https://haste.health/user_id`, else `sub`.

    Raises:
        ValueError: The claims hold neither.
    """
    for key in (_USER_ID_CLAIM, "sub"):
        name = claims.get(key)
        if isinstance(name, str) and name:
            return name
    raise ValueError(f"the claims name nobody: they need {_USER_ID_CLAIM!r} or 'sub'")


@attrs.frozen(kw_only=True)
class AsyncJob:
    """A job as stored: the columns of its row in `async_jobs`.

    `parameters`, `claims`, `output` and `state` are left out of its printed form: claims say as
    whom the job runs, and none of the four belongs in a log.

    `attempt_errors` is the history of attempts that failed, the last ten, oldest first; each is
    `{"attempt": number, "at": ISO time, "errors": [texts]}`.
    """

    id: str
    tenant: str
    project: str
    kind: str
    status: AsyncJobStatus
    request: str
    parameters: Any = attrs.field(repr=False)
    claims: Any = attrs.field(repr=False)
    submitted_by: str
    progress: str | None = None
    output: Any = attrs.field(default=None, repr=False)
    output_content_type: str | None = None
    error: Any = None
    attempts: int = 0
    max_attempts: int = 3
    locked_by: str | None = None
    lease_expires_at: datetime | None = None
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    expires_at: datetime
    finished_by: str | None = None
    hand_backs: int = 0
    run_at: datetime
    unique_key: str | None = None
    state: Any = attrs.field(default=None, repr=False)
    attempt_errors: Any = None


@attrs.frozen(kw_only=True)
class CreateAsyncJob:
    """What a kick-off records about a new job.

    Args:
        kind: Which handler runs it.
        request: The full URL of the kick-off, as the client knows it.
        parameters: Any JSON, for the handler.
        claims: The submitter's verified token claims, opaque JSON; the job runs as them.
        retention: How long the job and its result are kept, from now (or `run_at`) and again from
            completion; seconds.
        max_attempts: How often the job may be started, at least 1.
        run_at: When the job may start, a time with a zone; at once if it has passed, or is None.
        unique_key: While a job of the project and kind with this key is queued or running, creating
            another returns that one. One that was cancelled or has expired does not count.

    Raises:
        ValueError: The claims name nobody, a number is out of range, or a time has no zone.
        UnstorableValue: A text cannot be stored.
    """

    kind: str = attrs.field()
    request: str = ""
    parameters: Any = attrs.field(factory=dict, repr=False)
    claims: Json = attrs.field(repr=False)
    retention: float = attrs.field(default=DAY)
    max_attempts: int = DEFAULT_ATTEMPTS
    run_at: datetime | None = None
    unique_key: str | None = None

    @property
    def submitted_by(self) -> str:
        """Who submitted the job, as the claims name them."""
        return submitter_of(self.claims)

    def __attrs_post_init__(self) -> None:
        if not check_text(self.kind, "kind", 255):
            raise ValueError("kind must not be empty")
        check_text(self.request, "request")
        if not isinstance(self.claims, dict):
            raise ValueError("claims must be a JSON object")  # noqa: TRY004
        check_text(self.submitted_by, "the submitter named by the claims", SUBMITTER_LIMIT)
        object.__setattr__(self, "retention", check_duration(self.retention, "retention"))
        if isinstance(self.max_attempts, bool) or not isinstance(self.max_attempts, int):
            raise ValueError(f"max_attempts must be a whole number, not {self.max_attempts!r}")  # noqa: TRY004
        if not 1 <= self.max_attempts <= 1000:
            raise ValueError(f"max_attempts must be from 1 to 1000, not {self.max_attempts}")
        if self.run_at is not None:
            _check_time(self.run_at)
        if self.unique_key is not None and not check_text(self.unique_key, "unique_key", 255):
            raise ValueError("unique_key must not be empty; leave it out instead")


def _check_time(run_at: object) -> None:
    if not isinstance(run_at, datetime) or run_at.utcoffset() is None:
        raise ValueError(f"run_at must be a time with a zone, not {run_at!r}")
    # Compared in the zone itself: the years 1 and 9999 have moments that UTC has no name for.
    if not _FIRST_YEAR <= run_at.year <= _LAST_YEAR:
        raise ValueError(f"run_at must be in the years {_FIRST_YEAR} to {_LAST_YEAR}")


@attrs.frozen
class JobLease:
    """Names one claim, and how long the claim or one renewal of it lasts.

    Args:
        worker: The worker's id.
        duration: Seconds one claim or renewal lasts.
        token: What `locked_by` holds. Drawn anew for each lease, so that a result is matched with
            the claim it comes from, not merely with the worker.

    Raises:
        ValueError: The duration is not a finite number of seconds above 0.
    """

    worker: str
    duration: float = attrs.field(validator=lambda _, __, value: _check_lease(value))
    token: str = attrs.field(
        default=attrs.Factory(lambda self: generate_token(self.worker), takes_self=True)
    )

    @property
    def claim(self) -> str:
        """The 8 random characters of the token: new for each claim, fit for temporary names."""
        return self.token[-8:]


def _check_lease(value: object) -> None:
    check_duration(value, "the lease's duration")


def worker_of(token: str) -> str:
    """The worker id in a claim token (the whole text, for a token another program made)."""
    return token.rpartition("/")[0] or token


class LeaseRenewal(Enum):
    """What a lease renewal found."""

    RENEWED = "renewed"
    """Still ours; the lease was extended."""

    CANCELLED = "cancelled"
    """The client cancelled the job; the row stays ours (and was extended) until it is released."""

    EXPIRED = "expired"
    """The job is past `expires_at`; the row stays ours (and was extended) until it is released."""

    LOST = "lost"
    """The row is gone, or held under another token."""


@attrs.frozen
class JobResult:
    """How a finished job ended. One that exists can be stored: it holds checked JSON text."""

    status: AsyncJobStatus
    output_json: str | None = attrs.field(default=None, repr=False)
    content_type: str | None = None
    error_json: str | None = None
    failure_json: str | None = None
    """What went wrong, for the history of attempts: a JSON array of texts."""

    @classmethod
    def completed(
        cls, output: object, content_type: str = PLAIN_JSON, *, limit: int = OUTPUT_LIMIT
    ) -> JobResult:
        """The job completed with `output`, at most `limit` bytes of JSON.

        Raises:
            UnstorableValue: The output is not JSON that can be stored, or exceeds the limit.
        """
        text = encode_json(output, limit, "the output")
        check_text(content_type, "the output's content type", 255)
        return cls(AsyncJobStatus.COMPLETED, output_json=text, content_type=content_type)

    @classmethod
    def failed(
        cls,
        outcome: Json | OperationOutcomeError,
        *,
        limit: int = OUTCOME_LIMIT,
        failure: str | None = None,
    ) -> JobResult:
        """The job failed with `outcome`, an OperationOutcome of at most `limit` bytes.

        Args:
            outcome: For the client.
            limit: The most bytes of its JSON.
            failure: For the history of attempts, a JSON array of texts; see `failure_of`.

        Raises:
            UnstorableValue: The outcome is not JSON that can be stored, or exceeds the limit.
        """
        value = outcome.to_json() if isinstance(outcome, OperationOutcomeError) else outcome
        text = encode_json(value, limit, "the outcome")
        return cls(AsyncJobStatus.FAILED, error_json=text, failure_json=failure)

    @property
    def output(self) -> Any:  # noqa: ANN401  # JSON is any value
        """The output, once completed."""
        return None if self.output_json is None else decode_json(self.output_json)

    @property
    def outcome(self) -> Json | None:
        """The OperationOutcome, once failed."""
        return None if self.error_json is None else decode_json(self.error_json)


@attrs.frozen
class JobOutput:
    """What a handler returns, and how the status endpoint serves it."""

    value: Any = attrs.field(repr=False)
    content_type: str

    @classmethod
    def resource(cls, resource: Json) -> JobOutput:
        """A FHIR resource: the response the synchronous form of the request would have had.

        Raises:
            TypeError: `resource` is not a dict.
        """
        if not isinstance(resource, dict):
            raise TypeError(f"a resource is a dict, not {type(resource).__name__}")
        return cls(resource, FHIR_JSON)

    @classmethod
    def json(cls, value: object) -> JobOutput:
        """Any JSON value: a Bulk Data manifest, for one."""
        return cls(value, PLAIN_JSON)
