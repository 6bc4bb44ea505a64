"""What an earlier attempt left is not gone on with where anything of it does not fit."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hastetrio.bulk import BulkExport

from .harness import export, files_in, names_in, resource, write_lines
from .resuming import FILE_SIZE, cut_short, undisturbed

pytestmark = pytest.mark.usefixtures("_save_always", "mixed")


Change = Callable[[Path, Path, Any], object]


def _rewrite(source: Path, _: Path, __: object) -> None:
    path = source / "b.ndjson"
    status = path.stat()
    content = path.read_bytes()
    path.write_bytes(content.replace(b"Patient-2", b"Patient-7"))
    assert path.read_bytes() != content
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _set(**values: object) -> Change:
    return lambda _, __, state: state.update(values)


def _output(name: str, change: Callable[[Path], None]) -> Change:
    return lambda _, temporary, __: change(temporary / name)


def _shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def _link(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to("other")


MISFITS: dict[str, tuple[Change, str]] = {
    "another version": (_set(version=2), "version 2"),
    "no version": (lambda _, __, state: state.pop("version"), "version None"),
    "a key too few": (lambda _, __, state: state.pop("read"), "read is missing"),
    "a key too many": (_set(more=1), "more is no parameter"),
    "no instant": (_set(started="yesterday"), "out of range"),
    "a negative number": (_set(sources=-1), "out of range"),
    "a number that is none": (_set(problems="3"), "problems must be"),
    "a size without a count": (_set(outputs={"Patient": [1, 2, 3]}), "no size"),
    "a type without files": (_set(outputs={"Patient": []}), "no size"),
    "a file elsewhere": (_set(outputs={"../../Patient": [1, 2]}), "no export has such a file"),
    "another setting": (_set(settings="x"), "settings are others"),
    "the claim of nobody": (_set(claim="../claim001"), "are gone"),
    "more sources than there are": (_set(sources=99), "has changed"),
    "a source of the same size and time": (_rewrite, "has changed"),
    "a source that is gone": (lambda source, _, __: (source / "a.ndjson").unlink(), "has changed"),
    "a source that can be read now": (
        lambda source, _, __: write_lines(source / "nowhere", []),
        "has changed",
    ),
    "a source before them": (
        lambda source, _, __: write_lines(source / "0.ndjson", [resource("Patient")]),
        "has changed",
    ),
    "no directory": (lambda _, old, __: old.rename(old.with_name("elsewhere")), "are gone"),
    "a full file that is shorter": (_output("Patient.1.ndjson", _shorten), "that it was"),
    "a full file that is longer": (_output("Patient.1.ndjson", _lengthen), "that it was"),
    "a full file that is a link": (_output("Patient.1.ndjson", _link), "that it was"),
    "a full file that is gone": (_output("Patient.1.ndjson", Path.unlink), "Patient.1.ndjson"),
    "a last file that is shorter": (_output("Group.1.ndjson", _shorten), "1 bytes shorter"),
    "a last file that is a link": (_output("Group.1.ndjson", _link), "Group.1.ndjson"),
    "a last file that is gone": (_output("Group.1.ndjson", Path.unlink), "Group.1.ndjson"),
}


@pytest.mark.parametrize(("change", "reason"), MISFITS.values(), ids=MISFITS.keys())
async def test_what_does_not_fit_is_exported_anew(
    handler: BulkExport,
    source: Path,
    output: Path,
    tmp_path: Path,
    opened: list[str],
    caplog: pytest.LogCaptureFixture,
    change: Change,
    reason: str,
) -> None:
    """Nothing of the earlier attempt is mixed in; one line of the log says why."""
    state = await cut_short(handler)
    change(source, output / ".job-1.claim001.tmp", state)
    opened.clear()
    with caplog.at_level(logging.INFO, logger="hastetrio.bulk"):
        done = await export(handler, claim="claim002", state=state)
    (line,) = [text for text in caplog.messages if not text.startswith("a source file cannot")]
    assert line.startswith("the export starts anew: ")
    assert reason in line
    assert opened[0] == min(name for name in names_in(source) if name.endswith(".ndjson"))
    assert files_in(done.directory) == await undisturbed(source, tmp_path)
    assert set(names_in(output)) <= {"job-1", "elsewhere"}


@pytest.mark.parametrize("state", ["rubbish", 7, [], {}, {"version": True}, {"version": [[]]}])
async def test_any_other_state_is_no_state(
    handler: BulkExport, source: Path, tmp_path: Path, state: object
) -> None:
    """What another program saved is left alone, and costs nothing but a line of the log."""
    done = await export(handler, state=state)
    assert files_in(done.directory) == await undisturbed(source, tmp_path)


@pytest.mark.parametrize(
    ("settings", "parameters"),
    [
        ({"file_size": 300}, None),
        ({"line_limit": 100}, None),
        ({}, {"_type": "Patient"}),
        ({}, {"_since": "2026-01-01T00:00:00Z"}),
        ({}, {"_typo": "Patient", "$handling": "lenient"}),
    ],
)
async def test_other_settings_and_parameters_start_anew(
    handler: BulkExport,
    source: Path,
    output: Path,
    opened: list[str],
    settings: dict[str, Any],
    parameters: object,
) -> None:
    """An export is never half one thing and half another."""
    state = await cut_short(handler)
    opened.clear()
    other = BulkExport(source, output, **{"file_size": FILE_SIZE, **settings})
    await export(other, claim="claim002", state=state, parameters=parameters)
    assert opened[0] == "a.ndjson"
