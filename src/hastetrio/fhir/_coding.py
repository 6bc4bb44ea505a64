"""Which content coding an answer gets: RFC 9110 section 12.5.3, for identity and gzip."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from hastetrio.fhir._fields import elements

# RFC 9110 section 12.4.2: at most three digits behind the point.
_MEMBER: Final = re.compile(
    r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)"
    r"(?:[ \t]*;[ \t]*[qQ]=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?))?"
)

# RFC 9110 section 8.4.1.3: "A recipient SHOULD consider x-gzip to be equivalent to gzip".
_GZIP: Final = ("gzip", "x-gzip")
_IDENTITY: Final = "identity"
_ANY: Final = "*"


def chosen_coding(fields: Iterable[str]) -> str | None:
    """The coding to answer with: "gzip", "identity", or None where the client takes neither.

    gzip is taken only where it is asked for, and preferred where both have the same weight. What
    is no member of the list's grammar is passed over, as if the client had not written it.

    Args:
        fields: The values of all Accept-Encoding fields of a request.
    """
    weights: dict[str, float] = {}
    for element in elements(fields):
        found = _MEMBER.fullmatch(element.strip(" \t"))
        if found is not None:
            weights.setdefault(found[1].lower(), float(found[2] or 1))
    others = weights.get(_ANY)
    gzip = next((weights[name] for name in _GZIP if name in weights), others or 0.0)
    # Not naming identity excludes it only where "*;q=0" does; it is then the last choice.
    identity = weights.get(_IDENTITY, others)
    if gzip > 0 and gzip >= (identity or 0.0):
        return "gzip"
    return None if identity == 0 else _IDENTITY
