"""What becomes a job's parameters, from a query or from a body, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote, quote_plus

import pytest
import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from hastetrio._storable import encode_json
from hastetrio.fhir._errors import RequestError
from hastetrio.fhir._parameters import BODY_DEADLINE, read_parameters

LIMIT: Final = 2000
FHIR: Final = (("Content-Type", "application/fhir+json"),)

Fields = Sequence[tuple[str, str]]
Receive = Callable[[], Awaitable[Message]]


def receiving(chunks: Iterable[bytes]) -> tuple[Receive, list[bytes]]:
    """What hands a body over in these chunks, and a list of those that were fetched."""
    waiting = [*chunks, b""]
    fetched: list[bytes] = []

    async def receive() -> Message:
        await trio.lowlevel.checkpoint()
        fetched.append(waiting.pop(0))
        return {"type": "http.request", "body": fetched[-1], "more_body": bool(waiting)}

    return receive, fetched


def request(
    method: str, query: bytes | str = b"", fields: Fields = (), receive: Receive | None = None
) -> Request:
    """A request as the server hands it to the application."""
    scope = {
        "type": "http",
        "method": method,
        "query_string": query.encode() if isinstance(query, str) else query,
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in fields],
    }
    return Request(scope, receive or receiving([])[0])


async def get(query: bytes | str) -> dict[str, Any]:
    """The parameters of a GET."""
    return await read_parameters(request("GET", query), LIMIT)


async def post(
    *chunks: bytes, query: bytes | str = b"", fields: Fields = FHIR, limit: int = LIMIT
) -> dict[str, Any]:
    """The parameters of a POST whose body comes in these chunks."""
    return await read_parameters(request("POST", query, fields, receiving(chunks)[0]), limit)


def refused(caught: pytest.ExceptionInfo[RequestError]) -> tuple[int, str, str]:
    """Status, code and diagnostics of a refusal."""
    (issue,) = caught.value.outcome["issue"]
    return caught.value.status, issue["code"], issue["diagnostics"]


def parameters(*given: object, **more: object) -> dict[str, Any]:
    """A Parameters resource."""
    return {"resourceType": "Parameters", "parameter": list(given), **more}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", {}),
        ("&&", {}),
        ("=", {}),
        ("_type=Patient", {"_type": "Patient"}),
        ("_type=Patient,Group&_type=Device", {"_type": ["Patient,Group", "Device"]}),
        ("a=1&b=2&a=1", {"a": ["1", "1"], "b": "2"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("a=b=c", {"a": "b=c"}),
        ("%61=%62%3D%26", {"a": "b=&"}),
        ("a=x+y%2Bz", {"a": "x y+z"}),
        ("a=%C3%BC", {"a": "\xfc"}),
        ("a=%zz%4", {"a": "%zz%4"}),
        ("a;b=c;d", {"a;b": "c;d"}),
        ("_format=json&_pretty=true&a=1&%5Fformat=x", {"a": "1"}),
        ("_FORMAT=json", {"_FORMAT": "json"}),
        ("resourceType=Patient", {"resourceType": "Patient"}),
    ],
)
async def test_a_query_is_read_by_name(query: str, expected: dict[str, Any]) -> None:
    """Decoded, repeated values as a list, and without what is only about the answer."""
    assert await get(query) == expected
    assert await post(query=query, fields=()) == expected


@pytest.mark.parametrize(
    ("query", "word"),
    [
        (b"a=%ff", "UTF-8"),
        (b"%C3=1", "UTF-8"),
        (b"a=%ED%A0%80", "UTF-8"),
        (b"a=\xff", "UTF-8"),
        (b"_format=%ff", "UTF-8"),
        (b"=x", "no name"),
        (b"a=%00", "NUL"),
        (b"%00=a", "NUL"),
        (b"resourceType=Parameters&parameter=x", "body"),
    ],
)
async def test_a_query_that_cannot_be_read_is_refused(query: bytes, word: str) -> None:
    """What is no text, or could be taken for a resource, is the client's to mend."""
    for method in ("GET", "POST"):
        with pytest.raises(RequestError) as caught:
            await read_parameters(request(method, query), LIMIT)
        status, code, diagnostics = refused(caught)
        assert (status, code in ("invalid", "value")) == (400, True)
        assert word in diagnostics


