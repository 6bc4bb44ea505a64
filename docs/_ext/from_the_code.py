"""Directives whose text comes from the program: its settings, its statements, its examples."""

from __future__ import annotations

import ast
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
from sphinx.util.docutils import SphinxDirective

from hastetrio._settings import KEYS, Key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

ROOT: Final = Path(__file__).parents[2]

# The statements of the lease protocol in the order of a job's life; all others come after them.
_LIFE: Final = (
    *("create_jobs", "claim_jobs", "forget_claim", "renew_leases", "save_states"),
    *("reschedule_jobs", "finish_jobs", "release_jobs", "state_of_jobs", "was_recorded"),
    *("cancel_job", "retry_job", "fail_abandoned_jobs", "claim_expired_jobs"),
    *("delete_expired_jobs", "discard_expired_jobs", "delete_orphans"),
)


class FromTheCode(SphinxDirective):
    """A directive without content, whose Markdown a function makes."""

    optional_arguments = 1

    def run(self) -> list[Any]:
        """The nodes of that Markdown."""
        return self.parse_text_to_nodes("\n".join(self.lines()), allow_section_headings=True)

    @abstractmethod
    def lines(self) -> Iterator[str]:
        """The lines of Markdown."""

    def watch(self, path: Path) -> None:
        """Build this page anew when the file has changed."""
        self.env.note_dependency(str(path))


class Settings(FromTheCode):
    """The table of one group of settings: `worker`, `face` or `all`, the rest."""

    def lines(self) -> Iterator[str]:
        """One row a setting."""
        self.watch(ROOT / "src" / "hastetrio" / "_settings.py")
        self.watch(ROOT / "src" / "hastetrio" / "_settings_help.py")
        owners = {"Settings": "all", "AsyncJobWorkerConfig": "worker", "HttpConfig": "face"}
        yield "| Key | Value | Default | What it decides |"
        yield "|---|---|---|---|"
        for key in KEYS.values():
            if owners.get(key.owner.__name__, "all") == self.arguments[0]:
                value = key.metavar.replace("|", " or ") or "true or false"
                words = key.help.replace("|", r"\|")
                yield f"| `{key.name}` | {value} | {default_of(key)} | {words} |"


def default_of(key: Key) -> str:
    """A setting's default, for people."""
    value = key.default
    if value is attrs.NOTHING or value is None or value in ("", ()):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (tuple, list)):
        return ", ".join(map(str, value))
    return f"{value:,.10g}" if isinstance(value, (int, float)) else str(value)


class Statements(FromTheCode):
    """Every statement of `sql/queries`, each a section."""

    def lines(self) -> Iterator[str]:
        """The statements of a job's life first."""
        folder = ROOT / "sql" / "queries"
        self.watch(folder)
        paths = {path.stem: path for path in sorted(folder.glob("*.sql"))}
        for name in dict.fromkeys((*_LIFE, *paths)):
            yield from self._statement(name, paths[name])

    def _statement(self, name: str, path: Path) -> Iterator[str]:
        self.watch(path)
        yield f"## {name}"
        yield ""
        lines = path.read_text("utf-8").splitlines()
        # The first comments say what it does; they are prose here.
        while lines and lines[0].startswith("--"):
            yield lines.pop(0).removeprefix("--").strip()
            yield ""
        # By force: `{job}` is no SQL.
        yield "```{code-block} sql"
        yield ":force:"
        yield ""
        yield from "\n".join(lines).strip("\n").splitlines()
        yield "```"
        yield ""


class Examples(FromTheCode):
    """Every file of `examples`, each a section that begins with its docstring."""

    def lines(self) -> Iterator[str]:
        """The examples by name."""
        folder = ROOT / "examples"
        self.watch(folder)
        for path in sorted(folder.glob("*.py")):
            self.watch(path)
            text = path.read_text("utf-8")
            module = ast.parse(text)
            words = ast.get_docstring(module) or ""
            yield f"## {path.stem}"
            yield ""
            yield from words.splitlines()
            yield ""
            yield "```python"
            yield from text.splitlines()[module.body[0].end_lineno or 0 :]
            yield "```"
            yield ""


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx the directives' names."""
    app.add_directive("settings-table", Settings)
    app.add_directive("sql-statements", Statements)
    app.add_directive("example-files", Examples)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
