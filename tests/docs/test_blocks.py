"""The runner of the pages' blocks: what it would not notice, no test of a page would."""

from __future__ import annotations

from pathlib import Path

import pytest

from .blocks import Block, Terminal, blocks_of, files_of, fits


def test_blocks_are_found_with_their_language_and_file(tmp_path: Path) -> None:
    """A later block of a name replaces the one before."""
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\n```python\n# one.py\nx = 1\n```\n\n```sh\nls\n```\n\n"
        "```python\n# one.py\nx = 2\n```\n"
    )
    assert [(one.language, one.line) for one in blocks_of(page)] == [
        ("python", 3),
        ("sh", 8),
        ("python", 12),
    ]
    assert files_of(page) == {"one.py": "# one.py\nx = 2\n"}


@pytest.mark.parametrize(
    ("shown", "said", "expected"),
    [
        ("a\nb\n", "a\nb", True),
        ("a  b", "a b\n", True),
        ("a", "a b", False),
        ("a ... z", "a b\nc z", True),
        ("a ... z", "a b\nc", False),
        ("...passed in ...", "..3 passed in 1 s", True),
        ("1.5", "1x5", False),
    ],
)
def test_what_is_shown_is_compared_with_what_was_said(
    shown: str, said: str, expected: bool
) -> None:
    """Dots stand for anything, white space is white space, and everything else is itself."""
    assert fits(shown, said) is expected


def test_a_terminal_keeps_folder_and_variables_and_stops_at_an_error(tmp_path: Path) -> None:
    """Blocks follow each other in one shell, whose first error is the test's."""
    terminal = Terminal(tmp_path, {})
    terminal.type_in(Block("sh", "mkdir inside && cd inside\nexport WORD='a b'\n", 1))
    assert terminal.type_in(Block("sh", 'pwd\necho "$WORD"\n', 2)) == f"{tmp_path}/inside\na b\n"
    terminal.type_in(Block("sh", "pip install something\n", 3))
    assert terminal.left_out == ["pip install something"]
    with pytest.raises(AssertionError, match="on its way"):
        terminal.type_in(Block("sh", "echo on its way\nfalse\necho after\n", 4))
