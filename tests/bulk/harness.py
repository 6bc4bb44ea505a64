"""Runs one export under a claim made by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs

from hastetrio._handler import CancelReason, JobContext
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
    )


@attrs.define
class FakeClaim:
    """What a context needs of a claim; keeps the progress reports."""

    job: AsyncJob
    name: str = "abcd1234"
    cancel_reason: CancelReason | None = None
    deadline: float = math.inf
    on_report: Callable[[str], None] | None = None
    reports: list[str] = attrs.field(factory=list)

    def report(self, text: str, /) -> None:
        """Keep one report."""
        self.reports.append(text)
        if self.on_report is not None:
            self.on_report(text)


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
    on_report: Callable[[str], None] | None = None,
) -> Exported:
    """Run one export to its manifest."""
    held = FakeClaim(make_job(job_id, parameters), claim, on_report=on_report)
    output = await handler.run(JobContext(held))
    assert output.content_type == "application/json"
    return Exported(output.value, handler.directory_of(job_id), held.reports)


def resource(resource_type: str, number: int = 1, **elements: object) -> bytes:
    """One resource as a line, without its ending."""
    value = {"resourceType": resource_type, "id": f"{resource_type}-{number}", **elements}
    return json.dumps(value).encode()


def write_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Write an NDJSON file."""
    path.write_bytes(b"".join(line + b"\n" for line in lines))


def names_in(directory: Path) -> list[str]:
    """What a directory holds, sorted; nothing where there is none."""
    return sorted(entry.name for entry in directory.iterdir()) if directory.is_dir() else []
