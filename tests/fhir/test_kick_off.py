"""The kick-off through the application: what is answered, what is stored, and what is not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import httpx2
import pytest
import trio

from hastetrio import (
    AsyncJobStatus,
    AsyncJobWorker,
    JobContext,
    JobHandler,
    JobOutput,
    OperationOutcomeError,
)
from hastetrio._operation import Operation
from hastetrio._provider import AsyncJobProvider
from hastetrio.memory import MemoryJobProvider
from hastetrio.postgres import PostgresJobProvider
from hastetrio.testing import CallName, FaultyProvider

from .harness import (
    BASE,
    PREFER,
    PUBLIC,
    RETENTION,
    Tokens,
    check_outcome,
    client,
    face,
    handler,
    issue_of,
    stored,
)

FHIR: Final = {"Content-Type": "application/fhir+json"}


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("base", [BASE, BASE.removesuffix("/r4")])
async def test_a_kick_off_queues_a_job_and_says_where_to_ask(method: str, base: str) -> None:
    """202, an absolute address below the configured one, and the job behind it."""
    it = face()
    async with client(it, PREFER) as http:
        answer = await http.request(method, f"{base}/$work")
        (job,) = await stored(it)
        assert answer.status_code == 202
        assert answer.headers["content-location"] == f"{PUBLIC}{base}/_async/{job.id}"
        assert answer.headers["preference-applied"] == "respond-async"
        (issue,) = check_outcome(answer)
        assert (issue["severity"], issue["code"]) == ("information", "informational")
        assert job.id in issue["diagnostics"]
        polled = await http.get(answer.headers["content-location"].removeprefix(PUBLIC))
        assert polled.status_code == 202
    assert (job.tenant, job.project, job.kind) == ("t1", "p1", "work")
    assert job.status is AsyncJobStatus.ACCEPTED
    assert job.request == f"{PUBLIC}{base}/$work"
    assert job.parameters == {}
    assert (job.expires_at - job.created_at).total_seconds() == pytest.approx(RETENTION)


@pytest.mark.parametrize("public", ["https://x.example:8443/behind/a/proxy", f"{PUBLIC}/"])
async def test_addresses_are_made_of_the_public_url_only(public: str) -> None:
    """Neither Host nor what a proxy adds decides where clients send their tokens."""
    it = face(public_url=public)
    forged = {"Host": "evil.example", "X-Forwarded-Host": "evil.example", "Forwarded": "host=evil"}
    async with client(it, {**PREFER, **forged}) as http:
        answer = await http.get(f"{BASE}/$work?a=1")
    (job,) = await stored(it)
    begin = public.rstrip("/") + BASE
    assert answer.headers["content-location"] == f"{begin}/_async/{job.id}"
    assert job.request == f"{begin}/$work?a=1"
    assert "evil" not in str(answer.headers) + answer.text


async def test_the_segments_of_an_address_are_encoded_anew() -> None:
    """A tenant with a slash or a blank in its name stays one segment of the addresses."""
    it = face()
    async with client(it, PREFER) as http:
        answer = await http.get("/w/a%2Fb/c%20%C3%BC/api/v1/fhir/%24work")
    (job,) = await stored(it, "a/b", "c \xfc")
    begin = f"{PUBLIC}/w/a%2Fb/c%20%C3%BC/api/v1/fhir"
    assert answer.headers["content-location"] == f"{begin}/_async/{job.id}"
    assert job.request == f"{begin}/$work"


@pytest.mark.parametrize("prefer", [None, "", "return=minimal", "respond-async=no", "wait=10"])
async def test_a_kick_off_without_the_preference_is_refused(prefer: str | None) -> None:
    """A client that expects the result itself would take the 202 for it."""
    it = face()
    async with client(it) as http:
        headers = {} if prefer is None else {"Prefer": prefer}
        answer = await http.get(f"{BASE}/$work", headers=headers)
    status, code, diagnostics = issue_of(answer)
    assert (status, code) == (400, "invalid")
    assert "Prefer: respond-async" in diagnostics
    assert await stored(it) == []


async def test_the_preference_need_not_be_demanded() -> None:
    """With require_prefer off all kick-offs are as if it were there, but nothing is claimed."""
    it = face(require_prefer=False)
    async with client(it) as http:
        answer = await http.get(f"{BASE}/$work")
    assert answer.status_code == 202
    assert "preference-applied" not in answer.headers
    assert len(await stored(it)) == 1


async def test_the_preference_is_read_as_a_list_over_several_fields() -> None:
    """RFC 7240: it may stand anywhere among others, in any case."""
    it = face()
    fields = [("Prefer", 'return="a,b"'), ("Prefer", "handling=lenient;x, RESPOND-Async ;y=1")]
    async with client(it) as http:
        answer = await http.get(f"{BASE}/$work", headers=fields)
    assert answer.status_code == 202
    (job,) = await stored(it)
    assert job.parameters == {"$handling": "lenient"}


LEVELS: Final = Operation(
    name="work", levels={"system", "type", "instance"}, types={"Patient", "Group"}
)


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("$work", None),
        ("Patient/$work", "Patient"),
        ("Group/7/$work", "Group/7"),
        ("Group/a-B.9/$work", "Group/a-B.9"),
        ("Group/" + "x" * 64 + "/$work", "Group/" + "x" * 64),
    ],
)
async def test_the_job_learns_on_what_it_was_invoked(path: str, target: str | None) -> None:
    """System, type and instance level differ by `$target` only; the query stays beside it."""
    it = face([handler(operation=LEVELS)])
    async with client(it, PREFER) as http:
        answer = await http.get(f"{BASE}/{path}?_type=Patient")
    assert answer.status_code == 202
    (job,) = await stored(it)
    expected = {"_type": "Patient"} | ({} if target is None else {"$target": target})
    assert job.parameters == expected
    assert job.request == f"{PUBLIC}{BASE}/{path}?_type=Patient"


@pytest.mark.parametrize(
    "path",
    [
        "$other",
        "$Work",
        "$",
        "work",
        "Observation/$work",
        "Observation/7/$work",
        "patient/$work",
        "Pat1ent/$work",
        "Group//$work",
        "Group/a_b/$work",
        "Group/a%2Fb/$work",
        "Group/" + "x" * 65 + "/$work",
        "Group/7/x/$work",
        "$work/7",
        "$work/$work",
        "Group/$work/$work",
    ],
)
async def test_an_operation_that_is_not_there_is_not_found(path: str) -> None:
    """Unknown names, other types, and ids no resource can have (R4 datatypes, id)."""
    it = face([handler(operation=LEVELS)])
    async with client(it, PREFER) as http:
        for method in ("GET", "POST", "HEAD"):
            answer = await http.request(method, f"{BASE}/{path}")
            assert answer.status_code == 404
            assert method == "HEAD" or issue_of(answer)[1] == "not-found"
    assert await stored(it) == []


@pytest.mark.parametrize(
    ("level", "there"),
    [("system", "$work"), ("type", "Group/$work"), ("instance", "Group/7/$work")],
)
async def test_an_operation_is_only_at_its_levels(level: str, there: str) -> None:
    """What is declared for one level is not found at the others."""
    it = face([handler(operation=Operation(name="work", levels={level}))])
    async with client(it, PREFER) as http:
        for path in ("$work", "Group/$work", "Group/7/$work"):
            answer = await http.get(f"{BASE}/{path}")
            assert answer.status_code == (202 if path == there else 404)
    assert len(await stored(it)) == 1


async def test_handlers_share_a_name_at_different_levels() -> None:
    """The job is of the kind whose operation is invoked there."""
    handlers = [
        handler("all", Operation(name="work")),
        handler("group", Operation(name="work", levels={"instance"}, types={"Group"})),
        handler("device", Operation(name="work", levels={"instance"}, types={"Device"})),
    ]
    it = face(handlers)
    async with client(it, PREFER) as http:
        for path in ("Device/1/$work", "Group/1/$work", "$work"):
            assert (await http.get(f"{BASE}/{path}")).status_code == 202
    assert [job.kind for job in await stored(it)] == ["all", "group", "device"]


async def test_a_handler_without_an_operation_is_not_to_be_kicked_off() -> None:
    """Its jobs come from elsewhere."""
    bare = handler("bare")
    bare.operation = None
    async with client(face([bare]), PREFER) as http:
        for path in ("$bare", "$work", "bare", "$"):
            assert (await http.get(f"{BASE}/{path}")).status_code == 404


async def test_what_changes_resources_is_started_by_post_only() -> None:
    """A GET must be safe to repeat and to prefetch (R4 operations, executing an operation)."""
    it = face([handler(operation=Operation(name="work", affects_state=True))])
    async with client(it, PREFER) as http:
        for method in ("GET", "HEAD", "DELETE", "PUT"):
            answer = await http.request(method, f"{BASE}/$work")
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        assert await stored(it) == []
        assert (await http.post(f"{BASE}/$work")).status_code == 202
    assert len(await stored(it)) == 1


@pytest.mark.parametrize("method", ["HEAD", "PUT", "PATCH", "DELETE", "TRACE", "OPTIONS", "FROB"])
async def test_no_other_method_starts_a_job(method: str) -> None:
    """HEAD above all: it must do nothing, and here a GET does something."""
    it = face()
    async with client(it, PREFER) as http:
        answer = await http.request(method, f"{BASE}/$work")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")
    if method == "HEAD":
        assert answer.content == b""
    else:
        assert issue_of(answer)[1] == "not-supported"
    assert await stored(it) == []


async def test_an_answer_that_the_client_excludes_is_not_begun() -> None:
    """406 before anything is stored."""
    it = face()
    async with client(it, PREFER) as http:
        answer = await http.get(f"{BASE}/$work", headers={"Accept": "text/html"})
    assert issue_of(answer)[:2] == (406, "not-supported")
    assert await stored(it) == []


async def test_a_parameters_resource_becomes_the_parameters() -> None:
    """With the circumstances beside it, and the query within it."""
    it = face([handler(operation=LEVELS)])
    resource = {"resourceType": "Parameters", "parameter": [{"name": "a", "valueCode": "b"}]}
    headers = {**FHIR, "Prefer": "respond-async, handling=strict"}
    async with client(it, headers) as http:
        answer = await http.post(f"{BASE}/Patient/$work?c=d", content=json.dumps(resource))
    assert answer.status_code == 202
    (job,) = await stored(it)
    assert job.parameters == {
        "resourceType": "Parameters",
        "parameter": [{"name": "a", "valueCode": "b"}, {"name": "c", "valueString": "d"}],
        "$target": "Patient",
        "$handling": "strict",
    }


@pytest.mark.parametrize("name", ["$target", "$handling"])
async def test_a_client_cannot_make_up_the_circumstances(name: str) -> None:
    """Handlers trust these two, at whatever level they are invoked."""
    it = face([handler(operation=LEVELS)])
    body = json.dumps({"resourceType": "Parameters", name: "Patient/1"})
    async with client(it, PREFER) as http:
        for path in ("$work", "Patient/$work"):
            encoded = name.replace("$", "%24")
            for answer in (
                await http.get(f"{BASE}/{path}?{encoded}=Patient/1"),
                await http.post(f"{BASE}/{path}?{encoded}=Patient/1"),
                await http.post(f"{BASE}/{path}", content=body, headers=FHIR),
            ):
                assert issue_of(answer)[:2] == (400, "invalid")
    assert await stored(it) == []


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        (FHIR, b"{", (400, "structure")),
        (FHIR, b'{"resourceType": "Patient"}', (400, "structure")),
        (FHIR, b" " * 1025, (413, "too-long")),
        ({"Content-Type": "text/plain"}, b"{}", (415, "not-supported")),
        ({**FHIR, "Content-Encoding": "gzip"}, b"{}", (415, "not-supported")),
    ],
)
async def test_a_body_that_is_refused_starts_nothing(
    headers: dict[str, str], body: bytes, expected: tuple[int, str]
) -> None:
    """What `read_parameters` refuses is answered as it says."""
    it = face(body_limit=1024)
    async with client(it, {**PREFER, **headers}) as http:
        answer = await http.post(f"{BASE}/$work", content=body)
    assert issue_of(answer)[:2] == expected
    assert await stored(it) == []


class Choosy(JobHandler):
    """Accepts nothing, and keeps what it was asked about."""

    kind = "choosy"
    operation = Operation(name="choose")

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def run(self, context: JobContext) -> JobOutput:
        """Never called."""
        raise AssertionError

    def check_parameters(self, parameters: Any, /) -> None:  # noqa: ANN401  # JSON is any value
        """Refuse them, for two reasons."""
        self.asked.append(parameters)
        raise OperationOutcomeError(
            "not-supported", "_frob is not supported", expression=("Parameters.parameter[0]",)
        ).add("value", "_since is no instant", "warning")


async def test_a_handler_judges_the_parameters_before_anything_is_stored() -> None:
    """The client gets the handler's own issues, all of them."""
    choosy = Choosy()
    it = face([choosy])
    async with client(it, {"Prefer": "respond-async, handling=lenient"}) as http:
        answer = await http.get(f"{BASE}/$choose?_frob=1")
    assert answer.status_code == 400
    assert check_outcome(answer) == [
        {
            "severity": "error",
            "code": "not-supported",
            "diagnostics": "_frob is not supported",
            "expression": ["Parameters.parameter[0]"],
        },
        {"severity": "warning", "code": "value", "diagnostics": "_since is no instant"},
    ]
    assert choosy.asked == [{"_frob": "1", "$handling": "lenient"}]
    assert await stored(it) == []


