"""Runs exports over HTTP, with a worker in this process."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import httpx2
import trio

from hastetrio import AsyncJob, AsyncJobWorker, AsyncJobWorkerConfig
from hastetrio.bulk import BulkExport
from hastetrio.fhir import Face

from .caller import SOON
from .harness import BASE, PUBLIC, client, face

NDJSON: Final = "application/fhir+ndjson"
EXPORT: Final = f"{BASE}/$export"


class Export(BulkExport):
    """The handler, which says when it has cleaned up."""

    def __init__(self, source: Path, output: Path, **options: Any) -> None:  # noqa: ANN401
        super().__init__(
            source,
            output,
            base_url=f"{PUBLIC}/w/{{tenant}}/{{project}}/api/v1/fhir/r4",
            **options,
        )
        self.expired = trio.Event()

    async def expire(self, job: AsyncJob) -> None:
        """Clean up, and say so."""
        await super().expire(job)
        self.expired.set()


@asynccontextmanager
async def working(of: Face) -> AsyncGenerator[None]:
    """A worker that runs the face's jobs while the block lasts."""
    worker = AsyncJobWorker(
        of.provider,
        of.handlers.values(),
        AsyncJobWorkerConfig(poll_interval=0.05, maintenance_interval=0.05),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        yield
        worker.stop()


async def finished(of: Face, id: str) -> AsyncJob:
    """Wait until a job is no longer live."""
    with trio.fail_after(SOON):
        while True:
            job = await of.provider.read_job("t1", "p1", id)
            assert job is not None
            if not job.status.is_live:
                return job
            await trio.sleep(0.01)


def names_in(directory: Path) -> list[str]:
    """What a directory holds."""
    return sorted(entry.name for entry in directory.iterdir())


@attrs.frozen
class Finished:
    """A finished export.

    Attributes:
        of: The face it can be asked for at.
        http: A client.
        location: Where its status is.
        manifest: Its result.
    """

    of: Face
    http: httpx2.AsyncClient
    location: str
    manifest: dict[str, Any]

    async def issues(self) -> list[dict[str, Any]]:
        """The issues in its error files."""
        found: list[dict[str, Any]] = []
        for item in self.manifest["error"]:
            assert item["type"] == "OperationOutcome"
            for outcome in lines_of(await self.http.get(item["url"]), item):
                found += outcome["issue"]
        return found


def lines_of(answer: httpx2.Response, item: dict[str, Any]) -> list[dict[str, Any]]:
    """The resources in a file, checked against what the manifest says of it."""
    assert answer.status_code == 200
    assert answer.headers["content-type"] == NDJSON
    resources = [json.loads(line) for line in answer.content.splitlines()]
    assert answer.content.count(b"\n") == len(resources) == item["count"]
    assert {resource["resourceType"] for resource in resources} == {item["type"]}
    return resources


@asynccontextmanager
async def exported(
    handler: Export,
    query: str = "",
    prefer: str = "respond-async",
    **options: Any,  # noqa: ANN401
) -> AsyncGenerator[Finished]:
    """An export that has completed; a worker goes on running meanwhile."""
    of = face([handler], **options)
    async with client(of) as http, working(of):
        accepted = await http.get(f"{EXPORT}{query}", headers={"Prefer": prefer})
        assert accepted.status_code == 202
        location = accepted.headers["content-location"]
        await finished(of, location.rpartition("/")[2])
        answer = await http.get(location, headers={"Accept": "application/json"})
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        yield Finished(of, http, location, answer.json())
