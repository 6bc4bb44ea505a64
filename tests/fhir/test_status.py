"""What a status endpoint answers: while the job is to be waited for, and once it has ended."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hastetrio._model import FHIR_JSON, PLAIN_JSON, JobResult
from hastetrio._outcome import IssueType
from hastetrio._provider import AsyncJobProvider
from hastetrio.fhir._polls import retry_after
from hastetrio.fhir._status import progress_field
from hastetrio.memory import MemoryJobProvider
from hastetrio.postgres import PostgresJobProvider
from hastetrio.testing import FaultyProvider

from .harness import BASE, PUBLIC, check_outcome, client, face, issue_of
from .states import OUTCOME, STATES, brought_to, created, ended, inserted, kicked_off, started


@asynccontextmanager
async def polling(
    provider: AsyncJobProvider | None = None,
) -> AsyncIterator[tuple[AsyncJobProvider, httpx2.AsyncClient]]:
    """Storage, and a client of a face on it."""
    it = face(provider=provider)
    async with client(it) as http:
        yield it.provider, http


async def status_after(result: JobResult) -> httpx2.Response:
    """The status of a job that has ended so."""
    async with polling() as (provider, http):
        id = await created(provider)
        await ended(provider, id, result)
        return await http.get(f"{BASE}/_async/{id}")


async def test_a_job_to_be_waited_for_says_how_far_it_is() -> None:
    """202 queued and 202 running, with progress, with when to ask again, and never cached."""
    async with polling() as (provider, http):
        status = await kicked_off(http)
        waiting = await http.get(status)
        assert (waiting.status_code, waiting.headers["x-progress"]) == (202, "queued")
        await started(provider)
        running = await http.get(status)
        assert (running.status_code, running.headers["x-progress"]) == (202, "in progress")
        for answer in (waiting, running):
            (issue,) = check_outcome(answer)
            assert issue["severity"] == "information"
            assert answer.headers["retry-after"] == "1"
            # Medplum's client asks where it is told to, and takes the diagnostics if by nothing.
            assert answer.headers["content-location"] == status


@pytest.mark.parametrize("base", [BASE, BASE.removesuffix("/r4")])
async def test_the_status_stays_at_its_address(base: str) -> None:
    """With the version in the path or without it, as the client chose to ask."""
    async with polling() as (provider, http):
        id = await created(provider)
        answer = await http.get(f"{base}/_async/{id}")
        assert answer.headers["content-location"] == f"{PUBLIC}{base}/_async/{id}"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("12 of 60\r\nX-Evil: yes", "12 of 60 X-Evil: yes"),
        ("  a\t\tb\x0bc\u2028d  ", "a b c d"),
        ("caf\xe9 \N{SNOWMAN}", "caf? ?"),
        ("a\x00\x1b[31mb\x7f", "a??[31mb?"),
        ("x" * 5000, "x" * 99),
        ("x" * 98 + " y", "x" * 98),
        ("\N{SNOWMAN}" * 200, "?" * 99),
    ],
)
async def test_progress_is_one_short_line_of_ascii(text: str, field: str) -> None:
    """X-Progress has fewer than 100 characters, and breaks out of no header, whatever is told."""
    async with polling() as (provider, http):
        id = await created(provider)
        await started(provider, text)
        answer = await http.get(f"{BASE}/_async/{id}")
        assert answer.status_code == 202
        assert answer.headers["x-progress"] == progress_field(text)
    assert progress_field(text) == field


@given(st.text())
@example("\ud800\udfff\u0085\u00ad\u200b")
@example(" ")
def test_any_progress_is_a_header_field(text: str) -> None:
    """RFC 9110 section 5.5: visible ASCII, with blanks inside only."""
    field = progress_field(text)
    assert 0 < len(field) < 100
    assert field.isascii()
    assert field.isprintable()
    assert field == field.strip()


def test_the_waits_grow_with_the_job() -> None:
    """A young job is asked after at once; no wait is longer than half a minute or less than 1 s."""
    ages = [-3600.0, -1, 0, 5, 10, 10.1, 60, 299, 300, 3600, 1e9]
    assert [retry_after(age) for age in ages] == [1, 1, 1, 1, 1, 2, 6, 30, 30, 30, 30]


@pytest.mark.parametrize(("age", "seconds"), [(0, 1), (45, 5), (10_000, 30)])
async def test_an_old_job_is_asked_after_more_seldom(
    database_url: str, age: int, seconds: int
) -> None:
    """Retry-After goes by when the job was queued, whoever queued it."""
    id = inserted(database_url, created_at=f"now() - interval '{age} seconds'")
    async with (
        PostgresJobProvider.open(database_url) as provider,
        polling(provider) as (_, http),
    ):
        answer = await http.get(f"{BASE}/_async/{id}")
        # One more where the second turned over meanwhile.
        assert int(answer.headers["retry-after"]) in (seconds, seconds + 1)


@pytest.mark.parametrize(
    ("value", "content_type"),
    [
        ({"resourceType": "Patient", "id": "7"}, FHIR_JSON),
        ({"transactionTime": "2026-01-01T00:00:00Z", "output": [], "error": []}, PLAIN_JSON),
        ([1, None, "\N{SNOWMAN}"], PLAIN_JSON),
    ],
)
async def test_a_completed_job_is_its_result(value: object, content_type: str) -> None:
    """200 and the handler's value itself: a resource as FHIR JSON, a manifest as JSON exactly."""
    answer = await status_after(JobResult.completed(value, content_type))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == content_type
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json() == value
    assert "retry-after" not in answer.headers
    assert "x-progress" not in answer.headers


