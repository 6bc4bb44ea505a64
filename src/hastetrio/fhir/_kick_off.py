"""The kick-off: an operation that is not run now, but queued as a job.

Bulk Data Access v2, https://hl7.org/fhir/uv/bulkdata/STU2/export.html#bulk-data-kick-off-request,
and FHIR R4, https://hl7.org/fhir/R4/async.html#3.1.6.1.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from hastetrio._errors import LiveJobLimit, UnstorableValue
from hastetrio._handler import JobHandler, attempts_of, judge_parameters
from hastetrio._model import CreateAsyncJob
from hastetrio._operation import HANDLING, TARGET, Level
from hastetrio._outcome import IssueType, OperationOutcomeError
from hastetrio.fhir._accept import check_accept
from hastetrio.fhir._callers import Caller
from hastetrio.fhir._errors import RequestError, not_found
from hastetrio.fhir._face import Face, information
from hastetrio.fhir._parameters import read_parameters
from hastetrio.fhir._places import Place
from hastetrio.fhir._prefer import Preferences, parse_prefer
from hastetrio.fhir._shaped import shaped

# Seconds after which a project at its limit may try again.
_FULL_RETRY: Final = 30


def kick_off_of(rest: tuple[str, ...]) -> tuple[str, Level, str | None, str | None] | None:
    """The operation a path invokes: its name, level, type and id; None if it invokes none."""
    if not 1 <= len(rest) <= 3 or not rest[-1].startswith("$"):
        return None
    type = rest[0] if len(rest) > 1 else None
    id = rest[1] if len(rest) > 2 else None
    level = (Level.SYSTEM, Level.TYPE, Level.INSTANCE)[len(rest) - 1]
    return rest[-1][1:], level, type, id


async def kick_off(
    face: Face, request: Request, place: Place, caller: Caller, handler: JobHandler
) -> Response:
    """Queue a job of the handler's kind, and say where to ask after it."""
    operation = handler.operation
    assert operation is not None  # noqa: S101  # it was found by its operation
    caller.check_scope(operation.scope)
    check_accept(request.headers.getlist("accept"))
    preferences = parse_prefer(request.headers.getlist("prefer"))
    if face.config.require_prefer and not preferences.respond_async:
        raise RequestError(
            400,
            IssueType.INVALID,
            f"${operation.name} is answered asynchronously: send Prefer: respond-async.",
        )
    parameters = await read_parameters(request, face.config.body_limit)
    if handler.parameters is not None:
        parameters = shaped(handler.parameters, parameters)
    _add_circumstances(parameters, place, preferences)
    try:
        judge_parameters(handler, parameters)
    except OperationOutcomeError as error:
        raise RequestError(400, IssueType.INVALID, "bad parameters", issues=error.issues) from None
    try:
        job = await face.provider.create_job(
            place.tenant,
            place.project,
            CreateAsyncJob(
                kind=handler.kind,
                request=_address(face, request, place),
                parameters=parameters,
                claims=caller.claims,
                retention=face.retention,
                max_attempts=attempts_of(handler),
            ),
            live_limit=face.config.live_limit,
        )
    except LiveJobLimit:
        raise RequestError(
            429,
            IssueType.THROTTLED,
            f"The project has {face.config.live_limit} jobs queued or running, the most it may "
            "have: try again when one has ended, or cancel one.",
            headers={"Retry-After": str(_FULL_RETRY)},
        ) from None
    except UnstorableValue as error:
        raise RequestError(
            400, IssueType.VALUE, f"The request cannot be stored: {error}."
        ) from None
    status = face.url(place, "_async", job.id)
    return information(
        202,
        f"The request was accepted as job {job.id}; ask after it at {status}",
        {"Content-Location": status, **preferences.applied()},
    )


def _add_circumstances(parameters: dict[str, Any], place: Place, preferences: Preferences) -> None:
    for name in (TARGET, HANDLING):
        if name in parameters:
            raise RequestError(400, IssueType.INVALID, f"{name} is no parameter of any operation.")
    if len(place.rest) > 1:
        parameters[TARGET] = "/".join(place.rest[:-1])
    if preferences.handling is not None:
        parameters[HANDLING] = preferences.handling


def _address(face: Face, request: Request, place: Place) -> str:
    # Of a POST the parameters are no part (Bulk Data Access v2, "request" in the manifest); one
    # that has them in its query is shown as it was sent. Not request.url.query: to find it, an
    # address is made of the Host field, which may hold anything.
    query = request.scope["query_string"].decode("latin-1")
    address = face.url(place, *place.rest)
    return f"{address}?{query}" if query else address


def check_target(type: str | None, id: str | None) -> None:
    """See that what an operation is invoked on could exist.

    Raises:
        RequestError: It could not.
    """
    if type is not None and not (type.isascii() and type.isalpha() and type[0].isupper()):
        raise not_found()
    if id is not None and not (
        0 < len(id) <= 64 and all(c.isascii() and (c.isalnum() or c in "-.") for c in id)
    ):
        raise not_found()
