"""Runs one export under a claim made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
from tests.fakes import FakeClaim, make_context

from hastetrio._model import AsyncJob, AsyncJobStatus
from hastetrio.bulk import BulkExport

REQUEST = "https://fhir.example/w/t/p/api/v1/fhir/r4/$export"


def make_job(job_id: str = "job-1", parameters: object = None) -> AsyncJob:
    """A job of kind bulk-export as a worker claims it."""
    now = datetime.now(UTC)
    return AsyncJob(
        id=job_id,
        tenant="t 1",
        project="p",
        kind="bulk-export",
        status=AsyncJobStatus.IN_PROGRESS,
        request=REQUEST,
        parameters=parameters,
        claims={"sub": "u"},
        submitted_by="u",
        attempts=1,
        created_at=now,
        updated_at=now,
        expires_at=now,
        run_at=now,
    )


@attrs.frozen
class Exported:
    """A finished export."""

    manifest: dict[str, Any]
    directory: Path
    reports: list[str]

    def counts(self) -> dict[str, int]:
        """Resources by type, as the manifest says."""
        counts: dict[str, int] = {}
        for item in self.manifest["output"]:
            counts[item["type"]] = counts.get(item["type"], 0) + item["count"]
        return counts

    def lines(self, name: str) -> list[bytes]:
        """The lines of one file."""
        data = (self.directory / name).read_bytes()
        assert data.endswith(b"\n")
        return data.split(b"\n")[:-1]

    def problems(self) -> list[dict[str, Any]]:
        """The issues of the error files, in order."""
        names = [item["url"].rpartition("/")[2] for item in self.manifest["error"]]
        outcomes = [json.loads(line) for name in names for line in self.lines(name)]
        assert all(outcome["resourceType"] == "OperationOutcome" for outcome in outcomes)
        return [issue for outcome in outcomes for issue in outcome["issue"]]


async def export(
    handler: BulkExport,
    *,
    job_id: str = "job-1",
    parameters: object = None,
    claim: str = "abcd1234",
    state: object = None,
    on_report: Callable[[str], None] | None = None,
    on_save: Callable[[Any], None] | None = None,
) -> Exported:
    """Run one export to its manifest; `state` is what an earlier attempt saved."""
    held = FakeClaim(
        make_job(job_id, parameters), claim, state=state, on_report=on_report, on_save=on_save
    )
    output = await handler.run(make_context(held))
    assert output.content_type == "application/json"
    return Exported(output.value, handler.directory_of(job_id), held.reports)


def resource(resource_type: str, number: int = 1, **elements: object) -> bytes:
    """One resource as a line, without its ending."""
    value = {"resourceType": resource_type, "id": f"{resource_type}-{number}", **elements}
    return json.dumps(value).encode()


def write_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Write an NDJSON file."""
    path.write_bytes(b"".join(line + b"\n" for line in lines))


def files_in(directory: Path) -> dict[str, bytes]:
    """The files of a directory, with what is in them."""
    return {entry.name: entry.read_bytes() for entry in directory.iterdir()}


def names_in(directory: Path) -> list[str]:
    """What a directory holds, sorted; nothing where there is none."""
    return sorted(entry.name for entry in directory.iterdir()) if directory.is_dir() else []
