"""Whatever is sent, the answer is the server's own: no error of it, no stack, no path.

Requests are handed to the application as bytes, past any client that would tidy them up.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import attrs
import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hastetrio import CreateAsyncJob
from hastetrio._operation import Operation
from hastetrio._outcome import SEVERITIES, IssueType
from hastetrio._provider import AsyncJobProvider
from hastetrio.fhir import make_app
from hastetrio.fhir._health import Health
from hastetrio.memory import MemoryJobProvider
from hastetrio.postgres import PostgresJobProvider
from hastetrio.testing import CallName, FaultyProvider

from .harness import BASE, PUBLIC, Tokens, face, handler

Fields = Sequence[tuple[bytes, bytes]]

WORK: Final = Operation(name="work", levels={"system", "type", "instance"})
ASYNC: Final = (b"prefer", b"respond-async")
SECRET: Final = "a-token-to-keep"  # noqa: S105  # nobody's


@attrs.frozen
class Answer:
    """What the application sent."""

    status: int
    headers: Fields
    body: bytes

    def header(self, name: bytes) -> bytes | None:
        """The value of a header field; None where there is none."""
        return dict(self.headers).get(name)


async def ask(
    app: ASGIApp,
    method: str,
    raw_path: bytes,
    query: bytes = b"",
    headers: Fields = (),
    chunks: Iterable[bytes] = (),
) -> Answer:
    """Hand one request to the application, as the server would."""
    sent: list[Message] = []
    pieces = [*chunks, b""]
    messages: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": index < len(pieces) - 1}
        for index, piece in enumerate(pieces)
    ]

    async def receive() -> Message:
        await trio.lowlevel.checkpoint()
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        await trio.lowlevel.checkpoint()
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 50000),
        "root_path": "",
        "path": unquote(raw_path.decode("latin-1")),
        "raw_path": raw_path,
        "query_string": query,
        "headers": [(name.lower(), value) for name, value in headers],
    }
    await app(scope, receive, send)
    start, *bodies = sent
    assert start["type"] == "http.response.start"
    body = b"".join(message.get("body", b"") for message in bodies)
    return Answer(start["status"], start["headers"], body)


_SHOWS = re.compile(
    rb'Traceback|File \\?"|\.py\b|site-packages|hastetrio\.|Error\(|psycopg|'
    + re.escape(str(Path(__file__).parents[2]).encode())
)


def check(answer: Answer, method: str) -> None:
    """See that an answer is one of ours, and nobody's accident."""
    assert answer.status < 500, answer
    check_form(answer, method)


def check_form(answer: Answer, method: str) -> None:
    """See that an answer is well-formed, and shows nothing of the server."""
    # Nothing is moved: an address of this server's would be made of what the client sent.
    assert not 300 <= answer.status < 400, answer
    for name, value in answer.headers:
        assert not re.search(rb"[\x00-\x08\x0a-\x1f\x7f-\xff]", name + value), answer
    assert not _SHOWS.search(answer.body), answer
    assert SECRET.encode() not in answer.body
    if answer.status < 400:
        return
    assert answer.header(b"content-type") == b"application/fhir+json", answer
    assert b"no-store" in (answer.header(b"cache-control") or b"")
    if answer.status == 405:
        assert answer.header(b"allow")
    if method == "HEAD":
        assert answer.body == b""
        return
    outcome = json.loads(answer.body)
    assert set(outcome) == {"resourceType", "issue"}
    assert outcome["resourceType"] == "OperationOutcome"
    assert outcome["issue"]
    for issue in outcome["issue"]:
        assert issue["severity"] in SEVERITIES
        assert issue["code"] in set(IssueType)
        assert issue["diagnostics"].strip()


def app_on(provider: AsyncJobProvider, tokens: Tokens | None = None, **config: int) -> ASGIApp:
    """An application with an operation at every level, and with the probes."""
    it = face([handler(operation=WORK)], provider=provider, authenticator=tokens, **config)
    return make_app(it, Health(None).routes())


# Parts of requests: some that lead deep into the application, some that nobody would send.

_HOSTS = [b"inside.invalid", b"[", b"[::1", b"a b", b"evil.example/..", b"\xff", b"", b"x:99999999"]
_SEGMENTS = st.sampled_from(
    [
        *(b"", b".", b"..", b"%2e%2e", b"%2E", b"%2F", b"..%2f..", b"%5c", b"\\", b"%00", b"\x00"),
        *(b"%ff", b"\xff", b"%ED%A0%80", b"%", b"%zz", b"%25", b"%0d%0aX:%20y", b"%u0041", b"*"),
        *(b"_async", b"files", b"$work", b"%24work", b"$export", b"$", b"metadata", b"r4", b"w"),
        *(b"Patient", b"Group", b"7", b"livez", b"etc", b"passwd", b"a" * 200, b"%41" * 100),
        *("\u2028".encode(), quote("\U0001f600").encode(), b"'%20OR%201=1--", b"{{7*7}}", b"\r\n"),
    ]
) | st.binary(max_size=12)

