"""Docstrings of attributes and properties are sentences, also when they have a colon.

napoleon takes what stands before a colon for the type, as in `int: how many`
(https://www.sphinx-doc.org/en/master/usage/extensions/napoleon.html#type-annotations). Types are
annotations here. A comment of reStructuredText before the first line keeps it from looking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# napoleon's handler has 500, the default.
_BEFORE_NAPOLEON: Final = 400


def _process(_: Sphinx, what: str, __: str, ___: object, ____: object, lines: list[str]) -> None:
    if what in ("attribute", "property", "data") and lines:
        lines[:0] = ["..", ""]


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx."""
    app.connect("autodoc-process-docstring", _process, priority=_BEFORE_NAPOLEON)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
