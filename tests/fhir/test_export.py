"""A whole export over HTTP, and the files it leaves: what Inferno, BDT and real clients check."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import pytest
import trio

from hastetrio._provider import AsyncJobProvider
from hastetrio.bulk import directory_name, sample_directory
from hastetrio.bulk._instant import parse_instant
from hastetrio.memory import MemoryJobProvider
from hastetrio.postgres import PostgresJobProvider

from .caller import SOON, Caller
from .exports import EXPORT, Export, exported, finished, lines_of, names_in, working
from .harness import BASE, PREFER, PUBLIC, Tokens, check_outcome, client, face, issue_of, stored


@pytest.fixture(params=["memory", "postgres"])
def storage(request: pytest.FixtureRequest) -> str | None:
    """A database, or None for storage in memory."""
    if request.param == "memory":
        return None
    url = request.getfixturevalue("database_url")
    assert isinstance(url, str)
    return url


@pytest.fixture
async def provider(storage: str | None) -> AsyncIterator[AsyncJobProvider]:
    """Storage of either kind."""
    if storage is None:
        yield MemoryJobProvider()
    else:
        async with PostgresJobProvider.open(storage) as provider:
            yield provider


PARAMETERS: Final = {
    "resourceType": "Parameters",
    "parameter": [{"name": "_type", "valueString": "Patient,Encounter"}],
}
TYPED: Final = {"Patient", "Encounter"}
ALL: Final = {path.stem for path in sample_directory().glob("*.ndjson")}


@pytest.mark.parametrize(
    ("method", "query", "body", "types"),
    [
        ("GET", "", None, ALL),
        ("GET", "?_type=Patient,Encounter&_outputFormat=application%2Ffhir%2Bndjson", None, TYPED),
        ("GET", "?_type=Patient&_type=Encounter", None, TYPED),
        ("POST", "", PARAMETERS, TYPED),
        ("POST", "", None, ALL),
    ],
)
async def test_the_life_of_an_export(
    provider: AsyncJobProvider,
    output: Path,
    method: str,
    query: str,
    body: object,
    types: set[str],
) -> None:
    """Kick-off, status, manifest, files and deletion, as the suites check them, with a token."""
    handler = Export(sample_directory(), output)
    tokens = Tokens()
    mine = tokens.add("mine", sub="ann")
    of = face([handler], provider=provider, authenticator=tokens)
    async with client(of) as http:
        content = None if body is None else json.dumps(body)
        fields = {"Accept": "application/fhir+json", **PREFER}
        if body is not None:
            fields["Content-Type"] = "application/fhir+json"
        refused = await http.request(method, EXPORT + query, content=content, headers=fields)
        assert issue_of(refused)[:2] == (401, "login")
        accepted = await http.request(
            method, EXPORT + query, content=content, headers=fields | mine
        )
        assert accepted.status_code == 202
        check_outcome(accepted)
        location = accepted.headers["content-location"]
        assert location.startswith(f"{PUBLIC}{BASE}/_async/")

        # Nobody has started it yet.
        poll = mine | {"Accept": "application/json"}
        waiting = await http.get(location, headers=poll)
        assert waiting.status_code == 202
        assert 0 < len(waiting.headers["x-progress"]) < 100
        assert int(waiting.headers["retry-after"]) > 0

        async with working(of):
            job = await finished(of, location.rpartition("/")[2])
            answer = await http.get(location, headers=poll)
            manifest = check_manifest(answer, PUBLIC + EXPORT + query)
            assert {item["type"] for item in manifest["output"]} == types
            assert manifest["error"] == []
            for item in manifest["output"]:
                await check_file(http, item, mine)

            assert names_in(output) == [directory_name(job.id)]
            deleted = await http.delete(location, headers=mine)
            assert deleted.status_code == 202
            check_outcome(deleted)
            for gone in (
                await http.get(location, headers=poll),
                await http.delete(location, headers=mine),
                *[await http.get(item["url"], headers=mine) for item in manifest["output"]],
            ):
                assert issue_of(gone)[:2] == (404, "not-found")
            with trio.fail_after(SOON):
                await handler.expired.wait()
            assert names_in(output) == []


def check_manifest(answer: httpx2.Response, request: str) -> dict[str, Any]:
    """See that a status answer is a manifest as Inferno and BDT want it."""
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    assert parsedate_to_datetime(answer.headers["expires"]) > datetime.now(UTC)
    manifest: dict[str, Any] = answer.json()
    assert set(manifest) == {
        "transactionTime",
        "request",
        "requiresAccessToken",
        "output",
        "error",
    }
    assert parse_instant(manifest["transactionTime"]) is not None
    assert manifest["request"] == request
    assert manifest["requiresAccessToken"] is True
    for item in [*manifest["output"], *manifest["error"]]:
        assert set(item) == {"type", "url", "count"}
        assert isinstance(item["type"], str)
        assert re.match("https?://", item["url"])
        assert type(item["count"]) is int
    return manifest


async def check_file(
    http: httpx2.AsyncClient, item: dict[str, Any], headers: dict[str, str]
) -> None:
    """See that a file is the sample's, with and without gzip, and needs the token."""
    expected = (sample_directory() / f"{item['type']}.ndjson").read_bytes()
    plain = await http.get(item["url"], headers=headers | {"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.headers["content-length"] == str(len(expected))
    assert plain.content == expected
    lines_of(plain, item)
    async with http.stream(
        "GET", item["url"], headers=headers | {"Accept-Encoding": "gzip"}
    ) as packed:
        assert packed.headers["content-encoding"] == "gzip"
        raw = b"".join([piece async for piece in packed.aiter_raw()])
    assert len(raw) < len(expected)
    assert gzip.decompress(raw) == expected
    assert issue_of(await http.get(item["url"]))[:2] == (401, "login")


async def test_an_export_with_problems_completes_and_lists_them(source: Path, output: Path) -> None:
    """Partial success is 200 with what there is, and with OperationOutcomes about the rest."""
    (source / "x.ndjson").write_bytes(b'{"resourceType":"Patient"}\nrubbish\n')
    async with exported(Export(source, output)) as done:
        assert [item["count"] for item in done.manifest["output"]] == [1]
        (issue,) = await done.issues()
    assert issue["severity"] == "error"
    assert issue["diagnostics"].startswith("x.ndjson line 2:")


@pytest.mark.parametrize("query", ["", "?_type=Patient"])
async def test_nothing_to_export_is_an_empty_manifest(
    source: Path, output: Path, query: str
) -> None:
    """Zero resources are a completed job, and `error` is there though nothing went wrong."""
    (source / "x.ndjson").write_bytes(b"")
    async with exported(Export(source, output), query) as done:
        assert done.manifest["output"] == []
        assert done.manifest["error"] == []


@pytest.mark.parametrize("requires", [True, False])
async def test_the_manifest_says_whether_files_need_a_token(
    source: Path, output: Path, requires: bool
) -> None:
    """A client must not send its token where none is wanted."""
    handler = Export(source, output, requires_access_token=requires)
    async with exported(handler) as done:
        assert done.manifest["requiresAccessToken"] is requires


async def test_lenient_handling_lists_what_it_ignored(output: Path) -> None:
    """A kick-off with unsupported parameters runs, and its manifest says what was left out."""
    query = "?_type=Patient,Foo&_elements=id&_typeFilter=x"
    handler = Export(sample_directory(), output)
    async with exported(handler, query, "respond-async, handling=lenient") as done:
        assert [item["type"] for item in done.manifest["output"]] == ["Patient"]
        assert done.manifest["request"] == PUBLIC + EXPORT + query
        issues = await done.issues()
    assert {issue["severity"] for issue in issues} == {"warning"}
    for name in ('"Foo"', "_elements", "_typeFilter"):
        assert any(name in issue["diagnostics"] for issue in issues), name


@pytest.mark.parametrize("prefer", ["respond-async", "respond-async, handling=strict"])
@pytest.mark.parametrize(
    "query", ["?_type=Foo", "?_elements=id", "?_since=yesterday", "?_outputFormat=csv"]
)
async def test_bad_parameters_are_refused_before_a_job_is_stored(
    source: Path, output: Path, prefer: str, query: str
) -> None:
    """A client learns of them from the kick-off, and no job is left to be asked after."""
    of = face([Export(source, output)])
    async with client(of) as http:
        refused = await http.get(EXPORT + query, headers={"Prefer": prefer})
    assert refused.status_code == 400
    (issue,) = check_outcome(refused)
    assert query[1:].partition("=")[0] in issue["diagnostics"]
    assert await stored(of) == []


@pytest.mark.parametrize("place", ["Patient/$export", "Group/7/$export", "Patient/7/$export"])
async def test_only_the_whole_server_is_exported(source: Path, output: Path, place: str) -> None:
    """What the handler does not do is not offered, lenient or not."""
    of = face([Export(source, output)])
    async with client(of) as http:
        refused = await http.get(
            f"{BASE}/{place}", headers={"Prefer": "respond-async, handling=lenient"}
        )
    assert issue_of(refused)[:2] == (404, "not-found")
    assert await stored(of) == []


async def test_a_download_goes_on_while_its_job_is_deleted(source: Path, output: Path) -> None:
    """Whoever began to fetch a file gets all of it, though the sweep removes it meanwhile."""
    line = b'{"resourceType":"Patient","id":"%d"}\n'
    content = b"".join(line % number for number in range(20_000))
    (source / "x.ndjson").write_bytes(content)
    handler = Export(source, output)
    async with exported(handler) as done:
        (item,) = done.manifest["output"]
        caller = Caller(hold_after=2)
        with trio.fail_after(SOON):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(caller.get, done.of, urlsplit(item["url"]).path)
                await caller.is_holding.wait()
                assert (await done.http.delete(done.location)).status_code == 202
                await handler.expired.wait()
                assert names_in(output) == []
                caller.resume.set()
        assert caller.body == content
        assert caller.is_complete
        assert (await done.http.get(item["url"])).status_code == 404


async def test_a_slow_download_holds_no_database_connection(
    source: Path, output: Path, database_url: str
) -> None:
    """With one connection for all clients, others are answered while a client takes its time."""
    (source / "x.ndjson").write_bytes(b'{"resourceType":"Patient"}\n' * 20_000)
    async with (
        PostgresJobProvider.open(database_url, client_connections=1) as provider,
        exported(Export(source, output), provider=provider) as done,
    ):
        (item,) = done.manifest["output"]
        caller = Caller(hold_after=2)
        with trio.fail_after(SOON):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(caller.get, done.of, urlsplit(item["url"]).path)
                await caller.is_holding.wait()
                assert (await done.http.get(done.location)).status_code == 200
                assert (await done.http.get(EXPORT, headers=PREFER)).status_code == 202
                assert not caller.is_complete
                caller.resume.set()
        assert caller.is_complete