_BASES = st.sampled_from(
    [
        *(
            BASE.encode(),
            BASE.removesuffix("/r4").encode(),
            b"",
            b"/w/t1",
            b"//w/t1/p1/api/v1/fhir",
        ),
        *(b"/w/%00/p1/api/v1/fhir/r4", b"/w/t1/%ff/api/v1/fhir", b"/w/../p1/api/v1/fhir/r4"),
        *(b"/w/" + b"t" * 300 + b"/p1/api/v1/fhir/r4", b"/w/%2F/%2F/api/v1/fhir/r4"),
        *(b"http://x" + BASE.encode(), b"/livez", b"/w/t1/p1/api/v1/fhir/r4" * 2),
    ]
)
_PATHS = st.binary(max_size=60) | st.builds(
    lambda base, rest: b"/".join([base, *rest]), _BASES, st.lists(_SEGMENTS, max_size=5)
)

_METHODS = st.sampled_from(
    ["GET", "GET", "HEAD", "POST", "POST", "DELETE", "OPTIONS", "PUT", "PATCH", "TRACE", "CONNECT"]
) | st.text("ABCXYZ-_!#", min_size=1, max_size=10)

_NAMES = st.sampled_from(
    ["_type", "_count", "_after", "_format", "_since", "$target", "$handling", "resourceType", ""]
)
_VALUES = st.sampled_from(
    [
        *("", "0", "1", "-1", "9" * 12, "1e3", "\xb2", "Parameters", "%00", "%ff", "%ED%A0%80"),
        *("MjAyNS0wMS0wMVQwMDowMDowMCswMDowMCB4", "MjAyNS0wMS0wMSB4", "AAAA", "_w", "\u0663"),
        *("MDAwMS0wMS0wMVQwMDowMDowMCsyMzo1OSB4", "OTk5OS0xMi0zMVQyMzo1OTo1OS0yMzo1OSB4"),
    ]
) | st.text(max_size=8)
_QUERIES = (
    st.just(b"")
    | st.binary(max_size=40)
    | st.lists(
        st.builds(lambda n, v: f"{n}={v}".encode("utf-8", "replace"), _NAMES, _VALUES), max_size=4
    ).map(b"&".join)
)

_FIELDS: Final[dict[bytes, list[bytes]]] = {
    b"prefer": [b"respond-async", b"respond-async, handling=lenient", b'"', b"wait=" + b"9" * 5000],
    b"accept": [b"*/*", b"text/html", b"application/fhir+json;q=0", b"/", b"*;q=x"],
    b"content-type": [b"application/fhir+json", b"application/json;charset=utf-16", b"text/plain"],
    b"content-length": [b"0", b"10", b"9" * 30, b"9" * 5000, b"-1", b"x", b"\xb2"],
    b"content-encoding": [b"identity", b"gzip", b","],
    b"host": _HOSTS,
    b"authorization": [
        b"Bearer " + SECRET.encode(),
        b"Bearer",
        b"Bearer  ",
        b"Basic eDp5",
        b"\xff",
    ],
    b"origin": [b"https://app.example", b"null", b"\xff"],
    b"access-control-request-method": [b"GET", b"FROB", b"DELETE", b"\xff"],
    b"access-control-request-headers": [b"prefer", b"x-other, \xff", b""],
    b"accept-encoding": [b"gzip", b"gzip;q=0", b'"'],
    b"range": [b"bytes=0-", b"bytes=9-1,x"],
    b"cookie": [b"a=b; =; \xff"],
    b"x-forwarded-host": [b"evil.example"],
}
_HEADERS = st.lists(
    st.sampled_from(sorted(_FIELDS)).flatmap(
        lambda name: st.tuples(
            st.just(name), st.sampled_from(_FIELDS[name]) | st.binary(max_size=20)
        )
    ),
    max_size=6,
)

