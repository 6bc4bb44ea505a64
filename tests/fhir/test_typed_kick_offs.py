"""Kick-offs of handlers that declare the class of their parameters."""

from __future__ import annotations

import json
from typing import Any, Final

import attrs
import pytest

from hastetrio import (
    JobContext,
    JobOutput,
    Operation,
    OperationOutcomeError,
    RetryPolicy,
    job_handler,
)
from hastetrio._handler import FunctionHandler
from hastetrio.fhir._shaped import shaped

from .harness import BASE, PREFER, check_outcome, client, face, stored

FHIR: Final = {"Content-Type": "application/fhir+json"}


@attrs.frozen
class Words:
    """What the tests' operation takes."""

    text: str
    times: int = 1
    share: float | None = None
    loud: bool = False
    tags: list[str] = attrs.Factory(list)
    counts: tuple[int, ...] = ()
    type: str | None = attrs.field(default=None, alias="_type")


@attrs.frozen
class Line:
    """Inside of a place."""

    codes: list[str]


@attrs.frozen
class Place:
    """Inside of a trip."""

    lines: list[Line]


@attrs.frozen
class Trip:
    """Parameters with classes inside."""

    place: Place


def typed(**options: Any) -> FunctionHandler[Words]:  # noqa: ANN401  # whatever job_handler takes
    """A handler of `$work` that declares them."""

    @job_handler("work", parameters=Words, operation=Operation(name="work"), **options)
    async def work(context: JobContext[Words]) -> JobOutput:
        return JobOutput.json(context.parameters.times)

    return work


@pytest.mark.parametrize(
    ("query", "parameters"),
    [
        ("text=a", {"text": "a"}),
        ("text=1&times=-3", {"text": "1", "times": -3}),
        ("text=a&share=0.5&loud=true", {"text": "a", "share": 0.5, "loud": True}),
        ("text=a&share=1e3&loud=false", {"text": "a", "share": 1000.0, "loud": False}),
        ("text=a&tags=x", {"text": "a", "tags": ["x"]}),
        (
            "text=a&tags=x&tags=y&counts=1&counts=2",
            {"text": "a", "tags": ["x", "y"], "counts": [1, 2]},
        ),
        ("text=a&_type=Patient", {"text": "a", "_type": "Patient"}),
    ],
)
async def test_a_query_becomes_what_the_class_declares(query: str, parameters: object) -> None:
    """A query knows only text; what is stored is what the handler's class takes."""
    it = face([typed()])
    async with client(it, PREFER) as http:
        answer = await http.get(f"{BASE}/$work?{query}")
    assert answer.status_code == 202
    (job,) = await stored(it)
    assert job.parameters == parameters


@pytest.mark.parametrize(
    ("query", "path", "code"),
    [
        ("", "text", "required"),
        ("text=a&times=many", "times", "structure"),
        ("text=a&times=1.5", "times", "structure"),
        ("text=a&times=99999999999999999999", "times", "structure"),
        ("text=a&loud=yes", "loud", "structure"),
        ("text=a&text=b", "text", "structure"),
        ("text=a&colour=red", "colour", "structure"),
        ("text=a&counts=1&counts=x", "counts[1]", "structure"),
    ],
)
async def test_what_does_not_fit_is_refused_by_its_path(query: str, path: str, code: str) -> None:
    """Nothing is stored; the client learns which parameter is wrong, and how."""
    it = face([typed()])
    async with client(it, PREFER) as http:
        answer = await http.get(f"{BASE}/$work?{query}")
    assert answer.status_code == 400
    (issue,) = check_outcome(answer)
    assert (issue["code"], issue["expression"]) == (code, [path])
    assert await stored(it) == []


