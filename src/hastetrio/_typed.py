"""Typed parameters and outputs: JSON to the class a handler declares, and a class to JSON.

What does not fit is said by path, all of it at once, as the issues of an OperationOutcome.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, TypeVar

import attrs
from cattrs import AttributeValidationNote, IterableValidationNote
from cattrs.cols import is_mapping
from cattrs.errors import (
    BaseValidationError,
    ClassValidationError,
    ForbiddenExtraKeysError,
    IterableValidationError,
    StructureHandlerNotFoundError,
)

from hastetrio._errors import ConfigError
from hastetrio._operation import HANDLING, TARGET
from hastetrio._outcome import Issue, IssueType, OperationOutcomeError
from hastetrio._storable import clean_text
from hastetrio._strict import CONVERTER, WrongShape, is_structured, is_text_key

T = TypeVar("T")

# Issues of one mismatch, and characters of one's text: a list may hold thousands of wrong items.
_MOST_ISSUES: Final = 100
_LONGEST: Final = 500

# What the HTTP face puts beside a client's parameters; `context.job.parameters` has it.
_CIRCUMSTANCES: Final = frozenset({TARGET, HANDLING})

_PLURALS: Final = {"is": "are", "has": "have"}


class ParameterMismatch(OperationOutcomeError):
    """The job's parameters do not fit what its handler declares; never tried again."""


def check_class(kind: type) -> None:
    """See at start that JSON can be turned into a class.

    Raises:
        ConfigError: It is neither of attrs nor a dataclass, or a field has a type of another kind.
    """
    if not is_structured(kind):
        raise ConfigError(f"parameters must be an attrs class or a dataclass, not {kind!r}")
    try:
        for name, found in json_fields(kind).items():
            _check_field(name, found)
        CONVERTER.get_structure_hook(kind)
    except (StructureHandlerNotFoundError, TypeError) as error:
        raise ConfigError(f"JSON cannot be turned into {kind.__name__}: {error}") from None
    except NameError as error:
        raise ConfigError(
            f"an annotation of {kind.__name__} cannot be resolved ({error}): define the class and "
            "the types it names at the top of a module"
        ) from None


def _check_field(name: str, kind: Any) -> None:  # noqa: ANN401  # types of types
    try:
        _check_type(kind, [])
    except StructureHandlerNotFoundError as error:
        found = getattr(error.type_, "__name__", error.type_)
        raise TypeError(f"{name} is or holds {found}, which JSON has no form for") from None
    except TypeError as error:
        # Of two classes that look alike cattrs cannot choose one.
        raise TypeError(f"{name}: {error}") from None


def _check_type(kind: Any, seen: list[Any]) -> None:  # noqa: ANN401  # types of types
    # Of what is optional, cattrs looks for a hook only when there is a value.
    if kind in seen or kind in (Ellipsis, type(None)):
        return
    seen.append(kind)
    CONVERTER.get_structure_hook(kind)
    if typing.get_origin(kind) is typing.Literal:
        return
    if is_mapping(kind) and not is_text_key(*typing.get_args(kind)[:1]):
        raise TypeError(f"{kind} has keys that are no text, as the names of JSON are")
    parts = [*json_fields(kind).values()] if is_structured(kind) else [*typing.get_args(kind)]
    for part in parts[:1] if typing.get_origin(kind) is typing.Annotated else parts:
        _check_type(part, seen)


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
        return CONVERTER.structure(parameters, kind)
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
    return CONVERTER.unstructure(value)


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
    elif isinstance(error, WrongShape):
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
