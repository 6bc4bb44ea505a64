"""`FaultyProvider` stands in for any provider: every call of the protocol, and faults for each."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, get_args

import pytest
from trio.testing import MockClock

from hastetrio import (
    AsyncJobProvider,
    CreateAsyncJob,
    JobLease,
    JobResult,
    LeaseLost,
    OperationOutcomeError,
    ProviderUnavailable,
)
from hastetrio._provider import JobFinish
from hastetrio.memory import MemoryJobProvider
from hastetrio.testing import CallName, FaultyProvider

# What is a block and no call; faults strike the calls inside of it, where there are any.
BLOCKS = {"watch", "transaction"}

CALLS = {
    name: function
    for name, function in vars(AsyncJobProvider).items()
    if inspect.isfunction(function) and not name.startswith("_")
}


@pytest.mark.parametrize("name", CALLS)
def test_each_call_is_passed_on_with_the_same_parameters(name: str) -> None:
    """Whatever the protocol gains, the wrapper has to gain too."""
    ours = vars(FaultyProvider)[name]
    assert inspect.signature(ours).parameters == inspect.signature(CALLS[name]).parameters


def test_each_call_may_have_faults() -> None:
    """The names of faults are those of the calls."""
    assert set(get_args(CallName)) == CALLS.keys() - BLOCKS


async def test_calls_about_one_job_reach_the_provider(autojump_clock: MockClock) -> None:
    """A state, a new time and a new try, with what they were given."""
    storage = MemoryJobProvider()
    faults = FaultyProvider(storage)
    job = await faults.create_job("t", "p", CreateAsyncJob(kind="k", claims={"sub": "me"}))
    lease = JobLease("w", 60)
    await faults.claim_jobs(["k"], lease, 1)
    assert await faults.save_state(job.id, lease, '{"done": 1}')
    assert await faults.reschedule_job(
        job.id, lease, 5, give_back=False, retention=60, failure='["503"]', progress="half"
    )
    stored = await storage.read_job("t", "p", job.id)
    assert stored is not None
    assert stored.state == {"done": 1}
    assert (stored.run_at - stored.updated_at).total_seconds() == pytest.approx(5)
    assert stored.attempt_errors[0]["errors"] == ["503"]
    assert (stored.progress, stored.attempts) == ("half", 1)
    assert await faults.retry_job("t", "p", job.id) is None
    names = ["save_state", "reschedule_job", "retry_job"]
    assert [call.name for call in faults.calls[-3:]] == names
    assert [call.id for call in faults.calls[-3:]] == [job.id] * 3


async def test_a_failed_job_is_tried_anew(autojump_clock: MockClock) -> None:
    """For its own submitter only."""
    faults = FaultyProvider(MemoryJobProvider())
    job = await faults.create_job("t", "p", CreateAsyncJob(kind="k", claims={"sub": "me"}))
    lease = JobLease("w", 60)
    await faults.claim_jobs(["k"], lease, 1)
    failed = JobResult.failed(OperationOutcomeError("value", "no"))
    assert await faults.finish_job(job.id, lease, failed, 60)
    assert await faults.retry_job("t", "p", job.id, submitted_by="you") is None
    again = await faults.retry_job("t", "p", job.id, submitted_by="me")
    assert again is not None
    assert again.id != job.id


@pytest.mark.parametrize("name", ["save_state", "reschedule_job"])
async def test_faults_strike_them(name: CallName, autojump_clock: MockClock) -> None:
    """Like any other call about a job."""
    faults = FaultyProvider(MemoryJobProvider())
    job = await faults.create_job("t", "p", CreateAsyncJob(kind="k", claims={"sub": "me"}))
    lease = JobLease("w", 60)
    await faults.claim_jobs(["k"], lease, 1)

    async def call() -> bool:
        if name == "save_state":
            return await faults.save_state(job.id, lease, "1")
        return await faults.reschedule_job(job.id, lease, 1, give_back=False, retention=60)

    fault = faults.fail(name, job=job.id)
    with pytest.raises(ProviderUnavailable):
        await call()
    fault.remove()
    faults.lose_lease(job.id)
    assert not await call()
    assert [made.fault for made in faults.made(name, job.id)] == ["fail", None]


class Transactions(MemoryJobProvider):
    """Has transactions that do nothing, and tells how they ended."""

    connection = object()
    ended = ""

    @asynccontextmanager
    async def transaction(self, id: str, lease: JobLease) -> AsyncGenerator[Any]:
        """Whatever is done in it, works."""
        try:
            yield self
        except LeaseLost:
            self.ended = "undone"
            raise
        self.ended = "committed"

    async def finish(self, finish: JobFinish) -> bool:
        """Record nothing."""
        return True


LEASE = JobLease("w", 60)
FINISH = JobFinish("1", LEASE, JobResult.completed(1), 60)


async def test_a_transaction_is_passed_on(autojump_clock: MockClock) -> None:
    """With its connection and its finish."""
    storage = Transactions()
    faults = FaultyProvider(storage)
    async with faults.transaction("1", LEASE) as transaction:
        assert transaction.connection is storage.connection
        assert await transaction.finish(FINISH)
    assert storage.ended == "committed"


async def test_a_transaction_of_a_lost_lease_is_undone(autojump_clock: MockClock) -> None:
    """As if another worker had taken the job meanwhile."""
    storage = Transactions()
    faults = FaultyProvider(storage)

    async def lose_it() -> None:
        async with faults.transaction("1", LEASE) as transaction:
            faults.lose_lease("1")
            assert not await transaction.finish(FINISH)

    with pytest.raises(LeaseLost):
        await lose_it()
    assert storage.ended == "undone"
