"""Fixtures of the bulk tests."""

from __future__ import annotations

from pathlib import Path

import pytest


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
