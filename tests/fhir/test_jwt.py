"""Which tokens are believed."""

from __future__ import annotations

import base64
import hmac
import json
import time
from typing import Any

import attrs
import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from hastetrio._errors import ConfigError
from hastetrio.fhir import _jwt
from hastetrio.fhir._callers import InvalidToken
from hastetrio.fhir._jwks import ALGORITHMS, KeySet, parse_key_set
from hastetrio.fhir._jwt import TOKEN_LIMIT, JwtAuthenticator

from . import tokens


@attrs.define
class Keys:
    """Keys that a test exchanges itself; `later` is what looking them up anew finds."""

    now: KeySet
    later: KeySet | None = None
    renewals: int = 0

    async def current(self) -> KeySet:
        """The keys."""
        return self.now

    async def renewed(self, old: KeySet) -> KeySet:
        """The later keys, from now on."""
        assert old is self.now
        self.renewals += 1
        self.now = self.later or self.now
        return self.now


def keys(*jwks: dict[str, Any]) -> Keys:
    """A source of these keys."""
    return Keys(parse_key_set(tokens.key_set(*jwks)))


def authenticator(source: Keys | None = None, **changed: Any) -> JwtAuthenticator:  # noqa: ANN401
    """One that trusts the issuer's usual key of each type."""
    usual: dict[str, Any] = {"issuer": tokens.ISSUER, "audience": tokens.AUDIENCE}
    source = source or keys(*(tokens.jwk(one, one) for one in ALGORITHMS))
    return JwtAuthenticator(source, **{**usual, **changed})


def unsigned(header: object, payload: object = None, signature: bytes = b"") -> str:
    """A token with any header, payload and signature at all."""
    parts = [json.dumps(header).encode(), json.dumps(payload or tokens.claims()).encode()]
    return ".".join(
        base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in [*parts, signature]
    )


async def refusal(authenticator: JwtAuthenticator, token: str) -> str:
    """Why a token is refused."""
    with pytest.raises(InvalidToken) as caught:
        await authenticator.claims_of(token)
    assert caught.value.__cause__ is None
    return str(caught.value)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_good_token_gives_its_claims(algorithm: str) -> None:
    """Each algorithm's tokens are believed, and all their claims are handed on."""
    claims = await authenticator().claims_of(tokens.token(algorithm, kid=algorithm, extra=[1]))
    assert claims["sub"] == "somebody"
    assert claims["extra"] == [1]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"iss": None}, "lacks one of the claims"),
        ({"aud": None}, "lacks one of the claims"),
        ({"exp": None}, "lacks one of the claims"),
        ({"iss": "https://other.example"}, "another issuer"),
        ({"iss": tokens.ISSUER + "/"}, "another issuer"),
        ({"iss": [tokens.ISSUER]}, "another issuer"),
        ({"aud": "https://other.example"}, "another audience"),
        ({"aud": ["a", "b"]}, "another audience"),
        ({"aud": {tokens.AUDIENCE: 1}}, "another audience"),
        ({"exp": 1}, "expired"),
        ({"exp": True}, "expired"),
        ({"exp": "soon"}, "no well-formed"),
        ({"exp": float("inf")}, "no well-formed"),
        ({"exp": float("nan")}, "no well-formed"),
        ({"exp": []}, "no well-formed"),
        ({"nbf": 2**40}, "not valid yet"),
        ({"iat": 2**40}, "not valid yet"),
        ({"nbf": "x"}, "no well-formed"),
        ({"sub": 7}, "no well-formed"),
    ],
)
async def test_signed_token_with_bad_claims_is_refused(changed: dict[str, Any], why: str) -> None:
    """A good signature is not enough: who, for whom and until when are looked at."""
    # The library's own encoder refuses some of these.
    signed = jwt.PyJWS().encode(
        json.dumps(tokens.claims(**changed)).encode(),
        tokens.private_key("ES256"),
        "ES256",
        {"kid": "ES256"},
    )
    assert why in await refusal(authenticator(), signed)