@asynccontextmanager
async def in_memory() -> AsyncIterator[AsyncJobProvider]:
    """Storage in this process."""
    yield MemoryJobProvider()


OpenProvider = Callable[[], AbstractAsyncContextManager[AsyncJobProvider]]


@pytest.fixture(params=["memory", "postgres"])
def open_provider(request: pytest.FixtureRequest) -> OpenProvider:
    """Opens storage of either kind."""
    if request.param == "memory":
        return in_memory
    url = request.getfixturevalue("database_url")
    return lambda: PostgresJobProvider.open(url)


async def test_the_live_limit_holds_however_many_come_at_once(open_provider: OpenProvider) -> None:
    """Twenty at the same time, five places: five jobs, and fifteen are told to come again."""
    async with open_provider() as provider:
        it = face(provider=provider, live_limit=5)
        answers: list[httpx2.Response] = []
        async with client(it, PREFER) as http:
            gate = trio.Event()

            async def start() -> None:
                await gate.wait()
                answers.append(await http.get(f"{BASE}/$work"))

            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(start)
                await trio.testing.wait_all_tasks_blocked()
                gate.set()
            jobs = await stored(it)
            assert len(jobs) == 5
            accepted = [answer for answer in answers if answer.status_code == 202]
            assert {
                answer.headers["content-location"].rpartition("/")[2] for answer in accepted
            } == {job.id for job in jobs}
            full = [answer for answer in answers if answer.status_code != 202]
            assert len(full) == 15
            for answer in full:
                assert issue_of(answer)[:2] == (429, "throttled")
                assert int(answer.headers["retry-after"]) > 0
                assert "content-location" not in answer.headers
            # Another project has places of its own, and a job that ends leaves its place.
            elsewhere = BASE.replace("p1", "p2")
            assert (await http.get(f"{elsewhere}/$work")).status_code == 202
            await http.delete(f"{BASE}/_async/{jobs[0].id}")
            assert (await http.get(f"{BASE}/$work")).status_code == 202
            assert (await http.get(f"{BASE}/$work")).status_code == 429


