"""Whether a client can read what this server answers: the Accept header field, RFC 9110 12.5.1."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import attrs

from hastetrio._model import FHIR_JSON, PLAIN_JSON
from hastetrio._outcome import IssueType
from hastetrio.fhir._errors import RequestError
from hastetrio.fhir._fields import NAME, elements, parse_pair, split

FHIR_VERSION: Final = "4.0"
"""What a media type's fhirVersion must be (https://hl7.org/fhir/R4/http.html#version-parameter)."""

_TYPE: Final = re.compile(rf"[ \t]*+({NAME})/({NAME})[ \t]*+")
_NOTHING: Final = re.compile(r"0+\.?0*|\.0+")


@attrs.frozen
class MediaType:
    """A media type or a range of them, as a header field names it.

    Attributes:
        name: Type and subtype in lower case, such as `application/*`.
        parameters: Its parameters by their names in lower case; of one given twice the first.
    """

    name: str
    parameters: dict[str, str]

    @property
    def is_this_version(self) -> bool:
        """Whether it asks for no FHIR version but this one."""
        return self.parameters.get("fhirversion", FHIR_VERSION) == FHIR_VERSION


def parse_media_type(text: str) -> MediaType | None:
    """The media type that a text names; None if it names none."""
    name, *rest = split(text, ";")
    if name.strip(" \t") == "*":
        # As Java's HTTP client writes it: "text/html, *; q=.2".
        name = "*/*"
    found = _TYPE.fullmatch(name)
    if found is None:
        return None
    parameters: dict[str, str] = {}
    for part in rest:
        if pair := parse_pair(part):
            parameters.setdefault(pair.name, pair.value)
    return MediaType(f"{found[1]}/{found[2]}".lower(), parameters)


def check_accept(fields: list[str]) -> None:
    """See that a client does not refuse all this server could answer with.

    Nobody has to send Accept, and one that cannot be understood refuses nothing.

    Raises:
        RequestError: 406, the client accepts neither FHIR JSON nor JSON.
    """
    ranges = [found for one in elements(fields) if (found := parse_media_type(one)) is not None]
    if ranges and not any(_is_accepted(type, ranges) for type in (FHIR_JSON, PLAIN_JSON)):
        raise RequestError(
            406,
            IssueType.NOT_SUPPORTED,
            f"Answers are {FHIR_JSON} of FHIR {FHIR_VERSION}, and the Accept header excludes that: "
            f"send Accept: {FHIR_JSON}, or none.",
        )


def _is_accepted(type: str, ranges: Iterable[MediaType]) -> bool:
    """Whether the most specific range that a type falls under has a quality above 0."""
    for name in (type, "application/*", "*/*"):
        fitting = [one for one in ranges if one.name == name and one.is_this_version]
        if fitting:
            return any(not _NOTHING.fullmatch(one.parameters.get("q", "")) for one in fitting)
    return False
