"""Links from a page to a file outside of `docs/`: a code host follows them, the site has a page.

`../sql/queries/claim_jobs.sql` becomes the statement on the page of statements, `../CHANGELOG.md`
the page that includes it. Any other link out of the folder is left, and ends the build with a
warning.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_RULES: Final = (
    (re.compile(r"\]\(\.\./sql/queries/([a-z_]+)\.sql\)"), lambda m: _place("statements.md", m[1])),
    (re.compile(r"\]\(\.\./sql/queries/?\)"), lambda _: "](statements.md)"),
    (re.compile(r"\]\(\.\./examples/([a-z_]+)\.py\)"), lambda m: _place("examples.md", m[1])),
    (re.compile(r"\]\(\.\./examples/?\)"), lambda _: "](examples.md)"),
    (re.compile(r"\]\(\.\./CHANGELOG\.md\)"), lambda _: "](changelog.md)"),
    (re.compile(r"\]\(\.\./README\.md\)"), lambda _: "](index.md)"),
)


def _place(page: str, name: str) -> str:
    return f"]({page}#{name.replace('_', '-')})"


def turn_inside(text: str) -> str:
    """The page with its links to files outside turned to pages of the site."""
    for pattern, page in _RULES:
        text = pattern.sub(page, text)
    return text


def _source_read(_: Sphinx, __: str, source: list[str]) -> None:
    source[0] = turn_inside(source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx."""
    app.connect("source-read", _source_read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