@pytest.mark.parametrize("state", ["completed", "failed"])
async def test_the_end_says_until_when_it_is_kept(state: str) -> None:
    """Expires is the row's own, an HTTP date (RFC 9110 section 5.6.7), in the future."""
    async with polling() as (provider, http):
        id = await created(provider)
        await brought_to(provider, id, state)
        answer = await http.get(f"{BASE}/_async/{id}")
        job = await provider.read_job("t1", "p1", id)
    assert job is not None
    expires = parsedate_to_datetime(answer.headers["expires"])
    assert answer.headers["expires"].endswith(" GMT")
    assert timedelta() <= job.expires_at - expires < timedelta(seconds=1)
    assert expires > datetime.now(UTC)


# As in docs/fhir.md, "A failed job": what only the client can mend is no 500, which
# clients repeat for minutes; and none is 401, 404 or 429, which mean something else here.
FAILED: Final = {
    400: ("invalid", "structure", "required", "value", "invariant", "code-invalid", "too-long"),
    403: ("forbidden", "suppressed"),
    409: ("conflict", "lock-error"),
    422: (
        *("security", "login", "unknown", "expired", "not-found", "deleted", "not-supported"),
        *("business-rule", "multiple-matches", "duplicate", "throttled", "too-costly", "extension"),
    ),
    500: (
        *("timeout", "incomplete", "no-store", "exception", "processing", "transient"),
        "informational",
    ),
}


def test_every_kind_of_issue_has_a_status() -> None:
    """The table is whole, and no kind stands in it twice."""
    listed = [code for codes in FAILED.values() for code in codes]
    assert sorted(listed) == sorted(IssueType)


def test_the_documentation_has_the_same_table() -> None:
    """Clients are written by it."""
    text = (Path(__file__).parents[2] / "docs" / "fhir.md").read_text("utf-8")
    section = text.partition("\n## A failed job\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d{3}) \| (.*) \|$", section, re.MULTILINE)
    documented = {int(status): set(re.findall(r"`([\w-]+)`", codes)) for status, codes in rows}
    assert documented == {status: set(codes) for status, codes in FAILED.items()}


@pytest.mark.parametrize(
    ("code", "status"), [(code, status) for status, codes in FAILED.items() for code in codes]
)
async def test_a_failed_job_is_its_stored_outcome(code: str, status: int) -> None:
    """4xx or 5xx by the first issue's code, its words unchanged, and nothing to come again for."""
    issues: list[dict[str, Any]] = [
        {"severity": "fatal", "code": code, "diagnostics": "first", "expression": ["Patient.id"]},
        {"severity": "warning", "code": "informational", "details": {"text": "second"}},
    ]
    answer = await status_after(
        JobResult.failed({"resourceType": "OperationOutcome", "issue": issues})
    )
    assert answer.status_code == status
    assert answer.headers["content-type"] == FHIR_JSON
    assert answer.headers["cache-control"] == "no-store"
    assert "retry-after" not in answer.headers
    # That code is kept for polls: a client that meets it asks again.
    final = "exception" if code == "transient" else code
    assert answer.json()["issue"] == [issues[0] | {"code": final}, issues[1]]


