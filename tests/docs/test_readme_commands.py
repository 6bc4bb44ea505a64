"""The README's commands, as far as no other test types them in.

The blocks of Python run in tests/test_examples.py, the conversation over HTTP in
tests/clients/test_readme.py.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from .blocks import ROOT, Terminal, blocks_of, files_of

PAGE: Final = ROOT / "README.md"
SHELL: Final = blocks_of(PAGE, "sh")


def test_every_block_of_commands_has_a_test() -> None:
    """The demo, the tests, a handler, and serving over HTTP; a fifth would be nobody's."""
    assert len(SHELL) == 4
    assert "hastetrio demo" in SHELL[0].text
    assert "hastetrio worker" in SHELL[2].text
    assert "hastetrio serve" in SHELL[3].text


def test_the_command_that_runs_the_tests_is_what_ci_runs() -> None:
    """It is not run by itself, but word for word by `.ci/run`, to get here."""
    script = ROOT / ".ci" / "run"
    if not script.exists():
        pytest.skip("a source distribution has no .ci/run")
    told = re.sub(r"^python3 ", "", SHELL[1].text.strip())
    done = [line.partition(" ")[2] for line in script.read_text("utf-8").splitlines()]
    assert told in [line.replace("--quiet --editable", "-e") for line in done]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the account of the embedded server can reach."""
    folder = Path(tempfile.mkdtemp(prefix="hastetrio-readme-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
def test_the_commands_of_a_handler_run_a_job(database_url: str, folder: Path) -> None:
    """From the tables to a completed job; the database is the test's."""
    for name, text in files_of(PAGE).items():
        (folder / name).write_text(text, "utf-8")
    export = SHELL[2].text.splitlines()[0]
    assert export.startswith("export HASTETRIO_DATABASE_URL=")
    ours = f"export HASTETRIO_DATABASE_URL='{database_url}'"
    terminal = Terminal(folder, {}, {export: ours})
    try:
        said = terminal.type_in(SHELL[2])
    finally:
        terminal.close()
    assert "completed" in said
    assert terminal.left_out == []
