"""Which operations can be declared side by side."""

from __future__ import annotations

import pytest

from hastetrio import ConfigError, Level, Operation
from hastetrio.fhir import check_operations

from .harness import handler


def _operation(levels: list[Level], types: list[str], name: str = "work") -> Operation:
    return Operation(name=name, levels=levels, types=types)


SYSTEM, TYPE, INSTANCE = Level.SYSTEM, Level.TYPE, Level.INSTANCE


@pytest.mark.parametrize(
    "operations",
    [
        [_operation([SYSTEM], []), _operation([SYSTEM], [])],
        [_operation([SYSTEM, TYPE], ["Patient"]), _operation([SYSTEM, TYPE], ["Group"])],
        [_operation([TYPE], ["Patient", "Group"]), _operation([TYPE], ["Group"])],
        [_operation([TYPE], []), _operation([TYPE, INSTANCE], ["Group"])],
        # The first differs from both that collide.
        [_operation([TYPE], [type]) for type in ("Patient", "Group", "Group")],
    ],
)
def test_one_kick_off_must_not_start_two_kinds(operations: list[Operation]) -> None:
    """It is refused at start, by the names of both kinds."""
    handlers = [handler(f"kind-{n}", one) for n, one in enumerate(operations)]
    with pytest.raises(ConfigError, match=r"\$work at .* level starts jobs of both 'kind-"):
        check_operations(handlers)


@pytest.mark.parametrize(
    "operations",
    [
        [_operation([SYSTEM], []), _operation([TYPE], [])],
        [_operation([TYPE], ["Patient"]), _operation([TYPE], ["Group"])],
        [_operation([SYSTEM], []), _operation([SYSTEM], [], "other")],
    ],
)
def test_operations_that_no_kick_off_confuses_are_fine(operations: list[Operation]) -> None:
    """Other names, levels or types are enough."""
    check_operations(handler(f"kind-{n}", one) for n, one in enumerate(operations))