@pytest.mark.parametrize(
    "stored",
    [
        {"resourceType": "OperationOutcome"},
        {"resourceType": "OperationOutcome", "issue": []},
        {"resourceType": "OperationOutcome", "issue": "value"},
        {"resourceType": "OperationOutcome", "issue": [7]},
        {"resourceType": "OperationOutcome", "issue": [{"code": ["value"]}]},
        {"resourceType": "Patient"},
        {},
    ],
)
async def test_a_failed_job_with_any_outcome_is_a_failure(stored: dict[str, Any]) -> None:
    """Another program's worker may have stored anything; the client sees that the job failed."""
    answer = await status_after(JobResult.failed(stored))
    assert answer.status_code == 500
    assert answer.headers["content-type"] == FHIR_JSON
    assert answer.json()["resourceType"] == "OperationOutcome"


@pytest.mark.parametrize("accept", ["*/*", "text/html", "application/xml", "application/json", ""])
@pytest.mark.parametrize("state", STATES)
async def test_no_accept_header_hides_a_status(state: str, accept: str) -> None:
    """Clients send all kinds here, and a browser HTML; it is answered in JSON, never 406."""
    async with polling() as (provider, http):
        id = await created(provider)
        await brought_to(provider, id, state)
        answer = await http.get(f"{BASE}/_async/{id}", headers={"Accept": accept})
    assert answer.status_code == {"completed": 200, "failed": 400}.get(state, 202)
    assert "json" in answer.headers["content-type"]


@pytest.mark.parametrize("state", STATES)
async def test_head_says_what_get_would(state: str) -> None:
    """The same status and fields, without the body."""
    async with polling() as (provider, http):
        id = await created(provider)
        await brought_to(provider, id, state)
        got = await http.get(f"{BASE}/_async/{id}")
        head = await http.head(f"{BASE}/_async/{id}")
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert head.headers.raw == got.headers.raw


async def test_asking_changes_nothing(database_url: str) -> None:
    """GET is safe: no number of polls renews, claims, ends or restarts a job."""
    async with (
        PostgresJobProvider.open(database_url) as provider,
        polling(provider) as (_, http),
    ):
        id = await created(provider)
        for state in ("accepted", "completed"):
            await brought_to(provider, id, state)
            before = await provider.read_job("t1", "p1", id)
            for _ in range(3):
                await http.get(f"{BASE}/_async/{id}")
            assert await provider.read_job("t1", "p1", id) == before


async def test_a_database_that_is_away_ends_no_job() -> None:
    """503 `transient` with Retry-After, unlike any failure of a job; later the status is there."""
    provider = FaultyProvider(MemoryJobProvider())
    async with polling(provider) as (_, http):
        id = await created(provider)
        provider.fail("read_job", times=1)
        away = await http.get(f"{BASE}/_async/{id}")
        assert issue_of(away)[:2] == (503, "transient")
        assert int(away.headers["retry-after"]) > 0
        assert (await http.get(f"{BASE}/_async/{id}")).status_code == 202


@pytest.mark.parametrize("type", ["a/b\r\nX-Evil: yes", "a/b\x01", "\N{SNOWMAN}", " "])
async def test_a_stored_media_type_cannot_break_the_answer(type: str) -> None:
    """Another program may have stored any text as one; the result is JSON all the same."""
    answer = await status_after(JobResult.completed({"a": 1}, type))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == PLAIN_JSON
    assert answer.json() == {"a": 1}
    assert "x-evil" not in answer.headers


def test_the_outcome_of_these_tests_is_a_client_error() -> None:
    """Tests that go by state rely on it."""
    assert OUTCOME["issue"][0]["code"] in FAILED[400]
