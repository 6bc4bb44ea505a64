"""The checks that Inferno and BDT make of a Bulk Data server, as tests of our own.

Neither can be run here: Inferno needs Ruby and HL7's validator, BDT a server of its own for keys.
Each test names the check it ports. Inferno is the Bulk Data test kit,
https://github.com/inferno-framework/bulk-data-test-kit, BDT is
https://github.com/smart-on-fhir/bdt. One check of BDT is left out on purpose: it wants a kick-off
without Accept refused, which the specification leaves to the server.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final

import attrs
import httpx2
import pytest
import trio

from hastetrio.bulk import sample_directory
from hastetrio.bulk._instant import parse_instant
from hastetrio.fhir import Face

from .exports import EXPORT, Export, finished, working
from .harness import BASE, PUBLIC, Tokens, client, face
from .states import brought_to

# What Inferno sends with every kick-off and every poll.
KICK_OFF: Final = {"Accept": "application/fhir+json", "Prefer": "respond-async"}
POLL: Final = {"Accept": "application/json"}

# Seconds Inferno waits for an export unless told otherwise: it skips the rest beyond them.
BUDGET: Final = 180


@attrs.frozen
class Suite:
    """A suite of tests, and the server it looks at.

    Attributes:
        it: The server.
        http: Its client, which follows no redirects.
        token: The header field with its access token.
        output: Where the server keeps what it exported.
    """

    it: Face
    http: httpx2.AsyncClient
    token: dict[str, str]
    output: Path

    async def kicked_off(self, query: str = "?_type=Patient", **fields: str) -> str:
        """Kick off an export; the address of its status."""
        answer = await self.http.get(EXPORT + query, headers=KICK_OFF | self.token | fields)
        assert answer.status_code == 202
        return str(answer.headers["content-location"])

    async def get(self, address: str, **fields: str) -> httpx2.Response:
        """Read something with the token."""
        return await self.http.get(address, headers=POLL | self.token | fields)

    async def completed(self, status: str) -> httpx2.Response:
        """The status of an export that has been run."""
        async with working(self.it):
            await finished(self.it, status.rpartition("/")[2])
        return await self.get(status)

    async def exported(self, query: str = "?_type=Patient", **fields: str) -> dict[str, Any]:
        """The manifest of an export."""
        answer = await self.completed(await self.kicked_off(query, **fields))
        assert answer.status_code == 200
        manifest: dict[str, Any] = answer.json()
        return manifest


@pytest.fixture
async def suite(tmp_path: Path) -> AsyncIterator[Suite]:
    """A suite about a server that exports the sample data, and demands tokens."""
    tokens = Tokens()
    token = tokens.add("a.b.c", sub="tester")
    output = tmp_path / "output"
    it = face([Export(sample_directory(), output)], authenticator=tokens)
    async with client(it) as http:
        yield Suite(it, http, token, output)


def outcome_of(answer: httpx2.Response) -> dict[str, Any]:
    """The OperationOutcome of an answer, with what FHIR's validator demands of one."""
    assert answer.headers["content-type"] == "application/fhir+json"
    outcome: dict[str, Any] = json.loads(answer.content)
    assert outcome["resourceType"] == "OperationOutcome"
    assert outcome["issue"]
    for issue in outcome["issue"]:
        assert issue["severity"]
        assert issue["code"]
    return outcome


async def test_inferno_a_server_says_that_it_exports(suite: Suite) -> None:
    """Inferno, "Bulk Data Server declares support for ... export in CapabilityStatement"."""
    answer = await suite.http.get(f"{BASE}/metadata", headers={"Accept": "application/fhir+json"})
    assert answer.status_code == 200
    statement = answer.json()
    assert statement["resourceType"] == "CapabilityStatement"
    assert statement["instantiates"] == [
        "http://hl7.org/fhir/uv/bulkdata/CapabilityStatement/bulk-data"
    ]
    (rest,) = statement["rest"]
    assert [(one["name"], one["definition"]) for one in rest["operation"]] == [
        ("export", "http://hl7.org/fhir/uv/bulkdata/OperationDefinition/export")
    ]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_inferno_an_export_needs_authorization(suite: Suite, method: str) -> None:
    """Inferno, "Bulk Data Server rejects $export request without authorization": 400 or 401."""
    for token in ({}, {"Authorization": "Bearer INVALID"}):
        answer = await suite.http.request(method, EXPORT, headers=KICK_OFF | token)
        assert answer.status_code == 401
        outcome_of(answer)
    assert await suite.it.provider.count_live_jobs("t1", "p1") == 0


async def test_inferno_a_kick_off_answers_202_with_an_address(suite: Suite) -> None:
    """Inferno, "returns 202 Accepted and Content-location for $export operation"."""
    answer = await suite.http.get(EXPORT, headers=KICK_OFF | suite.token)
    assert answer.status_code == 202
    assert answer.headers["content-location"].startswith(f"{PUBLIC}{BASE}/_async/")
    outcome_of(answer)