@given(st.lists(st.tuples(st.text(min_size=1, max_size=5), st.text(max_size=5)), max_size=6))
def test_whatever_text_is_encoded_comes_out_again(pairs: list[tuple[str, str]]) -> None:
    """Any names and values survive, in their order, with blanks as %20 or as a plus."""
    pairs = [
        (name, value)
        for name, value in pairs
        if "\0" not in name + value and name not in ("_format", "_pretty")
    ]
    expected: dict[str, list[str]] = {}
    for name, value in pairs:
        expected.setdefault(name, []).append(value)
    for encode in (quote, quote_plus):
        query = "&".join(
            f"{encode(name, safe='')}={encode(value, safe='')}" for name, value in pairs
        )
        found = trio.run(get, query)
        assert {
            name: value if isinstance(value, list) else [value] for name, value in found.items()
        } == expected


async def test_the_body_of_a_get_is_not_looked_at() -> None:
    """It has no meaning (RFC 9110 section 9.3.1), so it is not even fetched."""
    receive, fetched = receiving([b"x" * (LIMIT + 1)])
    assert await read_parameters(request("GET", "a=1", FHIR, receive), LIMIT) == {"a": "1"}
    assert fetched == []


@pytest.mark.parametrize(
    "fields",
    [
        (),
        (("Content-Type", "text/plain"),),
        (("Content-Type", "application/fhir+json"), ("Content-Length", "0")),
        (("Content-Encoding", "gzip"),),
    ],
)
async def test_a_post_without_a_body_is_read_as_a_get(fields: Fields) -> None:
    """Medplum's client sends its parameters so; what it says about no body does not matter."""
    assert await post(query="_type=Patient&_format=x", fields=fields) == {"_type": "Patient"}
    assert await post(b"", b"", query="_type=Patient", fields=fields) == {"_type": "Patient"}


@pytest.mark.parametrize(
    "type",
    [
        "application/fhir+json",
        "application/json",
        "Application/FHIR+JSON; Charset=UTF-8",
        'application/fhir+json; fhirVersion=4.0; charset="utf-8"',
        "application/json;odata=x",
    ],
)
async def test_a_body_is_taken_as_it_is(type: str) -> None:
    """The resource becomes the parameters, in however many pieces it comes."""
    resource = parameters({"name": "_type", "valueString": "P\xe4tient"}, id="x")
    body = json.dumps(resource, ensure_ascii=False).encode()
    fields = (("Content-Type", type),)
    assert await post(body, fields=fields) == resource
    assert await post(*(bytes([byte]) for byte in body), fields=fields) == resource
    assert await post(b"\xef\xbb\xbf" + body, fields=fields) == resource


@pytest.mark.parametrize(
    "resource", [{"resourceType": "Parameters"}, parameters(), parameters({"name": "a"})]
)
async def test_the_query_beside_a_body_is_added_to_it(resource: dict[str, Any]) -> None:
    """Nothing that was asked for is lost, wherever it was written."""
    given = resource.get("parameter", [])
    added = [
        {"name": "_type", "valueString": "Patient"},
        {"name": "_type", "valueString": "Group"},
    ]
    body = json.dumps(resource).encode()
    found = await post(body, query="_type=Patient&_format=json&_type=Group")
    assert found == parameters(*given, *added)
    assert await post(body, query="_format=json") == resource


