"""What a client is told when its request is refused: always an OperationOutcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from hastetrio._outcome import Issue, IssueType, Json, outcome_json


class RequestError(Exception):
    """A request that is answered with a status and an OperationOutcome.

    Args:
        status: The HTTP status, 400 or above.
        code: The kind of problem.
        diagnostics: What went wrong and what to do, for the person behind the client.
        headers: Header fields of the answer.
        issues: The issues, where they are not one of that kind.
    """

    def __init__(
        self,
        status: int,
        code: IssueType,
        diagnostics: str,
        *,
        headers: Mapping[str, str] | None = None,
        issues: Iterable[Issue] | None = None,
    ) -> None:
        super().__init__(f"{status} {diagnostics}")
        self.status = status
        self.headers = dict(headers or {})
        self.outcome = outcome_json(tuple(issues or [Issue(code, diagnostics)]))


def not_found() -> RequestError:
    """The one answer for what is not there, or not the caller's to see.

    It is the same for an unknown address, an unknown job, another's, another tenant's, one that
    was cancelled and one that has expired, so that nobody learns whether a job exists.
    """
    return RequestError(
        404, IssueType.NOT_FOUND, "There is nothing at this address, or it is not yours to see."
    )


# A failed job's HTTP status by the code of its first issue. Never 401, 404 or 429: clients take
# these for a token to renew, a deleted job, and a poll to repeat. 500 is repeated for minutes by
# some clients, so what only the client can mend is a 4xx.
_FAILED: Final[Mapping[str, int]] = {
    **dict.fromkeys(
        ("invalid", "structure", "required", "value", "invariant", "code-invalid", "too-long"), 400
    ),
    **dict.fromkeys(("forbidden", "suppressed"), 403),
    **dict.fromkeys(("conflict", "lock-error"), 409),
    **dict.fromkeys(
        (
            "security",
            "login",
            "unknown",
            "expired",
            "not-found",
            "deleted",
            "not-supported",
            "business-rule",
            "multiple-matches",
            "duplicate",
            "throttled",
            "too-costly",
            "extension",
        ),
        422,
    ),
}


def status_of_failure(outcome: Json | None) -> int:
    """The HTTP status for a failed job with this stored outcome."""
    issues = outcome.get("issue") if isinstance(outcome, dict) else None
    first = issues[0] if isinstance(issues, list) and issues else None
    code = first.get("code") if isinstance(first, dict) else None
    return _FAILED.get(code, 500) if isinstance(code, str) else 500
