"""The CapabilityStatement: what a client can do here.

FHIR R4, https://hl7.org/fhir/R4/capabilitystatement.html.
"""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from hastetrio._operation import Level, Operation
from hastetrio.fhir._accept import check_accept
from hastetrio.fhir._face import Face, json_response
from hastetrio.fhir._places import Place

_BULK_DATA: Final = "http://hl7.org/fhir/uv/bulkdata/CapabilityStatement/bulk-data"
_SECURITY_SERVICE: Final = "http://terminology.hl7.org/CodeSystem/restful-security-service"
_ABSENT: Final = "http://hl7.org/fhir/StructureDefinition/data-absent-reason"

# What stands for every type, in the value set of `rest.resource.type`.
_ANY_TYPE: Final = "Resource"

# When the statement last changed: handlers and settings stay as they were when the program started.
_SINCE: Final = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def metadata(face: Face, request: Request, place: Place) -> Response:
    """What a client can do at a place, as a CapabilityStatement."""
    check_accept(request.headers.getlist("accept"))
    return json_response(_statement(face, place))


def _statement(face: Face, place: Place) -> dict[str, Any]:
    operations = [h.operation for h in face.handlers.values() if h.operation is not None]
    statement: dict[str, Any] = {
        "resourceType": "CapabilityStatement",
        "status": "active",
        "date": _SINCE,
        "kind": "instance",
        "software": {"name": "hastetrio", "version": version("hastetrio")},
        "implementation": {
            "description": "FHIR operations that run as asynchronous jobs.",
            "url": face.url(place),
        },
        "fhirVersion": "4.0.1",
        "format": ["json", "application/fhir+json"],
        "rest": [_rest(face, operations)],
    }
    if any(operation.name == "export" for operation in operations):
        statement["instantiates"] = [_BULK_DATA]
    return statement


def _rest(face: Face, operations: list[Operation]) -> dict[str, Any]:
    rest: dict[str, Any] = {
        "mode": "server",
        "documentation": (
            "Operations are kicked off with Prefer: respond-async and answered 202 with the "
            "address of their status in Content-Location."
        ),
        "security": _security(face),
    }
    # FHIR has no empty arrays, and each type is listed once.
    by_type: dict[str, list[dict[str, Any]]] = {}
    for operation in operations:
        if operation.levels & {Level.TYPE, Level.INSTANCE}:
            for type in sorted(operation.types) or [_ANY_TYPE]:
                by_type.setdefault(type, []).append(_declared(operation))
    if by_type:
        rest["resource"] = [
            {"type": type, "operation": found} for type, found in sorted(by_type.items())
        ]
    everywhere = [_declared(o) for o in operations if Level.SYSTEM in o.levels]
    if everywhere:
        rest["operation"] = everywhere
    return rest


def _declared(operation: Operation) -> dict[str, Any]:
    if operation.definition is not None:
        return {"name": operation.name, "definition": operation.definition}
    # The element is required; an address that leads nowhere would be a lie.
    absent = {"extension": [{"url": _ABSENT, "valueCode": "unknown"}]}
    return {"name": operation.name, "_definition": absent}


def _security(face: Face) -> dict[str, Any]:
    if face.authenticator is None:
        return {"cors": True, "description": "Nobody has to prove who they are."}
    service = {"system": _SECURITY_SERVICE, "code": "SMART-on-FHIR", "display": "SMART-on-FHIR"}
    return {
        "cors": True,
        "service": [{"coding": [service]}],
        "description": (
            "Requests need an access token, as Authorization: Bearer <token>: a signed JWT of "
            "this tenant and project, with the SMART scope of the operation."
        ),
    }