@pytest.mark.parametrize("claim", ["exp", "nbf", "iat"])
async def test_clocks_may_differ_by_the_leeway_and_no_more(claim: str) -> None:
    """Half of the leeway is bearable, thrice of it is not, in the direction of each claim."""
    sign = -1 if claim == "exp" else 1
    now = int(time.time())
    bearable: dict[str, Any] = {claim: now + sign * _jwt._LEEWAY // 2}
    assert await authenticator().claims_of(tokens.token(kid="ES256", **bearable))
    unbearable: dict[str, Any] = {claim: now + sign * _jwt._LEEWAY * 3}
    await refusal(authenticator(), tokens.token(kid="ES256", **unbearable))


async def test_one_of_several_audiences_is_enough() -> None:
    """Both sides may name several."""
    trusting = authenticator(audience=["first", "second"])
    assert await trusting.claims_of(tokens.token(kid="ES256", aud=["other", "second"]))
    assert "another audience" in await refusal(trusting, tokens.token(kid="ES256", aud="third"))


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", "", None, [], {"a": 1}, 7])
@pytest.mark.parametrize("signature", [b"", b"x"])
async def test_unsigned_token_is_refused(name: object, signature: bytes) -> None:
    """`alg: none` in any spelling, and what is no name at all."""
    token = unsigned({"alg": name, "kid": "ES256"}, signature=signature)
    assert "not accepted here" in await refusal(authenticator(), token)


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
async def test_public_key_is_no_shared_secret(algorithm: str) -> None:
    """A token signed by HMAC with the public key's text, as anybody can (RFC 8725 section 2.1)."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = tokens.private_key("RS256").public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signed = unsigned({"alg": algorithm, "kid": "RS256"}).rstrip(".")
    digest = hmac.new(pem, signed.encode(), algorithm.replace("HS", "sha")).digest()
    token = signed + "." + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    assert "not accepted here" in await refusal(authenticator(), token)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_wrong_key_is_refused(algorithm: str) -> None:
    """Another key of the same type under the trusted one's name."""
    token = tokens.token(algorithm, kid=algorithm, number=1)
    assert "signature is wrong" in await refusal(authenticator(), token)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("part", [0, 1, 2])
async def test_tampered_token_is_refused(algorithm: str, part: int) -> None:
    """No part of a token can be changed, nor taken from another token."""
    mine = tokens.token(algorithm, kid=algorithm).split(".")
    theirs = tokens.token(algorithm, kid=algorithm, header={"x": 1}, sub="else").split(".")
    mine[part] = theirs[part]
    assert "signature is wrong" in await refusal(authenticator(), ".".join(mine))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", ALGORITHMS)
async def test_key_is_used_with_its_own_algorithm_only(algorithm: str, name: str) -> None:
    """A token that names a key of another type than its algorithm's finds none."""
    token = tokens.token(algorithm, kid=name)
    if algorithm == name:
        assert await authenticator().claims_of(token)
    else:
        assert "not known here" in await refusal(authenticator(), token)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_only_configured_algorithms_are_accepted(algorithm: str) -> None:
    """The key may be there; the signature must be one of those configured all the same."""
    others = [one for one in ALGORITHMS if one != algorithm]
    token = tokens.token(algorithm, kid=algorithm)
    assert "not accepted here" in await refusal(authenticator(algorithms=others), token)
    assert await authenticator(algorithms=[algorithm]).claims_of(token)


async def test_nameless_key_serves_when_it_is_the_only_one_of_its_type() -> None:
    """A set may name no keys; then each type has one, or none can be chosen."""
    one = authenticator(keys(tokens.jwk("ES256", None), tokens.jwk("RS256", None)))
    assert await one.claims_of(tokens.token(kid=None))
    assert await one.claims_of(tokens.token(kid="whatever"))
    two = authenticator(keys(tokens.jwk("ES256", None), tokens.jwk("ES256", None, 1)))
    assert "not known here" in await refusal(two, tokens.token(kid=None))


async def test_named_key_serves_a_token_without_name_only_alone() -> None:
    """A token that names no key may mean the only one, but not one of two; nor another's name."""
    one = authenticator(keys(tokens.jwk("ES256", "a")))
    assert await one.claims_of(tokens.token(kid=None))
    assert "not known here" in await refusal(one, tokens.token(kid="b"))
    two = authenticator(keys(tokens.jwk("ES256", "a"), tokens.jwk("ES256", "b", 1)))
    assert "not known here" in await refusal(two, tokens.token(kid=None))
    assert await two.claims_of(tokens.token(kid="b", number=1))


async def test_unknown_key_is_looked_up_once_more() -> None:
    """A token signed with a key published since is believed."""
    source = keys(tokens.jwk(kid="old"))
    source.later = keys(tokens.jwk(kid="old"), tokens.jwk(kid="new", number=1)).now
    trusting = authenticator(source)
    assert await trusting.claims_of(tokens.token(kid="old"))
    assert source.renewals == 0
    assert await trusting.claims_of(tokens.token(kid="new", number=1))
    assert source.renewals == 1


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "...",
        "a.b.c",
        "a" * TOKEN_LIMIT,
        "e30.e30.e30",
        "\x00.\x00.\x00",
        "ey J9.e30.x",
        unsigned([]),
        unsigned("x"),
        unsigned(None),
        unsigned({}),
        unsigned({"alg": "ES256", "kid": 7}),
        unsigned({"alg": "ES256", "kid": ["ES256"]}),
        unsigned({"alg": "ES256", "crit": [[1]]}),
        "W1tb" * 3000 + "." + "e30.e30",
    ],
)
async def test_what_is_no_token_is_refused(token: str) -> None:
    """Text of any shape is refused without an error of any other kind."""
    await refusal(authenticator(), token)


