"""The parameters of an export."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastetrio._outcome import OUTCOME_LIMIT, Issue, OperationOutcomeError
from hastetrio.bulk import RESOURCE_TYPES, ExportParameters, parse_parameters
from hastetrio.bulk._instant import instant_now, parse_instant

SINCE = "2026-01-31T12:00:00Z"


def test_there_are_146_concrete_r4_types() -> None:
    """The list of types is complete and holds no abstract type and no later one."""
    assert len(RESOURCE_TYPES) == 146
    assert {"Patient", "MedicinalProductUndesirableEffect", "Media"} <= RESOURCE_TYPES
    assert not {"Resource", "DomainResource", "ActorDefinition"} & RESOURCE_TYPES


@pytest.mark.parametrize("nothing", [None, {}, {"_type": None}, {"resourceType": "Parameters"}])
def test_without_parameters_everything_is_wanted(nothing: object) -> None:
    """A kick-off without parameters asks for all types, whenever changed."""
    assert parse_parameters(nothing) == ExportParameters()


@pytest.mark.parametrize(
    "parameters",
    [
        {"_type": "Patient, Observation"},
        {"_type": ["Patient", "Observation"]},
        {"_type": ["Patient,Observation", "Patient"]},
        {
            "resourceType": "Parameters",
            "parameter": [
                {"name": "_type", "valueString": "Patient"},
                {"name": "_type", "valueCode": "Observation"},
            ],
        },
    ],
)
def test_types_are_a_comma_list_or_repeated(parameters: object) -> None:
    """Repeated values and one comma list mean the same, in both forms of parameters."""
    assert parse_parameters(parameters).types == frozenset({"Patient", "Observation"})


@pytest.mark.parametrize("text", ["application/fhir+ndjson", "application/ndjson", "ndjson"])
def test_the_three_names_of_the_format_are_accepted(text: str) -> None:
    """The Bulk Data guide gives NDJSON three names."""
    assert parse_parameters({"_outputFormat": text}) == ExportParameters()
    as_resource = {"name": "_outputFormat", "valueString": text}
    assert parse_parameters({"resourceType": "Parameters", "parameter": [as_resource]})


@pytest.mark.parametrize(
    ("parameters", "code", "names"),
    [
        ({"_type": "Patient,Pasient"}, "value", "Pasient"),
        ({"_type": ""}, "value", "_type"),
        ({"_type": []}, "value", "_type"),
        ({"_type": 7}, "value", "a number"),
        ({"_type": ["Patient", None]}, "value", "null"),
        ({"_type": "Resource"}, "value", "Resource"),
        ({"_since": "2026-01-31"}, "value", "2026-01-31"),
        ({"_since": "2026-02-30T00:00:00Z"}, "value", "2026-02-30"),
        ({"_since": "2026-01-31T00:00:00"}, "value", "2026-01-31T00:00:00"),
        ({"_since": "2026-01-31T00:00:00 02:00"}, "value", "%2B"),
        ({"_since": ["2026-01-31T00:00:00Z"]}, "value", "a list"),
        ({"_outputFormat": "csv"}, "not-supported", "csv"),
        ({"_outputFormat": True}, "not-supported", "a boolean"),
        ({"_typeFilter": "Patient?active=true"}, "not-supported", "_typeFilter"),
        ({"it's": 1}, "not-supported", "it's"),
        (
            {"resourceType": "Parameters", "parameter": [{"name": "patient", "resource": {}}]},
            "not-supported",
            "patient",
        ),
        (
            {"resourceType": "Parameters", "parameter": [{"name": "_since"}]},
            "structure",
            "_since",
        ),
    ],
)
def test_a_bad_value_is_an_issue_that_names_its_parameter(
    parameters: dict[str, object], code: str, names: str
) -> None:
    """Each kind of bad value has its code, and says which parameter and which value it is about."""
    with pytest.raises(OperationOutcomeError) as caught:
        parse_parameters(parameters)
    (issue,) = caught.value.issues
    given_name = next(iter(parameters))
    if given_name == "resourceType":
        given_name = parameters["parameter"][0]["name"]  # type: ignore[index]
    assert issue.code == code
    assert issue.severity == "error"
    assert names in issue.diagnostics
    assert given_name in issue.diagnostics
    (expression,) = issue.expression
    assert expression == "Parameters.parameter.where(name='{}')".format(
        given_name.replace("'", "\\'")
    )


@pytest.mark.parametrize(
    "parameters",
    [
        [],
        "x",
        {"resourceType": "Patient"},
        {"resourceType": "Parameters", "parameter": {}},
        {"resourceType": "Parameters", "parameter": [7]},
        {"resourceType": "Parameters", "parameter": [{"valueString": "Patient"}]},
    ],
)
def test_what_is_no_parameters_at_all_is_a_structure_issue(parameters: object) -> None:
    """Rubbish instead of parameters fails with one clear issue."""
    with pytest.raises(OperationOutcomeError) as caught:
        parse_parameters(parameters)
    (issue,) = caught.value.issues
    assert issue.code == "structure"


def test_several_problems_are_several_issues() -> None:
    """A client learns of all its mistakes at once."""
    bad = {"_type": "Foo,Patient,Bar", "_since": "yesterday", "_outputFormat": "xml", "x": 1}
    with pytest.raises(OperationOutcomeError) as caught:
        parse_parameters(bad)
    assert [issue.code.value for issue in caught.value.issues] == [
        "value",
        "value",
        "value",
        "not-supported",
        "not-supported",
    ]


def both_forms(parameters: dict[str, Any], **reserved: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    """Plain parameters with reserved keys beside them, and the same as a Parameters resource."""
    elements = [{"name": name, "valueString": value} for name, value in parameters.items()]
    resource = {"resourceType": "Parameters", "parameter": elements}
    return [parameters | reserved, resource | reserved]


LENIENT = {"$handling": "lenient"}


def test_lenient_handling_ignores_what_is_not_supported() -> None:
    """Each parameter and type that is ignored is a warning; the rest is done."""
    asked = {"_elements": "id", "_type": "Patient,Foo,Bar", "_typeFilter": "x", "_since": SINCE}
    for parameters in both_forms(asked, **LENIENT):
        parsed = parse_parameters(parameters)
        assert (parsed.types, parsed.since) == (frozenset({"Patient"}), SINCE)
        assert [(i.severity, i.code.value) for i in parsed.ignored] == [
            ("warning", "not-supported"),
            ("warning", "value"),
            ("warning", "value"),
            ("warning", "not-supported"),
        ]
        for issue, name in zip(
            parsed.ignored, ["_elements", '"Bar"', '"Foo"', "_typeFilter"], strict=True
        ):
            assert name in issue.diagnostics
            assert issue.diagnostics.endswith("It was ignored.")
        assert parsed.ignored[0].expression == ("Parameters.parameter.where(name='_elements')",)


@pytest.mark.parametrize("handling", [None, "strict", "LENIENT", "", 7, ["lenient"]])
def test_any_other_handling_is_strict(handling: object) -> None:
    """Nothing is ignored unless the client asks for exactly that."""
    for parameters in both_forms({"_elements": "id"}, **{"$handling": handling}):
        with pytest.raises(OperationOutcomeError, match="_elements"):
            parse_parameters(parameters)


def test_reserved_keys_are_no_parameters() -> None:
    """What the server adds to a kick-off changes nothing by itself."""
    for parameters in both_forms({"_type": "Patient"}, **LENIENT, **{"$target": None}):
        assert parse_parameters(parameters) == ExportParameters(types=frozenset({"Patient"}))


@pytest.mark.parametrize(
    "asked",
    [
        {"_since": "yesterday"},
        {"_outputFormat": "application/vnd.apache.parquet"},
        {"_type": 7},
        {"_type": []},
    ],
)
def test_lenient_handling_ignores_no_bad_value(asked: dict[str, Any]) -> None:
    """Without its `_since`, or in another format, an export would not be what was asked for."""
    for parameters in both_forms(asked, **LENIENT):
        with pytest.raises(OperationOutcomeError) as caught:
            parse_parameters(parameters)
        assert [issue.severity for issue in caught.value.issues] == ["error"]


def test_lenient_handling_does_not_widen_the_types() -> None:
    """When no type asked for exists, nothing is exported, and not everything."""
    for parameters in both_forms({"_type": "Foo"}, **LENIENT):
        parsed = parse_parameters(parameters)
        assert parsed.types == frozenset()
        assert not parsed.wants({"resourceType": "Patient"})


def test_countless_ignored_parameters_are_a_bounded_list() -> None:
    """A hostile kick-off makes no list beyond a hundred warnings and one that says so."""
    repeated = [{"name": "x"}] * 5
    elements = repeated + [{"name": f"x{number}"} for number in range(1000)]
    parameters = {"resourceType": "Parameters", "parameter": elements, **LENIENT}
    ignored = parse_parameters(parameters).ignored
    assert len(ignored) == len(set(ignored)) == 101
    assert ignored[-1].code == "incomplete"
    assert ignored[-1].severity == "warning"


@pytest.mark.parametrize("extra", [{}, LENIENT])
def test_the_export_of_anything_but_the_server_is_refused(extra: dict[str, Any]) -> None:
    """A target is never ignored: the client would get the data of everybody."""
    for parameters in both_forms({}, **extra, **{"$target": "Group/7"}):
        with pytest.raises(OperationOutcomeError, match="Group/7") as caught:
            parse_parameters(parameters)
        assert [issue.code.value for issue in caught.value.issues] == ["not-supported"]


def test_a_repeated_single_parameter_is_refused() -> None:
    """Two `_since` would leave it open which one counts."""
    since = {"name": "_since", "valueInstant": "2026-01-31T00:00:00Z"}
    with pytest.raises(OperationOutcomeError, match="more than once"):
        parse_parameters({"resourceType": "Parameters", "parameter": [since, since]})


def test_the_outcome_of_countless_bad_parameters_can_be_stored() -> None:
    """The issues stay within the limit of a stored outcome, whatever a client sends."""
    bad = {"\U0001f525\n" * 500 + str(number): "x" for number in range(1000)}
    with pytest.raises(OperationOutcomeError) as caught:
        parse_parameters(bad)
    assert 1 < len(caught.value.issues) <= 20
    assert len(json.dumps(caught.value.to_json()).encode()) < OUTCOME_LIMIT


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "_type",
                        "_since",
                        "resourceType",
                        "parameter",
                        "name",
                        "valueString",
                        "x",
                        "$handling",
                        "$target",
                    ]
                ),
                inner | st.sampled_from(["Parameters", "Patient", "_type", "lenient"]),
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_is_read_or_refused_with_issues(parameters: object) -> None:
    """No parameters whatever end in any other error."""
    issues: tuple[Issue, ...] | None = None
    try:
        parse_parameters(parameters)
    except OperationOutcomeError as error:
        issues = error.issues
    assert issues is None or 1 <= len(issues) <= 20


@pytest.mark.parametrize(
    ("changed", "included"),
    [
        ("2026-01-31T12:00:00Z", False),
        ("2026-01-31T12:00:00.000Z", False),
        ("2026-01-31T14:00:00+02:00", False),
        ("2026-01-31T12:00:00.0000001Z", True),
        ("2026-01-31T11:59:59.9999999Z", False),
        ("2026-01-31T13:30:00+02:00", False),
        ("2026-01-31T10:30:00-02:00", True),
        ("2026-02-01T00:30:00+14:00", False),
        ("2026-01-31", True),
        ("rubbish", True),
        (None, True),
        (7, True),
    ],
)
def test_since_compares_moments_and_keeps_what_has_none(changed: object, included: bool) -> None:
    """Zones and fractions count, the limit itself is excluded, unknown times are included."""
    parameters = parse_parameters({"_since": "2026-01-31T12:00:00Z"})
    resource = {"resourceType": "Patient", "meta": {"lastUpdated": changed}}
    assert parameters.wants(resource) is included


def test_since_keeps_a_resource_without_meta() -> None:
    """A resource without `meta`, or with a wrong one, is exported rather than lost."""
    parameters = parse_parameters({"_since": "2026-01-31T12:00:00Z"})
    assert parameters.wants({"resourceType": "Patient"})
    assert parameters.wants({"resourceType": "Patient", "meta": []})


def test_instants_at_the_ends_of_time_compare() -> None:
    """Zones at year 1 and 9999, and a leap second, overflow nothing."""
    texts = [
        "0001-01-01T00:00:00+14:00",
        "0001-01-01T00:00:00Z",
        "2016-12-31T23:59:59Z",
        "2016-12-31T23:59:60Z",
        "9999-12-31T23:59:59Z",
        "9999-12-31T23:59:59-14:00",
    ]
    instants = [parse_instant(text) for text in texts]
    assert None not in instants
    assert instants == sorted(instants)  # type: ignore[type-var]
    assert len(set(instants)) == len(instants)
    assert parse_instant("0000-01-01T00:00:00Z") is None


def test_now_is_an_instant_and_not_in_the_future() -> None:
    """The transaction time is cut to the millisecond, so that no later change is missed."""
    now = parse_instant(instant_now())
    later = parse_instant(instant_now())
    assert now is not None
    assert later is not None
    assert now <= later
    epoch = parse_instant("1970-01-01T00:00:00Z")
    assert epoch is not None
    assert now.seconds - epoch.seconds <= time.time()


def test_since_given_in_code_is_checked() -> None:
    """The class refuses a text that is no instant, as the parser does."""
    with pytest.raises(ValueError, match="instant"):
        ExportParameters(since="soon")