async def test_inferno_polls_fit_into_its_budget(suite: Suite) -> None:
    """Inferno, "returns 202 Accepted or 200 OK for status check": it skips where told to wait."""
    status = await suite.kicked_off()
    answer = await suite.get(status)
    assert answer.status_code == 202
    # A whole number: Inferno reads anything else as 0.
    assert re.fullmatch("[1-9][0-9]*", answer.headers["retry-after"])
    assert int(answer.headers["retry-after"]) <= BUDGET / 10
    done = await suite.completed(status)
    assert done.status_code == 200
    assert "application/json" in done.headers["content-type"]


async def test_inferno_the_manifest_has_all_its_keys(suite: Suite) -> None:
    """Inferno, "returns Complete Status with ... JSON that contains required fields"."""
    manifest = await suite.exported("")
    for key in ("transactionTime", "request", "requiresAccessToken", "output", "error"):
        assert key in manifest
    assert manifest["output"]
    for item in manifest["output"]:
        assert item["type"]
        assert re.match("https?://", item["url"])


async def test_inferno_files_hold_what_the_manifest_says(suite: Suite) -> None:
    """Inferno, "NDJSON download ... contains only resources of the declared type"."""
    manifest = await suite.exported("")
    for item in manifest["output"]:
        answer = await suite.get(item["url"], Accept="application/fhir+ndjson")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("application/fhir+ndjson")
        resources = [json.loads(line) for line in answer.text.splitlines()]
        assert resources
        assert {resource["resourceType"] for resource in resources} == {item["type"]}


async def test_inferno_files_need_the_token_where_the_manifest_says_so(suite: Suite) -> None:
    """Inferno, "requires access token to access files": without one 400 or 401."""
    manifest = await suite.exported()
    assert manifest["requiresAccessToken"] is True
    for item in manifest["output"]:
        answer = await suite.http.get(item["url"], headers={"Accept": "application/fhir+ndjson"})
        assert answer.status_code == 401
        outcome_of(answer)


async def test_inferno_nothing_is_a_redirect(suite: Suite) -> None:
    """Inferno follows redirects without the token, so that each would fail: there are none."""
    status = await suite.kicked_off()
    assert (await suite.get(status)).status_code == 202
    manifest = (await suite.completed(status)).json()
    assert (await suite.get(manifest["output"][0]["url"])).status_code == 200


@pytest.mark.parametrize("state", ["accepted", "completed"])
async def test_inferno_a_deleted_export_is_gone(suite: Suite, state: str) -> None:
    """Inferno, "export can be deleted": exactly 202, then exactly 404 and a valid outcome."""
    status = await suite.kicked_off()
    if state == "completed":
        await suite.completed(status)
    deleted = await suite.http.delete(status, headers=suite.token)
    assert deleted.status_code == 202
    gone = await suite.get(status)
    assert gone.status_code == 404
    outcome_of(gone)


async def test_bdt_a_status_begins_with_202(suite: Suite) -> None:
    """BDT, "Responds with 202 for active transaction IDs", at once after the kick-off."""
    answer = await suite.get(await suite.kicked_off())
    assert answer.status_code == 202
    assert answer.headers["x-progress"]
    assert answer.headers["retry-after"]


async def test_bdt_the_end_says_when_it_expires(suite: Suite) -> None:
    """BDT, "Replies properly ...": `Expires`, if any, is a date, and not a past one."""
    answer = await suite.completed(await suite.kicked_off())
    expires = parsedate_to_datetime(answer.headers["expires"])
    assert expires > datetime.now(UTC)


@pytest.mark.parametrize(
    "query", ["", "?_type=Patient", "?_type=Patient&_since=2020-01-01T00%3A00%3A00Z"]
)
async def test_bdt_the_manifest_is_as_told(suite: Suite, query: str) -> None:
    """BDT, "Generates valid status response": each key's type, and the request as it was sent."""
    before = datetime.now(UTC)
    manifest = await suite.exported(query)
    assert parse_instant(manifest["transactionTime"]) is not None
    begun = datetime.fromisoformat(manifest["transactionTime"])
    assert abs((begun - before).total_seconds()) < 600
    assert manifest["request"] == PUBLIC + EXPORT + query
    assert isinstance(manifest["requiresAccessToken"], bool)
    assert isinstance(manifest["output"], list)
    assert isinstance(manifest["error"], list)
    for item in (*manifest["output"], *manifest["error"]):
        assert isinstance(item["type"], str)
        assert isinstance(item["url"], str)
        assert type(item["count"]) is int