_BODIES: Final[st.SearchStrategy[list[bytes]]] = (
    st.just([])
    | st.lists(st.binary(max_size=20), max_size=3)
    | st.sampled_from(
        [
            b'{"resourceType":"Parameters"}',
            b'{"resourceType":"Parameters","parameter":[{"name":"a","valueString":"b"}]}',
            b'{"resourceType":"Parameters","$target":"x"}',
            b'{"resourceType":"Parameters","parameter":[{"name":"\\u0000"}]}',
            b'{"resourceType":"Parameters","parameter":[{"name":"\\ud800"}]}',
            b'{"resourceType":"Parameters","x":1e999}',
            b'{"resourceType":"Parameters","resourceType":"Parameters"}',
            b"null",
            b"NaN",
            b"[" * 5000,
            b" " * 5000,
        ]
    ).map(lambda body: [body])
    | st.integers(1, 3000).map(
        lambda depth: [b'{"resourceType":"Parameters","x":' + b"[" * depth + b"]" * depth + b"}"]
    )
)


@given(_METHODS, _PATHS, _QUERIES, _HEADERS, _BODIES, st.booleans())
@example("GET", BASE.encode() + b"/$work", b"a=1", [ASYNC, (b"host", b"[")], [], False)
@example("GET", BASE.encode() + b"/$work", b"a=\xff", [ASYNC], [], False)
@example("GET", b"/livez/", b"", [(b"host", b"[")], [], False)
@example("POST", b"/livez", b"", [], [], False)
@settings(max_examples=400)
def test_no_request_is_an_error_of_the_server(
    method: str,
    path: bytes,
    query: bytes,
    headers: list[tuple[bytes, bytes]],
    chunks: list[bytes],
    is_guarded: bool,
) -> None:
    """Every part of it may be anything at all, and they may come together in any way."""
    tokens = Tokens()
    tokens.add(SECRET)
    app = app_on(MemoryJobProvider(), tokens if is_guarded else None, body_limit=6000)
    answer = trio.run(ask, app, method, path, query, headers, chunks)
    check(answer, method)


@given(_HEADERS, _QUERIES, _BODIES)
@settings(max_examples=200)
def test_no_kick_off_is_an_error_of_the_server(
    headers: list[tuple[bytes, bytes]], query: bytes, chunks: list[bytes]
) -> None:
    """Also one that comes as far as its parameters: it is accepted and stored, or it is neither."""
    fields = [
        ASYNC,
        (b"content-type", b"application/fhir+json"),
        *(one for one in headers if one[0] not in (b"prefer", b"content-type", b"accept")),
    ]

    async def kick_off() -> None:
        provider = MemoryJobProvider()
        app = app_on(provider, body_limit=8000)
        for method in ("GET", "POST"):
            before = await provider.count_live_jobs("t1", "p1")
            answer = await ask(app, method, BASE.encode() + b"/$work", query, fields, chunks)
            check(answer, method)
            stored = await provider.count_live_jobs("t1", "p1") - before
            assert stored == (answer.status == 202)
            assert answer.status in (202, 400, 413, 415), answer

    trio.run(kick_off)


# Nothing that compression makes short: what an index can hold is counted after it.
LONG: Final = "".join(chr(0x10000 + number * 7919 % 60_000) for number in range(600))

HOSTILE_IDS: Final = [
    *("x", "0", "-1", ".", "..", "%2e%2e%2f", "a%2Fb", "%00", "a%00b", "%ff", "%ED%A0%80", "%0a"),
    *(
        "%F0%9F%98%80",
        "%C3%BC",
        "'%20OR%20'1'='1",
        "%25s",
        "%24%7Bx%7D",
        "*",
        "_",
        "%5C",
        "%E2%80%AE",
    ),
    *("a" * 255, "a" * 7000, "%F0%9F%98%80" * 500, "00000000-0000-0000-0000-000000000000"),
]

OpenProvider = Callable[[], AbstractAsyncContextManager[AsyncJobProvider]]


@pytest.fixture(params=["memory", "postgres"])
def open_provider(request: pytest.FixtureRequest) -> OpenProvider:
    """Opens storage of either kind."""
    if request.param == "memory":
        return lambda: nullcontext(MemoryJobProvider())
    url = request.getfixturevalue("database_url")
    return lambda: PostgresJobProvider.open(url)


async def test_no_id_shows_whether_a_job_exists(open_provider: OpenProvider) -> None:
    """Hostile ids and another's job are one answer, byte for byte, whatever the method."""
    async with open_provider() as provider:
        theirs = await provider.create_job(
            "t1", "p1", CreateAsyncJob(kind="work", claims={"sub": "another"})
        )
        app = app_on(provider)
        answers = set()
        for id in (*HOSTILE_IDS, theirs.id, theirs.id.upper(), theirs.id + "%20"):
            there = f"{BASE}/_async/{id}".encode()
            for method, path in (
                ("GET", there),
                ("DELETE", there),
                ("GET", there + b"/"),
                ("GET", there + b"/files/Patient.ndjson"),
                ("GET", there + b"/files/..%2f..%2fetc%2fpasswd"),
                ("GET", there + b"/files/%00"),
            ):
                answer = await ask(app, method, path)
                assert answer.status == 404, (method, path)
                check(answer, method)
                answers.add((answer.body, tuple(answer.headers)))
        assert len(answers) == 1
        job = await provider.read_job("t1", "p1", theirs.id)
        assert job is not None
        assert job.status.is_live


