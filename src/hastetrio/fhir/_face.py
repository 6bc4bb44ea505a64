"""What the endpoints share: the storage, the handlers, and how to answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
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
    seen: dict[tuple[str, Level], JobHandler] = {}
    for handler in handlers:
        operation = handler.operation
        for level in () if operation is None else operation.levels:
            other = seen.setdefault((operation.name, level), handler)  # type: ignore[union-attr]
            theirs = other.operation
            if other is handler or operation is None or theirs is None:
                continue
            if not operation.types or not theirs.types or operation.types & theirs.types:
                raise ConfigError(
                    f"${operation.name} at {level} level starts jobs of both {other.kind!r} and "
                    f"{handler.kind!r}: give their operations other names, levels or types"
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
