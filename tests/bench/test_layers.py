"""The benchmark measures what users get."""

from __future__ import annotations

import ast
from pathlib import Path

import hastetrio.bench

PUBLIC = {"hastetrio", "hastetrio.postgres", "hastetrio.embedded"}


def test_the_benchmark_goes_through_public_names_only() -> None:
    """A figure that needs a private shortcut is no figure a user can have."""
    modules = list(Path(hastetrio.bench.__path__[0]).glob("*.py"))
    assert len(modules) > 5
    imported = {
        (module.name, node.module)
        for module in modules
        for node in ast.walk(ast.parse(module.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hastetrio")
    }
    assert {target for _, target in imported} >= PUBLIC
    assert not {
        (name, target)
        for name, target in imported
        if target not in PUBLIC and not str(target).startswith("hastetrio.bench")
    }