class Witness(JobHandler):
    """Keeps the jobs it runs."""

    kind = "witness"
    operation = Operation(name="witness")

    def __init__(self) -> None:
        self.seen: list[JobContext] = []
        self.ran = trio.Event()

    async def run(self, context: JobContext) -> JobOutput:
        """Keep the context."""
        self.seen.append(context)
        self.ran.set()
        return JobOutput.json({})


async def test_the_claims_are_stored_and_given_to_the_handler(open_provider: OpenProvider) -> None:
    """The job runs as whoever kicked it off, with all that their token claimed."""
    witness = Witness()
    tokens = Tokens()
    headers = {**PREFER, **tokens.add("a.b.c", sub="ann", scope="system/*.rs openid")}
    async with open_provider() as provider:
        it = face([witness], provider=provider, authenticator=tokens)
        async with client(it, headers) as http:
            answer = await http.get(f"{BASE}/$witness?_type=Patient")
        assert answer.status_code == 202
        worker = AsyncJobWorker(provider, [witness])
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: worker.run(task_status=task_status))
            with trio.fail_after(60):
                await witness.ran.wait()
            worker.stop()
    (context,) = witness.seen
    assert context.job.claims == tokens.claims["a.b.c"]
    assert context.job.submitted_by == "ann"
    assert context.job.parameters == {"_type": "Patient"}
    assert context.job.request == f"{PUBLIC}{BASE}/$witness?_type=Patient"


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ({}, (401, "login")),
        ({"scope": "patient/*.rs"}, (403, "forbidden")),
        ({"tenant": "t2"}, (404, "not-found")),
        ({"project": "p2"}, (404, "not-found")),
    ],
)
async def test_whoever_may_not_starts_nothing(
    token: dict[str, str], expected: tuple[int, str]
) -> None:
    """And is told before the request is looked at any closer."""
    tokens = Tokens()
    it = face(authenticator=tokens)
    headers = tokens.add("a.b.c", **token) if token else {}
    async with client(it, headers) as http:
        # Without Prefer, and with a body that is none: neither is what is wrong.
        answer = await http.post(f"{BASE}/$work", content=b"{")
        assert issue_of(answer)[:2] == expected
    assert await stored(it) == []


