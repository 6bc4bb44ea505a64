"""OperationOutcome: what a failed job's client reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hastetrio._outcome import (
    OUTCOME_LIMIT,
    SEVERITIES,
    Issue,
    IssueType,
    OperationOutcomeError,
    abandoned_outcome,
    internal_error_outcome,
    outcome_json,
    unreadable_outcome,
    unstorable_outcome,
    unsupported_outcome,
)
from hastetrio._storable import encode_json

# A loaded machine is no failure, and nothing is written to the folder the tests run in.
unhurried = settings(deadline=None, database=None)


def test_an_error_is_an_outcome_with_one_issue() -> None:
    """Code and words are enough; severity and expressions may be given."""
    assert OperationOutcomeError("invalid", "no such type").to_json() == {
        "resourceType": "OperationOutcome",
        "issue": [{"severity": "error", "code": "invalid", "diagnostics": "no such type"}],
    }
    error = OperationOutcomeError(
        IssueType.REQUIRED, "missing", "fatal", expression=("Patient.id", "Patient.name")
    )
    assert error.to_json()["issue"] == [
        {
            "severity": "fatal",
            "code": "required",
            "diagnostics": "missing",
            "expression": ["Patient.id", "Patient.name"],
        }
    ]


def test_an_error_holds_several_issues_in_their_order() -> None:
    """Each issue is added to the same error, and its text tells all of them on one line."""
    error = OperationOutcomeError("invalid", "one")
    chained = error.add("value", "two", "warning").add(
        IssueType.TOO_COSTLY, "three", expression=("x",)
    )
    assert chained is error
    assert [issue["diagnostics"] for issue in error.to_json()["issue"]] == ["one", "two", "three"]
    assert error.issues == (
        Issue(IssueType.INVALID, "one"),
        Issue(IssueType.VALUE, "two", "warning"),
        Issue(IssueType.TOO_COSTLY, "three", expression=("x",)),
    )
    assert str(error) == "invalid: one; value: two; too-costly: three"


@pytest.mark.parametrize("severity", SEVERITIES)
def test_every_severity_of_fhir_is_known(severity: Any) -> None:  # noqa: ANN401
    """The four severities pass as they are."""
    assert OperationOutcomeError("invalid", "x", severity).issues[0].severity == severity


def test_every_issue_type_of_fhir_is_known() -> None:
    """The 31 codes of FHIR R4 are accepted as text and as members."""
    assert len(IssueType) == 31
    for code in IssueType:
        assert (
            OperationOutcomeError(code.value, "x").issues == OperationOutcomeError(code, "x").issues
        )


def test_what_fhir_does_not_know_is_refused() -> None:
    """A typo in a code or a severity is found where it is written, also in an added issue."""
    with pytest.raises(ValueError, match="'typo'"):
        OperationOutcomeError("typo", "x")
    with pytest.raises(ValueError, match="fatal, error, warning, information, not 'bad'"):
        OperationOutcomeError("invalid", "x", "bad")  # type: ignore[arg-type]
    error = OperationOutcomeError("invalid", "x")
    with pytest.raises(ValueError, match="'typo'"):
        error.add("typo", "y")
    assert len(error.issues) == 1


@unhurried
@given(st.text(st.characters()), st.text(st.characters()))
def test_words_that_cannot_be_stored_are_replaced(diagnostics: str, path: str) -> None:
    """A strange character in a message never costs the message: the outcome is always storable."""
    error = OperationOutcomeError("exception", diagnostics, expression=(path,))
    assert encode_json(error.to_json(), OUTCOME_LIMIT, "the outcome")


def test_words_that_are_no_text_are_printed() -> None:
    """Raising with another error as the message is a habit, and works."""
    error = OperationOutcomeError("exception", ValueError("boom"))  # type: ignore[arg-type]
    assert error.to_json()["issue"][0]["diagnostics"] == "boom"


@pytest.mark.parametrize(
    ("outcome", "code", "words"),
    [
        (abandoned_outcome, "exception", "it has no attempts left"),
        (internal_error_outcome, "exception", "failed with an internal error"),
        (lambda: unsupported_outcome("x-ray"), "not-supported", "No handler for job kind 'x-ray'."),
        (unreadable_outcome, "processing", "stored row cannot be read"),
        (lambda: unstorable_outcome("it is too large"), "processing", "stored: it is too large."),
    ],
)
def test_a_job_that_failed_by_itself_says_why(
    outcome: Callable[[], dict[str, Any]], code: str, words: str
) -> None:
    """What a worker records on its own is fatal, in words for the client, and a fresh value."""
    (issue,) = outcome()["issue"]
    assert (issue["severity"], issue["code"]) == ("fatal", code)
    assert words in issue["diagnostics"]
    assert outcome()["resourceType"] == "OperationOutcome"
    assert outcome() is not outcome()


def test_an_outcome_of_several_issues_keeps_them() -> None:
    """The resource lists what it was given."""
    issues = (Issue(IssueType.VALUE, "a"), Issue(IssueType.VALUE, "b", "warning"))
    assert outcome_json(issues)["issue"] == [issue.to_json() for issue in issues]