@pytest.mark.parametrize(
    "fields",
    [
        (),
        (("Content-Type", ""),),
        (("Content-Type", "text/plain"),),
        (("Content-Type", "application/fhir+xml"),),
        (("Content-Type", "application/x-www-form-urlencoded"),),
        (("Content-Type", "application/*"),),
        (("Content-Type", "nonsense"),),
        (("Content-Type", "application/fhir+json; charset=latin-1"),),
        (("Content-Type", "application/fhir+json; charset=utf-16"),),
        (("Content-Type", "application/fhir+json; fhirVersion=5.0"),),
        (*FHIR, *FHIR),
        (*FHIR, ("Content-Encoding", "gzip")),
        (*FHIR, ("Content-Encoding", "identity, br")),
        (*FHIR, ("Content-Encoding", "identity"), ("Content-Encoding", "gzip")),
    ],
)
async def test_a_body_of_another_kind_is_refused_before_it_is_read(fields: Fields) -> None:
    """415, and nothing but its first piece was fetched."""
    body = json.dumps(parameters()).encode()
    receive, fetched = receiving([b"", body[:5], body[5:]])
    with pytest.raises(RequestError) as caught:
        await read_parameters(request("POST", b"", fields, receive), LIMIT)
    assert refused(caught)[:2] == (415, "not-supported")
    assert fetched == [b"", body[:5]]


async def test_identity_is_no_encoding() -> None:
    """A client may say that its body is as it is."""
    fields = (*FHIR, ("Content-Encoding", "Identity, identity"))
    assert await post(json.dumps(parameters()).encode(), fields=fields) == parameters()


@pytest.mark.parametrize("length", [str(LIMIT + 1), "0" * 30 + str(LIMIT + 1), "9" * 5000])
async def test_a_body_said_to_be_too_long_is_not_read(length: str) -> None:
    """Its Content-Length is enough to refuse it."""
    receive, fetched = receiving([b"{}"])
    with pytest.raises(RequestError) as caught:
        await read_parameters(
            request("POST", b"", (*FHIR, ("Content-Length", length)), receive), LIMIT
        )
    assert refused(caught)[:2] == (413, "too-long")
    assert f"{LIMIT:,} bytes" in refused(caught)[2]
    assert fetched == []


@pytest.mark.parametrize("length", [None, "1", "nonsense", "-1", "\xb2", ""])
async def test_a_body_that_is_too_long_is_read_no_further(length: str | None) -> None:
    """Whatever was said about its length, the limit stops the reading."""
    fields = FHIR if length is None else (*FHIR, ("Content-Length", length))
    receive, fetched = receiving([b" " * LIMIT, b" ", b" "])
    with pytest.raises(RequestError) as caught:
        await read_parameters(request("POST", b"", fields, receive), LIMIT)
    assert refused(caught)[:2] == (413, "too-long")
    assert fetched == [b" " * LIMIT, b" "]


async def test_a_body_of_just_the_limit_is_read() -> None:
    """The limit is the most, not the least that is too much."""
    body = json.dumps(parameters()).encode().ljust(LIMIT)
    fields = (*FHIR, ("Content-Length", str(LIMIT)))
    assert await post(body, fields=fields) == parameters()


