"""What a kick-off asks for: its query, or the Parameters resource in its body."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from contextlib import aclosing
from typing import Any, Final, NoReturn
from urllib.parse import unquote_to_bytes

import trio
from starlette.datastructures import Headers
from starlette.requests import Request

from hastetrio._errors import UnstorableValue
from hastetrio._model import FHIR_JSON, PLAIN_JSON
from hastetrio._outcome import IssueType
from hastetrio._storable import encode_json
from hastetrio.fhir._accept import FHIR_VERSION, parse_media_type
from hastetrio.fhir._errors import RequestError
from hastetrio.fhir._fields import elements

# Seconds a whole body may take, unless so large a one is allowed that it needs longer at this many
# bytes a second. The default limit, 1 MiB, does not; a client that sends a byte now and then would
# otherwise hold its connection for ever.
BODY_DEADLINE: Final = 30
_SLOWEST: Final = 32 * 1024

# About the answer's form, not about the job (https://hl7.org/fhir/R4/http.html#parameters).
_OF_THE_ANSWER: Final = ("_format", "_pretty")


async def read_parameters(request: Request, limit: int) -> dict[str, Any]:
    """What becomes the parameters of a job: JSON that can be stored.

    Args:
        request: The kick-off. Its body is read for POST only.
        limit: The most bytes of the body.

    Returns:
        The query by name, a value that is repeated as a list; or the Parameters resource of the
        body, the query's parameters added to it.

    Raises:
        RequestError: 400, 413 or 415; they cannot be read, or are no Parameters.
        ClientDisconnect: The client left before the body had arrived.

    Cancellation: nothing is left behind.
    """
    query = _query(request.scope["query_string"])
    body = await _body(request, limit) if request.method == "POST" else b""
    parameters = _with_query(_resource(body), query) if body else _by_name(query)
    try:
        # No limit here: the body has one, and storage its own.
        encode_json(parameters, 2**62, "the parameters")
    except UnstorableValue as error:
        raise RequestError(400, IssueType.VALUE, f"The request is refused: {error}.") from None
    return parameters


def _query(query: bytes) -> list[tuple[str, str]]:
    """The names and values of a query, decoded, in their order."""
    found: list[tuple[str, str]] = []
    for part in query.split(b"&"):
        name, _, value = (_decode(piece) for piece in part.replace(b"+", b" ").partition(b"="))
        if not name and not value:
            continue
        if not name:
            raise _invalid("A parameter in the query has no name.")
        if (name, value) == ("resourceType", "Parameters"):
            # Handlers tell the two forms of parameters apart by it.
            raise _invalid("A Parameters resource is sent as the body of a POST, not in the query.")
        if name not in _OF_THE_ANSWER:
            found.append((name, value))
    return found


def _decode(text: bytes) -> str:
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise _invalid("The query is not UTF-8, percent-encoded.") from None


def _by_name(query: Iterable[tuple[str, str]]) -> dict[str, Any]:
    values: dict[str, list[str]] = {}
    for name, value in query:
        values.setdefault(name, []).append(value)
    return {name: given if len(given) > 1 else given[0] for name, given in values.items()}


def _with_query(resource: dict[str, Any], query: list[tuple[str, str]]) -> dict[str, Any]:
    if query:
        added = [{"name": name, "valueString": value} for name, value in query]
        resource["parameter"] = resource.get("parameter", []) + added
    return resource


async def _body(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if _exceeds(declared, limit):
        raise _too_long(limit)
    body = bytearray()
    seconds = max(BODY_DEADLINE, limit // _SLOWEST)
    with trio.move_on_after(seconds) as scope:
        async with aclosing(request.stream()) as chunks:
            async for chunk in chunks:
                if chunk and not body:
                    # Not before there is a body: clients send POST with none, and any headers.
                    _check_type(request.headers)
                body += chunk
                if len(body) > limit:
                    raise _too_long(limit)
    if scope.cancelled_caught:
        raise RequestError(
            400, IssueType.TIMEOUT, f"The request's body did not arrive within {seconds} s."
        )
    return bytes(body)


def _exceeds(length: str, limit: int) -> bool:
    if not (length.isascii() and length.isdigit()):
        return False
    digits = length.lstrip("0")
    # Python converts no more than 4,300 digits.
    return len(digits) > 20 or int(digits or "0") > limit


def _too_long(limit: int) -> RequestError:
    return RequestError(
        413,
        IssueType.TOO_LONG,
        f"The request's body exceeds {limit:,} bytes, the most it may have.",
    )


def _check_type(headers: Headers) -> None:
    """See that a body is JSON as it stands.

    Raises:
        RequestError: 415, it is not.
    """
    for coding in elements(headers.getlist("content-encoding")):
        if coding.strip().lower() != "identity":
            raise _unsupported("Send the body as it is, without a Content-Encoding.")
    fields = headers.getlist("content-type")
    type = parse_media_type(fields[0]) if len(fields) == 1 else None
    if type is None or type.name not in (FHIR_JSON, PLAIN_JSON):
        raise _unsupported(f"The body must be a Parameters resource: Content-Type: {FHIR_JSON}.")
    if type.parameters.get("charset", "utf-8").lower() not in ("utf-8", "utf8"):
        raise _unsupported("The body must be UTF-8.")
    if not type.is_this_version:
        raise _unsupported(f"The body must be of FHIR {FHIR_VERSION}.")


def _unsupported(diagnostics: str) -> RequestError:
    return RequestError(415, IssueType.NOT_SUPPORTED, diagnostics)


def _resource(body: bytes) -> dict[str, Any]:
    """The Parameters resource that a body is."""
    try:
        # RFC 8259 section 8.1 lets readers skip a byte order mark; some clients write one.
        value = _decoder.decode(body.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise _malformed("The body is not UTF-8.") from None
    except RecursionError:
        raise _malformed("The body is nested too deeply.") from None
    except json.JSONDecodeError as error:
        raise _malformed(
            f"The body is not JSON: line {error.lineno}, column {error.colno}: {error.msg}."
        ) from None
    except ValueError as error:
        raise _malformed(f"The body is not JSON that can be read: {error}.") from None
    if not isinstance(value, dict) or value.get("resourceType") != "Parameters":
        raise _malformed("The body must be a Parameters resource.")
    given = value.get("parameter", [])
    if not isinstance(given, list):
        raise _malformed("Parameters.parameter must be a list.")
    for index, one in enumerate(given):
        name = one.get("name") if isinstance(one, dict) else None
        if not isinstance(name, str) or not name:
            raise _malformed(f"Parameters.parameter[{index}] must be an object with a name.")
    return value


def _malformed(diagnostics: str) -> RequestError:
    return RequestError(400, IssueType.STRUCTURE, diagnostics)


def _invalid(diagnostics: str) -> RequestError:
    return RequestError(400, IssueType.INVALID, diagnostics)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Of two values of one name readers take one or the other: what was checked need not be what
    # is used.
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("an object has the same key twice")
    return value


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number in JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is too large")
    return value


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        # Python converts no more than 4,300 digits.
        raise ValueError("a number is too large") from None


_decoder: Final = json.JSONDecoder(
    object_pairs_hook=_unique,
    parse_constant=_no_constant,
    parse_float=_finite,
    parse_int=_whole,
)
