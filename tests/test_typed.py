"""JSON to classes and back: what fits, what does not, and what is said about it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NewType, TypedDict, TypeVar
from uuid import UUID

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastetrio import ConfigError, Issue, ParameterMismatch
from hastetrio._strict import is_structured
from hastetrio._typed import check_class, structure, unstructure

T = TypeVar("T")
Number = NewType("Number", int)


class Level(enum.Enum):
    """An enum of texts and a number."""

    FINE = "fine"
    ONE = 1


class Point(TypedDict):
    """A dict of known names."""

    x: int


@attrs.frozen
class Inner:
    """A part."""

    name: str
    size: int = 1


@dataclasses.dataclass(frozen=True)
class Data:
    """A part that is a dataclass."""

    name: str
    made: int = dataclasses.field(default=7, init=False)


@attrs.frozen
class Tree:
    """A part that has parts like itself."""

    name: str
    parts: list[Tree] = attrs.Factory(list)


@attrs.frozen
class Box(Generic[T]):
    """A part of some type."""

    value: T


@attrs.frozen
class Named:
    """A class whose names in JSON are others."""

    _private: int
    kind: str = attrs.field(alias="sort")


@attrs.frozen
class Maybe:
    """A class one of whose fields no JSON fits, if there is any."""

    number: complex | None = None


@attrs.frozen
class Left:
    """One of two."""

    left: int


@attrs.frozen
class Right:
    """The other."""

    right: int


def a_class(kind: Any) -> type:  # noqa: ANN401  # types of types
    """A class with one field of this type."""
    return attrs.make_class("Made", {"x": attrs.field(type=kind)})


def found(kind: type, value: object) -> list[tuple[str, str, str]]:
    """Code, path and text of each issue."""
    with pytest.raises(ParameterMismatch) as caught:
        structure(kind, value)
    issues = caught.value.issues
    assert all(issue.severity == "error" for issue in issues)
    return [(issue.code, "".join(issue.expression), issue.diagnostics) for issue in issues]


FITS: list[tuple[Any, object, object]] = [
    (str, "text", "text"),
    (int, 7, 7),
    (float, 7, 7.0),
    (float, 7.5, 7.5),
    (bool, True, True),
    (Any, {"a": [None]}, {"a": [None]}),
    (int | None, None, None),
    (int | str, "x", "x"),
    (float | str, 1, 1.0),
    (float | None, 1, 1.0),
    (Literal["a", 1], "a", "a"),
    (Level, "fine", Level.FINE),
    (Level, 1, Level.ONE),
    (Level | None, None, None),
    (date, "2026-01-02", date(2026, 1, 2)),
    (datetime, "2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
    (datetime | None, None, None),
    (datetime, "2026-01-02T03:04:05", datetime(2026, 1, 2, 3, 4, 5)),  # noqa: DTZ001  # as it is
    (UUID, "12345678-1234-5678-1234-567812345678", UUID("12345678-1234-5678-1234-567812345678")),
    (Decimal, "1.10", Decimal("1.10")),
    (Decimal, 0.1, Decimal("0.1")),
    (Decimal, 7, Decimal(7)),
    (list[int], [1, 2], [1, 2]),
    (list, [1, "a"], [1, "a"]),
    (Sequence[int], [1, 2], (1, 2)),
    (set[int], [1, 1], {1}),
    (frozenset[str], ["a"], frozenset("a")),
    (tuple[int, str], [1, "a"], (1, "a")),
    (tuple[int, ...], [1, 2, 3], (1, 2, 3)),
    (dict, {"a": [1]}, {"a": [1]}),
    (dict[str, int], {"a": 1}, {"a": 1}),
    (Mapping[str, list[int]], {"a": [1]}, {"a": [1]}),
    (Point, {"x": 1}, {"x": 1}),
    (Number, 5, 5),
    (Annotated[int, "whole"], 5, 5),
    (Inner, {"name": "a"}, Inner("a")),
    (Inner | None, None, None),
    (list[Inner], [{"name": "a", "size": 2}], [Inner("a", 2)]),
    (dict[str, Inner], {"k": {"name": "a"}}, {"k": Inner("a")}),
    (Data, {"name": "a"}, Data("a")),
    (Box[int], {"value": 1}, Box(1)),
    (Left | Right, {"right": 1}, Right(1)),
    (Left | int, 5, 5),
]


@pytest.mark.parametrize(("kind", "value", "fits"), FITS, ids=str)
def test_json_that_fits_becomes_what_is_declared(kind: Any, value: object, fits: object) -> None:  # noqa: ANN401
    """In a class of its own, and in a second one, which finds what the first one left behind."""
    for _ in range(2):
        declared = a_class(kind)
        check_class(declared)
        made: Any = structure(declared, {"x": value})
        assert made.x == fits
        assert type(made.x) is type(fits)


MISFITS: list[tuple[Any, object, list[tuple[str, str, str]]]] = [
    (str, 5, [("structure", "x", "x must be text, not a number.")]),
    (str, None, [("structure", "x", "x must be text, not null.")]),
    (int, "7", [("structure", "x", "x must be a whole number, not text.")]),
    (int, True, [("structure", "x", "x must be a whole number, not true or false.")]),
    (int, 1.0, [("structure", "x", "x must be a whole number, not a number.")]),
    (float, "7", [("structure", "x", "x must be a number, not text.")]),
    (float, True, [("structure", "x", "x must be a number, not true or false.")]),
    (bool, 1, [("structure", "x", "x must be true or false, not a number.")]),
    (bool, "true", [("structure", "x", "x must be true or false, not text.")]),
    (int | None, "7", [("structure", "x", "x must be a whole number, not text.")]),
    (int | str, [], [("structure", "x", "x must be a whole number or text, not a list.")]),
    (int | str, True, [("structure", "x", "x must be a whole number or text, not true or false.")]),
    (float | None, "1", [("structure", "x", "x must be a number, not text.")]),
    (UUID, "12", [("value", "x", "x has a bad value: it must be a UUID.")]),
    (UUID, 12, [("structure", "x", "x must be text, not a number.")]),
    (Decimal, "a", [("value", "x", "x has a bad value: it must be a decimal number.")]),
    (Decimal, "NaN", [("value", "x", "x has a bad value: it must be a decimal number.")]),
    (Decimal, True, [("structure", "x", "x must be text, not true or false.")]),
    (Literal["a"], "b", [("value", "x", "x has a bad value: it must be one of a.")]),
    (Literal[1], True, [("value", "x", "x has a bad value: it must be one of 1.")]),
    (Level, "FINE", [("value", "x", "x has a bad value: it must be one of fine, 1.")]),
    (Level, True, [("value", "x", "x has a bad value: it must be one of fine, 1.")]),
    (Level, [], [("value", "x", "x has a bad value: it must be one of fine, 1.")]),
    (date, 5, [("structure", "x", "x must be a date, not a number.")]),
    (date, "5", [("value", "x", "x has a bad value: it must be a date, as ISO 8601 has it.")]),
    (datetime, "x", [("value", "x", "x has a bad value: it must be a time, as ISO 8601 has it.")]),
    (list[int], "12", [("structure", "x", "x must be a list, not text.")]),
    (list[int], {"a": 1}, [("structure", "x", "x must be a list, not an object.")]),
    (list, "12", [("structure", "x", "x must be a list, not text.")]),
    (set[str], "ab", [("structure", "x", "x must be a list, not text.")]),
    (tuple[str, ...], "ab", [("structure", "x", "x must be a list, not text.")]),
    (Sequence[str], "ab", [("structure", "x", "x must be a list, not text.")]),
    (dict, [], [("structure", "x", "x must be an object, not a list.")]),
    (dict[str, int], [], [("structure", "x", "x must be an object, not a list.")]),
    (Mapping[str, int], [1], [("structure", "x", "x must be an object, not a list.")]),
    (Point, 5, [("structure", "x", "x must be an object, not a number.")]),
    (Point, {}, [("required", "x.x", "x.x is missing.")]),
    (Point, {"x": 1, "y": 2}, [("structure", "x.y", "x.y is no parameter.")]),
    (bytes, "a~", [("value", "x", "x has a bad value: it must be base64.")]),
    (Inner, [], [("structure", "x", "x must be an object, not a list.")]),
    (Inner, {}, [("required", "x.name", "x.name is missing.")]),
    (Inner, {"name": "a", "b": 1}, [("structure", "x.b", "x.b is no parameter.")]),
    (Data, {"name": "a", "made": 1}, [("structure", "x.made", "x.made is no parameter.")]),
    (
        Left | None,
        {"left": ""},
        [("structure", "x.left", "x.left must be a whole number, not text.")],
    ),
    (Left | Right, {}, [("value", "x", "x has a bad value: Couldn't disambiguate.")]),
    (
        list[dict[str, list[int]]],
        [{"a": [1, "x"]}],
        [("structure", "x[0].a[1]", "x[0].a[1] must be a whole number, not text.")],
    ),
    (
        tuple[int, str],
        ["a", 1],
        [
            ("structure", "x[0]", "x[0] must be a whole number, not text."),
            ("structure", "x[1]", "x[1] must be text, not a number."),
        ],
    ),
]


@pytest.mark.parametrize(("kind", "value", "issues"), MISFITS, ids=str)
def test_json_that_does_not_fit_is_refused_by_path(
    kind: Any,  # noqa: ANN401
    value: object,
    issues: list[tuple[str, str, str]],
) -> None:
    """With a code, in one sentence; also in the second class that has such a field."""
    for _ in range(2):
        declared = a_class(kind)
        check_class(declared)
        assert found(declared, {"x": value}) == issues


def test_a_class_may_have_parts_like_itself() -> None:
    """However deep; the path says where."""
    check_class(Tree)
    given = {"name": "a", "parts": [{"name": "b", "parts": [{"name": "c"}]}]}
    assert structure(Tree, given) == Tree("a", [Tree("b", [Tree("c")])])
    wrong = {"name": "a", "parts": [{"name": "b", "parts": [{"name": 5}]}]}
    assert found(Tree, wrong)[0][1] == "parts[0].parts[0].name"


def test_json_nested_beyond_the_stack_is_refused() -> None:
    """And not by a crash."""
    given: dict[str, Any] = {"name": "x"}
    for _ in range(5000):
        given = {"name": "x", "parts": [given]}
    text = "The parameters are nested too deeply."
    assert found(Tree, given) == [("structure", "", text)]


def test_names_of_json_are_the_aliases() -> None:
    """In what is given, in what is said, and in what is made of an instance."""
    check_class(Named)
    made = structure(Named, {"private": 1, "sort": "a"})
    assert made == Named(1, "a")
    assert unstructure(made) == {"private": 1, "sort": "a"}
    assert [issue[:2] for issue in found(Named, {"_private": 1, "kind": 5})] == [
        ("required", "private"),
        ("required", "sort"),
        ("structure", "_private"),
        ("structure", "kind"),
    ]
    assert found(Named, {"private": "x", "sort": "a"})[0][1] == "private"


def test_only_the_outermost_object_may_hold_what_the_http_face_adds() -> None:
    """`$target` and `$handling` are the kick-off's circumstances, and nobody's parameters."""
    around = {"$target": "Group/1", "$handling": "strict"}
    assert structure(Inner, around | {"name": "a"}) == Inner("a")
    declared = a_class(Inner)
    paths = [issue[1] for issue in found(declared, {"x": around | {"name": "a"}})]
    assert paths == ["x.$handling", "x.$target"]


@pytest.mark.parametrize("value", [None, 5, "x", [], True])
def test_what_is_no_object_has_no_path(value: object) -> None:
    """It is refused as a whole."""
    ((code, path, text),) = found(Inner, value)
    assert (code, path) == ("structure", "")
    assert text.startswith("The parameters must be an object, not ")


def whole(text: str) -> str:
    """The text, which must be a whole number."""
    return str(int(text))


@attrs.define
class Checked:
    """A class of validators and converters."""

    name: str = attrs.field(default="a", validator=attrs.validators.matches_re("[a-z]+"))
    least: int = attrs.field(default=0, validator=attrs.validators.ge(0), alias="start")
    most: int = 10
    odd: str = attrs.field(default="")
    converted: str = attrs.field(default="1", converter=whole)

    @odd.validator
    def _check_odd(self, _: object, value: str) -> None:
        errors: dict[str, Exception] = {
            "key": KeyError("name"),
            "index": IndexError(),
            "type": TypeError("TypeError"),
            "os": OSError("/etc/secret"),
            "group": ExceptionGroup("g", [ValueError("a")]),
            "mute": ValueError(),
        }
        if value in errors:
            raise errors[value]

    def __attrs_post_init__(self) -> None:
        if self.least > self.most:
            raise ValueError("this is not so: 'start' is more than 'most'")


def test_a_validator_of_attrs_is_told_with_the_path_of_its_attribute() -> None:
    """The library names it first in its text; the path is the alias."""
    check_class(Checked)
    assert structure(Checked, {}) == Checked()
    ((code, path, text),) = found(Checked, {"name": "A1"})
    assert (code, path) == ("value", "name")
    assert text.startswith("name has a bad value: 'name' must match regex")
    assert found(Checked, {"start": -1})[0][:2] == ("value", "start")


def test_a_rule_of_the_whole_class_has_no_path_and_keeps_its_words() -> None:
    """Unless its class is a part itself."""
    text = "have a bad value: this is not so: 'start' is more than 'most'."
    assert found(Checked, {"start": 11}) == [("value", "", f"The parameters {text}")]
    text = "x has a bad value: this is not so: 'start' is more than 'most'."
    assert found(a_class(Checked), {"x": {"start": 11}}) == [("value", "x", text)]


@pytest.mark.parametrize("odd", ["key", "index", "type", "os", "group", "mute"])
def test_a_validator_that_raises_something_odd_tells_the_client_nothing(odd: str) -> None:
    """A KeyError of it means no missing parameter, and its text may be about the inside."""
    ((code, path, text),) = found(Checked, {"odd": odd})
    assert (code, path) == ("value", "")
    assert text == "The parameters have a value that is not accepted."
    ((code, path, text),) = found(a_class(Checked), {"x": {"odd": odd}})
    assert (code, path) == ("value", "x")


def test_a_converter_that_raises_refuses_the_value() -> None:
    """It runs when the instance is made."""
    ((code, _, text),) = found(Checked, {"converted": "x"})
    assert code == "value"
    assert "invalid literal for int()" in text


def test_issues_are_bounded_and_can_be_stored() -> None:
    """A hundred of them, 500 characters each and a stop, without NUL."""
    many = found(a_class(list[int]), {"x": ["a"] * 5000})
    assert len(many) == 100
    assert many[99][1] == "x[99]"
    ((_, _, text),) = found(Inner, {"name": "a", "b" * 3000: 1})
    assert len(text) == 501
    ((_, _, text),) = found(Inner, {"name": "a", "b\x00": 1})
    assert text == "b\ufffd is no parameter."


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (object, "JSON cannot be turned into Made: "),
        (complex, "JSON cannot be turned into Made: "),
        (list[complex], "JSON cannot be turned into Made: "),
        (dict[str, complex], "JSON cannot be turned into Made: "),
        (complex | None, "JSON cannot be turned into Made: "),
        (list[complex | None], "JSON cannot be turned into Made: "),
        (Maybe | None, "JSON cannot be turned into Made: "),
        (Box[complex], "JSON cannot be turned into Made: "),
        (Left | Box[int] | Box[str], "JSON cannot be turned into Made: "),
    ],
    ids=str,
)
def test_a_class_with_a_field_that_no_json_fits_is_refused_at_start(kind: Any, says: str) -> None:  # noqa: ANN401
    """Before any job meets it, in one line."""
    with pytest.raises(ConfigError) as caught:
        check_class(a_class(kind))
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [int, dict, Point, Level, list[int], None, Inner("a"), "Inner"])
def test_only_classes_of_attrs_and_dataclasses_are_structured(kind: Any) -> None:  # noqa: ANN401
    """Nothing else is looked into."""
    assert not is_structured(kind)
    with pytest.raises(
        ConfigError, match=r"^parameters must be an attrs class or a dataclass, not"
    ):
        check_class(kind)
    assert is_structured(Inner)
    assert is_structured(Data)


texts = st.text(max_size=5)


@given(
    st.recursive(
        st.builds(Tree, texts),
        lambda parts: st.builds(Tree, texts, st.lists(parts, max_size=3)),
        max_leaves=10,
    )
)
def test_what_becomes_json_comes_back_as_it_was(tree: Tree) -> None:
    """An output of one job may be the parameters of the next."""
    assert structure(Tree, unstructure(tree)) == tree


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(texts, parts, max_size=3),
    max_leaves=10,
)


@attrs.frozen
class Mixed:
    """One field of every sort."""

    a: int = 0
    b: list[Inner] = attrs.Factory(list)
    c: dict[str, float] = attrs.Factory(dict)
    d: Level = Level.ONE
    e: datetime | None = None
    f: Checked | None = None


@given(
    st.dictionaries(st.sampled_from("abcdefg"), json_values)
    | json_values
    | st.fixed_dictionaries(
        {"b": st.lists(st.dictionaries(st.sampled_from(["name"]), json_values))}
    )
)
def test_any_json_fits_or_is_refused_with_issues(value: object) -> None:
    """Nothing else is ever raised, and each issue has one of three codes."""
    issues: tuple[Issue, ...] = ()
    try:
        assert isinstance(structure(Mixed, value), Mixed)
    except ParameterMismatch as mismatch:
        issues = mismatch.issues
    assert {issue.code for issue in issues} <= {"required", "structure", "value"}
    assert all(len(issue.diagnostics) <= 501 for issue in issues)


def test_a_type_that_json_has_no_form_for_is_named_with_its_field() -> None:
    """Also one deep inside, and without advice that a handler author cannot follow."""
    for kind in (timedelta, timedelta | None, list[timedelta], dict[str, timedelta]):
        with pytest.raises(ConfigError) as caught:
            check_class(a_class(kind))
        assert str(caught.value) == (
            "JSON cannot be turned into Made: x is or holds timedelta, which JSON has no form for"
        )


def test_what_has_no_form_of_its_own_goes_out_as_text() -> None:
    """And comes back as it was."""
    kind = attrs.make_class("Made", {"x": attrs.field(type=UUID), "y": attrs.field(type=Decimal)})
    value = kind(UUID(int=7), Decimal("1.50"))
    given = unstructure(value)
    assert given == {"x": "00000000-0000-0000-0000-000000000007", "y": "1.50"}
    assert structure(kind, given) == value
