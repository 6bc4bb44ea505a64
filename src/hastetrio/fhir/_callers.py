"""Who makes a request, and whether the place it is addressed to is theirs."""

from __future__ import annotations

from typing import Final, Protocol

import attrs
from starlette.requests import Request

from hastetrio._errors import UnstorableValue
from hastetrio._model import SUBMITTER_LIMIT, submitter_of
from hastetrio._outcome import IssueType, Json
from hastetrio._storable import check_text
from hastetrio.fhir._errors import RequestError, not_found
from hastetrio.fhir._places import Place
from hastetrio.fhir._scopes import covers

TENANT_CLAIM: Final = "https://haste.health/tenant"
PROJECT_CLAIM: Final = "https://haste.health/project"

ANONYMOUS: Final = "anonymous"
"""The submitter of all jobs while no authenticator is configured."""

_CHALLENGE: Final = 'Bearer realm="hastetrio"'

# Seconds after which to try again while the keys are not to be had: they are asked for as often.
_UNAVAILABLE_RETRY: Final = 5


class InvalidToken(Exception):
    """A token that proves nothing; the text says why, without quoting it."""


class Authenticator(Protocol):
    """Says what a bearer token claims, when it can be believed."""

    async def claims_of(self, token: str) -> Json:
        """The verified claims of `token`.

        Raises:
            InvalidToken: It cannot be believed.
            AuthenticatorUnavailable: It cannot be checked now.
        """


class AuthenticatorUnavailable(Exception):
    """Tokens cannot be checked now: the keys are not to be had."""


@attrs.frozen
class Caller:
    """Whoever makes a request.

    Attributes:
        claims: The claims their jobs run as; never logged.
        submitter: As whom their jobs are submitted.
        is_verified: Whether a token proved it; nobody has to while there is no authenticator.
    """

    claims: Json = attrs.field(repr=False)
    submitter: str
    is_verified: bool = True

    def check_scope(self, scope: str | None) -> None:
        """See that the token covers a scope; None where any token will do.

        Raises:
            RequestError: It does not.
        """
        if scope is None or not self.is_verified:
            return
        if not covers(self.claims.get("scope"), scope):
            raise RequestError(
                403,
                IssueType.FORBIDDEN,
                f"The access token lacks the scope {scope}.",
                headers={
                    "WWW-Authenticate": f'{_CHALLENGE}, error="insufficient_scope", scope="{scope}"'
                },
            )


async def caller_of(request: Request, place: Place, authenticator: Authenticator | None) -> Caller:
    """Whoever makes the request.

    Raises:
        RequestError: 401 without a token that can be believed; 404 where tenant or project are
            not the token's; 503 while tokens cannot be checked.
    """
    if authenticator is None:
        return Caller({"sub": ANONYMOUS}, ANONYMOUS, is_verified=False)
    fields = request.headers.getlist("authorization")
    scheme, _, token = (fields[0] if len(fields) == 1 else "").strip(" \t").partition(" ")
    token = token.strip(" \t")
    if scheme.lower() != "bearer" or not token:
        raise _unauthorized("The request needs one access token: Authorization: Bearer <token>.")
    try:
        claims = await authenticator.claims_of(token)
    except AuthenticatorUnavailable as error:
        raise RequestError(
            503,
            IssueType.TRANSIENT,
            f"Access tokens cannot be checked now: {error}.",
            headers={"Retry-After": str(_UNAVAILABLE_RETRY)},
        ) from None
    except InvalidToken as error:
        raise _not_accepted(str(error)) from None
    try:
        submitter = check_text(submitter_of(claims), "the submitter", SUBMITTER_LIMIT)
    except (ValueError, UnstorableValue):
        raise _not_accepted("it names nobody who could be stored") from None
    if (claims.get(TENANT_CLAIM), claims.get(PROJECT_CLAIM)) != (place.tenant, place.project):
        raise not_found()
    return Caller(claims, submitter)


def _not_accepted(why: str) -> RequestError:
    return _unauthorized(f"The access token is not accepted: {why}.", ', error="invalid_token"')


def _unauthorized(diagnostics: str, more: str = "") -> RequestError:
    # RFC 6750 section 3.1: no error code for a request that came without a token.
    return RequestError(
        401,
        IssueType.LOGIN,
        diagnostics,
        headers={"WWW-Authenticate": f"{_CHALLENGE}{more}"},
    )
