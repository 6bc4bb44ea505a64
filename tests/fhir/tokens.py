"""An issuer of tokens for tests: keys of each type, key sets and what is signed with them."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Mapping
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from hastetrio.fhir._callers import PROJECT_CLAIM, TENANT_CLAIM

ISSUER: Final = "https://issuer.example"
AUDIENCE: Final = "https://fhir.example.org"


def private_key(algorithm: str, number: int = 0) -> Any:  # noqa: ANN401  # of three unrelated types
    """A private key for an algorithm; each number is another, the same all session long."""
    return _made(algorithm, number)


@functools.cache
def _made(algorithm: str, number: int) -> Any:  # noqa: ANN401
    if algorithm == "RS256":
        return rsa.generate_private_key(65537, 2048)
    if algorithm == "ES256":
        return ec.generate_private_key(ec.SECP256R1())
    assert algorithm == "EdDSA"
    return ed25519.Ed25519PrivateKey.generate()


def jwk(
    algorithm: str = "ES256", kid: str | None = "k1", number: int = 0, **more: object
) -> dict[str, Any]:
    """The public half of a key as a JWK, with further members."""
    return {**_as_jwk(algorithm, private_key(algorithm, number).public_key()), **_kid(kid), **more}


def private_jwk(algorithm: str = "ES256", kid: str | None = "k1") -> dict[str, Any]:
    """A whole key as a JWK, such as belongs into no published set."""
    return {**_as_jwk(algorithm, private_key(algorithm)), **_kid(kid)}


def _as_jwk(algorithm: str, key: Any) -> dict[str, Any]:  # noqa: ANN401
    kinds: dict[str, Any] = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}
    data: dict[str, Any] = kinds[algorithm].to_jwk(key, as_dict=True)
    # The library writes what a private RSA key is for; a test says itself what a key is for.
    data.pop("key_ops", None)
    return data


def _kid(kid: str | None) -> dict[str, str]:
    return {} if kid is None else {"kid": kid}


def key_set(*keys: Mapping[str, object]) -> bytes:
    """A JSON Web Key Set."""
    return json.dumps({"keys": keys}).encode()


def claims(**changed: object) -> dict[str, Any]:
    """The claims of a good token for tenant t1, project p1; None takes one away."""
    now = int(time.time())
    usual = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "somebody",
        "iat": now,
        "exp": now + 3600,
        "scope": "system/*.rs",
        TENANT_CLAIM: "t1",
        PROJECT_CLAIM: "p1",
    }
    return {name: value for name, value in {**usual, **changed}.items() if value is not None}


def token(
    algorithm: str = "ES256",
    *,
    kid: str | None = "k1",
    number: int = 0,
    header: Mapping[str, object] | None = None,
    **changed: object,
) -> str:
    """A signed token: the usual claims, changed where told so.

    Args:
        algorithm: How it is signed.
        kid: The key's name in its header; None for none.
        number: Which key of that type signs.
        header: Further members of its header.
        changed: Claims to set, or to take away with None.
    """
    return jwt.encode(
        claims(**changed),
        private_key(algorithm, number),
        algorithm,
        headers={**_kid(kid), **(header or {})},
    )


def bearer(token: str) -> dict[str, str]:
    """The header field that presents a token."""
    return {"Authorization": f"Bearer {token}"}
