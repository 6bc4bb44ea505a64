"""OperationOutcome: the only place that knows what a FHIR OperationOutcome looks like.

Source: FHIR R4, https://hl7.org/fhir/R4/operationoutcome.html; the codes are the value set
https://hl7.org/fhir/R4/valueset-issue-type.html.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs

from hastetrio._storable import clean_text

Severity: TypeAlias = Literal["fatal", "error", "warning", "information"]
Json: TypeAlias = dict[str, Any]

SEVERITIES: Final[tuple[str, ...]] = get_args(Severity)

OUTCOME_LIMIT: Final = 64 * 1024


class IssueType(StrEnum):
    """The kinds of issue FHIR R4 knows."""

    INVALID = "invalid"
    STRUCTURE = "structure"
    REQUIRED = "required"
    VALUE = "value"
    INVARIANT = "invariant"
    SECURITY = "security"
    LOGIN = "login"
    UNKNOWN = "unknown"
    EXPIRED = "expired"
    FORBIDDEN = "forbidden"
    SUPPRESSED = "suppressed"
    PROCESSING = "processing"
    NOT_SUPPORTED = "not-supported"
    DUPLICATE = "duplicate"
    MULTIPLE_MATCHES = "multiple-matches"
    NOT_FOUND = "not-found"
    DELETED = "deleted"
    TOO_LONG = "too-long"
    CODE_INVALID = "code-invalid"
    EXTENSION = "extension"
    TOO_COSTLY = "too-costly"
    BUSINESS_RULE = "business-rule"
    CONFLICT = "conflict"
    TRANSIENT = "transient"
    LOCK_ERROR = "lock-error"
    NO_STORE = "no-store"
    EXCEPTION = "exception"
    TIMEOUT = "timeout"
    INCOMPLETE = "incomplete"
    THROTTLED = "throttled"
    INFORMATIONAL = "informational"


def _severity(_: object, __: object, value: str) -> None:
    if value not in SEVERITIES:
        raise ValueError(f"severity must be one of {', '.join(SEVERITIES)}, not {value!r}")


@attrs.frozen
class Issue:
    """One issue of an OperationOutcome."""

    code: IssueType = attrs.field(converter=IssueType)
    diagnostics: str = attrs.field(converter=str)
    severity: Severity = attrs.field(default="error", validator=_severity)
    expression: tuple[str, ...] = ()

    def to_json(self) -> Json:
        """The issue as FHIR JSON."""
        issue: Json = {
            "severity": self.severity,
            "code": self.code.value,
            "diagnostics": clean_text(self.diagnostics),
        }
        if self.expression:
            issue["expression"] = [clean_text(path) for path in self.expression]
        return issue


class OperationOutcomeError(Exception):
    """Raised by a handler to fail its job with issues the client may read.

    Args:
        code: An `IssueType`, or its text.
        diagnostics: What happened, in words meant for the client.
        severity: "fatal", "error", "warning" or "information".
        expression: FHIRPath expressions of the elements at fault.

    Raises:
        ValueError: `code` or `severity` is not one FHIR knows.
    """

    def __init__(
        self,
        code: IssueType | str,
        diagnostics: str,
        severity: Severity = "error",
        *,
        expression: tuple[str, ...] = (),
    ) -> None:
        super().__init__(diagnostics)
        self._issues = [Issue(code, diagnostics, severity, expression)]

    @property
    def issues(self) -> tuple[Issue, ...]:
        """The issues, in the order they were added."""
        return tuple(self._issues)

    def add(
        self,
        code: IssueType | str,
        diagnostics: str,
        severity: Severity = "error",
        *,
        expression: tuple[str, ...] = (),
    ) -> OperationOutcomeError:
        """Add one more issue and return the same error, so that calls can be chained."""
        self._issues.append(Issue(code, diagnostics, severity, expression))
        return self

    def to_json(self) -> Json:
        """The OperationOutcome resource as JSON."""
        return outcome_json(self.issues)

    def __str__(self) -> str:
        return "; ".join(f"{issue.code}: {issue.diagnostics}" for issue in self._issues)


def outcome_json(issues: tuple[Issue, ...]) -> Json:
    """An OperationOutcome resource holding `issues`, as JSON."""
    return {"resourceType": "OperationOutcome", "issue": [issue.to_json() for issue in issues]}


def diagnostics_of(outcome: object) -> tuple[str, ...]:
    """The diagnostics of an OperationOutcome as stored; foreign rows may hold anything."""
    issues = outcome.get("issue") if isinstance(outcome, dict) else None
    return tuple(
        issue["diagnostics"]
        for issue in (issues if isinstance(issues, list) else ())
        if isinstance(issue, dict) and isinstance(issue.get("diagnostics"), str)
    )


def fitting_outcome(issues: tuple[Issue, ...], limit: int) -> Json:
    """An OperationOutcome of at most `limit` bytes (1,024 at least): issues and texts are cut.

    One character takes up to 6 bytes of JSON, so texts are cut to a twelfth of what is left.
    """
    kept: list[Issue] = []
    left = limit - 256
    for issue in issues:
        shorter = attrs.evolve(issue, diagnostics=issue.diagnostics[: max(left // 12, 0)])
        size = len(json.dumps(shorter.to_json()).encode())
        if kept and size > left:
            break
        if size > left:
            shorter = attrs.evolve(shorter, expression=())
        kept.append(shorter)
        left -= size
    return outcome_json(tuple(kept))


def _fatal(code: IssueType, diagnostics: str) -> Json:
    return outcome_json((Issue(code, diagnostics, "fatal"),))


def abandoned_outcome() -> Json:
    """For a job whose worker stopped renewing and that has no attempts left."""
    return _fatal(
        IssueType.EXCEPTION,
        "The job was abandoned: the worker running it stopped responding, and it has no attempts "
        "left.",
    )


def internal_error_outcome() -> Json:
    """For a handler's unexpected error, which is logged; the client sees only that it failed."""
    return _fatal(IssueType.EXCEPTION, "The job failed with an internal error.")


def unsupported_outcome(kind: str) -> Json:
    """For a job that reached a worker without a handler for its kind."""
    return _fatal(IssueType.NOT_SUPPORTED, f"No handler for job kind '{kind}'.")


def unreadable_outcome() -> Json:
    """For a claimed row whose values cannot be loaded."""
    return _fatal(
        IssueType.PROCESSING,
        "The job's stored row cannot be read: a value in it is outside what this server supports.",
    )


def unstorable_outcome(reason: str) -> Json:
    """For a result that cannot be stored; `reason` says which rule it breaks."""
    return _fatal(IssueType.PROCESSING, f"The job's result cannot be stored: {reason}.")