@pytest.mark.parametrize(
    ("name", "status"),
    [
        *[(name, 404) for name in ("%00", "a%00b", "%ff", "%ED%A0%80", "a" * 3000)],
        (quote(LONG[:256]), 404),
        *[(name, 202) for name in ("'", "%5C%25", "%F0%9F%98%80" * 255, quote(LONG[:255]))],
    ],
)
async def test_no_tenant_is_an_error_of_the_server(
    open_provider: OpenProvider, name: str, status: int
) -> None:
    """Without tokens every name is somebody's that a row can have; the others are nowhere."""
    async with open_provider() as provider:
        app = app_on(provider)
        for base in (f"/w/{name}/{name}/api/v1/fhir", f"/w/t1/{name}/api/v1/fhir/r4"):
            for method, path in (("GET", "$work"), ("POST", "Patient/7/$work")):
                answer = await ask(app, method, f"{base}/{path}".encode(), b"", [ASYNC])
                check(answer, method)
                assert answer.status == status
            for method, path in (
                ("GET", "_async"),
                ("GET", "_async/x"),
                ("DELETE", "_async/x"),
                ("GET", "_async/x/files/y"),
                ("GET", "metadata"),
            ):
                answer = await ask(app, method, f"{base}/{path}".encode())
                check(answer, method)


@pytest.mark.parametrize(
    "query",
    [
        b"_count=0",
        b"_count=-1",
        b"_count=%C2%B2",
        b"_count=" + b"9" * 5000,
        b"_count=1000000",
        b"_after=",
        b"_after=%00",
        b"_after=%ff",
        b"_after=\xff",
        b"_after=x",
        # 2025-01-01T00:00:00 x, without an offset
        b"_after=MjAyNS0wMS0wMVQwMDowMDowMCB4",
        # 0001-01-01T00:00:00+23:59 x and 9999-12-31T23:59:59-23:59 x, beyond datetime in UTC
        b"_after=MDAwMS0wMS0wMVQwMDowMDowMCsyMzo1OSB4",
        b"_after=OTk5OS0xMi0zMVQyMzo1OTo1OS0yMzo1OSB4",
        # 2025-01-01T00:00:00+00:00, a blank, NUL
        b"_after=MjAyNS0wMS0wMVQwMDowMDowMCswMDowMCAA",
        # 2025-01-01T00:00:00+00:00 x
        b"_after=MjAyNS0wMS0wMVQwMDowMDowMCswMDowMCB4",
        b"_after=" + b"A" * 7000,
    ],
)
async def test_no_page_of_the_list_is_an_error_of_the_server(
    open_provider: OpenProvider, query: bytes
) -> None:
    """Whatever a client makes of a link it was given."""
    async with open_provider() as provider:
        await provider.create_job(
            "t1", "p1", CreateAsyncJob(kind="work", claims={"sub": "anonymous"})
        )
        answer = await ask(app_on(provider), "GET", f"{BASE}/_async".encode(), query)
        assert answer.status in (200, 400)
        check(answer, "GET")


@pytest.mark.parametrize(
    "body", ['"\\u0000"', '"\\ud800"', "[" * 400 + "]" * 400, "1e308", "1" * 4000]
)
async def test_what_is_accepted_is_there_to_be_asked_after(
    open_provider: OpenProvider, body: str
) -> None:
    """No body makes a job that cannot be read again."""
    async with open_provider() as provider:
        app = app_on(provider)
        content = f'{{"resourceType":"Parameters","x":{body}}}'.encode()
        fields = [ASYNC, (b"content-type", b"application/json")]
        answer = await ask(app, "POST", f"{BASE}/$work".encode(), b"", fields, [content])
        check(answer, "POST")
        assert answer.status in (202, 400)
        location = answer.header(b"content-location")
        if location is not None:
            path = location.removeprefix(PUBLIC.encode())
            assert (await ask(app, "GET", path)).status == 202
            assert (await ask(app, "GET", f"{BASE}/_async".encode())).status == 200
            assert (await ask(app, "DELETE", path)).status == 202
            assert (await ask(app, "GET", path)).status == 404


