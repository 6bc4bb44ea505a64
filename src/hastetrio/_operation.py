"""What a handler declares about the FHIR operation that starts its jobs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import BinaryIO, Final

import attrs

from hastetrio._errors import ConfigError

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")
_TYPE: Final = re.compile(r"[A-Z][A-Za-z]{0,63}")
_SCOPE: Final = re.compile(
    r"(?:system|user|patient)/(?:\*|[A-Z][A-Za-z]*)\.(?:read|write|\*|(?=[cruds])c?r?u?d?s?)"
)

TARGET: Final = "$target"
"""The key of a kick-off's parameters that names what it is about: `Patient` or `Group/7`."""

HANDLING: Final = "$handling"
"""The key that holds the client's `handling` preference (RFC 7240 section 4.4), where given."""


class Level(StrEnum):
    """On what an operation is invoked (https://hl7.org/fhir/R4/operations.html)."""

    SYSTEM = "system"
    """On the whole server: `[base]/$export`."""

    TYPE = "type"
    """On a resource type: `[base]/Patient/$export`."""

    INSTANCE = "instance"
    """On one resource: `[base]/Group/7/$export`."""


def _levels(levels: Iterable[str]) -> frozenset[Level]:
    try:
        return frozenset(map(Level, [levels] if isinstance(levels, str) else levels))
    except ValueError as error:
        raise ConfigError(f"an operation's levels are system, type and instance: {error}") from None


def _types(types: Iterable[str]) -> frozenset[str]:
    return frozenset([types] if isinstance(types, str) else types)


@attrs.frozen(kw_only=True)
class Operation:
    """An operation whose kick-off queues a job of the handler's kind.

    Args:
        name: Its name, without the dollar sign.
        levels: Where it can be invoked.
        types: The resource types it exists for at type and instance level; none for all.
        affects_state: Whether it changes resources; then it is kicked off with POST only
            (https://hl7.org/fhir/R4/operations.html#request).
        scope: The SMART scope that a client's token must cover, such as `system/*.rs`; None where
            any token will do.
        definition: The canonical URL of its OperationDefinition, for the CapabilityStatement.

    Raises:
        ConfigError: A value cannot be used; the text names it.
    """

    name: str = attrs.field()
    levels: frozenset[Level] = attrs.field(default=frozenset({Level.SYSTEM}), converter=_levels)
    types: frozenset[str] = attrs.field(default=frozenset(), converter=_types)
    affects_state: bool = False
    scope: str | None = "system/*.rs"
    definition: str | None = None

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"an operation's name is letters, digits and dashes, no $: {self.name!r}"
            )
        if not self.levels:
            raise ConfigError(f"the operation {self.name} has no level: system, type or instance")
        for type in self.types:
            if not _TYPE.fullmatch(type):
                raise ConfigError(f"the operation {self.name} names no resource type: {type!r}")
        if self.scope is not None and not _SCOPE.fullmatch(self.scope):
            raise ConfigError(
                f"the operation {self.name} needs a SMART scope such as system/*.rs, "
                f"not {self.scope!r}"
            )

    def is_at(self, level: Level, type: str | None) -> bool:
        """Whether it can be invoked at `level`, on `type` where the level has one."""
        return level in self.levels and (type is None or not self.types or type in self.types)


@attrs.frozen(kw_only=True)
class ResultFile:
    """A file that belongs to a job's result, open for reading.

    Args:
        file: Its bytes, from the beginning; whoever asked for it closes it.
        size: How many there are.
        content_type: Their media type.
    """

    file: BinaryIO
    size: int
    content_type: str
