"""What a client prefers: the Prefer header field, RFC 7240.

Preferences are wishes, so that one that is unknown or malformed is passed over, never refused.
"""

from __future__ import annotations

from typing import Final, Literal

import attrs

from hastetrio.fhir._fields import elements, parse_pair, split

# Digits of a delay that are read. More are no delay that anybody means, and Python refuses to
# convert 4,300.
_DIGITS: Final = 9
_LONGEST_WAIT: Final = 10**_DIGITS


@attrs.frozen(kw_only=True)
class Preferences:
    """The preferences this server knows.

    Attributes:
        respond_async: Whether the answer may come later (section 4.1).
        handling: How to treat what is not understood (section 4.4); None if nothing was said.
        wait: Seconds the client is ready to wait (section 4.3); None if nothing was said.
    """

    respond_async: bool = False
    handling: Literal["strict", "lenient"] | None = None
    wait: int | None = None

    def applied(self) -> dict[str, str]:
        """The header field that says which preferences are honoured, where any is (section 3).

        `handling` is the handler's to honour, long after this answer, and nobody waits here.
        """
        return {"Preference-Applied": "respond-async"} if self.respond_async else {}


def parse_prefer(fields: list[str]) -> Preferences:
    """The preferences in the Prefer fields of a request.

    Of a preference that is given twice the first counts (section 2), in whichever field it is.
    """
    first: dict[str, str] = {}
    for element in elements(fields):
        preference, *parameters = (parse_pair(part) for part in split(element, ";"))
        # The parameters of the preferences known here mean nothing, malformed ones included.
        del parameters
        if preference is not None:
            first.setdefault(preference.name, preference.value)
    return Preferences(
        # It has no value (section 4.1): respond-async=false shall not be taken for a yes.
        respond_async=first.get("respond-async") == "",
        handling=_handling(first.get("handling")),
        wait=_wait(first.get("wait")),
    )


def _handling(value: str | None) -> Literal["strict", "lenient"] | None:
    match (value or "").lower():
        case "strict":
            return "strict"
        case "lenient":
            return "lenient"
        case _:
            return None


def _wait(value: str | None) -> int | None:
    if not value or not (value.isascii() and value.isdigit()):
        return None
    digits = value.lstrip("0")
    return int(digits or "0") if len(digits) <= _DIGITS else _LONGEST_WAIT
