"""A worker over real PostgreSQL: end to end, and with its renewals killed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial

import pytest
import trio

from hastetrio import (
    AsyncJobWorker,
    AsyncJobWorkerConfig,
    CancelReason,
    JobContext,
    JobHandler,
    JobOutput,
    OperationOutcomeError,
    job_handler,
)
from hastetrio.postgres import PostgresJobProvider
from hastetrio.testing import FaultyProvider

from .audit import Audit, audited
from .harness import (
    KIND,
    PROJECT,
    TENANT,
    column,
    insert,
    kick_off,
    run,
    sessions,
    statuses,
    until,
    value,
)
from .relay import Relay

SHORT = AsyncJobWorkerConfig(lease_duration=1.2, poll_interval=0.2, cancel_grace=0.3)


@pytest.fixture
def audit(url: str) -> Iterator[Audit]:
    """Counts the results of this test's jobs."""
    with audited(url) as audit:
        yield audit


class Waiting(JobHandler):
    """Runs until it is let go or cancelled, and remembers why."""

    kind = KIND

    def __init__(self, *, stubborn: bool = False) -> None:
        self.running = trio.Event()
        self.go = trio.Event()
        self.left = trio.Event()
        self.reasons: list[CancelReason | None] = []
        self.attempts: list[int] = []
        self._stubborn = stubborn

    async def run(self, context: JobContext) -> JobOutput:
        """Wait."""
        self.attempts.append(context.attempt)
        context.report(f"attempt {context.attempt}")
        self.running.set()
        try:
            with trio.CancelScope(shield=self._stubborn):
                await self.go.wait()
            return JobOutput.json(context.claim)
        finally:
            self.reasons.append(context.cancel_reason)
            self.left.set()


