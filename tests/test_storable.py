"""What can be stored as text and jsonb, and what is refused or replaced before it is sent."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hastetrio._errors import UnstorableValue
from hastetrio._storable import REPLACEMENT, check_text, clean_text, decode_json, encode_json

# A loaded machine is no failure, and nothing is written to the folder the tests run in.
unhurried = settings(deadline=None, database=None)

LIMIT = 1_000_000

# Text that a database holds: no NUL, no lone surrogates.
storable_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
any_text = st.text(st.characters())
# Text made of what escapes are made of; each backslash before \u0000 changes what it means.
pieces = ["\\", "u0000", "\\u0000", '"', "\n", "x"]
escapes = st.lists(st.sampled_from(pieces), max_size=12).map("".join)
escapes_and_nul = st.lists(st.sampled_from([*pieces, "\0"]), max_size=12).map("".join)


def json_values(texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Any JSON whose texts and keys are drawn from `texts`."""
    leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
    leaves = leaves.filter(lambda leaf: not isinstance(leaf, float) or math.isfinite(leaf))
    return st.recursive(
        leaves, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=15
    )


def holds_unstorable(value: object) -> bool:
    """Whether a text anywhere in the value holds NUL or a lone surrogate."""
    if isinstance(value, str):
        return any(char == "\0" or "\ud800" <= char <= "\udfff" for char in value)
    if isinstance(value, dict):
        return any(holds_unstorable(part) for item in value.items() for part in item)
    return isinstance(value, list) and any(holds_unstorable(part) for part in value)


@unhurried
@given(json_values(storable_text | escapes))
def test_json_comes_back_as_it_was(value: object) -> None:
    """Whatever is stored is the same value again, backslashes and escapes in text included."""
    assert decode_json(encode_json(value, LIMIT, "it")) == value


@unhurried
@given(json_values(any_text | escapes_and_nul))
def test_json_is_refused_exactly_when_jsonb_would_refuse_it(value: object) -> None:
    """NUL and lone surrogates are found wherever they hide, and nothing else is taken for them."""
    if holds_unstorable(value):
        with pytest.raises(UnstorableValue):
            encode_json(value, LIMIT, "it")
    else:
        encode_json(value, LIMIT, "it").encode()


@unhurried
@given(json_values(storable_text))
def test_the_limit_counts_bytes(value: object) -> None:
    """A value passes when its UTF-8 has as many bytes as allowed, and not with one less."""
    size = len(encode_json(value, LIMIT, "it").encode())
    assert encode_json(value, size, "it")
    with pytest.raises(UnstorableValue, match="limit"):
        encode_json(value, size - 1, "it")


CIRCLE: list[object] = []
CIRCLE.append(CIRCLE)


def deep() -> object:
    """A list in a list, a hundred thousand times."""
    value: object = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (math.nan, "not JSON"),
        ([math.inf], "not JSON"),
        ({"a": -math.inf}, "not JSON"),
        (object(), "not JSON"),
        (b"x", "not JSON"),
        ({1, 2}, "not JSON"),
        ({(1, 2): 3}, "not JSON"),
        (CIRCLE, "not JSON"),
        (10**5000, "not JSON"),
        (["a\0b"], "NUL"),
        ({"a\0": 1}, "NUL"),
        ("\\\0", "NUL"),
        ("\ud800", "surrogate"),
        ({"\udfff": 1}, "surrogate"),
    ],
    ids=[str(number) for number in range(14)],
)
def test_what_is_not_json_is_refused_by_name(value: object, reason: str) -> None:
    """The error is one line that calls the value by its name and says which rule it breaks."""
    with pytest.raises(UnstorableValue, match=reason) as caught:
        encode_json(value, LIMIT, "the output")
    assert str(caught.value).startswith("the output ")
    assert "\n" not in str(caught.value)


def test_json_nested_too_deeply_is_refused() -> None:
    """A value that no reader could follow fails where it is made, and crashes nothing."""
    with pytest.raises(UnstorableValue, match="too deeply"):
        encode_json(deep(), LIMIT, "the output")


def test_json_text_is_compact_and_unescaped() -> None:
    """Limits count what is stored: no padding, and characters as themselves."""
    assert encode_json({"a": ["ü", 1]}, LIMIT, "it") == '{"a":["ü",1]}'


@unhurried
@given(any_text)
def test_cleaned_text_is_stored_as_it_reads(text: str) -> None:
    """Cleaning replaces one character by one, leaves all others, and what results is storable."""
    cleaned = clean_text(text)
    assert check_text(cleaned, "it", len(text)) == cleaned
    assert len(cleaned) == len(text)
    for before, after in zip(text, cleaned, strict=True):
        assert after == (REPLACEMENT if holds_unstorable(before) else before)
    assert clean_text(cleaned) == cleaned


@unhurried
@given(any_text, st.integers(0, 20))
def test_cleaned_text_is_cut_to_its_limit(text: str, limit: int) -> None:
    """What is too long loses its end, and nothing else."""
    assert clean_text(text, limit) == clean_text(text)[:limit]


@unhurried
@given(any_text)
def test_cleaned_text_is_json(text: str) -> None:
    """Text that was cleaned never makes the JSON around it unstorable."""
    assert json.loads(encode_json({"text": clean_text(text)}, LIMIT, "it"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (1, "must be text, not int"),
        (None, "must be text, not NoneType"),
        ("a\0", "NUL"),
        ("\udc80", "surrogate"),
        ("x" * 11, "11 characters, and the limit is 10"),
    ],
)
def test_text_that_no_column_can_hold_is_refused(text: object, reason: str) -> None:
    """The error calls the text by its name and says which rule it breaks."""
    with pytest.raises(UnstorableValue, match=f"^the kind .*{reason}"):
        check_text(text, "the kind", 10)


def test_text_that_a_column_can_hold_is_returned() -> None:
    """A text at its limit passes unchanged, in characters and not in bytes."""
    assert check_text("ü🦀" * 5, "it", 10) == "ü🦀" * 5


def test_what_was_encoded_can_be_decoded_further_down_the_stack() -> None:
    """A row is read deeper in the stack than it was written; nesting must leave room for that."""

    def nested(depth: int) -> object:
        value: object = 1
        for _ in range(depth):
            value = [value]
        return value

    def decode(text: str, frames: int) -> object:
        return decode(text, frames - 1) if frames else decode_json(text)

    accepted = 0
    for depth in range(100, 1000, 25):
        try:
            text = encode_json(nested(depth), 10_000, "it")
        except UnstorableValue as error:
            assert "nested too deeply" in str(error)  # noqa: PT017
        else:
            accepted = depth
            decode(text, 100)
    assert accepted >= 200
