"""DELETE, what is there afterwards, and the list of one's own jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx2
import pytest
import trio

from hastetrio._model import JobResult
from hastetrio._provider import AsyncJobProvider
from hastetrio.memory import MemoryJobProvider
from hastetrio.postgres import PostgresJobProvider

from .harness import BASE, PUBLIC, Tokens, check_outcome, client, face, issue_of
from .states import STATES, brought_to, created, ended, started

OpenProvider = Callable[[], AbstractAsyncContextManager[AsyncJobProvider]]


@asynccontextmanager
async def in_memory() -> AsyncIterator[AsyncJobProvider]:
    """Storage in memory."""
    yield MemoryJobProvider()


@pytest.fixture(params=["memory", "postgres"])
def open_provider(request: pytest.FixtureRequest) -> OpenProvider:
    """Opens storage of either kind."""
    if request.param == "memory":
        return in_memory
    url = request.getfixturevalue("database_url")
    return lambda: PostgresJobProvider.open(url)


@pytest.mark.parametrize("state", STATES)
async def test_a_job_can_be_given_up_in_every_state(
    open_provider: OpenProvider, state: str
) -> None:
    """202 once, queued, running, completed or failed; then 404, on every verb and for its files."""
    async with open_provider() as provider, client(face(provider=provider)) as http:
        id = await created(provider)
        await brought_to(provider, id, state)
        status = f"{BASE}/_async/{id}"
        deleted = await http.delete(status)
        assert deleted.status_code == 202
        (issue,) = check_outcome(deleted)
        assert (issue["severity"], issue["code"]) == ("information", "informational")
        unknown = await http.get(f"{BASE}/_async/unknown")
        assert issue_of(unknown)[:2] == (404, "not-found")
        for method, path in (
            ("GET", status),
            ("DELETE", status),
            ("GET", f"{status}/files/Patient.1.ndjson"),
        ):
            gone = await http.request(method, path)
            assert gone.status_code == 404
            assert gone.content == unknown.content
            assert gone.headers.raw == unknown.headers.raw
        head = await http.head(status)
        assert (head.status_code, head.content) == (404, b"")
        assert head.headers.raw == unknown.headers.raw


async def test_all_that_is_not_ones_own_is_one_and_the_same_404(
    open_provider: OpenProvider,
) -> None:
    """Unknown, cancelled, expired, another's, another tenant's: alike to the byte, on each verb."""
    tokens = Tokens()
    ann = tokens.add("ann", sub="ann")
    others = {
        "another's": tokens.add("ben", sub="ben"),
        "another project's": tokens.add("project", sub="ann", project="p2"),
        "another tenant's": tokens.add("tenant", sub="ann", tenant="t2"),
    }
    async with (
        open_provider() as provider,
        client(face(provider=provider, authenticator=tokens)) as http,
    ):
        running = await created(provider, "ann")
        await started(provider)
        cancelled = await created(provider, "ann")
        assert (await http.delete(f"{BASE}/_async/{cancelled}", headers=ann)).status_code == 202
        expired = await created(provider, "ann", retention=0.001)
        while await provider.read_job("t1", "p1", expired):  # noqa: ASYNC110  # time announces itself to nobody
            await trio.sleep(0.001)
        cases = [
            *[(ann, id) for id in ("unknown", cancelled, expired)],
            *[(headers, id) for headers in others.values() for id in (running, expired, "x")],
        ]
        answers = set()
        for headers, id in cases:
            for method in ("GET", "DELETE"):
                answer = await http.request(method, f"{BASE}/_async/{id}", headers=headers)
                answers.add((answer.status_code, answer.content, tuple(answer.headers.raw)))
            answer = await http.get(f"{BASE}/_async/{id}/files/x", headers=headers)
            answers.add((answer.status_code, answer.content, tuple(answer.headers.raw)))
        ((status, _, _),) = answers
        assert status == 404
        # It was its owner's all the time, and nobody has cancelled it.
        assert (await http.get(f"{BASE}/_async/{running}", headers=ann)).status_code == 202


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
async def test_a_status_is_read_and_deleted_only(method: str) -> None:
    """405 with the methods there are, whether or not the job exists."""
    it = face()
    async with client(it) as http:
        for id in (await created(it.provider), "unknown"):
            answer = await http.request(method, f"{BASE}/_async/{id}")
            assert issue_of(answer)[:2] == (405, "not-supported")
            assert answer.headers["allow"] == "GET, HEAD, DELETE"


def parts(job: dict[str, Any]) -> dict[str, Any]:
    """A listed job by the names of its parts."""
    assert job["name"] == "job"
    return {
        part["name"]: next(value for name, value in part.items() if name != "name")
        for part in job["part"]
    }


async def listed(
    http: httpx2.AsyncClient, query: str, headers: dict[str, str] | None = None
) -> tuple[list[dict[str, Any]], str | None]:
    """A page of the list: its jobs, and the address of the next page."""
    answer = await http.get(query, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/fhir+json"
    assert answer.headers["cache-control"] == "no-store"
    resource = answer.json()
    assert resource["resourceType"] == "Parameters"
    # FHIR has no empty arrays.
    found = resource.get("parameter", [None])
    jobs = [parts(one) for one in found if one is not None and one["name"] == "job"]
    following = [one["valueUri"] for one in found if one is not None and one["name"] == "next"]
    return jobs, following[0] if following else None


async def test_the_list_leads_through_all_of_ones_own_jobs(open_provider: OpenProvider) -> None:
    """Newest first, each once, page by page, also where jobs come and go meanwhile."""
    async with open_provider() as provider, client(face(provider=provider)) as http:
        ids = [await created(provider) for _ in range(7)]
        seen: list[str] = []
        address: str | None = f"{BASE}/_async?_count=3"
        while address is not None:
            jobs, address = await listed(http, address)
            assert address is None or address.startswith(f"{PUBLIC}{BASE}/_async?")
            seen += [job["url"].rpartition("/")[2] for job in jobs]
            # One comes that is newer than all, and the position's own goes.
            await created(provider)
            await provider.cancel_job("t1", "p1", seen[-1])
        assert seen == ids[::-1]


async def test_a_listed_job_says_how_it_stands(open_provider: OpenProvider) -> None:
    """Its address, state, kind, times, request and progress; what it was given is not shown."""
    async with open_provider() as provider, client(face(provider=provider)) as http:
        assert await listed(http, f"{BASE}/_async") == ([], None)
        id = await created(provider, parameters={"secret": 1}, request="https://x.example/$work")
        await started(provider, "half")
        ((running,), _) = await listed(http, f"{BASE}/_async")
        assert running["url"] == f"{PUBLIC}{BASE}/_async/{id}"
        assert (running["status"], running["kind"]) == ("in-progress", "work")
        assert running["request"] == "https://x.example/$work"
        assert running["progress"] == "half"
        assert "finished" not in running
        second = await created(provider)
        await ended(provider, second, JobResult.completed({"secret": 2}))
        ((done, _), _) = await listed(http, f"{BASE}/_async")
        assert done["status"] == "completed"
        assert "progress" not in done
        assert done["submitted"] <= done["finished"] < done["expires"]
        assert "secret" not in (await http.get(f"{BASE}/_async")).text


async def test_the_list_shows_nobody_elses_jobs(open_provider: OpenProvider) -> None:
    """Neither another's of the project, nor one's own of another project, nor what is gone."""
    tokens = Tokens()
    ann, ben = tokens.add("ann", sub="ann"), tokens.add("ben", sub="ben")
    async with (
        open_provider() as provider,
        client(face(provider=provider, authenticator=tokens)) as http,
    ):
        mine = await created(provider, "ann")
        cancelled = await created(provider, "ann")
        await provider.cancel_job("t1", "p1", cancelled)
        jobs, following = await listed(http, f"{BASE}/_async", ann)
        assert [job["url"].rpartition("/")[2] for job in jobs] == [mine]
        assert following is None
        assert await listed(http, f"{BASE}/_async", ben) == ([], None)
        elsewhere = await http.get(BASE.replace("/p1/", "/p2/") + "/_async", headers=ann)
        assert issue_of(elsewhere)[:2] == (404, "not-found")
        assert issue_of(await http.get(f"{BASE}/_async"))[:2] == (401, "login")


async def test_a_browser_may_read_what_a_client_needs() -> None:
    """CORS: the fields of the pattern are exposed, and DELETE with a token may be sent."""
    it = face()
    async with client(it, {"Origin": "https://app.example"}) as http:
        answer = await http.get(f"{BASE}/_async/{await created(it.provider)}")
        assert answer.headers["access-control-allow-origin"] == "*"
        exposed = {
            name.strip().lower()
            for name in answer.headers["access-control-expose-headers"].split(",")
        }
        assert {"content-location", "x-progress", "retry-after", "expires"} <= exposed
        for method in ("GET", "POST", "DELETE"):
            preflight = await http.options(
                f"{BASE}/$work",
                headers={
                    "Access-Control-Request-Method": method,
                    "Access-Control-Request-Headers": "authorization, prefer, content-type",
                },
            )
            assert preflight.status_code == 200
            assert method in preflight.headers["access-control-allow-methods"]
