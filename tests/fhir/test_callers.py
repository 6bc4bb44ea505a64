"""Who may: what the application answers to tokens of every kind."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx2
import jwt
import pytest
from trio.testing import MockClock

from hastetrio._model import CreateAsyncJob
from hastetrio._operation import Operation
from hastetrio.fhir import AuthenticatorUnavailable, Face
from hastetrio.fhir._callers import PROJECT_CLAIM, TENANT_CLAIM
from hastetrio.fhir._jwks import ALGORITHMS, JwksFile
from hastetrio.fhir._jwks_url import JwksUrl
from hastetrio.fhir._jwt import JwtAuthenticator

from . import tokens
from .harness import BASE, PREFER, check_outcome, client, face, handler, issue_of, stored

STATUS: Final = f"{BASE}/_async/none"
ALL: Final = (
    ("GET", f"{BASE}/$work"),
    ("POST", f"{BASE}/$work"),
    ("GET", f"{BASE}/_async"),
    ("GET", STATUS),
    ("DELETE", STATUS),
    ("GET", f"{STATUS}/files/a.ndjson"),
)
"""Every verb and address that needs a token."""


@pytest.fixture
def secured(tmp_path: Path) -> Face:
    """A face that believes the issuer's tokens."""
    path = tmp_path / "jwks.json"
    path.write_bytes(tokens.key_set(*(tokens.jwk(one, one) for one in ALGORITHMS)))
    return face(
        [handler(), handler("any", Operation(name="any", scope=None))],
        authenticator=JwtAuthenticator(
            JwksFile(path), issuer=tokens.ISSUER, audience=tokens.AUDIENCE
        ),
    )


def good(**changed: object) -> str:
    """A token that is believed."""
    return tokens.token(kid="ES256", **changed)  # type: ignore[arg-type]


def forged(header: dict[str, object], secret: bytes = b"") -> str:
    """A token that is unsigned, or signed with a shared secret."""
    parts = [json.dumps(header).encode(), json.dumps(tokens.claims()).encode()]
    signing = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    signature = hmac.new(secret, signing, hashlib.sha256).digest() if secret else b""
    return (signing + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


def nested() -> str:
    """A token that holds a token."""
    return jwt.PyJWS().encode(
        good().encode(),
        tokens.private_key("ES256"),
        "ES256",
        {"kid": "ES256", "cty": "JWT", "zip": "DEF"},
    )


async def count_of_jobs(secured: Face) -> int:
    """How many jobs were queued."""
    return len(await stored(secured))


HOSTILE: Final = {
    "alg none": lambda: forged({"alg": "none"}),
    "alg None": lambda: forged({"alg": "None", "kid": "ES256"}),
    "HS256 with the public key": lambda: forged(
        {"alg": "HS256", "kid": "RS256"}, tokens.key_set(tokens.jwk("RS256"))
    ),
    "wrong key": lambda: tokens.token(kid="ES256", number=1),
    "unknown key": lambda: tokens.token(kid="k9", number=1),
    "another type's key": lambda: tokens.token("RS256", kid="ES256"),
    "wrong issuer": lambda: good(iss="https://other.example"),
    "wrong audience": lambda: good(aud="https://other.example"),
    "expired": lambda: good(exp=1),
    "not yet valid": lambda: good(nbf=2**40),
    "issued later": lambda: good(iat=2**40),
    "no exp": lambda: good(exp=None),
    "no sub": lambda: good(sub=None),
    "empty sub": lambda: good(sub=""),
    "sub that cannot be stored": lambda: good(sub="a\0b"),
    "endless sub": lambda: good(sub="a" * 1025),
    "huge": lambda: good(pad="x" * 20_000),
    "no token at all": lambda: "secret",
    "two words": lambda: "a b",
    "cut": lambda: good()[:-1],
    "encrypted": lambda: forged({"alg": "dir", "enc": "A256GCM", "zip": "DEF"}) + ".e30.e30",
    "nested": nested,
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_token_is_refused_alike_everywhere(secured: Face, name: str) -> None:
    """401 with an OperationOutcome and what is asked for, on every verb, and nothing is queued."""
    token = HOSTILE[name]()
    async with client(secured, {**PREFER, **tokens.bearer(token)}) as http:
        answers = [await http.request(method, url) for method, url in ALL]
    for answer in answers:
        status, code, diagnostics = issue_of(answer)
        assert (status, code) == (401, "login")
        assert diagnostics.startswith("The access token is not accepted: ")
        assert answer.headers["www-authenticate"] == (
            'Bearer realm="hastetrio", error="invalid_token"'
        )
        assert token not in answer.text
    assert await count_of_jobs(secured) == 0


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [b""],
        [b"Bearer"],
        [b"Bearer "],
        [b"Basic c2VjcmV0OnNlY3JldA=="],
        [b"Bearer%s"],
        [b"%s"],
        [b"Bearer %s", b"Bearer %s"],
        [b"Bearer %s", b"Basic c2VjcmV0"],
        [b"Bearer %s", b""],
    ],
)
async def test_request_without_one_token_is_refused(secured: Face, fields: list[bytes]) -> None:
    """No field, another scheme, or several: 401 without an error code (RFC 6750 section 3.1)."""
    headers = [(b"Authorization", field.replace(b"%s", good().encode())) for field in fields]
    async with client(secured) as http:
        for method, url in ALL:
            answer = await http.request(
                method, url, headers=[(b"Prefer", b"respond-async"), *headers]
            )
            assert issue_of(answer)[:2] == (401, "login")
            assert answer.headers["www-authenticate"] == 'Bearer realm="hastetrio"'
    assert await count_of_jobs(secured) == 0