async def test_an_operation_may_be_open_to_any_token() -> None:
    """One without a scope asks only who it is."""
    tokens = Tokens()
    it = face([handler(operation=Operation(name="work", scope=None))], authenticator=tokens)
    async with client(it, {**PREFER, **tokens.add("a.b.c", scope="")}) as http:
        assert (await http.get(f"{BASE}/$work")).status_code == 202
        assert (await http.get(f"{BASE}/$work", headers={"Authorization": ""})).status_code == 401


@pytest.mark.parametrize(
    ("query", "request_query"),
    [
        ("", ""),
        ("?", ""),
        ("?_type=Patient&_format=ndjson", "?_type=Patient&_format=ndjson"),
        ("?a=%C3%BC+%26&a=b%2Fc", "?a=%C3%BC+%26&a=b%2Fc"),
    ],
)
async def test_the_stored_request_is_the_public_address(query: str, request_query: str) -> None:
    """As it was sent, also what is no parameter: it becomes `request` in the manifest."""
    it = face()
    async with client(it, PREFER) as http:
        for method in ("GET", "POST"):
            assert (await http.request(method, f"{BASE}/$work{query}")).status_code == 202
    for job in await stored(it):
        assert job.request == f"{PUBLIC}{BASE}/$work{request_query}"


@pytest.mark.parametrize("fault", ["fail", "drop"])
async def test_a_kick_off_while_the_database_is_away_is_to_be_repeated(fault: str) -> None:
    """503 `transient` with Retry-After: a client can tell it from a job that failed."""
    provider = FaultyProvider(MemoryJobProvider())
    name: CallName = "create_job"
    if fault == "fail":
        provider.fail(name, times=1)
    else:
        provider.drop(name, times=1)
    it = face(provider=provider)
    async with client(it, PREFER) as http:
        answer = await http.get(f"{BASE}/$work")
        assert issue_of(answer)[:2] == (503, "transient")
        assert int(answer.headers["retry-after"]) > 0
        assert "content-location" not in answer.headers
        assert (await http.get(f"{BASE}/$work")).status_code == 202


async def test_what_storage_refuses_is_the_clients_to_mend(open_provider: OpenProvider) -> None:
    """A body within the server's limit may still be more than a job's parameters may have."""
    async with open_provider() as provider:
        it = face(provider=provider, body_limit=4 * 2**20)
        value = "x" * (3 * 2**20)
        body = {"resourceType": "Parameters", "parameter": [{"name": "a", "valueString": value}]}
        async with client(it, {**PREFER, **FHIR}) as http:
            answer = await http.post(f"{BASE}/$work", content=json.dumps(body))
            status, code, diagnostics = issue_of(answer)
            assert (status, code) == (400, "value")
            assert "limit" in diagnostics
            assert await stored(it) == []
