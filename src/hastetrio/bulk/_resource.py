"""The resource that a line of NDJSON holds."""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

from hastetrio._outcome import IssueType
from hastetrio.bulk._lines import Line
from hastetrio.bulk._types import RESOURCE_TYPES


class LineProblem(Exception):
    """What is wrong with one line.

    Attributes:
        code: Of what kind it is.
        text: The words for it.
    """

    def __init__(self, code: IssueType, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def _refuse(constant: str) -> NoReturn:
    raise LineProblem(IssueType.STRUCTURE, f"not JSON ({constant} is no number)")


def _ignore(number: str) -> None:  # noqa: ARG001  # called by json
    return None


# Numbers are not looked at: nothing here needs them, and int() refuses one of more than 4,300
# digits, which JSON allows. One decoder for all lines: json.loads would make one for each.
_DECODER: Final = json.JSONDecoder(parse_constant=_refuse, parse_int=_ignore, parse_float=_ignore)


def parse_resource(line: Line, limit: int) -> tuple[str, dict[str, Any], bytes]:
    """The type of the resource a line holds, the resource, and the line's bytes.

    The problems say where and of what kind, never what the line says: it may be about a patient.

    Raises:
        LineProblem: It holds none.
    """
    data = line.data
    if data is None:
        text = f"{line.size:,} bytes, and the limit is {limit:,}"
        raise LineProblem(IssueType.TOO_LONG, text)
    try:
        value = _DECODER.decode(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        text = f"not UTF-8 (byte {error.start + 1:,})"
        raise LineProblem(IssueType.STRUCTURE, text) from None
    except json.JSONDecodeError as error:
        text = f"not JSON (character {error.pos + 1:,}: {error.msg})"
        raise LineProblem(IssueType.STRUCTURE, text) from None
    except RecursionError:
        raise LineProblem(IssueType.STRUCTURE, "nested too deeply") from None
    if not isinstance(value, dict):
        raise LineProblem(IssueType.STRUCTURE, "not a JSON object")
    resource_type = value.get("resourceType")
    if not isinstance(resource_type, str):
        raise LineProblem(IssueType.REQUIRED, "no resourceType")
    if resource_type not in RESOURCE_TYPES:
        raise LineProblem(IssueType.VALUE, "its resourceType is no FHIR R4 resource type")
    return resource_type, value, data
