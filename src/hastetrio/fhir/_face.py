"""What the endpoints share: the storage, the handlers, and how to answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Final
from urllib.parse import quote

import attrs
from starlette.responses import Response

from hastetrio._errors import ConfigError
from hastetrio._handler import JobHandler
from hastetrio._http_config import HttpConfig
from hastetrio._model import FHIR_JSON
from hastetrio._operation import Level
from hastetrio._outcome import Issue, IssueType, outcome_json
from hastetrio._provider import AsyncJobProvider
from hastetrio.fhir._callers import Authenticator
from hastetrio.fhir._places import Place
from hastetrio.fhir._polls import PollLimiter

# Answers are about a moment; a cached one would show a job as running for ever.
_NEVER_CACHED: Final = {"Cache-Control": "no-store"}


@attrs.define(eq=False)
class Face:
    """One HTTP face.

    Attributes:
        provider: Where the jobs are.
        handlers: The handlers by kind, whose operations can be kicked off.
        config: How the face behaves.
        authenticator: Says who calls; None where nobody needs to prove it.
        polls: Holds clients to what they were told.
        retention: Seconds a job that is kicked off here is kept, from now and from its end.
    """

    provider: AsyncJobProvider
    handlers: Mapping[str, JobHandler]
    config: HttpConfig
    authenticator: Authenticator | None
    retention: float
    polls: PollLimiter = attrs.field(factory=PollLimiter)

    def handler_for(self, name: str, level: Level, type: str | None) -> JobHandler | None:
        """The handler whose operation of that name can be invoked there."""
        for handler in self.handlers.values():
            operation = handler.operation
            if operation is not None and operation.name == name and operation.is_at(level, type):
                return handler
        return None

    def url(self, place: Place, *segments: str) -> str:
        """The public address of something behind the base of a place.

        It is made of what was configured, never of the request's Host: that is the client's to
        choose, and a proxy's to change.
        """
        encoded = (quote(segment, safe="$") for segment in segments)
        return "/".join((self.config.public_url.rstrip("/") + place.base, *encoded))


def check_operations(handlers: Iterable[JobHandler]) -> None:
    """See that no two handlers can be started by one kick-off.

    Raises:
        ConfigError: Two can.
    """
    declared = [(one, one.operation) for one in handlers if one.operation is not None]
    for (first, ours), (second, theirs) in combinations(declared, 2):
        together = ours.levels & theirs.levels
        if ours.name != theirs.name or not together:
            continue
        # At system level there is no type to tell them apart.
        alike = not ours.types or not theirs.types or ours.types & theirs.types
        if alike or Level.SYSTEM in together:
            raise ConfigError(
                f"${ours.name} at {min(together)} level starts jobs of both {first.kind!r} and "
                f"{second.kind!r}: give their operations other names, levels or types"
            )


def json_response(
    value: object,
    status: int = 200,
    *,
    content_type: str = FHIR_JSON,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """An answer in JSON that nobody may cache."""
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    # Starlette's own media_type would add a charset, which neither media type has.
    fields = {"Content-Type": content_type, **_NEVER_CACHED, **(headers or {})}
    return Response(body, status, headers=fields)


def information(
    status: int, diagnostics: str, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer that says what is so, as an OperationOutcome."""
    issue = Issue(IssueType.INFORMATIONAL, diagnostics, "information")
    return json_response(outcome_json((issue,)), status, headers=headers)
