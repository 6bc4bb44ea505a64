"""Typed parameters and outputs: JSON to the class a handler declares, and a class to JSON.

Strict: no text becomes a number, no number a truth value, no unknown name is passed over. What
does not fit is said by path, all of it at once, as the issues of an OperationOutcome.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime
from itertools import islice
from typing import Any, Final, TypeVar

import attrs
from cattrs import AttributeValidationNote, Converter, IterableValidationNote
from cattrs.cols import is_any_set, is_mapping, is_sequence
from cattrs.errors import (
    BaseValidationError,
    ClassValidationError,
    ForbiddenExtraKeysError,
    IterableValidationError,
    StructureHandlerNotFoundError,
)
from cattrs.gen import make_dict_structure_fn
from cattrs.preconf.json import JsonConverter, make_converter

from hastetrio._errors import ConfigError
from hastetrio._operation import HANDLING, TARGET
from hastetrio._outcome import Issue, IssueType, OperationOutcomeError
from hastetrio._storable import clean_text

T = TypeVar("T")

# Issues of one mismatch, and characters of one's text: a list may hold thousands of wrong items.
_MOST_ISSUES: Final = 100
_LONGEST: Final = 500

# What the HTTP face puts beside a client's parameters; `context.job.parameters` has it.
_CIRCUMSTANCES: Final = frozenset({TARGET, HANDLING})

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

_PLURALS: Final = {"is": "are", "has": "have"}


class _WrongShape(Exception):
    """JSON of another kind than what was declared."""


class ParameterMismatch(OperationOutcomeError):
    """The job's parameters do not fit what its handler declares; never tried again."""


def is_structured(kind: object) -> bool:
    """Whether it is a class that JSON is turned into: of attrs, or a dataclass."""
    return isinstance(kind, type) and (attrs.has(kind) or dataclasses.is_dataclass(kind))


def check_class(kind: type) -> None:
    """See at start that JSON can be turned into a class.

    Raises:
        ConfigError: It is neither of attrs nor a dataclass, or a field has a type of another kind.
    """
    if not is_structured(kind):
        raise ConfigError(f"parameters must be an attrs class or a dataclass, not {kind!r}")
    try:
        _check_type(kind, [])
    except (StructureHandlerNotFoundError, TypeError) as error:
        # A TypeError: of two classes that look alike cattrs cannot choose one.
        raise ConfigError(f"JSON cannot be turned into {kind.__name__}: {error}") from None
    except NameError as error:
        raise ConfigError(
            f"an annotation of {kind.__name__} cannot be resolved ({error}): define the class and "
            "the types it names at the top of a module"
        ) from None


def _check_type(kind: Any, seen: list[Any]) -> None:  # noqa: ANN401  # types of types
    # Of what is optional, cattrs looks for a hook only when there is a value.
    if kind in seen or kind in (Ellipsis, type(None)):
        return
    seen.append(kind)
    _CONVERTER.get_structure_hook(kind)
    if typing.get_origin(kind) is typing.Literal:
        return
    if is_mapping(kind) and not _is_text(*typing.get_args(kind)[:1]):
        raise TypeError(f"{kind} has keys that are no text, as the names of JSON are")
    parts = [*json_fields(kind).values()] if is_structured(kind) else [*typing.get_args(kind)]
    for part in parts[:1] if typing.get_origin(kind) is typing.Annotated else parts:
        _check_type(part, seen)


def _is_text(kind: Any = str) -> bool:  # noqa: ANN401  # types of types
    return kind is Any or kind is str or _is_choice(kind) or isinstance(kind, typing.TypeVar)


def structure(kind: type[T], parameters: object) -> T:
    """The parameters of a job as an instance of the class its handler declares.

    Raises:
        ParameterMismatch: They do not fit; an issue for each path, required, structure or value.
    """
    if isinstance(parameters, dict):
        parameters = {
            name: value for name, value in parameters.items() if name not in _CIRCUMSTANCES
        }
    try:
        return _CONVERTER.structure(parameters, kind)
    except Exception as error:  # noqa: BLE001  # a validator of the class may raise anything
        issues = _all_issues(error)
    first = issues[0]
    mismatch = ParameterMismatch(first.code, first.diagnostics, expression=first.expression)
    for issue in issues[1:]:
        mismatch.add(issue.code, issue.diagnostics, expression=issue.expression)
    raise mismatch