@pytest.mark.parametrize("token", [b"\xe9\xff", b"a.b.\xa0", b"\xc3\xa9.e30.e30"])
async def test_token_that_is_not_ascii_is_refused(secured: Face, token: bytes) -> None:
    """Bytes that are no text are no token either."""
    async with client(secured) as http:
        answer = await http.get(STATUS, headers=[(b"Authorization", b"Bearer " + token)])
    assert issue_of(answer)[0] == 401


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER ", "Bearer   "])
async def test_good_token_starts_a_job_as_its_subject(
    secured: Face, algorithm: str, scheme: str
) -> None:
    """The scheme's name is in any case (RFC 9110 section 11.1); the job has the token's claims."""
    token = tokens.token(algorithm, kid=algorithm, sub="alice", extra=1)
    async with client(secured, {**PREFER, "Authorization": scheme + token}) as http:
        answer = await http.get(f"{BASE}/$work")
        assert answer.status_code == 202
        assert (await http.get(answer.headers["content-location"])).status_code == 202
    (job,) = await stored(secured)
    assert job.submitted_by == "alice"
    assert job.claims["extra"] == 1


async def test_user_id_goes_before_the_subject(secured: Face) -> None:
    """As Haste's own server has it; a token with it alone is enough."""
    user: dict[str, Any] = {"https://haste.health/user_id": "u1"}
    async with client(secured, PREFER) as http:
        for sub in ("client", None):
            answer = await http.get(f"{BASE}/$work", headers=tokens.bearer(good(sub=sub, **user)))
            assert answer.status_code == 202
    assert [job.submitted_by for job in await stored(secured)] == ["u1", "u1"]


@pytest.mark.parametrize(
    "scope", [None, "", "system/*.r", "system/Patient.rs", "user/*.rs", "system/*.rs?a=b", 7, {}]
)
async def test_missing_scope_is_forbidden(secured: Face, scope: object) -> None:
    """403 that names the scope; what needs none is open to the same token."""
    async with client(secured, {**PREFER, **tokens.bearer(good(scope=scope))}) as http:
        for method in ("GET", "POST"):
            answer = await http.request(method, f"{BASE}/$work")
            assert issue_of(answer)[:2] == (403, "forbidden")
            assert "system/*.rs" in answer.text
            assert answer.headers["www-authenticate"] == (
                'Bearer realm="hastetrio", error="insufficient_scope", scope="system/*.rs"'
            )
        assert await count_of_jobs(secured) == 0
        assert (await http.get(f"{BASE}/$any")).status_code == 202


