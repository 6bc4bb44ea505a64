"""Opening the files of a finished export by the names that clients ask for."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastetrio._operation import Level
from hastetrio._outcome import OperationOutcomeError
from hastetrio.bulk import BulkExport, directory_name
from hastetrio.bulk._outputs import is_output_name

from .harness import export, make_job, names_in, resource, write_lines

NAME = "Patient.1.ndjson"
SECRET = b"another's\n"


@pytest.fixture
def handler(source: Path, output: Path) -> BulkExport:
    """A handler whose source holds one patient and one line that is none."""
    write_lines(source / "x.ndjson", [resource("Patient"), b"rubbish"])
    return BulkExport(source, output)


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Sees that the test leaves as many descriptors open as it found."""

    def count() -> int:
        return sum(1 for _ in Path("/dev/fd").iterdir())

    before = count()
    yield
    assert count() == before


def content(handler: BulkExport, name: str, job_id: str = "job-1") -> bytes | None:
    """What opening a file gives; None where there is none."""
    opened = handler.open_result(make_job(job_id), name)
    if opened is None:
        return None
    with opened.file:
        data = opened.file.read()
    assert opened.size == len(data)
    assert opened.content_type == "application/fhir+ndjson"
    return data


async def test_every_file_of_the_manifest_can_be_opened(
    handler: BulkExport, descriptors: None
) -> None:
    """Names out of the manifest open the files it lists, those of problems too."""
    done = await export(handler)
    items = [*done.manifest["output"], *done.manifest["error"]]
    names = [item["url"].rpartition("/")[2] for item in items]
    assert names == [NAME, "errors.1.ndjson"]
    for name in names:
        assert content(handler, name) == (done.directory / name).read_bytes()


@pytest.mark.parametrize(
    "job_id", ["job-1", "..", ".", "a/b", "../job-1", "UPPER", "%2e%2e", "a\x00b", "é" * 300, ""]
)
async def test_any_job_id_has_files_of_its_own(
    handler: BulkExport, output: Path, job_id: str
) -> None:
    """Ids that are no file names lead to their own directory, never out of the output."""
    await export(handler, job_id=job_id)
    assert names_in(output) == [directory_name(job_id)]
    assert content(handler, NAME, job_id) == resource("Patient") + b"\n"
    for other in ("job-2", directory_name(job_id) + "x", "_" + job_id):
        assert content(handler, NAME, other) is None


HOSTILE = [
    "",
    ".",
    "..",
    "/",
    "../job-2/Patient.1.ndjson",
    "..%2Fjob-2%2FPatient.1.ndjson",
    "%2e%2e/job-2/Patient.1.ndjson",
    "..\\job-2\\Patient.1.ndjson",
    "./Patient.1.ndjson",
    "sub/Patient.1.ndjson",
    "/etc/passwd",
    "Patient.1.ndjson/",
    "Patient.1.ndjson/.",
    "Patient.1.ndjson\x00",
    "\x00Patient.1.ndjson",
    "Patient.1.ndjson\n",
    " Patient.1.ndjson",
    "Patient.1.ndjson ",
    "patient.1.ndjson",
    "PATIENT.1.NDJSON",
    "Patient.01.ndjson",
    "Patient.0.ndjson",
    "Patient.1.ndjson.gz",
    "Patient.\u0661.ndjson",
    "P\u0430tient.1.ndjson",
    "Patient.2.ndjson",
    "Patient." + "1" * 5000 + ".ndjson",
    "P" * 5000 + ".1.ndjson",
    "Secret.1.ndjson",
    "notes.txt",
    "\ud800",
    ".hidden",
    "errors.2.ndjson",
]


@pytest.mark.parametrize("name", HOSTILE)
async def test_no_other_name_opens_anything(
    handler: BulkExport, output: Path, descriptors: None, name: str
) -> None:
    """Paths, encodings, links to other jobs, other spellings and strangers' files: all nothing."""
    done = await export(handler)
    await export(handler, job_id="job-2")
    for stranger in ("Secret.1.ndjson", "notes.txt", ".hidden"):
        (done.directory / stranger).write_bytes(SECRET)
    (done.directory / "sub").mkdir()
    (done.directory / "sub" / NAME).write_bytes(SECRET)
    assert content(handler, NAME) is not None
    assert content(handler, name) is None
    # As a server would hand it on that decodes twice.
    assert content(handler, unquote(name)) is None


@given(st.text(max_size=40) | st.text("Patient.1/\\%2e0\x00 ", max_size=20))
def test_names_of_outputs_are_plain_file_names(name: str) -> None:
    """Whatever passes has no separator, no dot in front and nothing beyond ASCII."""
    if is_output_name(name):
        assert name.isascii()
        assert name.endswith(".ndjson")
        assert Path(name).name == name


