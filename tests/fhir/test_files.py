"""Files of a result over HTTP: what is sent, and to whom."""

from __future__ import annotations

import gzip
from datetime import timedelta

import pytest
import trio
import trio.testing

from hastetrio.fhir._files import CHUNK
from hastetrio.memory import MemoryJobProvider

from .caller import SOON, Caller
from .downloads import LONG, NDJSON, Files, Unreadable, a_face, insert, path_of
from .harness import BASE, Tokens, client, issue_of


@pytest.mark.parametrize("content", [b"", b"x", LONG[:CHUNK], LONG[: CHUNK + 1], LONG])
async def test_a_file_is_sent_byte_for_byte(content: bytes) -> None:
    """Any length arrives whole with its length told, and the file is closed afterwards."""
    handler = Files(x=content)
    of = a_face(handler)
    caller = Caller()
    await caller.get(of, path_of(insert(of)))
    assert caller.status == 200
    assert caller.headers == {
        "content-type": NDJSON,
        "content-length": str(len(content)),
        "cache-control": "no-store",
        "vary": "Accept-Encoding",
    }
    assert caller.body == content
    assert caller.is_complete
    assert all(len(message["body"]) <= CHUNK for message in caller.taken[1:])
    assert handler.all_closed()


@pytest.mark.parametrize("content", [b"", b"x", LONG])
async def test_a_file_is_compressed_for_a_client_that_asks(content: bytes) -> None:
    """The gzip stream is whole, and no length is told, for it is not known before the end."""
    handler = Files(x=content)
    of = a_face(handler)
    caller = Caller()
    await caller.get(of, path_of(insert(of)), {"Accept-Encoding": "gzip"})
    assert caller.headers == {
        "content-type": NDJSON,
        "content-encoding": "gzip",
        "cache-control": "no-store",
        "vary": "Accept-Encoding",
    }
    assert gzip.decompress(caller.body) == content
    assert caller.is_complete
    # An empty message in the middle would end the answer on some servers.
    assert all(message["body"] for message in caller.taken[1:-1])
    assert handler.all_closed()


async def test_a_compressed_file_is_sent_while_it_is_read() -> None:
    """It is not gathered whole before the first byte is sent."""
    content = bytes(range(256)) * 40_000
    handler = Files(x=content)
    of = a_face(handler)
    caller = Caller(hold_after=2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(caller.get, of, path_of(insert(of)), {"Accept-Encoding": "gzip"})
        with trio.fail_after(SOON):
            await caller.is_holding.wait()
        assert 0 < handler.opened[0].tell() < len(content) / 2
        caller.gone.set()
    assert handler.all_closed()


async def test_a_client_that_takes_no_coding_is_told() -> None:
    """Refusing both codings is answered 406, before anything is opened."""
    handler = Files(x=LONG)
    of = a_face(handler)
    async with client(of) as http:
        answer = await http.get(path_of(insert(of)), headers={"Accept-Encoding": "identity;q=0"})
    status, code, diagnostics = issue_of(answer)
    assert (status, code) == (406, "not-supported")
    assert "Accept-Encoding" in diagnostics
    assert handler.opened == []


@pytest.mark.parametrize("accept", [NDJSON, "application/json", "text/html", "*/*;q=0"])
async def test_no_accept_header_refuses_a_file(accept: str) -> None:
    """Clients send the Accept of their other requests here too; there is one media type only."""
    handler = Files(x=LONG)
    of = a_face(handler)
    async with client(of) as http:
        answer = await http.get(path_of(insert(of)), headers={"Accept": accept})
    assert (answer.status_code, answer.content) == (200, LONG)


@pytest.mark.parametrize("coding", ["identity", "gzip"])
async def test_head_says_what_get_would_and_reads_nothing(coding: str) -> None:
    """HEAD has GET's header fields and no body, and the file is closed unread."""
    handler = Files(x=lambda: Unreadable(LONG), y=LONG)
    of = a_face(handler)
    id = insert(of)
    head, get = Caller(), Caller()
    await head.get(of, path_of(id, "x"), {"Accept-Encoding": coding}, method="HEAD")
    await get.get(of, path_of(id, "y"), {"Accept-Encoding": coding})
    assert head.taken == [get.taken[0], {"type": "http.response.body", "body": b""}]
    assert handler.all_closed()


async def test_whatever_is_not_there_gets_the_same_answer() -> None:
    """No answer tells another's job, a live, failed, cancelled or expired one from none at all."""
    handler = Files(x=LONG)
    tokens = Tokens()
    headers = tokens.add("mine", sub="ann")
    of = a_face(handler, authenticator=tokens)
    provider = of.provider
    assert isinstance(provider, MemoryJobProvider)
    mine = insert(of, submitted_by="ann")
    hidden = [
        path_of(mine, "y"),
        path_of("no-such-job"),
        path_of(insert(of, submitted_by="bob")),
        path_of(insert(of, submitted_by="ann", tenant="t2")),
        path_of(insert(of, submitted_by="ann", project="p2")),
        path_of(insert(of, submitted_by="ann", kind="other")),
        path_of(insert(of, "accepted", submitted_by="ann")),
        path_of(
            insert(
                of,
                "in-progress",
                submitted_by="ann",
                attempts=1,
                locked_by="w",
                lease_expires_at=provider._now() + timedelta(seconds=60),
            )
        ),
        path_of(insert(of, "failed", submitted_by="ann", error={})),
        path_of(insert(of, "cancelled", submitted_by="ann")),
        path_of(insert(of, submitted_by="ann", expires_at=provider._now() - timedelta(seconds=1))),
        path_of(mine).replace("/t1/", "/t2/"),
        path_of(mine).replace("/p1/", "/p2/"),
        path_of(mine, "x/y"),
        path_of(mine, ""),
        f"{BASE}/_async/{mine}/files",
        f"{BASE}/_async/{mine}/x",
    ]
    async with client(of, headers) as http:
        assert (await http.get(path_of(mine))).content == LONG
        answers = [await http.get(path) for path in hidden]
    for path, answer in zip(hidden, answers, strict=True):
        assert issue_of(answer)[:2] == (404, "not-found"), path
    assert len({(tuple(answer.headers.items()), answer.content) for answer in answers}) == 1
    assert len(handler.opened) == 1


async def test_a_file_needs_the_token_of_its_owner() -> None:
    """Without a token it is 401 (as Inferno checks it), and nothing is opened."""
    handler = Files(x=LONG)
    of = a_face(handler, authenticator=Tokens())
    async with client(of) as http:
        answer = await http.get(path_of(insert(of)))
    assert issue_of(answer)[:2] == (401, "login")
    assert handler.opened == []


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT"])
async def test_a_file_can_only_be_read(method: str) -> None:
    """Other methods are told which ones there are."""
    of = a_face(Files(x=LONG))
    async with client(of) as http:
        answer = await http.request(method, path_of(insert(of)))
    assert issue_of(answer)[:2] == (405, "not-supported")
    assert answer.headers["allow"] == "GET, HEAD"
