"""Jobs in every state, brought there as a worker would."""

from __future__ import annotations

from typing import Any, Final

import httpx2
import psycopg

from hastetrio import AsyncJobStatus, CreateAsyncJob
from hastetrio._model import JobLease, JobResult
from hastetrio._provider import AsyncJobProvider

from .harness import BASE, PREFER

STATES: Final = ("accepted", "in-progress", "completed", "failed")

OUTCOME: Final[dict[str, Any]] = {
    "resourceType": "OperationOutcome",
    "issue": [{"severity": "error", "code": "value", "diagnostics": "7 is not to be had"}],
}


async def kicked_off(http: httpx2.AsyncClient) -> str:
    """Kick off `$work`; the address of its status."""
    answer = await http.get(f"{BASE}/$work", headers=PREFER)
    assert answer.status_code == 202
    return str(answer.headers["content-location"])


async def created(provider: AsyncJobProvider, sub: str = "anonymous", **values: Any) -> str:  # noqa: ANN401
    """Queue a job of the kind `work`; its id."""
    new = CreateAsyncJob(kind="work", claims={"sub": sub}, **values)
    return (await provider.create_job("t1", "p1", new)).id


def inserted(url: str, **columns: str) -> str:
    """Insert a row as a foreign program would; columns are SQL expressions. Returns its id."""
    columns = {
        "tenant": "'t1'",
        "project": "'p1'",
        "kind": "'work'",
        "submitted_by": "'anonymous'",
        **columns,
    }
    names, expressions = ", ".join(columns), ", ".join(columns.values())
    statement = f"INSERT INTO async_jobs ({names}) VALUES ({expressions}) RETURNING id"  # noqa: S608
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return str(row[0])


async def started(provider: AsyncJobProvider, progress: str | None = None) -> JobLease:
    """Start every job that is queued; the lease they are held under."""
    lease = JobLease("w1", 60)
    for job in await provider.claim_jobs(["work"], lease, 10):
        await provider.renew_lease(job.id, lease, progress)
    return lease


async def ended(provider: AsyncJobProvider, id: str, result: JobResult) -> None:
    """Run a job that is queued to this result."""
    lease = await started(provider)
    assert await provider.finish_job(id, lease, result, 60)


async def brought_to(provider: AsyncJobProvider, id: str, state: str) -> None:
    """Bring a job that is queued to a state."""
    if state == "in-progress":
        await started(provider)
    elif state == "completed":
        await ended(provider, id, JobResult.completed({"resourceType": "Parameters"}))
    elif state == "failed":
        await ended(provider, id, JobResult.failed(OUTCOME))
    job = await provider.read_job("t1", "p1", id)
    assert job is not None
    assert job.status is AsyncJobStatus(state)
