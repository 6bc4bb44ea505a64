"""The tutorial, as a newcomer who copies every line of it."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from .blocks import DOCS, Terminal, blocks_of, files_of, fits, imported

PAGE: Final = DOCS / "tutorial.md"

# What is not run, and by what it is replaced: the tests have their own environment.
INSTALLS: Final = [
    "python3 -m venv .venv && . .venv/bin/activate",
    "pip install 'hastetrio[embedded]' pytest",
]

# Seconds that the embedded server takes to notice that nobody uses it any more, at most.
SOON: Final = 30.0


def test_every_version_of_the_handler_is_python_with_the_same_parameters() -> None:
    """The handler is shown three times, each a whole file; what is not its news stays the same."""
    versions = [one.text for one in blocks_of(PAGE, "python") if one.file == "letters.py"]
    assert len(versions) == 3
    classes = []
    for text in versions:
        compile(text, "letters.py", "exec")
        _, begins, rest = text.partition("@attrs.frozen\n")
        classes.append(begins + rest.partition("@job_handler")[0])
    assert len(set(classes)) == 1


def test_what_the_tutorial_prints_is_shown_behind_what_prints_it() -> None:
    """A block of output belongs to the commands before it, and all are run by the test below."""
    languages = [block.language for block in blocks_of(PAGE)]
    assert set(languages) == {"python", "sh", "text"}
    for before, after in itertools.pairwise(languages):
        assert after != "text" or before == "sh"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the account of the embedded server can reach."""
    folder = Path(tempfile.mkdtemp(prefix="hastetrio-tutorial-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    # The server ends when its last user has gone, and writes until then.
    end = time.monotonic() + SOON
    while list(folder.rglob("postmaster.pid")):
        assert time.monotonic() < end
        time.sleep(0.05)
    shutil.rmtree(folder)


@pytest.mark.slow
def test_the_tutorial_from_its_first_line_to_its_last(folder: Path, server_url: str) -> None:
    """Files are written where they are shown, commands run in order, output is as shown."""
    # The fixture of the tutorial's own tests uses the server of these.
    pytest_here = f"HASTETRIO_TEST_SERVER='{server_url}' pytest -q"
    terminal = Terminal(folder, {}, {"pytest -q": pytest_here})
    said: list[str] = []
    try:
        for block in blocks_of(PAGE):
            if block.language == "python":
                assert block.file is not None, f"line {block.line}"
                (terminal.folder / block.file).write_text(block.text, "utf-8")
            elif block.language == "sh":
                said.append(terminal.type_in(block))
            else:
                assert fits(block.text, said[-1]), f"line {block.line}:\n{said[-1]}"
    finally:
        terminal.close()
    assert terminal.left_out == INSTALLS


@pytest.mark.slow
def test_the_code_of_the_tutorial_and_the_guides_is_typed(tmp_path: Path) -> None:
    """A reader with mypy --strict gets no errors from what was copied."""
    for page in ("tutorial.md", "handlers.md"):
        target = tmp_path / page.removesuffix(".md")
        target.mkdir()
        for name, text in files_of(DOCS / page).items():
            (target / name).write_text(text, "utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), "."],
            cwd=target,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_handlers_of_the_tutorial_pass_the_tests_they_are_shown_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each version of the tests, with the files as they are at that point of the page."""
    points: list[dict[str, str]] = []
    files: dict[str, str] = {}
    for block in blocks_of(PAGE, "python", "sh"):
        if block.file is not None:
            files[block.file] = block.text
        elif block.text == "pytest -q test_letters.py\n":
            points.append(dict(files))
    assert len(points) == 2
    for number, written in enumerate(points):
        folder = tmp_path / str(number)
        folder.mkdir()
        # What the tests' own fixture does.
        monkeypatch.chdir(folder)
        with imported(written, folder) as modules:
            tests = [
                value
                for name, value in vars(modules["test_letters"]).items()
                if name.startswith("test_")
            ]
            assert len(tests) == 2
            for test in tests:
                test()
