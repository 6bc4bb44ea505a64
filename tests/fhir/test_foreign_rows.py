"""Rows that other programs wrote: whatever stands in them, a client gets a clear answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import httpx2
import psycopg
import pytest

from hastetrio._model import JobLease
from hastetrio.postgres import PostgresJobProvider

from .harness import BASE, check_outcome, client, face, issue_of
from .states import inserted

# What PostgreSQL stores and Python cannot load, each with the column it stands in.
UNREADABLE: Final = {
    "infinite expiry": {"expires_at": "'infinity'"},
    "infinite past": {"created_at": "'-infinity'"},
    "year 20000": {"created_at": "'20000-01-01'"},
    "huge integer": {"parameters": "('[1' || repeat('0', 5000) || ']')::jsonb"},
    "huge exponent": {"claims": "'1e5000'"},
}

ODD_IDS: Final = (
    "a b",
    "../../etc/passwd",
    "a/b?c=d#e",
    "\N{SNOWMAN}\N{PILE OF POO}",
    "%2e%2e%2f",
    "'; DROP TABLE async_jobs; --",
    " ",
    "line\r\nbreak: x",
    '{"a": "b"}',
    "files",
)


@pytest.fixture
async def provider(database_url: str) -> AsyncIterator[PostgresJobProvider]:
    """Storage in the test's database."""
    async with PostgresJobProvider.open(database_url) as provider:
        yield provider


@pytest.fixture
async def http(provider: PostgresJobProvider) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a face on it."""
    async with client(face(provider=provider)) as http:
        yield http


@pytest.mark.parametrize("name", UNREADABLE)
async def test_a_row_that_cannot_be_loaded_has_a_status(
    provider: PostgresJobProvider, http: httpx2.AsyncClient, database_url: str, name: str
) -> None:
    """It is no missing job: its client sees it wait, fail, in the list, and can cancel it."""
    id = inserted(database_url, **UNREADABLE[name])
    status = f"{BASE}/_async/{id}"
    waiting = await http.get(status)
    assert waiting.status_code == 202
    check_outcome(waiting)
    listed = await http.get(f"{BASE}/_async")
    assert listed.status_code == 200
    assert id in listed.text
    # A worker cannot load it either, and says so.
    assert await provider.claim_jobs(["work"], JobLease("w1", 60), 10) == []
    assert issue_of(await http.get(status))[:2] == (500, "processing")
    deleted = await http.delete(status)
    assert deleted.status_code == 202
    check_outcome(deleted)
    assert issue_of(await http.get(status))[:2] == (404, "not-found")
    assert issue_of(await http.delete(status))[:2] == (404, "not-found")


@pytest.mark.parametrize("output", ["('[1' || repeat('0', 5000) || ']')::jsonb", "'1e5000'::jsonb"])
async def test_a_result_that_cannot_be_loaded_is_said_to_be(
    http: httpx2.AsyncClient, database_url: str, output: str
) -> None:
    """500 with an OperationOutcome, not half a result, and not one that says null."""
    id = inserted(
        database_url,
        status="'completed'",
        output=output,
        output_content_type="'application/json'",
        finished_at="now()",
    )
    answer = await http.get(f"{BASE}/_async/{id}")
    status, code, diagnostics = issue_of(answer)
    assert (status, code) == (500, "exception")
    assert "result" in diagnostics
    assert (await http.delete(f"{BASE}/_async/{id}")).status_code == 202


@pytest.mark.parametrize("id", ODD_IDS)
async def test_a_job_with_a_strange_id_is_reached_by_its_listed_address(
    http: httpx2.AsyncClient, database_url: str, id: str
) -> None:
    """Foreign programs choose ids: the list gives each an address, and that leads to the job."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO async_jobs (id, tenant, project, kind, submitted_by)"
            " VALUES (%s, 't1', 'p1', 'work', 'anonymous')",
            [id],
        )
    (job,) = (await http.get(f"{BASE}/_async")).json()["parameter"]
    address = job["part"][0]["valueUri"]
    answer = await http.get(address)
    assert answer.status_code == 202
    assert answer.headers["content-location"] == address
    deleted = await http.delete(address)
    assert deleted.status_code == 202
    check_outcome(deleted)
    assert issue_of(await http.get(address))[:2] == (404, "not-found")
