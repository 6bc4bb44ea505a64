"""A kick-off's parameters in the shape that a handler's class has: by name, and typed.

A query knows only text, and a Parameters resource names its types: where a handler declares a
class, both become what the class calls them. What does not fit is left as it is; the class then
refuses it, by name.
"""

from __future__ import annotations

import re
import types
import typing
from typing import Any, Final

from hastetrio._operation import HANDLING, TARGET
from hastetrio._strict import is_structured
from hastetrio._typed import json_fields

_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?([eE][+-]?[0-9]{1,3})?")


def shaped(kind: type, parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters by name, each as JSON of the type that the class declares.

    Args:
        kind: The class of the handler's parameters.
        parameters: The query by name, or a Parameters resource.
    """
    given = parameters
    if parameters.get("resourceType") == "Parameters":
        given = _by_name(parameters.get("parameter", []))
        given |= {name: parameters[name] for name in (TARGET, HANDLING) if name in parameters}
    return _of_class(kind, given)


def _of_class(kind: type, given: dict[str, Any]) -> dict[str, Any]:
    fields = json_fields(kind)
    return {
        name: _fitted(value, fields[name]) if name in fields else value
        for name, value in given.items()
    }


def _by_name(parameter: list[Any]) -> dict[str, Any]:
    """The parameters of a resource by name; one that is repeated is a list."""
    found: dict[str, list[Any]] = {}
    for one in parameter:
        found.setdefault(str(one.get("name")), []).append(_value(one))
    return {name: values if len(values) > 1 else values[0] for name, values in found.items()}


def _value(one: dict[str, Any]) -> Any:  # noqa: ANN401  # JSON is any value
    """What a parameter holds: a value of some type, a resource, or parts.

    Source: https://hl7.org/fhir/R4/parameters.html
    """
    for name, value in one.items():
        if name == "resource" or re.fullmatch("value[A-Z][A-Za-z0-9]*", name):
            return value
    part = one.get("part")
    if isinstance(part, list) and all(isinstance(inner, dict) for inner in part):
        return _by_name(part)
    return None


def _fitted(value: Any, kind: Any) -> Any:  # noqa: ANN401  # JSON, and types of types
    kinds = [kind]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kinds = [one for one in typing.get_args(kind) if one is not type(None)]
    if len(kinds) != 1:
        return value
    (kind,) = kinds
    origin = typing.get_origin(kind) or kind
    if origin in (list, set, frozenset, tuple):
        items = [one for one in typing.get_args(kind) if one is not Ellipsis]
        values = value if isinstance(value, list) else [value]
        return [_fitted(one, items[0]) for one in values] if len(items) == 1 else values
    if isinstance(value, dict) and is_structured(kind):
        # Parts, which are named as parameters are.
        return _of_class(kind, value)
    return _converted(value, kind) if isinstance(value, str) else value


def _converted(text: str, kind: Any) -> Any:  # noqa: ANN401  # as above
    if kind is bool and text in ("true", "false"):
        return text == "true"
    if kind is int and _WHOLE.fullmatch(text):
        return int(text)
    if kind is float and _NUMBER.fullmatch(text):
        return float(text)
    return text