@pytest.mark.parametrize("token", ["é", "eyJ\u0661", "\ud800", "Ā" * 10])
async def test_token_that_is_not_ascii_is_refused(token: str) -> None:
    """A token is ASCII; what cannot even be encoded is refused like the rest."""
    assert "no well-formed" in await refusal(authenticator(), token)


async def test_huge_token_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """One beyond the limit is not even taken apart; one within it is believed."""
    size = TOKEN_LIMIT * 3 // 4 - 1000
    assert await authenticator().claims_of(tokens.token(kid="ES256", pad="x" * size))
    huge = tokens.token(kid="ES256", pad="x" * TOKEN_LIMIT)
    monkeypatch.setattr(jwt, "get_unverified_header", None)
    assert "16,384 characters" in await refusal(authenticator(), huge)


async def test_encrypted_and_nested_tokens_are_refused() -> None:
    """Five parts (JWE), one that says it is compressed, and a token within a token."""
    jwe = unsigned({"alg": "RSA-OAEP", "enc": "A256GCM", "zip": "DEF"}) + ".e30.e30"
    assert "no well-formed" in await refusal(authenticator(), jwe)
    five = unsigned({"alg": "ES256", "kid": "ES256"}) + ".e30.e30"
    assert "no well-formed" in await refusal(authenticator(), five)
    nested = jwt.PyJWS().encode(
        tokens.token(kid="ES256").encode(),
        tokens.private_key("ES256"),
        "ES256",
        {"kid": "ES256", "cty": "JWT"},
    )
    assert "no well-formed" in await refusal(authenticator(), nested)


@pytest.mark.parametrize("crit", [["exp"], ["b64"], [], "x"])
async def test_critical_extension_is_refused(crit: object) -> None:
    """RFC 7515 section 4.1.11: who does not know an extension refuses the token."""
    header = {"alg": "ES256", "kid": "ES256", "crit": crit, "b64": True}
    signed = jwt.PyJWS().encode(
        json.dumps(tokens.claims()).encode(), tokens.private_key("ES256"), "ES256", {"kid": "ES256"}
    )
    payload = signed.split(".")[1]
    encoded = base64.urlsafe_b64encode(json.dumps(header).encode()).rstrip(b"=")
    signing = encoded + b"." + payload.encode()
    signature = jwt.get_algorithm_by_name("ES256").sign(signing, tokens.private_key("ES256"))
    token = signing + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")
    assert "signature" not in await refusal(authenticator(), token.decode())


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["a", "kid"]), inner),
    ),
    st.sampled_from(["kid", "crit", "b64", "alg", "typ", "jwk", "jku", "x5c", "zip"]),
)
async def test_any_header_is_refused_and_nothing_else(value: object, name: str) -> None:
    """Whatever a header holds, an unsigned token ends as one that is refused."""
    header = {"alg": "ES256", "kid": "ES256", name: value}
    await refusal(authenticator(), unsigned(header, signature=b"x" * 64))


@given(st.text(max_size=200))
async def test_any_text_is_refused_and_nothing_else(token: str) -> None:
    """Whatever the text is."""
    await refusal(authenticator(), token)


async def test_key_inside_the_token_is_not_trusted() -> None:
    """A token that brings its own key, or says where to fetch it, is not helped by that."""
    header = {
        "jwk": tokens.jwk(kid="k9", number=1),
        "jku": "http://127.0.0.1:1/",
        "x5u": "http://127.0.0.1:1/",
    }
    assert "not known here" in await refusal(
        authenticator(), tokens.token(kid="k9", number=1, header=header)
    )


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"issuer": ""}, "issuer is needed"),
        ({"issuer": None}, "issuer is needed"),
        ({"audience": ""}, "audience is needed"),
        ({"audience": []}, "audience is needed"),
        ({"audience": ["a", ""]}, "audience is needed"),
        ({"algorithms": []}, "algorithms are needed"),
        ({"algorithms": ["none"]}, "not 'none'"),
        ({"algorithms": ["RS256", "HS256"]}, "not 'HS256'"),
        ({"algorithms": "HS512"}, "not 'HS512'"),
        ({"algorithms": ["PS256"]}, "not 'PS256'"),
        ({"algorithms": [[]]}, "not []"),
    ],
)
def test_what_would_believe_too_much_cannot_be_configured(
    changed: dict[str, Any], what: str
) -> None:
    """No unsigned or shared-key tokens, and no authenticator that looks at less."""
    with pytest.raises(ConfigError) as caught:
        authenticator(**changed)
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


