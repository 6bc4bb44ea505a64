"""What only the memory provider promises: virtual time, bounded notifications, foreign rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from hastetrio._errors import UnstorableValue
from hastetrio._model import AsyncJobStatus
from hastetrio._provider import AsyncJobProvider, JobCancelled, JobQueued, WatchRestored
from hastetrio.memory import MemoryJobProvider

from ._world import KIND, PROJECT, TENANT, kick_off, new_lease


def test_it_is_a_provider() -> None:
    """A type checker holds the provider against the protocol here."""
    provider: AsyncJobProvider = MemoryJobProvider()
    assert isinstance(provider, MemoryJobProvider)


async def test_leases_lapse_in_virtual_time(autojump_clock: MockClock) -> None:
    """A test that sleeps for an hour on a mock clock sees an hour pass in the rows."""
    provider = MemoryJobProvider()
    job = await provider.create_job(TENANT, PROJECT, kick_off())
    await provider.claim_jobs([KIND], new_lease(3000), 1)
    await trio.sleep(2999)
    assert await provider.claim_jobs([KIND], new_lease(), 1) == []
    await trio.sleep(2)
    (again,) = await provider.claim_jobs([KIND], new_lease(), 1)
    assert (again.id, again.attempts) == (job.id, 2)


async def test_jobs_made_at_one_moment_keep_their_order(mock_clock: MockClock) -> None:
    """Virtual time stands still between calls, and first come is first served all the same."""
    provider = MemoryJobProvider()
    jobs = [await provider.create_job(TENANT, PROJECT, kick_off()) for _ in range(20)]
    claimed = await provider.claim_jobs([KIND], new_lease(), 20)
    assert [job.id for job in claimed] == [job.id for job in jobs]
    assert all(job.started_at is not None and job.created_at <= job.started_at for job in claimed)


async def test_times_are_of_today(mock_clock: MockClock) -> None:
    """Rows carry aware times that begin at the real one, however the clock counts."""
    before = datetime.now(UTC)
    provider = MemoryJobProvider()
    job = await provider.create_job(TENANT, PROJECT, kick_off(retention=60))
    after = datetime.now(UTC)
    assert before <= job.created_at <= after
    assert job.expires_at - job.created_at == timedelta(seconds=60)


async def test_a_cancelled_call_did_nothing() -> None:
    """Each call is a checkpoint before it acts: a caller that is cancelled changed no row."""
    provider = MemoryJobProvider()
    job = await provider.create_job(TENANT, PROJECT, kick_off())
    with trio.CancelScope() as scope:
        scope.cancel()
        await provider.claim_jobs([KIND], new_lease(), 1)
    assert scope.cancelled_caught
    with trio.CancelScope() as scope:
        scope.cancel()
        await provider.cancel_job(TENANT, PROJECT, job.id)
    assert scope.cancelled_caught
    assert await provider.read_job(TENANT, PROJECT, job.id) == job


async def test_limits_are_settings() -> None:
    """A server may allow less (or more) than a mebibyte of parameters and of claims."""
    provider = MemoryJobProvider(parameters_limit=10, claims_limit=20)
    with pytest.raises(UnstorableValue, match="limit is 10"):
        await provider.create_job(TENANT, PROJECT, kick_off(parameters="x" * 9))
    with pytest.raises(UnstorableValue, match="limit is 20"):
        await provider.create_job(TENANT, PROJECT, kick_off(sub="x" * 20))
    assert await provider.create_job(TENANT, PROJECT, kick_off(parameters="x" * 8))


async def test_a_watcher_that_fell_behind_is_told_so() -> None:
    """Of more events than are kept, none is lost silently: a restored watch stands in for them."""
    provider = MemoryJobProvider()
    kinds = [f"kind-{number}" for number in range(250)]
    async with provider.watch(kinds) as events:
        for kind in kinds:
            await provider.create_job(TENANT, PROJECT, kick_off(kind))
        heard = []
        while True:
            try:
                heard.append(events.receive_nowait())
            except trio.WouldBlock:
                break
        assert heard[0] == WatchRestored()
        assert heard[1:-1] == [JobQueued(kind) for kind in kinds[: len(heard) - 2]]
        assert heard[-1] == WatchRestored()
        assert len(heard) < 250
        await provider.create_job(TENANT, PROJECT, kick_off("kind-7"))
        assert events.receive_nowait() == JobQueued("kind-7")


async def test_a_burst_of_one_kind_is_one_event() -> None:
    """A watcher that has not read of a kind yet is not told of it again."""
    provider = MemoryJobProvider()
    async with provider.watch([KIND]) as events:
        assert await events.receive() == WatchRestored()
        for _ in range(1000):
            await provider.create_job(TENANT, PROJECT, kick_off())
        assert events.receive_nowait() == JobQueued(KIND)
        with pytest.raises(trio.WouldBlock):
            events.receive_nowait()
        await provider.create_job(TENANT, PROJECT, kick_off())
        assert events.receive_nowait() == JobQueued(KIND)


async def test_an_event_between_two_equal_ones_separates_them() -> None:
    """Only a repeat of what stands last is left out, so that no order is turned round."""
    provider = MemoryJobProvider()
    job = await provider.create_job(TENANT, PROJECT, kick_off("other"))
    await provider.claim_jobs(["other"], new_lease(), 1)
    async with provider.watch([KIND]) as events:
        await provider.create_job(TENANT, PROJECT, kick_off())
        await provider.cancel_job(TENANT, PROJECT, job.id)
        await provider.create_job(TENANT, PROJECT, kick_off())
        heard = [events.receive_nowait() for _ in range(4)]
    assert heard == [WatchRestored(), JobQueued(KIND), JobCancelled(job.id), JobQueued(KIND)]


async def test_an_error_in_a_watch_block_leaves_it_as_it_is() -> None:
    """The block wraps nothing around what its body raises."""
    provider = MemoryJobProvider()
    with pytest.raises(ZeroDivisionError):
        async with provider.watch([KIND]):
            raise ZeroDivisionError


async def test_a_watcher_may_close_its_channel_early() -> None:
    """A channel that was closed by its reader disturbs no later call."""
    provider = MemoryJobProvider()
    async with provider.watch([KIND]) as events:
        events.close()
        assert await provider.create_job(TENANT, PROJECT, kick_off())


async def test_a_foreign_row_is_inserted_as_it_is() -> None:
    """A test may make any row that the table could hold, with values as a program would give."""
    provider = MemoryJobProvider()
    job = provider.insert_row(
        id="x", tenant="t", project="p", kind="k", status="completed", output={"a": 1}, attempts=2
    )
    assert (job.id, job.status, job.output) == ("x", AsyncJobStatus.COMPLETED, {"a": 1})
    assert await provider.read_job("t", "p", "x") == job


@pytest.mark.parametrize(
    ("columns", "rule"),
    [
        ({"status": "in-progress"}, "is held while running"),
        ({"locked_by": "me"}, "a holder and a lease"),
        ({"attempts": 3}, "attempts left while queued"),
        ({"max_attempts": 0}, "attempts left while queued"),
        ({"status": "failed", "attempts": 4}, "from 0 to max_attempts"),
        ({"output": 1}, "an output only once completed"),
    ],
)
async def test_a_row_of_an_impossible_shape_is_refused(columns: dict[str, Any], rule: str) -> None:
    """What the table's constraints forbid cannot be made here either."""
    provider = MemoryJobProvider()
    with pytest.raises(ValueError, match=rule):
        provider.insert_row(tenant="t", project="p", kind="k", **columns)
    assert await provider.list_jobs("t", "p") == []


async def test_a_row_that_is_there_or_makes_no_sense_is_refused() -> None:
    """Ids are unique, and columns are those of the table."""
    provider = MemoryJobProvider()
    provider.insert_row(id="x", tenant="t", project="p", kind="k")
    with pytest.raises(ValueError, match="already"):
        provider.insert_row(id="x", tenant="t", project="p", kind="k")
    with pytest.raises(TypeError):
        provider.insert_row(tenant="t", project="p", kind="k", colour="red")
    with pytest.raises(TypeError):
        provider.insert_row(tenant="t", project="p")
