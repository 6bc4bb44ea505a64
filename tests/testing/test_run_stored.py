"""`run_stored_job`: a job of any provider, for what needs a real database."""

from __future__ import annotations

import logging

import psycopg
import pytest
import trio
from trio.testing import MockClock

from hastetrio import (
    AsyncJob,
    AsyncJobWorkerConfig,
    CreateAsyncJob,
    JobContext,
    JobOutput,
    RetryLater,
    job_handler,
)
from hastetrio.memory import MemoryJobProvider
from hastetrio.postgres import PostgresJobProvider
from hastetrio.testing import (
    FaultyProvider,
    assert_completed,
    assert_failed,
    assert_retried,
    run_stored_job,
)

log = logging.getLogger("tests.stored")


def created(kind: str, parameters: object = None) -> CreateAsyncJob:
    """A job to queue."""
    return CreateAsyncJob(kind=kind, parameters=parameters, claims={"sub": "me"})


@job_handler("pay")
async def pay(context: JobContext) -> JobOutput:
    """Pay once, in the transaction of the result."""
    context.report("paying")
    async with context.transaction() as connection:
        await connection.execute("INSERT INTO payments VALUES (%s)", [context.job.id])
        log.info("paid")
        if context.job.parameters:
            raise OSError("the till is jammed")
        return await context.finish(connection, JobOutput.json("paid"))


async def test_a_transaction_is_tested_on_a_database(database_url: str) -> None:
    """Both or neither, as the handler's author would test it; with its texts and logs."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE payments (job text)")
    async with PostgresJobProvider.open(database_url) as provider:
        good = await provider.create_job("t", "p", created("pay"))
        bad = await provider.create_job("t", "p", created("pay", ["jam"]))
        paid = await run_stored_job(provider, pay, good)
        jammed = await run_stored_job(provider, [pay], bad)
    assert_completed(paid, output="paid")
    assert_failed(jammed, code="exception")
    assert paid.progress_texts == ("paying",)
    assert "INFO    tests.stored paid" in paid.log_text
    with psycopg.connect(database_url, autocommit=True) as connection:
        assert connection.execute("SELECT job FROM payments").fetchall() == [(good.id,)]


async def test_it_runs_through_all_attempts(autojump_clock: MockClock) -> None:
    """In virtual time where the test is; seconds count from its call."""
    await trio.sleep(1000)

    @job_handler("busy")
    async def busy(context: JobContext) -> JobOutput:
        log.info("attempt %d", context.attempt)
        if context.attempt == 1:
            raise RetryLater(600)
        return JobOutput.json(context.attempt)

    storage = MemoryJobProvider()
    job = await storage.create_job("t", "p", created("busy"))
    ended = await run_stored_job(storage, busy, job, timeout=3600)
    assert_completed(ended, output=2)
    assert_retried(ended, times=1)
    own = [record for record in ended.logs if record.name == log.name]
    assert [record.getMessage() for record in own] == ["attempt 1", "attempt 2"]
    assert [r.__dict__["run_time"] for r in own] == pytest.approx([0, 600], abs=10)


async def test_a_job_that_does_not_end_says_how_it_stands(autojump_clock: MockClock) -> None:
    """And is handed back, so that nothing runs on."""

    @job_handler("endless")
    async def endless(context: JobContext) -> JobOutput:
        log.info("waiting for a friend")
        await trio.sleep(5000)
        return JobOutput.json(1)

    storage = MemoryJobProvider()
    job = await storage.create_job("t", "p", created("endless"))
    with pytest.raises(
        TimeoutError, match=r"the job has not ended in 100 s\nendless accepted"
    ) as e:
        await run_stored_job(storage, endless, job, timeout=100)
    assert "waiting for a friend" in str(e.value)


@pytest.mark.parametrize("when", [0, 50])
async def test_a_job_that_was_cancelled_has_no_result(
    autojump_clock: MockClock, when: float
) -> None:
    """Before it began, or while it runs."""

    @job_handler("slow")
    async def slow(context: JobContext) -> JobOutput:
        await trio.sleep(100)
        return JobOutput.json(1)

    storage = MemoryJobProvider()
    job = await storage.create_job("t", "p", created("slow"))

    async def cancel() -> None:
        await trio.sleep(when)
        await storage.cancel_job("t", "p", job.id)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel)
        with pytest.raises(LookupError, match="cancelled or expired"):
            await run_stored_job(storage, slow, job)


async def test_texts_are_those_of_the_job_alone(autojump_clock: MockClock) -> None:
    """Where the worker finds others to run too; faults go along with it."""

    @job_handler("named")
    async def named(context: JobContext) -> JobOutput:
        context.report(context.job.parameters)
        await trio.sleep(10)
        return JobOutput.json(1)

    faults = FaultyProvider(MemoryJobProvider())
    jobs: list[AsyncJob] = await faults.create_jobs(
        "t", "p", [created("named", name) for name in ("a", "b")]
    )
    ended = await run_stored_job(faults, named, jobs[1], config=AsyncJobWorkerConfig())
    assert ended.progress_texts == ("b",)
    assert faults.made("claim_jobs")