async def test_a_link_in_a_files_place_is_not_followed(
    handler: BulkExport, tmp_path: Path, descriptors: None
) -> None:
    """Neither to a file elsewhere nor to one of the same export."""
    done = await export(handler)
    target = tmp_path / "secret"
    target.write_bytes(SECRET)
    for name, to in [
        ("Group.1.ndjson", target),
        ("Task.1.ndjson", Path(NAME)),
        ("List.1.ndjson", tmp_path / "nowhere"),
        ("Slot.1.ndjson", Path("Slot.1.ndjson")),
    ]:
        (done.directory / name).symlink_to(to)
        assert content(handler, name) is None


async def test_a_link_in_the_directorys_place_is_not_followed(
    handler: BulkExport, output: Path, tmp_path: Path, descriptors: None
) -> None:
    """Not even to another job's export, which is in the same output."""
    done = await export(handler)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / NAME).write_bytes(SECRET)
    (output / "job-2").symlink_to(elsewhere)
    (output / "job-3").symlink_to(done.directory)
    assert content(handler, NAME, "job-2") is None
    assert content(handler, NAME, "job-3") is None


async def test_only_regular_files_are_opened(
    handler: BulkExport, descriptors: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory, a pipe without a writer and a socket are no files, and nothing waits."""
    done = await export(handler)
    (done.directory / "Group.1.ndjson").mkdir()
    os.mkfifo(done.directory / "Task.1.ndjson")
    # A socket's path may have some hundred bytes only.
    monkeypatch.chdir(done.directory)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("List.1.ndjson")
        for name in ("Group.1.ndjson", "Task.1.ndjson", "List.1.ndjson"):
            assert content(handler, name) is None


def test_nothing_is_open_before_there_is_anything(handler: BulkExport, output: Path) -> None:
    """Without an output directory, without the job's, or with a file in its place: no file."""
    assert content(handler, NAME) is None
    output.mkdir()
    assert content(handler, NAME) is None
    (output / "job-1").write_bytes(SECRET)
    assert content(handler, NAME) is None


async def test_the_output_itself_may_be_a_link(
    handler: BulkExport, source: Path, output: Path, tmp_path: Path
) -> None:
    """Where the output is, is the operator's word."""
    await export(handler)
    link = tmp_path / "link"
    link.symlink_to(output)
    assert content(BulkExport(source, link), NAME) is not None


async def test_a_file_goes_on_to_its_end_when_it_is_deleted(source: Path, output: Path) -> None:
    """The expiry of a job does not cut a download that has begun."""
    lines = [resource("Patient", number) for number in range(10_000)]
    write_lines(source / "x.ndjson", lines)
    handler = BulkExport(source, output)
    await export(handler)
    opened = handler.open_result(make_job(), NAME)
    assert opened is not None
    with opened.file:
        beginning = opened.file.read(1000)
        await handler.expire(make_job())
        assert names_in(output) == []
        assert beginning + opened.file.read() == b"\n".join([*lines, b""])
    assert content(handler, NAME) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
async def test_a_disks_refusal_is_an_error(handler: BulkExport, output: Path) -> None:
    """A file that is there but cannot be opened is not said to be missing."""
    done = await export(handler)
    (done.directory / NAME).chmod(0)
    with pytest.raises(PermissionError):
        content(handler, NAME)


def test_the_operation_is_the_system_level_export(handler: BulkExport) -> None:
    """The kick-off is `[base]/$export`, for whoever may read everything."""
    operation = handler.operation
    assert operation is not None
    assert operation.name == "export"
    assert operation.levels == {Level.SYSTEM}
    assert operation.scope == "system/*.rs"
    assert operation.definition == ("http://hl7.org/fhir/uv/bulkdata/OperationDefinition/export")
    assert not operation.affects_state


def test_a_kick_offs_parameters_are_judged_before_it_is_stored(
    handler: BulkExport, output: Path
) -> None:
    """A bad type is refused without running anything."""
    handler.check_parameters({"_type": "Patient"})
    with pytest.raises(OperationOutcomeError, match="Foo"):
        handler.check_parameters({"_type": "Foo"})
    assert not output.exists()


async def test_what_was_ignored_is_listed_in_the_manifest(
    handler: BulkExport, output: Path
) -> None:
    """Warnings about the kick-off come first in the error file, then what was wrong with data."""
    parameters = {"_type": "Patient,Foo", "_elements": "id", "$handling": "lenient"}
    done = await export(handler, parameters=parameters)
    assert done.counts() == {"Patient": 1}
    problems = done.problems()
    assert [problem["severity"] for problem in problems] == ["warning", "warning", "error"]
    assert '"Foo"' in problems[0]["diagnostics"]
    assert problems[1]["code"] == "not-supported"
    assert problems[1]["expression"] == ["Parameters.parameter.where(name='_elements')"]
    (item,) = done.manifest["error"]
    assert (item["type"], item["count"]) == ("OperationOutcome", 3)
    assert done.reports[-1] == "Exported: 100 % (1 resource in 1 file, 3 problems)"


async def test_ignored_parameters_are_listed_where_nothing_is_exported(
    source: Path, output: Path
) -> None:
    """An empty source still has its file of warnings."""
    done = await export(
        BulkExport(source, output), parameters={"_elements": "id", "$handling": "lenient"}
    )
    assert done.manifest["output"] == []
    assert len(done.problems()) == 1
