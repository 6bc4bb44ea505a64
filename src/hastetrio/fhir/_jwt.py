"""Bearer tokens that are JSON Web Tokens (RFC 7519), verified as RFC 8725 advises."""

from __future__ import annotations

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

import attrs
import jwt
import trio

from hastetrio._errors import ConfigError
from hastetrio._outcome import Json
from hastetrio.fhir._callers import InvalidToken
from hastetrio.fhir._jwks import ALGORITHMS, KeySet, KeySource

TOKEN_LIMIT: Final = 16 * 1024
"""The most characters of a token; reading the parts of one that long takes a millisecond."""

# Seconds a token may be too old or too young for our clock. Machines that keep their time by NTP
# differ by less than one; this also bears a virtual machine that was just resumed. RFC 7519
# section 4.1.4: "usually no more than a few minutes".
_LEEWAY: Final = 10

# Seconds a verified token is remembered, and how many are. Verifying takes 140 to 200 microseconds
# (RS256 to EdDSA, tokens of 1 KB, measured), a sixth of the 960 that answering a poll takes in all;
# finding a remembered one takes 5. A poller sends the same token each second.
_REMEMBER: Final = 60.0
_MOST_REMEMBERED: Final = 1000

# What is wrong with a token, in words that quote nothing of it.
_REASONS: Final[tuple[tuple[type[jwt.PyJWTError], str], ...]] = (
    (jwt.ExpiredSignatureError, "it has expired"),
    (jwt.ImmatureSignatureError, "it is not valid yet"),
    (jwt.InvalidIssuerError, "it is from another issuer"),
    (jwt.InvalidAudienceError, "it is meant for another audience"),
    (jwt.MissingRequiredClaimError, "it lacks one of the claims exp, iss and aud"),
    (jwt.InvalidSignatureError, "its signature is wrong"),
)


@attrs.frozen
class _Verified:
    """A token that was believed: its claims as JSON, and when that ends."""

    claims: str = attrs.field(repr=False)
    until: float
    expires: float


class JwtAuthenticator:
    """Believes tokens signed by a key of `keys` that are from `issuer`, for `audience`, and valid.

    Args:
        keys: The issuer's public keys: a `JwksFile` or a `JwksUrl`.
        issuer: The claim `iss` that a token must have.
        audience: What a token's claim `aud` must be or contain; of several, one.
        algorithms: The signatures accepted, of `RS256`, `ES256` and `EdDSA`.

    Raises:
        ConfigError: A value cannot be used; the text names it.
    """

    def __init__(
        self,
        keys: KeySource,
        *,
        issuer: str,
        audience: str | Iterable[str],
        algorithms: Iterable[str] = ALGORITHMS,
    ) -> None:
        audiences = (audience,) if isinstance(audience, str) else tuple(audience)
        accepted = (algorithms,) if isinstance(algorithms, str) else tuple(algorithms)
        if not isinstance(issuer, str) or not issuer:
            raise ConfigError("issuer is needed: the claim iss of the tokens to accept")
        if not audiences or not all(isinstance(one, str) and one for one in audiences):
            raise ConfigError("audience is needed: the claim aud of the tokens to accept")
        if not accepted:
            raise ConfigError(f"algorithms are needed, of {', '.join(ALGORITHMS)}")
        for one in accepted:
            if one not in ALGORITHMS:
                raise ConfigError(f"algorithms must be of {', '.join(ALGORITHMS)}, not {one!r}")
        self._source = keys
        self._issuer = issuer
        self._audiences = audiences
        self._algorithms = frozenset(accepted)
        self._remembered: OrderedDict[bytes, _Verified] = OrderedDict()
        self._remembered_with: KeySet | None = None

    async def claims_of(self, token: str) -> Json:
        """The claims of a token, a dict of the caller's own.

        Cancellation: nothing is left half-done; the next caller is served as if it were the first.

        Raises:
            InvalidToken: It cannot be believed.
            AuthenticatorUnavailable: The keys are not to be had now.
        """
        if len(token) > TOKEN_LIMIT:
            raise InvalidToken(f"it has more than {TOKEN_LIMIT:,} characters")
        if not token.isascii():
            raise InvalidToken("it is no well-formed JSON Web Token")
        keys = await self._source.current()
        digest = hashlib.sha256(token.encode()).digest()
        remembered = self._recalled(digest, keys)
        if remembered is not None:
            return remembered
        algorithm, kid = self._header(token)
        key = keys.key_for(algorithm, kid)
        if key is None:
            keys = await self._source.renewed(keys)
            key = keys.key_for(algorithm, kid)
        if key is None:
            raise InvalidToken("it is signed with a key that is not known here")
        try:
            # The key is bound to its algorithm, and the token has no say in it.
            claims = jwt.decode(
                token,
                key.jwk,
                algorithms=[key.algorithm],
                issuer=self._issuer,
                audience=self._audiences,
                leeway=_LEEWAY,
                options={"require": ["exp", "iss", "aud"]},
            )
        except Exception as error:  # noqa: BLE001  # whatever a hostile token does to the library
            raise InvalidToken(_reason(error)) from None
        self._remember(digest, keys, claims)
        return claims

    def _header(self, token: str) -> tuple[str, str | None]:
        """The algorithm and the key's name, as the token itself says; nothing is verified."""
        try:
            header = jwt.get_unverified_header(token)
        except Exception:  # noqa: BLE001  # whatever a hostile token does to the library
            raise InvalidToken("it is no well-formed JSON Web Token") from None
        algorithm, kid = header.get("alg"), header.get("kid")
        if "crit" in header:
            # RFC 7515 section 4.1.11: refused by whoever does not know the extension; we know none.
            raise InvalidToken("it needs an extension that is not known here")
        if not isinstance(algorithm, str) or algorithm not in self._algorithms:
            raise InvalidToken("it is signed in a way that is not accepted here")
        if not isinstance(kid, str | None):
            raise InvalidToken("it is no well-formed JSON Web Token")
        return algorithm, kid

    def _recalled(self, digest: bytes, keys: KeySet) -> Json | None:
        if keys is not self._remembered_with:
            # The key that verified one of them may be among those that were dropped.
            self._remembered.clear()
            return None
        found = self._remembered.get(digest)
        if found is None:
            return None
        # Both clocks: that of the loop stands still while a machine is suspended.
        if trio.current_time() >= found.until or time.time() >= found.expires:
            del self._remembered[digest]
            return None
        self._remembered.move_to_end(digest)
        claims: dict[str, Any] = json.loads(found.claims)
        return claims

    def _remember(self, digest: bytes, keys: KeySet, claims: Json) -> None:
        if keys is not self._remembered_with:
            self._remembered.clear()
            self._remembered_with = keys
        until = trio.current_time() + _REMEMBER
        self._remembered[digest] = _Verified(
            json.dumps(claims), until, int(claims["exp"]) + _LEEWAY
        )
        if len(self._remembered) > _MOST_REMEMBERED:
            self._remembered.popitem(last=False)


def _reason(error: Exception) -> str:
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return reason
    return "it is no well-formed JSON Web Token"