def json_fields(kind: type) -> dict[str, Any]:
    """The fields of a class by their names in JSON, with their types."""
    hints = typing.get_type_hints(kind)
    if attrs.has(kind):
        return {one.alias: hints[one.name] for one in attrs.fields(kind) if one.init}
    fields = dataclasses.fields(typing.cast("Any", kind))
    return {one.name: hints[one.name] for one in fields if one.init}


def unstructure(value: object) -> Any:  # noqa: ANN401  # JSON is any value
    """An instance of an attrs class or dataclass as JSON."""
    return _CONVERTER.unstructure(value)


def _all_issues(error: Exception) -> list[Issue]:
    try:
        return list(islice(_issues(error, ""), _MOST_ISSUES))
    except RecursionError:
        return [Issue(IssueType.STRUCTURE, "The parameters are nested too deeply.")]


def _issues(error: BaseException, path: str) -> Iterator[Issue]:
    if isinstance(error, (ClassValidationError, IterableValidationError)):
        for part in error.exceptions:
            names = _names(error.cl) if isinstance(error, ClassValidationError) else {}
            longer = _longer(path, part, names)
            if longer == path:
                longer = _validated(path, part, names)
            yield from _issues(part, longer)
        return
    if isinstance(error, BaseValidationError):
        for part in error.exceptions:
            yield from _issues(part, path)
        return
    if isinstance(error, ForbiddenExtraKeysError):
        for name in sorted(map(str, error.extra_fields)):
            yield _issue(IssueType.STRUCTURE, _below(path, name), "is no parameter")
        return
    if isinstance(error, RecursionError):
        raise error
    if isinstance(error, KeyError) and hasattr(error, "__notes__"):
        # cattrs' own says in a note which attribute it is; a validator's may be about anything.
        yield _issue(IssueType.REQUIRED, path, "is missing")
    elif isinstance(error, _WrongShape):
        yield _issue(IssueType.STRUCTURE, path, str(error))
    elif isinstance(error, ValueError) and str(error):
        # The validators of attrs give more than their text.
        text = error.args[0] if type(error) is ValueError else error
        yield _issue(IssueType.VALUE, path, f"has a bad value: {text}")
    else:
        yield _issue(IssueType.VALUE, path, "has a value that is not accepted")


def _issue(code: IssueType, path: str, what: str) -> Issue:
    if not path:
        verb, _, rest = what.partition(" ")
        what = f"{_PLURALS.get(verb, verb)} {rest}"
    text = clean_text(f"{path or 'The parameters'} {what}".removesuffix("."), _LONGEST)
    return Issue(code, f"{text}.", expression=(path,) if path else ())


def _names(kind: type) -> dict[str, str]:
    """What the JSON calls the attributes of a class."""
    return {one.name: one.alias for one in attrs.fields(kind)} if attrs.has(kind) else {}


def _longer(path: str, error: BaseException, names: Mapping[str, str]) -> str:
    for note in getattr(error, "__notes__", ()):
        if isinstance(note, AttributeValidationNote):
            return _below(path, names.get(note.name, note.name))
        if isinstance(note, IterableValidationNote):
            is_place = isinstance(note.index, int)
            return f"{path}[{note.index}]" if is_place else _below(path, str(note.index))
    return path


def _validated(path: str, error: BaseException, names: Mapping[str, str]) -> str:
    """The path of an attribute whose validator raised; attrs' own name it first, in quotes."""
    if not isinstance(error, (ValueError, TypeError)):
        return path
    name = str(error).partition("'")[2].partition("'")[0]
    return _below(path, names[name]) if name in names else path


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _wrong(expected: str, value: object) -> _WrongShape:
    found = _JSON_NAMES.get(type(value), type(value).__name__)
    return _WrongShape(f"must be {expected}, not {found}")


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


def _is_choice(kind: Any) -> bool:  # noqa: ANN401  # types of types
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
    converter = make_converter(detailed_validation=True, use_alias=True)
    for kind, hook in {
        str: _exactly("text", str),
        bool: _exactly("true or false", bool),
        int: _exactly("a whole number", int),
        float: _number,
        datetime: _time(datetime, "a time"),
        date: _time(date, "a date"),
    }.items():
        converter.register_structure_hook(kind, hook)
    converter.register_structure_hook_func(_is_choice, _choice)
    # cattrs' own takes true for a number, as Python does.
    converter.register_structure_hook_func(_is_plain_union, _one_of_plain)
    converter.register_structure_hook_factory(_is_collection, _collection)
    converter.register_structure_hook_factory(is_structured, _class)
    return converter


_RESOLVING: Final[list[Any]] = []
_CONVERTER: Final = _make_converter()
