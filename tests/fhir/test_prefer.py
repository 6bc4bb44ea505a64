"""The Prefer header field, as RFC 7240 writes it and as clients do."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hastetrio.fhir._prefer import Preferences, parse_prefer

ASYNC: Final = Preferences(respond_async=True)
NOTHING: Final = Preferences()


@pytest.mark.parametrize(
    "fields",
    [
        ["respond-async"],
        ["Respond-ASYNC"],
        [" \trespond-async\t "],
        ["respond-async; foo"],
        ['respond-async;foo="a,b;c"; bar = baz'],
        ['respond-async=""'],
        ["respond-async="],
        ["return=minimal, respond-async"],
        ["return=minimal,,respond-async,"],
        ["return=minimal", "respond-async"],
        ["", "respond-async"],
        ["respond-async, respond-async=no"],
    ],
)
def test_respond_async_is_found_however_it_is_written(fields: list[str]) -> None:
    """Lists, repeated fields, case, blanks and parameters change nothing (sections 2 and 4.1)."""
    assert parse_prefer(fields) == ASYNC


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [""],
        [","],
        ["respond-async2"],
        ["x-respond-async"],
        ["respond async"],
        ['"respond-async"'],
        ['foo="respond-async"'],
        ['foo="a, respond-async, b"'],
        ['foo="a\\", respond-async"'],
        ["foo; respond-async"],
        ["respond-async=false"],
        ["respond-async=no, respond-async"],
    ],
)
def test_what_only_looks_like_respond_async_is_not_taken_for_it(fields: list[str]) -> None:
    """Inside of a string, as a parameter or with a value it asks for nothing."""
    assert parse_prefer(fields) == NOTHING


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (["handling=lenient"], "lenient"),
        (["HANDLING = Lenient"], "lenient"),
        (['handling="strict"'], "strict"),
        (['handling="s\\trict"'], "strict"),
        (["handling=lenient; x=y"], "lenient"),
        (["handling=lenient, handling=strict"], "lenient"),
        (["handling=strict", "handling=lenient"], "strict"),
        (["handling=bogus, handling=lenient"], None),
        (["handling, handling=lenient"], None),
        (["handling"], None),
        (["handling=lenient strict"], None),
        (["x; handling=lenient"], None),
    ],
)
def test_the_first_handling_counts(fields: list[str], expected: str | None) -> None:
    """Of a preference that is repeated only the first is considered (section 2)."""
    assert parse_prefer(fields).handling == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("wait=10", 10),
        ("wait = 0", 0),
        ('wait="7"', 7),
        ("wait=007", 7),
        ("wait=10, wait=20", 10),
        ("wait=" + "9" * 9, 999_999_999),
        ("wait=" + "9" * 10_000, 1_000_000_000),
        ("wait=" + "0" * 10_000 + "5", 5),
        ("wait", None),
        ("wait=-1", None),
        ("wait=+1", None),
        ("wait=1.5", None),
        ("wait=1_0", None),
        ("wait=soon", None),
        ("wait=\xb2", None),
        ('wait="\xb2"', None),
    ],
)
def test_wait_is_whole_seconds(value: str, expected: int | None) -> None:
    """Anything but digits is no delay, and no number of digits is too many to read."""
    assert parse_prefer([value]).wait == expected


@pytest.mark.parametrize(
    "malformed",
    [
        "=",
        "=x",
        ";",
        "a b",
        "a=b c",
        "a==b",
        'a="b"c',
        "a=b;;;",
        'a="b',
        '"',
        'a=b"c',
        'a="\\',
        "\x00",
        "\x7f=\xff",
        "(comment)",
        "[]",
    ],
)
@pytest.mark.parametrize("form", ["{},respond-async", "respond-async,{}", "handling,{},wait"])
def test_a_malformed_part_takes_no_other_with_it(malformed: str, form: str) -> None:
    """Whatever stands before or behind it is still read."""
    expected = parse_prefer([form.replace("{}", "x")])
    assert parse_prefer([form.replace("{}", malformed)]) == expected


def test_all_preferences_stand_together() -> None:
    """One request may have them all, in any order and over several fields."""
    fields = ['return="minimal";x="1,2", wait=3', "handling=strict , respond-async;p"]
    assert parse_prefer(fields) == Preferences(respond_async=True, handling="strict", wait=3)


def test_only_what_is_honoured_is_said_to_be() -> None:
    """Whether the handler honours `handling` is not known yet, and nobody waits (section 3)."""
    everything = parse_prefer(["respond-async, wait=1, handling=lenient"])
    assert everything.applied() == {"Preference-Applied": "respond-async"}
    assert parse_prefer(["wait=1, handling=lenient"]).applied() == {}


@given(st.lists(st.text(st.characters(max_codepoint=255)), max_size=5))
@example(['"' * 50_000])
@example(['"\\' * 50_000])
@example(["," * 50_000])
@example([" " * 50_000 + "=" + " \t" * 50_000])
def test_no_field_is_an_error(fields: list[str]) -> None:
    """Header fields are what a client pleases to send."""
    parse_prefer(fields)


_WORDS = st.text("abcXYZ019!#$%&'*+-.^_`|~", min_size=1, max_size=8)
_STRINGS = st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=12)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(
    st.lists(st.tuples(_WORDS, _WORDS | _STRINGS.map(_quoted), _STRINGS), max_size=6),
    st.data(),
)
def test_other_preferences_never_hide_the_known_ones(
    others: list[tuple[str, str, str]], data: st.DataObject
) -> None:
    """Among well-formed strangers, with commas and semicolons in strings, ours are found."""
    parts = [f"x-{name}={value}; p={_quoted(text)}" for name, value, text in others]
    for known in ("respond-async", "handling=lenient", "wait=5"):
        parts.insert(data.draw(st.integers(0, len(parts))), known)
    cut = data.draw(st.integers(0, len(parts)))
    fields = [", ".join(parts[:cut]), ",".join(parts[cut:])]
    assert parse_prefer(fields) == Preferences(respond_async=True, handling="lenient", wait=5)
