"""The sweep that fails jobs whose worker died on their last attempt."""

from __future__ import annotations

import trio

from hastetrio import AsyncJobStatus

from .harness import DONE, HOUR, Rig, gaps, handler, issues, returning


async def test_abandoned_jobs_are_failed_at_the_start(rig: Rig) -> None:
    """The client reads what became of its job; a batch of more than a hundred takes rounds."""
    ids = [rig.insert_abandoned() for _ in range(250)]
    async with rig.running(handler(returning(DONE))):
        await rig.until(lambda: not rig.jobs(AsyncJobStatus.IN_PROGRESS), 1)
    assert issues(rig.job(ids[0])) == [
        (
            "fatal",
            "exception",
            (
                "The job was abandoned: the worker running it stopped responding, and it has no "
                "attempts left."
            ),
        )
    ]
    assert [fields["count"] for fields in rig.log.fields("sweep.abandoned")] == [100, 100, 50]


async def test_the_sweep_comes_again_on_the_interval(rig: Rig) -> None:
    """Give or take a tenth, so that workers started together do not stay in step."""
    async with rig.running(handler(returning(DONE)), maintenance_interval=60):
        await rig.until(lambda: len(rig.provider.made("fail_abandoned_jobs")) == 5)
    times = rig.provider.times("fail_abandoned_jobs")
    pauses = gaps(times)
    assert times[0] < 1
    assert all(54 <= gap <= 66 for gap in pauses)
    assert len(set(pauses)) == 4


async def test_jobs_of_any_kind_are_failed(rig: Rig) -> None:
    """A kind that nobody runs any more must not stay in progress for ever."""
    id = rig.insert_abandoned("gone")
    async with rig.running(handler(returning(DONE))):
        await rig.ended(id)


async def test_an_error_does_not_end_the_sweep(rig: Rig) -> None:
    """It is logged, and the next interval tries again; the claim loop never notices."""
    rig.provider.fail("fail_abandoned_jobs", times=3, error=OSError("gone"))
    id = rig.insert_abandoned()
    async with rig.running(handler(returning(DONE)), maintenance_interval=10):
        await rig.ended(await rig.create())
        assert trio.current_time() < 1
        await rig.ended(id)
    failures = rig.log.fields("sweep.failed")
    assert failures == [{"what": "abandoned", "error": "OSError: gone"}] * 3


async def test_a_statement_that_never_answers_does_not_end_the_sweep(rig: Rig) -> None:
    """It has a budget like every call."""
    rig.provider.hang("fail_abandoned_jobs", times=1)
    id = rig.insert_abandoned()
    async with rig.running(handler(returning(DONE)), maintenance_interval=10):
        await rig.until(lambda: not rig.job(id).status.is_live, HOUR)
    assert rig.log.count("sweep.failed") == 1
