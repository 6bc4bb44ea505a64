"""Names and ids that must not lead out of an export's directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from hastetrio.bulk import directory_name, sample_directory
from hastetrio.memory import MemoryJobProvider

from .caller import Caller
from .exports import Export, exported, finished, lines_of, names_in, working
from .harness import BASE, client, face

HOSTILE: Final = [
    "..",
    "%2e%2e",
    "%2E%2E%2F{other}%2FPatient.1.ndjson",
    "..%2F{other}%2FPatient.1.ndjson",
    "..%5C{other}%5CPatient.1.ndjson",
    "../{other}/Patient.1.ndjson",
    "..\\{other}\\Patient.1.ndjson",
    "%252e%252e%252f{other}%252fPatient.1.ndjson",
    "%2F{output}%2F{other}%2FPatient.1.ndjson",
    "Patient.1.ndjson%00",
    "Patient.1.ndjson%2F",
    "Patient.1.ndjson%2F.",
    "Patient.1.ndjson/x",
    "patient.1.ndjson",
    "Patient.1.ndjson%20",
    "Patient.9.ndjson",
    "Link.1.ndjson",
    "Group.1.ndjson",
    "%FF%FE",
    "%C0%AE%C0%AE%C0%AFPatient.1.ndjson",
    "x" * 2000,
    ".",
    "%00",
    "*",
    "~",
    "",
]


@pytest.mark.parametrize("name", HOSTILE)
async def test_no_name_leads_out_of_the_export(output: Path, name: str) -> None:
    """Whatever the spelling, the answer is the one for what is not there."""
    handler = Export(sample_directory(), output)
    async with exported(handler, "?_type=Patient") as done:
        id = done.location.rpartition("/")[2]
        other = output / "other"
        other.mkdir()
        (other / "Patient.1.ndjson").write_bytes(b"secret")
        (handler.directory_of(id) / "Group.1.ndjson").symlink_to(other / "Patient.1.ndjson")
        filled = name.format(other=other.name, output=str(output).strip("/").replace("/", "%2F"))
        caller = Caller()
        await caller.get(done.of, f"{BASE}/_async/{id}/files/{filled}")
        assert caller.status == 404
        assert json.loads(caller.body)["resourceType"] == "OperationOutcome"
        unknown = Caller()
        await unknown.get(done.of, f"{BASE}/_async/{id}/files/Task.1.ndjson")
        assert caller.taken == unknown.taken
        good = Caller()
        await good.get(done.of, f"{BASE}/_async/{id}/files/Patient.1.ndjson")
        assert good.body == (sample_directory() / "Patient.ndjson").read_bytes()


@pytest.mark.parametrize("id", ["%2e%2e", "..", "{id}%00", "{id}%2F", "%2E%2E%2F{id}", "{ID}"])
async def test_no_job_id_leads_to_a_file(output: Path, id: str) -> None:
    """Only a job's own id, spelled as it was given, leads to its files."""
    async with exported(Export(sample_directory(), output), "?_type=Patient") as done:
        real = done.location.rpartition("/")[2]
        caller = Caller()
        await caller.get(
            done.of,
            f"{BASE}/_async/{id.format(id=real, ID=real.upper())}/files/Patient.1.ndjson",
        )
    assert caller.status == 404


async def test_a_job_with_a_strange_id_has_its_files(output: Path) -> None:
    """A foreign program may have chosen an id that is no file name; its files are found."""
    handler = Export(sample_directory(), output)
    of = face([handler])
    provider = of.provider
    assert isinstance(provider, MemoryJobProvider)
    id = "../Job 1"
    provider.insert_row(
        id=id,
        tenant="t1",
        project="p1",
        kind="bulk-export",
        submitted_by="anonymous",
        claims={"sub": "anonymous"},
        parameters={"_type": "Patient"},
    )
    async with client(of) as http, working(of):
        job = await finished(of, id)
        assert names_in(output) == [directory_name(id)]
        for item in job.output["output"]:
            lines_of(await http.get(item["url"]), item)
