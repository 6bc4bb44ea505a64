"""Fixtures of the bulk tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hastetrio.bulk import BulkExport, _export
from hastetrio.bulk._lines import SourceFile

from .resuming import FILE_SIZE, write_mixed


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An empty source directory."""
    directory = tmp_path / "source"
    directory.mkdir()
    return directory


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where exports go; not there yet."""
    return tmp_path / "output"


@pytest.fixture
def _save_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each finished source file is a time to save."""
    monkeypatch.setattr(_export, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(_export, "_SAVE_SHARE", 0)


@pytest.fixture
def mixed(source: Path) -> Path:
    """A source of several files, also with what cannot be exported."""
    write_mixed(source)
    return source


@pytest.fixture
def handler(source: Path, output: Path) -> BulkExport:
    """A handler that needs a few files for each type."""
    return BulkExport(source, output, file_size=FILE_SIZE)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The source files that are opened, by name."""
    names: list[str] = []
    begin = SourceFile.__init__

    def noted(self: SourceFile, path: Path, **values: Any) -> None:  # noqa: ANN401
        names.append(path.name)
        begin(self, path, **values)

    monkeypatch.setattr(SourceFile, "__init__", noted)
    return names
