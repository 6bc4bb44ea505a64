"""Worker processes that are paused and killed: one result a job, whatever happens to them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hastetrio.postgres import PostgresJobProvider

from .audit import Audit, audited
from .harness import PROJECT, TENANT, column, kick_off, run, statuses, until
from .processes import worker_process


@pytest.fixture
def audit(url: str) -> Iterator[Audit]:
    """Counts the results of this test's jobs."""
    with audited(url) as audit:
        yield audit


@pytest.mark.parametrize("kind", ["stubborn", "gated"])
async def test_a_paused_workers_late_result_is_dropped(
    provider: PostgresJobProvider, url: str, audit: Audit, tmp_path: Path, kind: str
) -> None:
    """Stopped past its lease, a worker loses the job to another; woken, it says so and goes on."""
    gate = tmp_path / "gate"
    async with worker_process(url, kind, "at-once") as first:
        job = await provider.create_job(
            TENANT, PROJECT, kick_off(kind, parameters={"gate": str(gate)})
        )
        await first.logged("job.running", job.id)
        async with worker_process(url, kind) as second:
            first.send(signal.SIGSTOP)
            await second.logged("job.running", job.id)
            gate.touch()
            await second.logged("job.finished", job.id)
            first.send(signal.SIGCONT)
            dropped = await first.logged("job.dropped", job.id)
            assert dropped["reason"] == "lease-lost"
            if kind == "stubborn":
                assert (await first.logged("job.late", job.id))["level"] == "warning"
            assert first.events("job.finished", job.id) == []
            (by,) = audit.recorded(job.id)
            assert f"-{second.pid}-" in by
            done = await provider.read_job(TENANT, PROJECT, job.id)
            assert done is not None
            assert done.output == {"by": second.pid, "attempt": 2}
            # Only the first worker runs these.
            next_job = await provider.create_job(TENANT, PROJECT, kick_off("at-once"))
            await first.logged("job.finished", next_job.id)
    assert statuses(url, [job.id, next_job.id]) == ["completed", "completed"]
    assert audit.recorded(job.id) == [by]


async def test_a_killed_workers_jobs_run_elsewhere(
    provider: PostgresJobProvider, url: str, audit: Audit, tmp_path: Path
) -> None:
    """After SIGKILL its jobs wait for their leases, and another worker completes each once."""
    gate = tmp_path / "gate"
    async with worker_process(url, "gated") as second:
        async with worker_process(url, "gated") as first:
            jobs = await provider.create_jobs(
                TENANT,
                PROJECT,
                [kick_off("gated", parameters={"gate": str(gate)}) for _ in range(8)],
            )
            ids = [job.id for job in jobs]
            await until(lambda: set(statuses(url, ids)) == {"in-progress"})
            await until(lambda: len(first.events("job.running")) == 4)
            theirs = {line["job"] for line in first.events("job.running")}
            first.send(signal.SIGKILL)
            assert await first.process.wait() == -signal.SIGKILL
        gate.touch()
        await until(lambda: set(statuses(url, ids)) == {"completed"})
        await until(lambda: len(second.events("job.finished")) == 8)
    attempts = {id: column(url, id, "attempts") for id in ids}
    assert attempts == {id: 2 if id in theirs else 1 for id in ids}
    assert [len(audit.recorded(id)) for id in ids] == [1] * 8


async def test_a_job_that_kills_every_worker_fails_at_last(
    provider: PostgresJobProvider, url: str, audit: Audit, tmp_path: Path
) -> None:
    """Its last attempt lapsed too, it is failed as abandoned by the next worker's sweep."""
    job = await provider.create_job(
        TENANT,
        PROJECT,
        kick_off("gated", parameters={"gate": str(tmp_path / "never")}, max_attempts=1),
    )
    async with worker_process(url, "gated") as first:
        await first.logged("job.running", job.id)
        first.send(signal.SIGKILL)
        await first.process.wait()
    # As time would, but at once.
    run(url, "UPDATE async_jobs SET lease_expires_at = now() - interval '1 second'")
    async with worker_process(url, "gated") as second:
        assert (await second.logged("sweep.abandoned"))["count"] == 1
        assert statuses(url, [job.id]) == ["failed"]
        assert second.events("job.running", job.id) == []
    assert len(audit.recorded(job.id)) == 1


async def test_a_terminated_worker_finishes_its_job_first(
    provider: PostgresJobProvider, url: str, audit: Audit, tmp_path: Path
) -> None:
    """SIGTERM drains: the running job completes, one that waits is left, and the exit is clean."""
    gate = tmp_path / "gate"
    async with worker_process(url, "gated") as worker:
        job = await provider.create_job(
            TENANT, PROJECT, kick_off("gated", parameters={"gate": str(gate)})
        )
        await worker.logged("job.running", job.id)
        worker.send(signal.SIGTERM)
        await worker.logged("worker.stopping")
        later = await provider.create_job(
            TENANT, PROJECT, kick_off("gated", parameters={"gate": str(gate)})
        )
        gate.touch()
        assert await worker.process.wait() == 0
    assert statuses(url, [job.id, later.id]) == ["completed", "accepted"]
    assert audit.recorded(job.id) != []
