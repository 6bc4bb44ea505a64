"""The CapabilityStatement: it is complete, and says what is so."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from hastetrio._operation import Level, Operation

from .harness import BASE, PUBLIC, Tokens, check_outcome, client, face, handler

EXPORT = Operation(
    name="export",
    definition="http://hl7.org/fhir/uv/bulkdata/OperationDefinition/export",
)
PURGE = Operation(
    name="purge",
    levels=[Level.TYPE, Level.INSTANCE],
    types=["Patient", "Group"],
    definition="http://example.org/purge",
)
ANYWHERE = Operation(name="anywhere", levels=["system", "type"], definition="http://example.org/a")


async def statement(
    *operations: Operation,
    **options: Any,  # noqa: ANN401  # whatever a face takes
) -> dict[str, Any]:
    """The statement of a face whose handlers declare these operations."""
    handlers = [handler(f"kind-{n}", operation) for n, operation in enumerate(operations)]
    async with client(face(handlers, **options)) as http:
        answer = await http.get(f"{BASE}/metadata")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/fhir+json"
    assert answer.headers["cache-control"] == "no-store"
    found: dict[str, Any] = answer.json()
    return found


async def test_every_required_element_is_there() -> None:
    """FHIR R4: the elements with a minimum of one, and the invariants cpb-1, cpb-2 and cpb-14."""
    found = await statement(EXPORT, PURGE)
    assert found["resourceType"] == "CapabilityStatement"
    assert (found["status"], found["kind"], found["fhirVersion"]) == ("active", "instance", "4.0.1")
    assert datetime.fromisoformat(found["date"]).tzinfo is not None
    assert "json" in found["format"]
    assert found["software"]["name"] == "hastetrio"
    assert found["software"]["version"]
    assert found["implementation"]["description"]
    assert found["implementation"]["url"] == PUBLIC + BASE
    (rest,) = found["rest"]
    assert rest["mode"] == "server"
    for resource in rest["resource"]:
        assert resource["type"]
    for operation in [*rest["operation"], *(o for r in rest["resource"] for o in r["operation"])]:
        assert operation["name"]
        assert operation["definition"]


async def test_operations_are_listed_where_they_can_be_invoked() -> None:
    """System level beside the resources, the others with each of their types, once a type."""
    (rest,) = (await statement(EXPORT, PURGE, ANYWHERE))["rest"]
    assert [one["name"] for one in rest["operation"]] == ["export", "anywhere"]
    by_type = {one["type"]: [o["name"] for o in one["operation"]] for one in rest["resource"]}
    assert by_type == {"Group": ["purge"], "Patient": ["purge"], "Resource": ["anywhere"]}
    assert len(rest["resource"]) == len(by_type)


async def test_an_operation_without_a_definition_says_that_it_has_none() -> None:
    """The element is required; an address that leads nowhere would be a lie."""
    (rest,) = (await statement(Operation(name="plain")))["rest"]
    (operation,) = rest["operation"]
    assert "definition" not in operation
    (extension,) = operation["_definition"]["extension"]
    assert extension["url"].endswith("/data-absent-reason")


async def test_only_a_bulk_data_server_calls_itself_one() -> None:
    """Testers go by it."""
    bulk = "http://hl7.org/fhir/uv/bulkdata/CapabilityStatement/bulk-data"
    assert (await statement(EXPORT))["instantiates"] == [bulk]
    assert "instantiates" not in await statement(PURGE)


async def test_there_are_no_empty_arrays() -> None:
    """FHIR has none: what is not there is left out."""
    (rest,) = (await statement(EXPORT))["rest"]
    assert "resource" not in rest
    (rest,) = (await statement(PURGE))["rest"]
    assert "operation" not in rest


async def test_security_is_told_as_it_is() -> None:
    """Clients learn whether to get a token, and need none to learn it."""
    (rest,) = (await statement(EXPORT, authenticator=Tokens()))["rest"]
    (service,) = rest["security"]["service"]
    assert service["coding"][0]["code"] == "SMART-on-FHIR"
    (rest,) = (await statement(EXPORT))["rest"]
    assert "service" not in rest["security"]
    assert rest["security"]["description"]


async def test_only_reading_is_possible_and_only_as_json() -> None:
    """405 and 406 are OperationOutcomes as everywhere."""
    async with client(face()) as http:
        posted = await http.post(f"{BASE}/metadata")
        xml = await http.get(f"{BASE}/metadata", headers={"Accept": "application/fhir+xml"})
        head = await http.head(f"{BASE}/metadata")
    assert posted.status_code == 405
    assert posted.headers["allow"] == "GET, HEAD"
    check_outcome(posted)
    assert xml.status_code == 406
    check_outcome(xml)
    assert (head.status_code, head.content) == (200, b"")
