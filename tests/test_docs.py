"""What the documentation names is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


def test_every_test_that_a_document_names_exists() -> None:
    """A promise whose test was renamed or removed is a promise without a test."""
    sources = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    tests = {name for text in sources for name in re.findall(r"def (test_\w+)\(", text)}
    named = {
        (document.name, name)
        for document in DOCUMENTS
        for name in re.findall(r"`(test_\w+)`", document.read_text("utf-8"))
    }
    assert len(named) > 40
    assert not {(where, name) for where, name in named if name not in tests}


def test_every_link_between_documents_leads_somewhere() -> None:
    """A reader who follows a link finds the file."""
    broken = [
        (document.name, target)
        for document in DOCUMENTS
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text("utf-8"))
        if "://" not in target and not (document.parent / target).exists()
    ]
    assert not broken


def test_every_failure_that_a_document_quotes_is_looked_for() -> None:
    """The table of rules quotes the words with which random tests fail."""
    text = (ROOT / "docs" / "guarantees.md").read_text("utf-8").partition("## Rules")[2]
    sources = [*ROOT.glob("tests/machine/*.py"), *ROOT.glob("tests/simulation/*.py")]
    checks = "\n".join(path.read_text("utf-8") for path in sources)
    quoted = [part.strip() for words in re.findall(r'"([^"]+)"', text) for part in words.split("…")]
    assert len(quoted) > 20
    assert not [part for part in quoted if part not in checks]
