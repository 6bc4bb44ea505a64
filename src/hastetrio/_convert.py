"""Raw settings to typed ones: text from flags and the environment, values from TOML.

Text is read generously ("yes" is true); a value of the file must have its type already. An error's
text says only what is wrong: the caller knows which setting it was, and where it came from.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from cattrs import Converter


def _text_number(raw: str, _: object) -> float:
    try:
        return float(raw)
    except ValueError:
        raise ValueError(f"must be a number, not {raw!r}") from None


def _text_whole(raw: str, _: object) -> int:
    try:
        return int(raw)
    except ValueError:
        raise ValueError(f"must be a whole number, not {raw!r}") from None


def _text_bool(raw: str | bool, _: object) -> bool:
    # A flag is a bool already.
    if isinstance(raw, bool):
        return raw
    if raw.lower() in ("1", "true", "yes", "on"):
        return True
    if raw.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"must be true or false, not {raw!r}")


def _text_several(raw: str | tuple[str, ...], _: object) -> tuple[str, ...]:
    given = (raw,) if isinstance(raw, str) else raw
    parts = (part.strip() for one in given for part in one.split(","))
    return tuple(part for part in parts if part)


def _toml_number(raw: object, _: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, (int, float)):
        raise ValueError(f"must be a number, not {raw!r}")  # noqa: TRY004
    return float(raw)


def _toml_whole(raw: object, _: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise ValueError(f"must be a whole number, not {raw!r}")  # noqa: TRY004
    return raw


def _toml_bool(raw: object, _: object) -> bool:
    if not isinstance(raw, bool):
        raise ValueError(f"must be true or false, not {raw!r}")  # noqa: TRY004
    return raw


def _toml_text(raw: object, _: object) -> str:
    if not isinstance(raw, str):
        raise ValueError("must be text, in quotes")  # noqa: TRY004
    return raw


def _toml_several(raw: object, _: object) -> tuple[str, ...]:
    if not isinstance(raw, list) or not all(isinstance(part, str) for part in raw):
        raise ValueError("must be a list of texts")
    return tuple(raw)


def _path(raw: object, _: object) -> Path:
    if not isinstance(raw, str) or not raw:
        raise ValueError("must be a path, as text")
    try:
        return Path(raw).expanduser()
    except RuntimeError:
        raise ValueError(f"names a home folder that is not known: {raw!r}") from None


def _one_of(raw: object, choices: Any) -> str:  # noqa: ANN401  # a Literal has no type of its own
    known = typing.get_args(choices)
    if isinstance(raw, str) and raw.lower() in known:
        return raw.lower()
    raise ValueError(f"must be one of {', '.join(known)}, not {raw!r}")


def _is_literal(kind: Any) -> bool:  # noqa: ANN401  # types of types
    origin: object = typing.get_origin(kind)
    return origin is Literal


_Hook: TypeAlias = Callable[[Any, Any], Any]


def _converter(hooks: Mapping[Any, _Hook], several: _Hook) -> Converter:
    converter = Converter(detailed_validation=False)
    for kind, hook in hooks.items():
        converter.register_structure_hook(kind, hook)
    converter.register_structure_hook(Path, _path)
    converter.register_structure_hook_func(lambda kind: kind == tuple[str, ...], several)
    converter.register_structure_hook_func(_is_literal, _one_of)
    return converter


TEXT: Final = _converter({float: _text_number, int: _text_whole, bool: _text_bool}, _text_several)
TOML: Final = _converter(
    {float: _toml_number, int: _toml_whole, bool: _toml_bool, str: _toml_text}, _toml_several
)