async def test_foreign_is_answered_as_unknown_byte_for_byte(secured: Face) -> None:
    """Another tenant, another project, another subject, an unknown job: one and the same 404."""
    created = await secured.provider.create_job(
        "t1", "p1", CreateAsyncJob(kind="work", claims={"sub": "alice"})
    )
    theirs = (
        {"sub": "bob"},
        {"sub": "alice", TENANT_CLAIM: "t2"},
        {"sub": "alice", PROJECT_CLAIM: "p2"},
        {"sub": "alice", TENANT_CLAIM: None},
        {"sub": "alice", PROJECT_CLAIM: None},
        {"sub": "alice", TENANT_CLAIM: ["t1"]},
        {"sub": "alice", TENANT_CLAIM: "T1"},
    )
    job = f"{BASE}/_async/{created.id}"
    async with client(secured, PREFER) as http:
        mine = tokens.bearer(good(sub="alice"))
        unknown = await http.get(STATUS, headers=mine)
        assert issue_of(unknown)[:2] == (404, "not-found")
        for changed in theirs:
            headers = tokens.bearer(good(**changed))
            for method, url in (
                ("GET", job),
                ("DELETE", job),
                ("GET", f"{job}/files/a.ndjson"),
                ("GET", STATUS),
            ):
                _check_same(await http.request(method, url, headers=headers), unknown)
            if changed != {"sub": "bob"}:
                for method, url in (("GET", f"{BASE}/$work"), ("GET", f"{BASE}/_async")):
                    _check_same(await http.request(method, url, headers=headers), unknown)
            head = await http.head(job, headers=headers)
            assert (head.status_code, head.content) == (404, b"")
        assert (await http.get(job, headers=mine)).status_code == 202
    assert await count_of_jobs(secured) == 1


def _check_same(answer: httpx2.Response, other: httpx2.Response) -> None:
    assert answer.status_code == other.status_code
    assert answer.content == other.content
    assert answer.headers.raw == other.headers.raw


async def test_nothing_is_told_about_a_place_without_its_token(secured: Face) -> None:
    """Without a token an existing job and an unknown one are answered alike."""
    created = await secured.provider.create_job(
        "t1", "p1", CreateAsyncJob(kind="work", claims={"sub": "alice"})
    )
    async with client(secured) as http:
        _check_same(await http.get(f"{BASE}/_async/{created.id}"), await http.get(STATUS))


async def test_keys_that_are_away_are_no_fault_of_the_token() -> None:
    """503 to be repeated, with nothing about where the keys would be."""
    authenticator = JwtAuthenticator(
        JwksUrl("http://127.0.0.1:1/jwks.json"), issuer=tokens.ISSUER, audience=tokens.AUDIENCE
    )
    async with client(face(authenticator=authenticator), tokens.bearer(good())) as http:
        answer = await http.get(STATUS)
    assert issue_of(answer)[:2] == (503, "transient")
    assert answer.headers["retry-after"] == "5"
    assert "127.0.0.1" not in answer.text


class _Failing:
    """An authenticator with a fault of its own."""

    async def claims_of(self, token: str) -> dict[str, Any]:
        """Fail."""
        raise ValueError("a fault")