def messages(caplog: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    """The records of one event."""
    return [record for record in caplog.records if getattr(record, "event", None) == event]


async def test_jobs_run_from_kick_off_to_result(
    provider: PostgresJobProvider, url: str, audit: Audit
) -> None:
    """Completed, failed with issues, failed by an error: each ends once, and is then swept."""

    @job_handler("good")
    async def good(context: JobContext) -> JobOutput:
        context.report("half way")
        await trio.lowlevel.checkpoint()
        return JobOutput.resource({"resourceType": "Basic", "id": context.job.parameters["id"]})

    @job_handler("refused")
    async def refused(context: JobContext) -> JobOutput:
        raise OperationOutcomeError("invalid", "no such type")

    @job_handler("broken")
    async def broken(context: JobContext) -> JobOutput:
        raise ZeroDivisionError

    worker = AsyncJobWorker(provider, [good, refused, broken], AsyncJobWorkerConfig())
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        jobs = await provider.create_jobs(
            TENANT,
            PROJECT,
            [
                kick_off(kind, parameters={"id": str(n)})
                for n, kind in enumerate(["good", "refused", "broken"] * 10)
            ],
        )
        ids = [job.id for job in jobs]
        await until(lambda: set(statuses(url, ids)) == {"completed", "failed"})
        worker.stop()
    done = await provider.read_job(TENANT, PROJECT, ids[0])
    assert done is not None
    assert (done.output["id"], done.output_content_type) == ("0", "application/fhir+json")
    assert (done.progress, done.attempts, done.locked_by) == ("half way", 1, None)
    assert statuses(url, ids) == ["completed", "failed", "failed"] * 10
    assert column(url, ids[1], "error #>> '{issue,0,diagnostics}'") == "no such type"
    assert [len(audit.recorded(id)) for id in ids] == [1] * 30


async def test_a_job_outlasts_many_leases_while_it_is_renewed(
    provider: PostgresJobProvider, url: str, audit: Audit
) -> None:
    """Renewed in time, a job stays its worker's; its progress shows while it runs."""
    handler = Waiting()
    worker = AsyncJobWorker(provider, [handler], SHORT)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        job = await provider.create_job(TENANT, PROJECT, kick_off())
        await handler.running.wait()
        leases: set[object] = set()

        def renewed() -> bool:
            leases.add(column(url, job.id, "lease_expires_at"))
            # The claim's own, and more renewals than one lease has room for.
            return len(leases) > 5

        await until(renewed)
        assert column(url, job.id, "progress") == "attempt 1"
        handler.go.set()
        await until(lambda: statuses(url, [job.id]) == ["completed"])
        worker.stop()
    assert (handler.attempts, handler.reasons) == ([1], [None])
    assert len(audit.recorded(job.id)) == 1


@pytest.mark.parametrize("hand_back", [True, False], ids=["handed back", "left to its lease"])
async def test_killed_renewals_end_the_handler_and_the_job_runs_again(
    url: str, audit: Audit, caplog: pytest.LogCaptureFixture, hand_back: bool
) -> None:
    """Its handler is cancelled, a healthy worker runs the job, and one result is recorded."""
    first, second = Waiting(), Waiting()
    async with (
        PostgresJobProvider.open(url) as provider,
        PostgresJobProvider.open(url) as other,
        trio.open_nursery() as nursery,
    ):
        faulty = FaultyProvider(provider)
        sick = AsyncJobWorker(faulty, [first], SHORT, worker_id="sick")
        await nursery.start(sick.run)
        job = await other.create_job(TENANT, PROJECT, kick_off())
        await first.running.wait()
        faulty.kill_renewals()
        faulty.fail("claim_jobs")
        if not hand_back:
            faulty.fail("release_job")
        healthy = AsyncJobWorker(other, [second], SHORT, worker_id="healthy")
        await nursery.start(healthy.run)
        await first.left.wait()
        await second.running.wait()
        assert value(url, "SELECT locked_by FROM async_jobs").startswith("healthy/")
        second.go.set()
        await until(lambda: statuses(url, [job.id]) == ["completed"])
        sick.stop()
        sick.stop()
        healthy.stop()
    assert first.reasons == [CancelReason.LEASE_LOST]
    # Handed back, the attempt is given back; left to lapse, it is spent.
    assert first.attempts == [1]
    assert second.attempts == ([1] if hand_back else [2])
    ((by, attempts, hand_backs, output),) = run(
        url, "SELECT finished_by, attempts, hand_backs, output FROM async_jobs"
    )
    assert (attempts, hand_backs) == ((1, 1) if hand_back else (2, 0))
    assert audit.recorded(job.id) == [by]
    assert by.startswith("healthy/")
    assert by.endswith(output)
    assert len(messages(caplog, "job.renewal-died")) >= 1


async def test_a_result_that_comes_after_the_lease_is_dropped_and_logged(
    url: str, audit: Audit, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler that swallows its cancellation returns into nothing; its successor's holds."""
    caplog.set_level(logging.INFO, "hastetrio")
    first, second = Waiting(stubborn=True), Waiting()
    async with (
        PostgresJobProvider.open(url) as provider,
        PostgresJobProvider.open(url) as other,
        trio.open_nursery() as nursery,
    ):
        faulty = FaultyProvider(provider)
        sick = AsyncJobWorker(faulty, [first], SHORT, worker_id="sick")
        await nursery.start(sick.run)
        job = await other.create_job(TENANT, PROJECT, kick_off())
        await first.running.wait()
        faulty.fail("renew_lease")
        healthy = AsyncJobWorker(other, [second], SHORT, worker_id="healthy")
        await nursery.start(healthy.run)
        await second.running.wait()
        assert not first.left.is_set()
        first.go.set()
        await until(lambda: messages(caplog, "job.dropped"))
        assert statuses(url, [job.id]) == ["in-progress"]
        second.go.set()
        await until(lambda: statuses(url, [job.id]) == ["completed"])
        # The late worker is none the worse for it.
        again = await other.create_job(TENANT, PROJECT, kick_off())
        await until(lambda: statuses(url, [again.id]) == ["completed"])
        sick.stop()
        healthy.stop()
    (late,) = messages(caplog, "job.late")
    assert late.levelno == logging.WARNING
    assert job.id in late.getMessage()
    (by,) = audit.recorded(job.id)
    assert by.startswith("healthy/")


async def test_a_cancel_is_heard_long_before_the_next_renewal(
    provider: PostgresJobProvider, url: str, audit: Audit
) -> None:
    """With a lease of 60 s the next renewal is 20 s away; the notification makes it due at once."""
    handler = Waiting()
    faulty = FaultyProvider(provider)
    worker = AsyncJobWorker(faulty, [handler], AsyncJobWorkerConfig(lease_duration=60))
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        job = await provider.create_job(TENANT, PROJECT, kick_off())
        await handler.running.wait()
        assert faulty.made("renew_lease") == []
        with trio.fail_after(10):
            before = await provider.cancel_job(TENANT, PROJECT, job.id)
            await handler.left.wait()
        assert before is not None
        assert before.locked_by is not None
        assert len(faulty.made("renew_lease", job.id)) == 1
        await until(lambda: column(url, job.id, "locked_by") is None)
        worker.stop()
    assert handler.reasons == [CancelReason.CANCELLED]
    assert statuses(url, [job.id]) == ["cancelled"]
    assert audit.recorded(job.id) == []


async def test_a_forged_cancel_stops_no_job(provider: PostgresJobProvider, url: str) -> None:
    """A notification about a healthy job only makes it ask: its renewal says that all is well."""
    handler = Waiting()
    faulty = FaultyProvider(provider)
    worker = AsyncJobWorker(faulty, [handler], AsyncJobWorkerConfig(lease_duration=60))
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        job = await provider.create_job(TENANT, PROJECT, kick_off())
        await handler.running.wait()
        run(url, "SELECT pg_notify('async_jobs_cancelled', %s)", [job.id])
        await until(lambda: worker.statistics().totals.renewals == 1)
        handler.go.set()
        await until(lambda: statuses(url, [job.id]) == ["completed"])
        worker.stop()
    assert handler.reasons == [None]


def _completed(url: str, ids: list[str]) -> bool:
    return set(statuses(url, ids)) == {"completed"}


async def test_a_worker_wakes_for_a_job_long_before_its_poll(
    provider: PostgresJobProvider, url: str
) -> None:
    """With a poll of an hour, a notification alone starts the job, also one by plain SQL."""
    handler = Waiting()
    handler.go.set()
    worker = AsyncJobWorker(provider, [handler], AsyncJobWorkerConfig(poll_interval=3600))
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await until(lambda: worker.statistics().totals.claims_empty)
        for _ in range(3):
            ids = [insert(url)]
            await until(partial(_completed, url, ids))
        worker.stop()


async def test_a_worker_lives_through_an_outage_of_the_database(
    url: str, relay: Relay, audit: Audit
) -> None:
    """Cut off longer than its leases, it gives its jobs up, and goes on when it is back."""
    handler = Waiting()
    config = AsyncJobWorkerConfig(lease_duration=1.0, poll_interval=0.2)
    async with (
        PostgresJobProvider.open(relay.url, call_budget=config.call_budget) as provider,
        trio.open_nursery() as nursery,
    ):
        worker = AsyncJobWorker(provider, [handler], config)
        await nursery.start(worker.run)
        id = insert(url)
        await handler.running.wait()
        relay.stall()
        relay.cut()
        await handler.left.wait()
        handler.go.set()
        relay.resume()
        await until(lambda: statuses(url, [id]) == ["completed"], 25)
        worker.stop()
    assert handler.reasons[0] is CancelReason.LEASE_LOST
    assert len(audit.recorded(id)) == 1


async def test_a_worker_survives_the_end_of_all_its_connections(
    provider: PostgresJobProvider, url: str, audit: Audit
) -> None:
    """pg_terminate_backend on every one costs no job, no attempt and no result."""
    handler = Waiting()
    worker = AsyncJobWorker(provider, [handler], SHORT)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        job = await provider.create_job(TENANT, PROJECT, kick_off())
        await handler.running.wait()
        before = {pid for pid, _ in sessions(url)}
        for pid in before:
            run(url, "SELECT pg_terminate_backend(%s, 5000)", [pid])
        renewed = worker.statistics().totals.renewals
        await until(lambda: worker.statistics().totals.renewals > renewed)
        handler.go.set()
        await until(lambda: statuses(url, [job.id]) == ["completed"])
        worker.stop()
    assert handler.attempts == [1]
    assert len(audit.recorded(job.id)) == 1


async def test_a_stopping_worker_hands_its_jobs_back(
    provider: PostgresJobProvider, url: str, audit: Audit
) -> None:
    """Told twice to stop, it cancels its handlers; their jobs wait again, attempts given back."""
    handler = Waiting()
    worker = AsyncJobWorker(provider, [handler], AsyncJobWorkerConfig())
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        job = await provider.create_job(TENANT, PROJECT, kick_off())
        await handler.running.wait()
        worker.stop()
        worker.stop()
    assert handler.reasons == [CancelReason.SHUTDOWN]
    assert statuses(url, [job.id]) == ["accepted"]
    assert (column(url, job.id, "attempts"), column(url, job.id, "hand_backs")) == (0, 1)
    assert audit.recorded(job.id) == []
