"""What a handler may declare about the operation that starts its jobs."""

from __future__ import annotations

from typing import Any

import pytest

from hastetrio import ConfigError, Level, Operation


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"name": "$export"}, "no \\$"),
        ({"name": ""}, "letters"),
        ({"name": "a/b"}, "letters"),
        ({"name": "export", "levels": []}, "has no level"),
        ({"name": "export", "levels": ["server"]}, "system, type and instance"),
        ({"name": "export", "types": ["patient"]}, "names no resource type"),
        ({"name": "export", "scope": "everything"}, "SMART scope"),
        ({"name": "export", "scope": "system/*."}, "SMART scope"),
        ({"name": "export", "scope": "system/*.sr"}, "SMART scope"),
    ],
)
def test_a_declaration_that_could_never_work_is_refused(
    values: dict[str, Any], complaint: str
) -> None:
    """At start, in one line."""
    with pytest.raises(ConfigError, match=complaint) as caught:
        Operation(**values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scope", ["system/*.rs", "system/*.read", "user/Patient.cruds", None])
def test_scopes_of_both_versions_are_understood(scope: str | None) -> None:
    """SMART v1 and v2 write the same rights differently."""
    assert Operation(name="export", scope=scope).scope == scope


def test_an_operation_is_where_it_says() -> None:
    """Levels and types are both to fit."""
    operation = Operation(name="export", levels=["type", "instance"], types={"Patient", "Group"})
    assert operation.is_at(Level.TYPE, "Patient")
    assert operation.is_at(Level.INSTANCE, "Group")
    assert not operation.is_at(Level.SYSTEM, None)
    assert not operation.is_at(Level.TYPE, "Observation")
    assert Operation(name="x", levels="type").is_at(Level.TYPE, "Observation")
