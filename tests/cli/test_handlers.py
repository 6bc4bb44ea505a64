"""Finding handlers: what is found, and the one line for each way not to find any."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hastetrio._errors import ConfigError
from hastetrio._settings import Settings
from hastetrio.cli._handlers import ENTRY_POINTS, collect_handlers

MODULE = """
from hastetrio._handler import JobHandler, job_handler

@job_handler("one")
async def one(context): ...

@job_handler("two")
async def two(context): ...

class Three(JobHandler):
    kind = "three"
    async def run(self, context): ...

class Holder:
    inside = one

both = [one, two]
lazily = (handler for handler in (one, two))
text = "one"
number = 5

def wrong():
    raise ValueError("no handlers today")
    yield

raising = wrong()
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path) -> Iterator[str]:
    """A module of handlers in the current folder, new for each test."""
    (tmp_path / "given_handlers.py").write_text(MODULE)
    (tmp_path / "broken_handlers.py").write_text("import no_such_module_at_all")
    (tmp_path / "leaving_handlers.py").write_text("raise SystemExit(3)")
    yield "given_handlers"
    for name in ("given_handlers", "broken_handlers", "leaving_handlers"):
        sys.modules.pop(name, None)


def kinds(*handlers: str, only: tuple[str, ...] = ()) -> list[str]:
    """The kinds that a worker with these handlers runs."""
    return [one.kind for one in collect_handlers(Settings(handlers=handlers, kinds=only))]


@pytest.mark.parametrize("attribute", ["both", "lazily"])
def test_a_handler_or_an_iterable_of_handlers(attribute: str) -> None:
    """The current folder is importable, as for `python -m`."""
    assert kinds(f"given_handlers:{attribute}") == ["one", "two"]


def test_handlers_add_up() -> None:
    """Each --handlers adds to the others; an attribute may be one of a class."""
    assert kinds("given_handlers:Holder.inside", "given_handlers:two") == ["one", "two"]


def test_kinds_choose_among_the_handlers() -> None:
    """One package of handlers can serve several fleets."""
    assert kinds("given_handlers:both", only=("two",)) == ["two"]


@pytest.mark.parametrize(
    ("handlers", "only", "words"),
    [
        ((), (), ("no handlers", "--handlers", ENTRY_POINTS, "--export-source")),
        (("given_handlers",), (), ("'given_handlers' is not MODULE:ATTR",)),
        ((":both",), (), ("MODULE:ATTR",)),
        (("given_handlers.py:both",), (), ("names a file", "without .py")),
        (("no_such_module:x",), (), ("no_such_module:x", "ModuleNotFoundError")),
        (("broken_handlers:x",), (), ("broken_handlers:x", "no_such_module_at_all", "debug")),
        (("leaving_handlers:x",), (), ("leaving_handlers:x", "SystemExit: 3")),
        (("given_handlers:nothing",), (), ("given_handlers:nothing", "has no attribute")),
        (("given_handlers:raising",), (), ("given_handlers:raising", "no handlers today")),
        (("given_handlers:text",), (), ("given_handlers:text", "'one' is not a JobHandler")),
        (("given_handlers:number",), (), ("given_handlers:number", "5 is not a JobHandler")),
        (("given_handlers:Three",), (), ("given_handlers:Three", "is a class")),
        (
            ("given_handlers:one", "given_handlers:both"),
            (),
            ("two handlers", "'one'", "given_handlers:one", "given_handlers:both"),
        ),
        (("given_handlers:both",), ("three",), ("kinds", "'three'", "one, two")),
    ],
)
def test_every_mistake_is_one_line_that_names_it(
    handlers: tuple[str, ...], only: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """A worker that cannot run what it was asked to must not start without it."""
    with pytest.raises(ConfigError) as caught:
        kinds(*handlers, only=only)
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text


def test_the_traceback_of_a_broken_module_is_there_for_debugging(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The line says what; the traceback, at debug, says where."""
    caplog.set_level("DEBUG", "hastetrio.cli")
    with pytest.raises(ConfigError):
        kinds("broken_handlers:x")
    assert "broken_handlers.py" in caplog.text


def entry_points(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Pretend that an installed package has an entry point of our group."""
    point = importlib.metadata.EntryPoint("given", value, ENTRY_POINTS)
    monkeypatch.setattr(
        importlib.metadata,
        "entry_points",
        lambda *, group: importlib.metadata.EntryPoints([point]).select(group=group),
    )
    monkeypatch.syspath_prepend(str(Path.cwd()))


def test_installed_packages_bring_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installing the package is enough; what is named on the command line comes on top."""
    entry_points(monkeypatch, "given_handlers:two")
    assert kinds() == ["two"]
    assert kinds("given_handlers:one") == ["one", "two"]


def test_a_broken_entry_point_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name tells which package to mend or remove."""
    entry_points(monkeypatch, "broken_handlers:x")
    with pytest.raises(ConfigError, match=r"entry point 'given'.*no_such_module_at_all"):
        kinds()


def test_bulk_export_is_there_only_with_its_directories(tmp_path: Path) -> None:
    """A worker that was given no directories must not claim exports."""
    source = tmp_path / "in"
    source.mkdir()
    both = Settings(export_source=source, export_output=tmp_path / "out")
    assert [one.kind for one in collect_handlers(both)] == ["bulk-export"]


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (Settings(export_source=Path()), "give export_output too"),
        (Settings(export_output=Path()), "give export_source too"),
        (Settings(export_base_url="x"), "export_base_url needs"),
        (Settings(export_source=Path("nowhere"), export_output=Path()), "nowhere is not a dir"),
    ],
)
def test_half_an_export_is_refused(settings: Settings, word: str) -> None:
    """Half of it given is a mistake, and says which half is missing."""
    with pytest.raises(ConfigError, match=word):
        collect_handlers(settings)
