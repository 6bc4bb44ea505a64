"""What the handler's construction refuses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hastetrio._errors import ConfigError
from hastetrio._registration import handlers_by_kind
from hastetrio.bulk import BulkExport


def test_the_kind_is_bulk_export(source: Path, output: Path) -> None:
    """A worker registers the handler under the kind the issue names, and nothing is made yet."""
    handler = BulkExport(source, output)
    assert handlers_by_kind([handler]) == {"bulk-export": handler}
    assert not output.exists()


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ({"base_url": "fhir.example"}, "base_url"),
        ({"base_url": "ftp://fhir.example"}, "base_url"),
        ({"base_url": "https://"}, "base_url"),
        ({"base_url": "https://[x"}, "base_url"),
        ({"base_url": "https://fhir.example?x=1"}, "base_url"),
        ({"base_url": "https://fhir.example/{nobody}"}, "{tenant}"),
        ({"base_url": "https://fhir.example/{tenant.__class__}"}, "{tenant}"),
        ({"base_url": "https://fhir.example/{tenant!r}"}, "{tenant}"),
        ({"base_url": "https://fhir.example/{"}, "base_url"),
        ({"base_url": None}, "base_url"),
        ({"file_path": "{id}"}, "{name}"),
        ({"file_path": "{name}"}, "{directory}"),
        ({"file_path": "{id}/{name}/{}"}, "file_path"),
        ({"file_size": 0}, "file_size"),
        ({"file_size": True}, "file_size"),
        ({"file_size": 1.5}, "file_size"),
        ({"line_limit": -1}, "line_limit"),
        ({"pace": -0.1}, "pace"),
        ({"pace": float("nan")}, "pace"),
        ({"pace": "fast"}, "pace"),
    ],
)
def test_a_bad_setting_is_one_line_that_names_it(
    source: Path, output: Path, setting: dict[str, Any], names: str
) -> None:
    """An operator reads which setting is wrong, on one line."""
    with pytest.raises(ConfigError) as caught:
        BulkExport(source, output, **setting)
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_source_that_is_no_directory_is_refused(tmp_path: Path, output: Path) -> None:
    """A missing source, and a file, are refused when the worker starts and not at the first job."""
    (tmp_path / "file").write_text("")
    for wrong in ("missing", "file"):
        with pytest.raises(ConfigError, match="source of bulk-export is not a directory"):
            BulkExport(tmp_path / wrong, output)


def test_an_output_that_cannot_be_a_directory_is_refused(tmp_path: Path, source: Path) -> None:
    """A file in the place of the output, or of a parent of it, is refused."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="output of bulk-export is not a directory"):
        BulkExport(source, tmp_path / "file")
    with pytest.raises(ConfigError, match="output of bulk-export may not be written"):
        BulkExport(source, tmp_path / "file" / "output")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_directories_without_permission_are_refused(source: Path, output: Path) -> None:
    """A source that may not be read and an output that may not be written are named at start."""
    source.chmod(0)
    output.mkdir()
    output.chmod(0o500)
    try:
        with pytest.raises(ConfigError, match="source of bulk-export may not be read"):
            BulkExport(source, output)
        source.chmod(0o700)
        with pytest.raises(ConfigError, match="output of bulk-export may not be written"):
            BulkExport(source, output / "inner")
    finally:
        source.chmod(0o700)
        output.chmod(0o700)


def test_a_source_inside_the_output_is_refused(source: Path) -> None:
    """A job named like the source would put its export in the source's place."""
    link = source.parent / "link"
    link.symlink_to(source.parent)
    for output in (source, source.parent, link):
        with pytest.raises(ConfigError, match="must not be its output or lie in it"):
            BulkExport(source, output)


def test_relative_directories_stay_where_they_are(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later change of the current folder does not move the output."""
    monkeypatch.chdir(tmp_path)
    handler = BulkExport(Path("source"), Path("output"))
    monkeypatch.chdir(source)
    assert handler.directory_of("a") == tmp_path / "output" / "a"
