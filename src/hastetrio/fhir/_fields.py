"""Header fields that are lists: split where they separate, and not inside quoted strings.

The grammar is RFC 9110's, sections 5.6.1 to 5.6.6. What does not fit it is left out, never an
error: a preference or a media type that nobody understands takes none of the others with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import attrs

NAME: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_QUOTED: Final = r'"(?:[^"\\]|\\.)*+"'

# A name with a value or without one. An empty value counts as none (RFC 7240 section 2).
_PAIR: Final = re.compile(
    rf"[ \t]*+({NAME})(?:[ \t]*+=[ \t]*+({NAME}|{_QUOTED})?+)?+[ \t]*+", re.DOTALL
)
_STRING: Final = re.compile(_QUOTED, re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


@attrs.frozen
class Pair:
    """A name and its value: a preference, or a parameter of one or of a media type.

    Attributes:
        name: In lower case; names are the same in any case.
        value: Without its quotes; empty where there is none.
    """

    name: str
    value: str


def parse_pair(text: str) -> Pair | None:
    """The pair that a text is; None if it is none."""
    found = _PAIR.fullmatch(text)
    if found is None:
        return None
    value = found[2] or ""
    if value.startswith('"'):
        value = _ESCAPED.sub(r"\1", value[1:-1])
    return Pair(found[1].lower(), value)


def elements(fields: Iterable[str]) -> Iterator[str]:
    """The elements of a list, which may be spread over several fields of one name."""
    for field in fields:
        for element in split(field, ","):
            if element.strip(" \t"):
                yield element


def split(text: str, separator: str) -> list[str]:
    """The parts of a text between separators that are in no quoted string.

    A quote that nothing closes is a character like any other, so that it swallows no part.
    """
    parts: list[str] = []
    start = at = 0
    is_quoting = True
    while at < len(text):
        if text[at] == '"' and is_quoting:
            if string := _STRING.match(text, at):
                at = string.end()
                continue
            # What follows cannot close either, or only by chance; looking each time costs a
            # hostile field of n quotes n times its length.
            is_quoting = False
        elif text[at] == separator:
            parts.append(text[start:at])
            start = at + 1
        at += 1
    parts.append(text[start:])
    return parts
