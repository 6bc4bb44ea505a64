"""Fixtures of the tests of the HTTP face."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An empty directory to export."""
    directory = tmp_path / "source"
    directory.mkdir()
    return directory


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where exports go; not there yet."""
    return tmp_path / "output"