async def test_the_request_is_stored_as_it_was_sent() -> None:
    """Neither Host nor a fragment, which no client should send, changes a byte of it."""
    for host in _HOSTS:
        provider = MemoryJobProvider()
        fields = [ASYNC, (b"host", host)]
        path = f"{BASE}/$work".encode()
        answer = await ask(app_on(provider), "GET", path, b"a=1#b?c", fields)
        check(answer, "GET")
        (job,) = await provider.list_jobs("t1", "p1")
        assert job.request == f"{PUBLIC}{BASE}/$work?a=1#b?c"
        assert job.parameters == {"a": "1#b?c"}


async def test_an_address_may_be_too_long() -> None:
    """Its bytes are counted as they were sent, path and query together."""
    app = app_on(MemoryJobProvider(), url_limit=300)
    path = f"{BASE}/$work".encode()
    for query, status in ((b"a" * (300 - len(path)), 202), (b"a" * (301 - len(path)), 414)):
        answer = await ask(app, "GET", path, query, [ASYNC])
        check(answer, "GET")
        assert answer.status == status


async def test_a_path_that_comes_decoded_means_the_same() -> None:
    """Servers need not pass it as it was sent; what was decoded once is not decoded again."""

    def decoded(app: ASGIApp) -> ASGIApp:
        async def without(scope: Scope, receive: Receive, send: Send) -> None:
            del scope["raw_path"]
            await app(scope, receive, send)

        return without

    provider = MemoryJobProvider()
    app = decoded(app_on(provider))
    answer = await ask(app, "GET", b"/w/a%2525b/p1/api/v1/fhir/$work", b"", [ASYNC])
    assert answer.status == 202
    assert await provider.count_live_jobs("a%25b", "p1") == 1
    for path in (BASE.encode() + b"/_async/%ED%A0%80", b"/w/\xed\xa0\x80/p1/api/v1/fhir/$work"):
        check(await ask(app, "GET", path, b"", [ASYNC]), "GET")


CALLS: Final[list[tuple[str, str, CallName]]] = [
    ("GET", "$work", "create_job"),
    ("GET", "_async", "list_jobs"),
    ("GET", "_async/x", "read_job"),
    ("HEAD", "_async/x", "read_job"),
    ("DELETE", "_async/x", "cancel_job"),
    ("GET", "_async/x/files/y", "read_job"),
]


@pytest.mark.parametrize(("method", "path", "call"), CALLS)
async def test_a_database_that_is_away_is_said_to_be(
    method: str, path: str, call: CallName
) -> None:
    """503 `transient` with Retry-After, so that no client takes it for the job's end."""
    provider = FaultyProvider(MemoryJobProvider())
    provider.fail(call)
    answer = await ask(app_on(provider), method, f"{BASE}/{path}".encode(), b"", [ASYNC])
    assert answer.status == 503
    assert int(answer.header(b"retry-after") or 0) > 0
    check_form(answer, method)
    if method != "HEAD":
        (issue,) = json.loads(answer.body)["issue"]
        assert issue["code"] == "transient"
        assert "injected" not in issue["diagnostics"]


@pytest.mark.parametrize(("method", "path", "call"), CALLS)
async def test_an_error_nobody_foresaw_shows_nothing(
    method: str, path: str, call: CallName, caplog: pytest.LogCaptureFixture
) -> None:
    """500 with a neutral text for the client; the log has the error, and no token."""
    provider = FaultyProvider(MemoryJobProvider())
    provider.fail(call, error=RuntimeError(f"in {__file__}: hidden detail"))
    tokens = Tokens()
    tokens.add(SECRET)
    fields = [ASYNC, (b"authorization", b"Bearer " + SECRET.encode())]
    with caplog.at_level(logging.DEBUG):
        answer = await ask(app_on(provider, tokens), method, f"{BASE}/{path}".encode(), b"", fields)
    assert answer.status == 500
    check_form(answer, method)
    assert b"hidden" not in answer.body
    assert "hidden detail" in caplog.text
    assert SECRET not in caplog.text


def test_a_preflight_that_is_refused_is_an_outcome_too() -> None:
    """Every error is an OperationOutcome, also one that only a browser sees."""
    app = app_on(MemoryJobProvider())
    fields = [(b"origin", b"https://app.example"), (b"access-control-request-method", b"FROB")]
    answer = trio.run(ask, app, "OPTIONS", f"{BASE}/$work".encode(), b"", fields)
    assert answer.status == 400
    check(answer, "OPTIONS")
    assert answer.header(b"access-control-allow-origin") == b"*"
