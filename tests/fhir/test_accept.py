"""Which Accept header fields refuse what this server answers."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hastetrio.fhir._accept import check_accept, parse_media_type
from hastetrio.fhir._errors import RequestError

ACCEPTED = [
    [],
    [""],
    [" , ,"],
    ["application/fhir+json"],
    ["Application/FHIR+JSON"],
    ["application/json"],
    ["application/*"],
    ["*/*"],
    ["*"],
    ["text/html, image/gif, image/jpeg, *; q=.2"],
    ["text/html", "application/json"],
    ["application/fhir+xml, application/fhir+json;q=0.1"],
    ["application/fhir+json;fhirVersion=4.0"],
    ['application/fhir+json ; FHIRVERSION="4.0" ; q=0.5'],
    ["application/fhir+json; fhirVersion=5.0, application/fhir+json; fhirVersion=4.0"],
    ["application/fhir+json;charset=utf-8"],
    ["application/fhir+json;q=0.001"],
    ["application/fhir+json;q=bogus"],
    ["application/fhir+json;q"],
    ["application/fhir+json;q=0, */*"],
    ["application/json;q=0, application/*;q=0.1"],
    ["*/*;q=0, application/json"],
    ['text/html;x="a,b", application/json'],
    ['text/html;x="a, application/json'],
    # Not to be understood at all.
    ["json"],
    ["application/"],
    ["/json"],
    ["application/fhir json"],
    ["\x00\xff"],
    ["*json*"],
]

REFUSED = [
    ["text/html"],
    ["text/*"],
    ["application/fhir+xml"],
    ["application/xml, text/html"],
    ["application/fhir+jsonx"],
    ["application/fhir+ndjson"],
    ["text/json"],
    ["*/json"],
    ["application/fhir+json;q=0, application/json;q=0"],
    ["application/fhir+json;q=0"],
    ["application/fhir+json; Q=0.000"],
    ["application/fhir+json;q=0."],
    ["application/fhir+json;q=.0"],
    ['application/fhir+json;q="0"'],
    ["*/*;q=0"],
    ["application/*;q=0, */*;q=1"],
    ["application/fhir+json;q=0, application/json;q=0, */*"],
    ["application/fhir+json;q=0", "application/json;q=0", "application/*"],
    ["application/fhir+json;fhirVersion=5.0"],
    ["application/fhir+json;fhirVersion=3.0, application/json;fhirVersion=4.3"],
    ['text/html;x="application/json, application/json"'],
    ["text/html, nonsense"],
]


@pytest.mark.parametrize("fields", ACCEPTED)
def test_a_client_that_takes_json_in_any_way_is_answered(fields: list[str]) -> None:
    """By name or by range; and whoever says nothing that can be understood refuses nothing."""
    check_accept(fields)


@pytest.mark.parametrize("fields", REFUSED)
def test_a_client_that_excludes_json_is_told_so(fields: list[str]) -> None:
    """The most specific range decides (RFC 9110 section 12.5.1), and q=0 means never."""
    with pytest.raises(RequestError) as caught:
        check_accept(fields)
    assert caught.value.status == 406
    (issue,) = caught.value.outcome["issue"]
    assert issue["code"] == "not-supported"
    assert "application/fhir+json" in issue["diagnostics"]


def test_a_media_type_is_read_with_its_parameters() -> None:
    """Names in lower case, strings without quotes, the first of two, malformed ones left out."""
    type = parse_media_type(' Text/X-Y ; Charset="a\\"b;c" ; charset=d; ; =; q = 1')
    assert type is not None
    assert type.name == "text/x-y"
    assert type.parameters == {"charset": 'a"b;c', "q": "1"}


@given(st.lists(st.text(st.characters(max_codepoint=255)), max_size=4))
@example(['"' * 50_000])
@example(["a/b;" * 20_000])
@example(["a/b;q=0" + "0" * 50_000])
def test_no_field_is_an_error_of_the_server(fields: list[str]) -> None:
    """Either nothing is said, or 406."""
    status = None
    try:
        check_accept(fields)
    except RequestError as error:
        status = error.status
    assert status in (None, 406)
