"""The shipped sample, and data of a public generator."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import carebundle

from hastetrio.bulk import BulkExport, sample_directory

from .harness import export, names_in

GENERATOR = Path(__file__).parents[2] / "tools" / "make_sample.py"


def resources_in(directory: Path) -> list[dict[str, object]]:
    """Every resource of a directory of NDJSON files."""
    return [
        json.loads(line)
        for path in sorted(directory.glob("*.ndjson"))
        for line in path.read_bytes().splitlines()
    ]


def references_in(value: object) -> set[str]:
    """Every reference a resource holds."""
    if isinstance(value, list):
        return {found for item in value for found in references_in(item)}
    if not isinstance(value, dict):
        return set()
    found = {found for item in value.values() for found in references_in(item)}
    return found | {value["reference"]} if "reference" in value else found


def test_the_generator_makes_the_shipped_sample_byte_for_byte(tmp_path: Path) -> None:
    """Nobody edits the sample by hand, and the seed gives the same bytes on every Python."""
    spec = importlib.util.spec_from_file_location("make_sample", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.write_sample(tmp_path)
    assert names_in(tmp_path) == names_in(sample_directory())
    for name in names_in(tmp_path):
        assert (tmp_path / name).read_bytes() == (sample_directory() / name).read_bytes(), name


def test_the_references_of_the_sample_lead_somewhere() -> None:
    """Every reference names a resource of the sample, and no id is used twice."""
    resources = resources_in(sample_directory())
    names = [f"{resource['resourceType']}/{resource['id']}" for resource in resources]
    assert len(names) == len(set(names))
    assert len({resource["resourceType"] for resource in resources}) == 8
    references = references_in(resources)
    assert references
    assert references <= set(names)


async def test_the_sample_is_exported_whole(output: Path) -> None:
    """Each of the sample's files comes out with the same bytes."""
    done = await export(BulkExport(sample_directory(), output))
    assert done.problems() == []
    assert done.counts()["Patient"] == 60
    for path in sample_directory().iterdir():
        exported = done.directory / f"{path.stem}.1.ndjson"
        assert exported.read_bytes() == path.read_bytes()
    assert len(names_in(done.directory)) == len(names_in(sample_directory()))


async def test_data_of_a_public_generator_is_exported_whole(source: Path, output: Path) -> None:
    """Counts and lines per type are those that carebundle made, in whatever file they came."""
    made = carebundle.to_ndjson(carebundle.generate_cohort(count=5, seed=42))
    expected = {name: text.encode().split(b"\n")[:-1] for name, text in made.items()}
    lines = [line for of_type in expected.values() for line in of_type]
    (source / "first.ndjson").write_bytes(b"\n".join(lines[::2]))
    (source / "second.ndjson").write_bytes(b"\n".join(lines[1::2]))
    done = await export(BulkExport(source, output, file_size=50_000))
    assert done.problems() == []
    assert done.counts() == {name: len(of_type) for name, of_type in expected.items()}
    for name, of_type in expected.items():
        files = [item["url"].rpartition("/")[2] for item in done.manifest["output"]]
        exported = [
            line for file in files if file.startswith(f"{name}.") for line in done.lines(file)
        ]
        assert sorted(exported) == sorted(of_type)
