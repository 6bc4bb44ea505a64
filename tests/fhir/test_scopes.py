"""What a token's scopes allow."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastetrio.fhir._scopes import covers


@pytest.mark.parametrize(
    ("granted", "wanted"),
    [
        ("system/*.rs", "system/*.rs"),
        ("system/*.read", "system/*.rs"),
        ("system/*.rs", "system/*.read"),
        ("system/*.cruds", "system/*.rs"),
        ("system/*.*", "system/*.rs"),
        ("system/*.*", "system/*.cruds"),
        ("system/*.cruds", "system/*.*"),
        ("system/*.cud", "system/*.write"),
        ("system/*.write", "system/*.cu"),
        ("system/*.rs", "system/Patient.rs"),
        ("system/Patient.rs", "system/Patient.r"),
        ("user/*.rs", "user/*.rs"),
        ("patient/*.read", "patient/Observation.rs"),
        ("openid launch/patient system/*.rs offline_access", "system/*.rs"),
        ("  system/*.rs  ", "system/*.rs"),
        ("system/*.r system/*.s", "system/*.rs"),
        ("system/*.r system/Patient.s", "system/Patient.rs"),
        (["openid", "system/*.read"], "system/*.rs"),
    ],
)
def test_wider_or_equal_scopes_cover(granted: object, wanted: str) -> None:
    """A scope that allows at least as much is enough, in either version's words."""
    assert covers(granted, wanted)


@pytest.mark.parametrize(
    "granted",
    [
        "",
        "system/*.r",
        "system/*.s",
        "system/*.write",
        "system/*.cud",
        "system/Patient.rs",
        "system/Patient.*",
        "user/*.rs",
        "user/*.*",
        "patient/*.cruds",
        "patient/*.read user/*.read",
        "system/*.rs?_type=Patient",
        "system/*.r system/*.s?code=1",
        "system/*.sr",
        "system/*.rr",
        "system/*.rsx",
        "system/*.",
        "system/*",
        "system/.rs",
        "system/*.READ",
        "SYSTEM/*.rs",
        "xsystem/*.rs",
        "system/*.rs\n",
        "system/*.rs\tsystem/*.rs",
        "system/*.rs,system/*.rs",
        None,
        True,
        7,
        {"system/*.rs": True},
        ["system/*.rs", 7],
        ["openid system/*.rs"],
        [["system/*.rs"]],
    ],
)
def test_anything_less_does_not_cover_reading_all(granted: object) -> None:
    """Less letters, fewer types, another context, a query, no scope, or no list of scopes."""
    assert not covers(granted, "system/*.rs")


@pytest.mark.parametrize("wanted", ["", "system/*.", "openid", "system/*.rs?x=1", "system/*.sr"])
def test_what_is_no_scope_is_never_covered(wanted: str) -> None:
    """A slip in an operation's scope shuts it instead of opening it."""
    assert not covers(f"{wanted} system/*.*", wanted)


_SUBSETS = ["".join(some) for n in range(1, 6) for some in combinations("cruds", n)]


@given(st.sampled_from(_SUBSETS), st.sampled_from(_SUBSETS))
def test_letters_cover_their_subsets(granted: str, wanted: str) -> None:
    """Of two scopes with letters, one covers the other exactly when it has all its letters."""
    assert covers(f"system/*.{granted}", f"system/*.{wanted}") == (set(wanted) <= set(granted))


@given(
    st.text()
    | st.lists(st.text())
    | st.none()
    | st.integers()
    | st.dictionaries(st.text(), st.text())
)
def test_nothing_unknown_covers(granted: object) -> None:
    """Any text at all can be a scope claim; none that names no such scope covers one."""
    assert not covers(granted, "system/*.rs")
