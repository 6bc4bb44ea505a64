"""Which content coding a client gets."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastetrio.fhir._coding import chosen_coding

CODINGS: Final[list[tuple[list[str], str | None]]] = [
    ([], "identity"),
    ([""], "identity"),
    (["gzip"], "gzip"),
    (["x-gzip"], "gzip"),
    (["GZip"], "gzip"),
    (["deflate, gzip;q=1.0, *;q=0.5"], "gzip"),
    (["gzip, deflate, br, zstd"], "gzip"),
    (["deflate", "gzip"], "gzip"),
    (["br"], "identity"),
    (["gzip;q=0"], "identity"),
    (["gzip;q=0.000"], "identity"),
    (["gzip ; Q=0.001"], "gzip"),
    (["gzip;q=0.5, identity"], "identity"),
    (["gzip;q=0.5, identity;q=0.5"], "gzip"),
    (["gzip;q=0.5, identity;q=0.4"], "gzip"),
    (["gzip;q=0.5, *"], "identity"),
    (["*"], "gzip"),
    (["*;q=0"], None),
    (["*;q=0, identity"], "identity"),
    (["*;q=0, identity;q=0.1, gzip"], "gzip"),
    (["*;q=0, gzip"], "gzip"),
    (["identity;q=0"], None),
    (["identity;q=0, gzip"], "gzip"),
    (["identity;q=0, *"], "gzip"),
    (["identity;q=0, br"], None),
    (["gzip;q=0, *"], "identity"),
    (["gzip;q=0, *;q=0"], None),
    (["gzip;q=0, identity;q=0"], None),
    (["gzip;q=2"], "identity"),
    (["gzip;q=0.0001"], "identity"),
    (["gzip;level=9"], "identity"),
    ([",, ,gzip,,"], "gzip"),
    (["gzip gzip"], "identity"),
    (["gzip;q=0, gzip"], "identity"),
]


@pytest.mark.parametrize(("fields", "coding"), CODINGS)
def test_the_coding_is_chosen_by_weight(fields: list[str], coding: str | None) -> None:
    """RFC 9110 12.5.3: weights, refusals, wildcards, and what is no member of the list."""
    assert chosen_coding(fields) == coding


@given(
    st.lists(
        st.lists(
            st.sampled_from(["gzip", "identity", "*", ";", "q=", "0", "1", ".5", ",", " ", '"'])
            | st.text(max_size=3),
            max_size=12,
        ).map("".join),
        max_size=3,
    )
)
def test_any_field_chooses_a_coding(fields: list[str]) -> None:
    """Nothing a client writes is an error, and gzip is never forced on one that did not ask."""
    coding = chosen_coding(fields)
    assert coding in ("gzip", "identity", None)
    if coding == "gzip":
        assert any("gzip" in field.lower() or "*" in field for field in fields)
