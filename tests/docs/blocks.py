"""The code blocks of a page, and how to run them.

A Python block whose first line is `# name.py` is a file of that name; a later one replaces it. A
block of `text` after one of `sh` is what that prints: `...` stands for anything, and any white
space is as good as another.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Final

import attrs

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"

_BLOCK: Final = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NAME: Final = re.compile(r"# (\w+\.py)\n")

# What makes an environment is not run: the tests have theirs.
_INSTALLS: Final = re.compile(r"\bpip install\b|-m venv\b")

# What goes on until it is told to stop has a terminal of its own.
_SERVES: Final = re.compile(r"hastetrio (worker|serve)\b")


@attrs.frozen
class Block:
    """One block of code of a page."""

    language: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        """The file it is, if it says so."""
        named = _NAME.match(self.text)
        return None if named is None else named[1]


def blocks_of(page: Path, *languages: str) -> list[Block]:
    """The blocks of a page in their order, of these languages or all."""
    text = page.read_text("utf-8")
    found = (
        Block(match[1], match[2], text.count("\n", 0, match.start()) + 1)
        for match in _BLOCK.finditer(text)
    )
    return [block for block in found if not languages or block.language in languages]


def files_of(page: Path) -> dict[str, str]:
    """The files that a page shows, as they are at its end."""
    return {block.file: block.text for block in blocks_of(page, "python") if block.file}


@contextmanager
def imported(files: Mapping[str, str], folder: Path) -> Iterator[Mapping[str, ModuleType]]:
    """The modules a page shows, written to `folder` and imported from there."""
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")
    names = [name.removesuffix(".py") for name in files]
    assert not set(names) & (set(sys.modules) | sys.stdlib_module_names)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(folder))
        for name in names:
            sys.modules.pop(name, None)


def fits(shown: str, said: str) -> bool:
    """Whether a page shows what was said."""
    parts = [re.escape(" ".join(part.split())) for part in shown.split("...")]
    pattern = r"\s*.*\s*".join(parts)
    return re.fullmatch(pattern, " ".join(said.split()), re.DOTALL) is not None


class Terminal:
    """Where the blocks of a page are typed in, one after the other.

    Args:
        folder: The current folder at the beginning.
        environ: Variables beside the usual ones, none of the developer's settings among them.
        replaced: Lines to run in place of others of the page.
    """

    def __init__(
        self, folder: Path, environ: Mapping[str, str], replaced: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.left_out: list[str] = []
        self._replaced = replaced or {}
        usual = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HASTETRIO_", "PYTEST_"))
        }
        path = os.pathsep.join((sysconfig.get_path("scripts"), usual["PATH"]))
        self._environ = usual | {"PATH": path, "COLUMNS": "200", "NO_COLOR": "1"} | dict(environ)
        self._serving: subprocess.Popen[str] | None = None

    def type_in(self, block: Block) -> str:
        """Run a block of `sh`, and answer what it printed.

        A worker gets a terminal of its own, in place of the one before.
        """
        said = ""
        waiting: list[str] = []
        for line in block.text.splitlines():
            if _INSTALLS.search(line):
                self.left_out.append(line)
            elif _SERVES.match(line):
                said += self._run(waiting)
                waiting = []
                self._serve(line)
            else:
                waiting.append(self._replaced.get(line, line))
        return said + self._run(waiting)

    def close(self) -> None:
        """Stop what still runs, with Ctrl-C."""
        if self._serving is None:
            return
        self._serving.send_signal(signal.SIGINT)
        try:
            _, rest = self._serving.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self._serving.kill()
            self._serving.communicate()
            raise
        code, self._serving = self._serving.returncode, None
        assert code == 0, rest

    def _run(self, lines: Sequence[str]) -> str:
        if not lines:
            return ""
        # What a block leaves behind in its shell is there for the next.
        after = "pwd >&9; env -0 >&9"
        reader, writer = os.pipe()
        with os.fdopen(reader, encoding="utf-8") as kept:
            try:
                done = subprocess.run(
                    ["bash", "-ec", f"exec 9>&{writer}\n" + "\n".join([*lines, after])],
                    cwd=self.folder,
                    env=self._environ,
                    pass_fds=[writer],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=120,
                )
            finally:
                os.close(writer)
            assert done.returncode == 0, "\n".join(lines) + "\n" + done.stdout
            folder, _, variables = kept.read().partition("\n")
        self.folder = Path(folder)
        self._environ = dict(one.split("=", 1) for one in variables.split("\0") if one)
        return done.stdout

    def _serve(self, line: str) -> None:
        self.close()
        self._serving = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            cwd=self.folder,
            env=self._environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._serving.stderr is not None
        said = ""
        for words in self._serving.stderr:
            said += words
            if "Starting worker" in words:
                return
        raise AssertionError(said)
