"""The end of a provider, whatever ends it."""

from __future__ import annotations

import pytest
import trio

from hastetrio import (
    AsyncJobWorker,
    JobContext,
    JobOutput,
    LeaseRenewal,
    ProviderUnavailable,
    job_handler,
)
from hastetrio.postgres import PostgresJobProvider

from .harness import KIND, insert, new_lease, sessions, statuses, until


async def test_one_cancel_of_provider_and_worker_still_hands_jobs_back(url: str) -> None:
    """The scope a person writes: around both. The worker's last calls go through."""
    running = trio.Event()

    @job_handler(KIND)
    async def run(context: JobContext) -> JobOutput:
        running.set()
        await trio.sleep_forever()
        raise AssertionError

    id = insert(url)
    async with trio.open_nursery() as nursery:

        async def work() -> None:
            async with PostgresJobProvider.open(url) as provider:
                await AsyncJobWorker(provider, [run]).run()

        nursery.start_soon(work)
        await running.wait()
        nursery.cancel_scope.cancel()
    assert statuses(url, [id]) == ["accepted"]
    await until(lambda: not sessions(url))


async def test_a_provider_that_is_closed_says_so(url: str) -> None:
    """Calls that come after its end are answered, not left waiting."""
    id = insert(url)
    lease = new_lease()
    async with PostgresJobProvider.open(url) as provider:
        await provider.claim_jobs([KIND], lease, 1)
        assert await provider.renew_lease(id, lease) is LeaseRenewal.RENEWED
    with pytest.raises(ProviderUnavailable, match="the provider is closed"):
        await provider.renew_lease(id, lease)


async def test_an_error_in_the_block_leaves_as_it_is(url: str) -> None:
    """Not in a group, and with nothing left behind."""
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with PostgresJobProvider.open(url) as provider:
            await provider.count_live_jobs("t", "p")
            raise ZeroDivisionError
    await until(lambda: not sessions(url))