async def test_a_parameters_resource_becomes_what_the_class_declares() -> None:
    """By name, values of their own types, a repeated one a list, with the query's beside them."""
    it = face([typed()])
    body = {
        "resourceType": "Parameters",
        "parameter": [
            {"name": "text", "valueString": "a"},
            {"name": "times", "valueInteger": 2},
            {"name": "tags", "valueCode": "x"},
            {"name": "tags", "valueCode": "y"},
        ],
    }
    async with client(it, PREFER) as http:
        answer = await http.post(f"{BASE}/$work?loud=true", content=json.dumps(body), headers=FHIR)
    assert answer.status_code == 202
    (job,) = await stored(it)
    assert job.parameters == {"text": "a", "times": 2, "tags": ["x", "y"], "loud": True}


def test_a_resource_and_parts_are_values_too() -> None:
    """As https://hl7.org/fhir/R4/parameters.html has them."""

    @attrs.frozen
    class Nested:
        patient: dict[str, Any]
        inner: dict[str, Any]
        none: str | None = None

    patient = {"resourceType": "Patient", "id": "p"}
    given = {
        "resourceType": "Parameters",
        "parameter": [
            {"name": "patient", "resource": patient},
            {"name": "inner", "part": [{"name": "a", "valueDecimal": 1.5}]},
            {"name": "none"},
        ],
    }
    assert shaped(Nested, given) == {"patient": patient, "inner": {"a": 1.5}, "none": None}


def test_parts_have_the_shape_of_a_class_inside() -> None:
    """As deep as they go, also where a list is given once."""
    code = {"name": "codes", "valueCode": "x"}
    place = {"name": "place", "part": [{"name": "lines", "part": [code]}]}
    given = {"resourceType": "Parameters", "parameter": [place]}
    assert shaped(Trip, given) == {"place": {"lines": [{"codes": ["x"]}]}}


async def test_where_the_kick_off_came_from_stays_beside_the_parameters() -> None:
    """It is no parameter of the class, and is kept for the handler."""
    it = face([typed()])
    async with client(it, {"Prefer": "respond-async, handling=lenient"}) as http:
        answer = await http.get(f"{BASE}/$work?text=a")
    assert answer.status_code == 202
    (job,) = await stored(it)
    assert job.parameters == {"text": "a", "$handling": "lenient"}


@pytest.mark.parametrize("name", ["$target", "$handling"])
async def test_a_client_cannot_say_where_it_came_from(name: str) -> None:
    """Neither in the query nor by a parameter of that name."""
    it = face([typed()])
    given = {"name": name, "valueString": "x"}
    body = {
        "resourceType": "Parameters",
        "parameter": [given, {"name": "text", "valueString": "a"}],
    }
    async with client(it, PREFER) as http:
        for answer in (
            await http.get(f"{BASE}/$work", params={name: "x", "text": "a"}),
            await http.post(f"{BASE}/$work", content=json.dumps(body), headers=FHIR),
        ):
            assert answer.status_code == 400
    assert await stored(it) == []


async def test_the_handlers_own_rules_come_after_those_of_the_class() -> None:
    """`check_parameters` sees only what fits."""
    seen = []

    class Own(FunctionHandler[Words]):
        def check_parameters(self, parameters: Any, /) -> None:  # noqa: ANN401
            seen.append(parameters)
            raise OperationOutcomeError("business-rule", "Not today.")

    async def run(context: JobContext[Words]) -> JobOutput:
        raise NotImplementedError

    it = face([Own("work", run, operation=Operation(name="work"), parameters=Words)])
    async with client(it, PREFER) as http:
        first = await http.get(f"{BASE}/$work?times=1")
        second = await http.get(f"{BASE}/$work?text=a")
    (issue,) = check_outcome(first)
    assert issue["code"] == "required"
    (issue,) = check_outcome(second)
    assert issue["code"] == "business-rule"
    assert seen == [{"text": "a"}]


async def test_a_kick_off_has_as_many_attempts_as_the_policy() -> None:
    """A policy of five attempts would otherwise end with the third."""
    it = face([typed(retries=RetryPolicy(attempts=5))])
    async with client(it, PREFER) as http:
        await http.get(f"{BASE}/$work?text=a")
    (job,) = await stored(it)
    assert job.max_attempts == 5
