"""The public types: mypy --strict passes right handlers, and refuses wrong ones where they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import attrs
import pytest

EXAMPLES: Final = Path(__file__).parent / "examples"

# What is wrong is kept as text, so that `mypy` and `ruff` over the repository pass it by.
WRONG: Final = ("wrong_functions", "wrong_classes")
RIGHT: Final = ("functions", "classes")

_MARK: Final = re.compile(r"  # error: \[([a-z, -]+)\]$")
_FOUND: Final = re.compile(r"^(\w+)\.py:(\d+): error: .*\[([a-z-]+)\]$")


@attrs.frozen(order=True)
class Refusal:
    """One error of the type checker."""

    file: str
    line: int
    code: str


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What mypy says of all the examples, in a folder that is gone afterwards."""
    folder = tmp_path_factory.mktemp("typed")
    for name, ending in [(name, "txt") for name in WRONG] + [(name, "py") for name in RIGHT]:
        text = (EXAMPLES / f"{name}.{ending}").read_text(encoding="utf-8")
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    options = ["--strict", "--config-file", os.devnull, "--cache-dir", str(folder / "cache")]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *(f"{name}.py" for name in (*WRONG, *RIGHT))],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert checked.returncode == 1, checked.stdout + checked.stderr
    return checked.stdout


def marked(name: str) -> list[Refusal]:
    """The lines of a wrong example that are to be refused."""
    lines = (EXAMPLES / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [
        Refusal(name, number, code)
        for number, line in enumerate(lines, 1)
        if (mark := _MARK.search(line)) is not None
        for code in mark[1].split(", ")
    ]


def refused(report: str, name: str) -> list[Refusal]:
    """The errors of one file; whatever cannot be read as one is an error of its own."""
    found = [
        Refusal(match[1], int(match[2]), match[3])
        for line in report.splitlines()
        if (match := _FOUND.match(line)) is not None
    ]
    return sorted({one for one in found if one.file == name})


@pytest.mark.parametrize("name", RIGHT)
def test_right_handlers_pass(report: str, name: str) -> None:
    """Every way to write one that the documentation shows."""
    assert [line for line in report.splitlines() if line.startswith(f"{name}.py")] == []


@pytest.mark.parametrize("name", WRONG)
def test_wrong_handlers_are_refused_on_exactly_the_marked_lines(report: str, name: str) -> None:
    """With the code that is marked: each mistake where it was made, and nothing beside it."""
    expected = marked(name)
    assert len(expected) >= 10
    assert refused(report, name) == sorted(expected)


def test_nothing_else_is_refused(report: str) -> None:
    """No error is in the package itself, and none has a form that was not looked at."""
    errors = [line for line in report.splitlines() if ": error:" in line]
    assert {line.split(".py")[0] for line in errors} == set(WRONG)
    assert all(_FOUND.match(line) for line in errors)