async def test_bdt_ignored_parameters_stand_in_error(suite: Suite) -> None:
    """BDT, "handling=lenient": what is not supported is left out, and said in `error`."""
    manifest = await suite.exported(
        "?_type=Patient,MissingType&_elements=id", Prefer="respond-async, handling=lenient"
    )
    assert [item["type"] for item in manifest["output"]] == ["Patient"]
    (item,) = manifest["error"]
    assert item["type"] == "OperationOutcome"
    answer = await suite.get(item["url"])
    outcomes = [json.loads(line) for line in answer.text.splitlines()]
    text = " ".join(issue["diagnostics"] for one in outcomes for issue in one["issue"])
    assert "MissingType" in text
    assert "_elements" in text


@pytest.mark.parametrize("query", ["?_type=MissingType", "?_since=never", "?_outputFormat=xml"])
async def test_bdt_a_bad_parameter_is_refused(suite: Suite, query: str) -> None:
    """BDT, "rejects unsupported ..." of the kick-off: 4xx, an outcome, and no job."""
    answer = await suite.http.get(EXPORT + query, headers=KICK_OFF | suite.token)
    assert 400 <= answer.status_code < 500
    outcome_of(answer)
    assert "content-location" not in answer.headers
    assert await suite.it.provider.count_live_jobs("t1", "p1") == 0


@pytest.mark.parametrize(
    "format", ["application/fhir%2Bndjson", "application/ndjson", "ndjson", "application%2Fndjson"]
)
async def test_bdt_every_name_of_the_format_is_known(suite: Suite, format: str) -> None:
    """BDT, "accepts _outputFormat ...": the full media type, and both short forms."""
    await suite.kicked_off(f"?_outputFormat={format}")


@pytest.mark.parametrize("prefer", [None, "handling=lenient", "respond-sync"])
async def test_bdt_a_kick_off_needs_the_preference(suite: Suite, prefer: str | None) -> None:
    """BDT, "Requires Prefer: respond-async": an error, with an outcome."""
    fields = {"Accept": "application/fhir+json"} | ({} if prefer is None else {"Prefer": prefer})
    answer = await suite.http.get(EXPORT, headers=fields | suite.token)
    assert answer.status_code == 400
    outcome_of(answer)


async def test_bdt_a_kick_off_without_accept_is_answered(suite: Suite) -> None:
    """The one check of BDT that is not met: the specification says a server MAY assume JSON."""
    request = suite.http.build_request("GET", EXPORT, headers=suite.token)
    request.headers["Prefer"] = "respond-async"
    del request.headers["Accept"]
    answer = await suite.http.send(request)
    assert answer.status_code == 202


async def test_bdt_a_second_delete_finds_nothing(suite: Suite) -> None:
    """BDT, "cancellation": 202, then 404 with an OperationOutcome."""
    status = await suite.kicked_off()
    assert (await suite.http.delete(status, headers=suite.token)).status_code == 202
    again = await suite.http.delete(status, headers=suite.token)
    assert again.status_code == 404
    outcome_of(again)


async def test_bdt_the_files_of_a_deleted_export_are_gone(suite: Suite) -> None:
    """BDT, "download": 404 at once, though the sweep has not removed them yet."""
    status = await suite.kicked_off()
    manifest = (await suite.completed(status)).json()
    assert (await suite.http.delete(status, headers=suite.token)).status_code == 202
    for item in manifest["output"]:
        gone = await suite.get(item["url"])
        assert gone.status_code == 404
        outcome_of(gone)
    # What is left to the sweep.
    assert await trio.Path(suite.output).exists()


async def test_bdt_ids_are_not_to_be_guessed(suite: Suite) -> None:
    """An id is all that stands between jobs of one caller: at least 128 bits of chance."""
    ids = {(await suite.kicked_off()).rpartition("/")[2] for _ in range(20)}
    assert len(ids) == 20
    for id in ids:
        # 26 of 37 characters: 135 bits.
        assert re.fullmatch("[1-9a-z0-9-]{26}", id)


async def test_a_new_kick_off_never_meets_an_old_job(suite: Suite) -> None:
    """The same request twice is two jobs, also after the first was deleted (HAPI issue 7320)."""
    first = await suite.kicked_off()
    second = await suite.kicked_off()
    assert first != second
    assert (await suite.http.delete(first, headers=suite.token)).status_code == 202
    third = await suite.kicked_off()
    assert third not in (first, second)
    assert (await suite.get(first)).status_code == 404
    assert (await suite.get(second)).status_code == 202


async def test_a_full_project_is_told_when_to_come_again() -> None:
    """Bulk Data Access, "Request Flow": 429 with Retry-After beyond the limit, until one ends."""
    it = face(live_limit=1)
    async with client(it, KICK_OFF) as http:
        first = await http.get(f"{BASE}/$work")
        assert first.status_code == 202
        full = await http.get(f"{BASE}/$work")
        assert full.status_code == 429
        assert int(full.headers["retry-after"]) > 0
        assert outcome_of(full)["issue"][0]["code"] == "throttled"
        await brought_to(
            it.provider, first.headers["content-location"].rpartition("/")[2], "completed"
        )
        assert (await http.get(f"{BASE}/$work")).status_code == 202