NO_JSON: Final = [
    (b"{", "line 1, column 2"),
    (b"\n\n x", "line 3, column 2"),
    (b" ", "not JSON"),
    (b"{} {}", "not JSON"),
    (b"{'a': 1}", "not JSON"),
    (b'{"a": NaN}', "NaN"),
    (b'{"a": [Infinity]}', "Infinity"),
    (b'{"a": -Infinity}', "Infinity"),
    (b'{"a": 1e999}', "too large"),
    (b'{"a": -1e999}', "too large"),
    (b'{"a": 1' + b"0" * 5000 + b"}", "too large"),
    (b'{"resourceType": "Parameters", "resourceType": "Parameters"}', "same key twice"),
    (b'{"resourceType": "Parameters", "parameter": [{"name": "a", "name": "b"}]}', "twice"),
    (b'{"resourceType": "Parameters", "x": "\xff"}', "UTF-8"),
    (b'{"resourceType": "Parameters", "x": "\xed\xa0\x80"}', "UTF-8"),
    ('{"resourceType": "Parameters"}'.encode("utf-16"), "UTF-8"),
    (b"[" * 100_000, "nested"),
    (b"[" * 100_000 + b"]" * 100_000, "nested"),
    (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested"),
]


@pytest.mark.parametrize(("body", "word"), NO_JSON)
async def test_a_body_that_is_not_json_is_refused(body: bytes, word: str) -> None:
    """With what is wrong, and where."""
    with pytest.raises(RequestError) as caught:
        await post(body, limit=len(body))
    status, code, diagnostics = refused(caught)
    assert (status, code) == (400, "structure")
    assert word in diagnostics
    assert len(diagnostics) < 150


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        "Parameters",
        [],
        [parameters()],
        {},
        {"parameter": []},
        {"resourceType": "Bundle"},
        {"resourceType": ["Parameters"]},
        {"resourceType": "parameters"},
        {"resourceType": "Parameters", "parameter": None},
        {"resourceType": "Parameters", "parameter": {"name": "a"}},
        parameters("a"),
        parameters(None),
        parameters({"name": "a"}, {"valueString": "b"}),
        parameters({"name": ""}),
        parameters({"name": 1}),
        parameters({"name": None}),
    ],
)
async def test_a_body_that_is_no_parameters_resource_is_refused(value: object) -> None:
    """Handlers may rely on a list of objects with names."""
    with pytest.raises(RequestError) as caught:
        await post(json.dumps(value).encode(), query="a=1")
    status, code, diagnostics = refused(caught)
    assert (status, code) == (400, "structure")
    assert "Parameters" in diagnostics


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ('"\\u0000"', "NUL"),
        ('{"\\u0000": 1}', "NUL"),
        ('"\\ud800"', "surrogate"),
    ],
)
async def test_a_body_that_cannot_be_stored_is_refused(value: str, word: str) -> None:
    """Before a handler looks at it."""
    body = f'{{"resourceType": "Parameters", "x": {value}}}'
    with pytest.raises(RequestError) as caught:
        await post(body.encode())
    status, code, diagnostics = refused(caught)
    assert (status, code) == (400, "value")
    assert word in diagnostics


async def test_a_slow_body_is_waited_for_no_longer_than_the_deadline(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A client that sends a byte every second holds its connection for half a minute."""

    async def receive() -> Message:
        await trio.sleep(1)
        return {"type": "http.request", "body": b" ", "more_body": True}

    started = trio.current_time()
    with pytest.raises(RequestError) as caught:
        await read_parameters(request("POST", b"", FHIR, receive), LIMIT)
    assert refused(caught)[:2] == (400, "timeout")
    assert trio.current_time() - started == BODY_DEADLINE


async def test_a_client_that_leaves_is_no_request() -> None:
    """Half a body is never read as a whole one."""

    async def receive() -> Message:
        await trio.lowlevel.checkpoint()
        return next(messages)

    body = json.dumps(parameters()).encode()
    messages: Iterator[Message] = iter(
        [
            {"type": "http.request", "body": body, "more_body": True},
            {"type": "http.disconnect"},
        ]
    )
    with pytest.raises(ClientDisconnect):
        await read_parameters(request("POST", b"", FHIR, receive), LIMIT)


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(
    _JSON
    | _JSON.map(parameters)
    | _JSON.map(lambda value: parameters({"name": "a", "valueString": value})),
    st.booleans(),
)
@example(parameters({"name": "a", "x": float("nan")}), False)
def test_what_is_accepted_can_be_stored(value: object, is_ascii: bool) -> None:
    """Either the body itself, storable, or a refusal with a client's status."""
    body = json.dumps(value, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
    try:
        found = trio.run(lambda: post(body, limit=10**6))
    except RequestError as error:
        status = error.status
    else:
        status = 200
        assert found == value
        encode_json(found, 10**6, "it")
    assert status in (200, 400)
