"""Finds the statements: `sql/` beside `src/` in a checkout, inside the package in a wheel."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


@cache
def query(name: str) -> str:
    """The statement of `sql/queries/{name}.sql`, without its comments and indentation.

    psycopg keeps what it found out about a statement of at most 4,096 characters, and parses a
    longer one at each call (0.1 ms).
    """
    text = _root().joinpath("queries", f"{name}.sql").read_text(encoding="utf-8")
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("--"))


@cache
def migrations() -> tuple[tuple[str, str], ...]:
    """The migrations as (name, text), in the order they are applied; names begin `0001_`."""
    found = [
        (entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8"))
        for entry in _root().joinpath("migrations").iterdir()
        if entry.name.endswith(".sql")
    ]
    return tuple(sorted(found))


def _root() -> Traversable:
    packaged = files("hastetrio").joinpath("sql")
    if packaged.is_dir():
        return packaged
    return Path(__file__).parents[2] / "sql"
