"""What a token's scopes allow: SMART App Launch scopes, version 1 and version 2.

Version 2: https://hl7.org/fhir/smart-app-launch/STU2.2/scopes-and-launch-context.html, where the
permissions are letters of `cruds` in that order; version 1 has `read`, `write` and `*` instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

# A query behind the letters (`.rs?category=...`) narrows a scope to some resources. What asks for
# a whole type is not covered by such a one, so that it is left out like any other unknown scope.
_SCOPE: Final = re.compile(
    r"(?P<context>system|user|patient)/(?P<type>\*|[A-Z][A-Za-z]*)"
    r"\.(?P<may>read|write|\*|(?=[cruds])c?r?u?d?s?)"
)

# The same page, "Scopes for requesting clinical data": what the words of version 1 stand for.
_WORDS: Final = {"read": "rs", "write": "cud", "*": "cruds"}


def covers(granted: object, wanted: str) -> bool:
    """Whether the scopes of a token allow what `wanted` stands for.

    Scopes add up: `system/*.r system/*.s` allows `system/*.rs`. The context is compared as it is:
    a `user/` or `patient/` scope says nothing about `system/`, nor the other way round.

    Args:
        granted: The claim `scope`: scopes separated by spaces, or a list of them. Anything else
            allows nothing.
        wanted: One scope, such as `system/*.rs`. One that is no SMART scope is never allowed.
    """
    asked = _SCOPE.fullmatch(wanted)
    if asked is None:
        return False
    allowed: set[str] = set()
    for scope in _listed(granted):
        found = _SCOPE.fullmatch(scope)
        if (
            found is not None
            and found["context"] == asked["context"]
            and found["type"] in ("*", asked["type"])
        ):
            allowed.update(_letters(found["may"]))
    return allowed.issuperset(_letters(asked["may"]))


def _letters(may: str) -> str:
    return _WORDS.get(may, may)


def _listed(granted: object) -> Iterable[str]:
    if isinstance(granted, str):
        return granted.split(" ")
    if isinstance(granted, list) and all(isinstance(scope, str) for scope in granted):
        return granted
    return ()