async def test_fault_of_an_authenticator_is_not_blamed_on_the_token(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """500: a client that was told 401 would fetch token after token."""
    async with client(face(authenticator=_Failing()), tokens.bearer(good())) as http:
        answer = await http.get(STATUS)
    assert issue_of(answer)[:2] == (500, "exception")
    assert good() not in caplog.text


async def test_without_an_authenticator_all_are_anonymous() -> None:
    """A token that comes all the same is not looked at."""
    open_to_all = face()
    async with client(open_to_all, {**PREFER, **tokens.bearer("whatever")}) as http:
        answer = await http.get(f"{BASE}/$work")
        assert answer.status_code == 202
        assert (await http.get(answer.headers["content-location"])).status_code == 202
    (job,) = await stored(open_to_all)
    assert job.submitted_by == "anonymous"


@asynccontextmanager
async def recorded(caplog: pytest.LogCaptureFixture) -> AsyncIterator[list[str]]:
    """Everything that anything logs meanwhile, whole, at every level."""
    told: list[str] = []
    with caplog.at_level(logging.DEBUG):
        for name in list(logging.root.manager.loggerDict):
            caplog.set_level(logging.DEBUG, name)
        yield told
        formatter = logging.Formatter("%(message)s")
        for record in caplog.records:
            told.append(formatter.format(record))
            told.append(repr(record.__dict__))


async def test_no_token_claim_or_key_is_ever_told(
    tmp_path: Path, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a log record nor an answer shows any part of a token, a claim's value or a key."""
    secret: dict[str, Any] = {
        "sub": "SECRET-subject",
        "jti": "SECRET-number",
        "client_id": "SECRET-client",
        "scope": "system/*.rs launch/SECRET-scope",
        "https://haste.health/user_id": "SECRET-user",
        "https://haste.health/membership": {"role": ["SECRET-role"]},
    }
    path = tmp_path / "jwks.json"
    path.write_bytes(tokens.key_set(*(tokens.jwk(one, f"SECRET-kid-{one}") for one in ALGORITHMS)))
    secured = face(
        authenticator=JwtAuthenticator(
            JwksFile(path), issuer=tokens.ISSUER, audience=tokens.AUDIENCE
        )
    )
    kid = "SECRET-kid-ES256"
    presented = [
        tokens.token(kid=kid, **secret),
        tokens.token("RS256", kid="SECRET-kid-RS256", **secret),
        tokens.token("EdDSA", kid="SECRET-kid-EdDSA", **secret),
        tokens.token(kid=kid, number=1, **secret),
        tokens.token(kid="SECRET-kid", number=1, **secret),
        *(
            tokens.token(kid=kid, **{**secret, **changed})
            for changed in (
                {"exp": 1},
                {"iss": "https://SECRET-issuer.example"},
                {"aud": "SECRET-audience"},
                {"scope": "SECRET-scope"},
                {"sub": "SECRET-subject\0", "https://haste.health/user_id": None},
                {"exp": "SECRET-exp"},
                {TENANT_CLAIM: "SECRET-tenant"},
                {PROJECT_CLAIM: "SECRET-project"},
            )
        ),
        forged({"alg": "SECRET-none", "kid": "SECRET-kid"}),
        "SECRET-not-a-token",
        "SECRET-x" * 4000,
    ]
    answers: list[httpx2.Response] = []
    async with recorded(caplog) as told, client(secured, PREFER) as http:
        for token in [*presented, *presented]:
            for method, url in ALL:
                answers.append(await http.request(method, url, headers=tokens.bearer(token)))
        field = (b"Authorization", presented[0].encode())
        answers.append(await http.get(STATUS, headers=[field]))
        answers.append(await http.get(STATUS, headers=[field, field]))
        # The keys are read anew, break, and are emptied.
        for text in (tokens.key_set(tokens.jwk(kid=kid)), b'{"keys": ["SECRET', tokens.key_set()):
            path.write_bytes(text)
            mock_clock.jump(2)
            answers.append(await http.get(STATUS, headers=tokens.bearer(presented[0])))
    assert {answer.status_code for answer in answers} == {200, 202, 401, 403, 404}
    assert any("anew" in line for line in told), "the log was not recorded"
    for answer in answers:
        told.append(repr(answer.headers.raw) + answer.text)
        if answer.status_code not in (200, 202):
            check_outcome(answer)
    everything = "\n".join(told)
    assert "SECRET" not in everything
    for token in presented:
        for part in token.split("."):
            # The empty signature of the unsigned one is in every text.
            assert not part or part not in everything
    for algorithm in ALGORITHMS:
        key = tokens.jwk(algorithm)
        assert all(key[name] not in everything for name in ("n", "x", "y") if name in key)


def test_caller_prints_no_claims() -> None:
    """What stands in a traceback's or debugger's line about a caller shows none."""
    from hastetrio.fhir._callers import Caller

    assert "secret" not in repr(Caller({"sub": "a", "x": "secret"}, "a"))


async def test_unavailable_authenticator_of_ones_own_is_503() -> None:
    """The protocol's other error is answered the same way, whoever raises it."""

    class Away:
        async def claims_of(self, token: str) -> dict[str, Any]:
            raise AuthenticatorUnavailable("somebody else's words")

    async with client(face(authenticator=Away()), tokens.bearer("x")) as http:
        assert issue_of(await http.get(STATUS))[:2] == (503, "transient")
