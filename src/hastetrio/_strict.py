"""How JSON becomes values of declared types: strictly, with what is wrong in words.

No text becomes a number, no number a truth value, and nothing that can merely be walked a list.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import attrs
from cattrs import Converter
from cattrs.cols import is_any_set, is_mapping, is_sequence
from cattrs.gen import make_dict_structure_fn
from cattrs.preconf.json import JsonConverter, make_converter

_JSON_NAMES: Final = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "null",
}

_PLAIN: Final = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    type(None): "null",
}


class WrongShape(Exception):
    """JSON of another kind than what was declared."""


def is_structured(kind: object) -> bool:
    """Whether it is a class that JSON is turned into: of attrs, or a dataclass."""
    return isinstance(kind, type) and (attrs.has(kind) or dataclasses.is_dataclass(kind))


def is_text_key(kind: Any = str) -> bool:  # noqa: ANN401  # types of types
    return kind is Any or kind is str or is_choice(kind) or isinstance(kind, typing.TypeVar)


def _wrong(expected: str, value: object) -> WrongShape:
    found = _JSON_NAMES.get(type(value), type(value).__name__)
    return WrongShape(f"must be {expected}, not {found}")


def _exactly(expected: str, *kinds: type) -> Callable[[Any, Any], Any]:
    def check(value: object, _: object) -> object:
        if type(value) not in kinds:
            raise _wrong(expected, value)
        return value

    return check


def _number(value: object, _: object) -> float:
    if type(value) not in (int, float):
        raise _wrong("a number", value)
    return float(typing.cast("float", value))


def _time(kind: type[date], what: str) -> Callable[[Any, Any], Any]:
    def check(value: object, _: object) -> date:
        if not isinstance(value, str):
            raise _wrong(what, value)
        try:
            return kind.fromisoformat(value)
        except ValueError:
            raise ValueError(f"it must be {what}, as ISO 8601 has it") from None

    return check


def _text_of(kind: Callable[[str], Any], what: str) -> Callable[[Any, Any], Any]:
    def check(value: object, _: object) -> object:
        if not isinstance(value, str):
            raise _wrong("text", value)
        try:
            return kind(value)
        except (ValueError, ArithmeticError):
            raise ValueError(f"it must be {what}") from None

    return check


def _decimal(value: object, kind: object) -> Decimal:
    # A number of JSON is taken by its shortest form: 0.1 is a tenth.
    text = repr(value) if type(value) in (int, float) else value
    found: Decimal = _text_of(Decimal, "a decimal number")(text, kind)
    if not found.is_finite():
        raise ValueError("it must be a decimal number")
    return found


def _choice(value: object, kind: Any) -> object:  # noqa: ANN401  # an enum, or a Literal
    choices = typing.get_args(kind) or [member.value for member in kind]
    for choice in choices:
        if type(choice) is type(value) and choice == value:
            return value if typing.get_args(kind) else kind(value)
    known = ", ".join(str(choice) for choice in choices)
    raise ValueError(f"it must be one of {known}")


def _is_plain_union(kind: Any) -> bool:  # noqa: ANN401  # types of types
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return is_union and all(one in _PLAIN for one in typing.get_args(kind))


def _one_of_plain(value: object, kind: Any) -> object:  # noqa: ANN401  # as above
    kinds = typing.get_args(kind)
    if type(value) in kinds:
        return value
    if type(value) is int and float in kinds:
        return float(value)
    raise _wrong(" or ".join(_PLAIN[one] for one in kinds if one is not type(None)), value)


def is_choice(kind: Any) -> bool:  # noqa: ANN401  # types of types
    return typing.get_origin(kind) is typing.Literal or (
        isinstance(kind, type) and issubclass(kind, enum.Enum)
    )


def _is_collection(kind: Any) -> bool:  # noqa: ANN401  # types of types
    if kind in _RESOLVING:
        return False
    is_tuple = kind is tuple or typing.get_origin(kind) is tuple
    return is_tuple or is_sequence(kind) or is_any_set(kind) or is_mapping(kind)


def _collection(kind: Any, converter: Converter) -> Callable[[Any, Any], Any]:  # noqa: ANN401
    # cattrs takes anything that can be walked, so that a text would be a list of characters.
    _RESOLVING.append(kind)
    try:
        base: Callable[[Any, Any], Any] = converter.get_structure_hook(kind, cache_result=False)
    finally:
        _RESOLVING.remove(kind)
    wanted, name = (dict, "an object") if is_mapping(kind) else (list, "a list")

    def check(value: object, type_: object) -> object:
        if not isinstance(value, wanted):
            raise _wrong(name, value)
        return base(value, type_)

    if wanted is dict:
        # cattrs keeps its own hook of a mapping for the next class, and would ask nobody then:
        # https://github.com/python-attrs/cattrs/blob/main/src/cattrs/converters.py
        converter.register_structure_hook_func(lambda found: bool(found == kind), check)
    return check


def _class(kind: Any, converter: Converter) -> Callable[[Any, Any], Any]:  # noqa: ANN401
    base = make_dict_structure_fn(
        kind,
        converter,
        _cattrs_forbid_extra_keys=True,
        _cattrs_use_alias=True,
        _cattrs_detailed_validation=True,
    )

    def check(value: object, type_: Any) -> object:  # noqa: ANN401
        if not isinstance(value, dict):
            raise _wrong("an object", value)
        return base(value, type_)

    return check


def _make_converter() -> JsonConverter:
    converter = make_converter(detailed_validation=True, forbid_extra_keys=True, use_alias=True)
    for kind, hook in {
        str: _exactly("text", str),
        bool: _exactly("true or false", bool),
        int: _exactly("a whole number", int),
        float: _number,
        datetime: _time(datetime, "a time"),
        date: _time(date, "a date"),
        UUID: _text_of(UUID, "a UUID"),
        Decimal: _decimal,
        bytes: _text_of(lambda text: b64decode(text, validate=True), "base64"),
    }.items():
        converter.register_structure_hook(kind, hook)
    for kind in (UUID, Decimal):
        converter.register_unstructure_hook(kind, str)
    # As FHIR has them (https://hl7.org/fhir/R4/datatypes.html#base64Binary); cattrs' own is base85.
    converter.register_unstructure_hook(bytes, lambda value: b64encode(value).decode())
    converter.register_structure_hook_func(is_choice, _choice)
    # cattrs' own takes true for a number, as Python does.
    converter.register_structure_hook_func(_is_plain_union, _one_of_plain)
    converter.register_structure_hook_factory(_is_collection, _collection)
    converter.register_structure_hook_factory(is_structured, _class)
    return converter


_RESOLVING: Final[list[Any]] = []
CONVERTER: Final = _make_converter()