@attrs.define
class Count:
    """How often tokens were verified rather than remembered."""

    verified: int = 0


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Count:
    """Counts the verifications."""
    counted = Count()
    decode = jwt.decode

    def counting(*args: Any, **more: Any) -> Any:  # noqa: ANN401
        counted.verified += 1
        return decode(*args, **more)

    monkeypatch.setattr(jwt, "decode", counting)
    return counted


async def test_token_is_remembered_for_a_while(count: Count, mock_clock: MockClock) -> None:
    """A poller's token is verified once a minute, not once a poll."""
    trusting = authenticator()
    token = tokens.token(kid="ES256")
    first = await trusting.claims_of(token)
    mock_clock.jump(_jwt._REMEMBER - 1)
    assert await trusting.claims_of(token) == first
    assert count.verified == 1
    mock_clock.jump(1)
    await trusting.claims_of(token)
    assert count.verified == 2


async def test_remembered_claims_cannot_be_changed_by_a_caller(count: Count) -> None:
    """What one request does to its claims is not seen by the next."""
    trusting = authenticator()
    token = tokens.token(kid="ES256", roles=["reader"])
    for _ in range(3):
        claims = await trusting.claims_of(token)
        assert claims["roles"] == ["reader"]
        claims["roles"].append("owner")
        claims["sub"] = "else"
    assert count.verified == 1


async def test_remembered_token_expires(count: Count, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token is not remembered beyond its own end, though the minute is not over."""
    trusting = authenticator()
    ends = int(time.time()) + 100
    token = tokens.token(kid="ES256", exp=ends)
    await trusting.claims_of(token)
    await trusting.claims_of(token)
    assert count.verified == 1
    monkeypatch.setattr(_jwt, "time", Stopped(ends + _jwt._LEEWAY))
    await trusting.claims_of(token)
    assert count.verified == 2


@attrs.frozen
class Stopped:
    """A `time` module that stands still."""

    now: float

    def time(self) -> float:
        """The time."""
        return self.now


async def test_remembered_token_ends_with_its_key() -> None:
    """When the set is read anew without its key, the token is not believed any more."""
    source = keys(tokens.jwk(kid="a"), tokens.jwk(kid="b", number=1))
    trusting = authenticator(source)
    token = tokens.token(kid="a")
    await trusting.claims_of(token)
    source.now = source.later = keys(tokens.jwk(kid="b", number=1)).now
    assert "not known here" in await refusal(trusting, token)
    assert await trusting.claims_of(tokens.token(kid="b", number=1))
    assert "not known here" in await refusal(trusting, token)


async def test_refused_token_is_not_remembered(count: Count) -> None:
    """A refusal is worked out anew each time, and never turns into belief."""
    trusting = authenticator()
    token = tokens.token(kid="ES256", iss="https://other.example")
    await refusal(trusting, token)
    await refusal(trusting, token)
    assert count.verified == 2


async def test_remembered_tokens_are_bounded(count: Count, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more tokens than the limit, the longest unused are forgotten."""
    monkeypatch.setattr(_jwt, "_MOST_REMEMBERED", 3)
    trusting = authenticator()
    some = [tokens.token(kid="ES256", sub=f"s{n}") for n in range(4)]
    for token in [*some[:3], some[0], some[3]]:
        await trusting.claims_of(token)
    assert count.verified == 4
    await trusting.claims_of(some[0])
    assert count.verified == 4
    await trusting.claims_of(some[1])
    assert count.verified == 5
    assert len(trusting._remembered) == 3


def test_nothing_printed_shows_a_token() -> None:
    """What is remembered is keyed by a digest, and prints no claims."""
    token = tokens.token(sub="secret-subject")
    remembered = _jwt._Verified(token, 0.0, 0.0)
    assert token not in repr(remembered)
    (key,) = keys(tokens.jwk()).now.keys
    assert tokens.jwk()["x"] not in repr(key)
