"""What a handler does after the commit of its result: on its own, and no matter to its job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
import trio

from hastetrio import CancelReason, JobContext, JobOutput
from hastetrio.postgres import PostgresJobProvider

from .effects import (
    DONE,
    LONG,
    SHORT,
    Steps,
    cancel,
    effects_table,
    is_clean,
    notes,
    perform,
    performing,
    write,
)
from .harness import KIND, column, new_lease


@pytest.fixture(autouse=True)
def _effects(url: str) -> Iterator[None]:
    with effects_table(url):
        yield


async def test_the_rest_goes_on_beyond_the_lease_and_a_cancel(url: str) -> None:
    """No renewal is sent and none is missed; that the job is cancelled by now ends nothing."""
    steps = Steps()
    async with performing(url, steps, config=SHORT) as stage:
        await steps.reached("written")
        assert steps.context is not None
        deadline = steps.context.lease_deadline
        steps.go_on("written", "finished")
        await steps.reached("committed")
        renewals = len(stage.provider.made("renew_lease", stage.id))
        stage.provider.lose_lease(stage.id)
        async with PostgresJobProvider.open(url) as other:
            assert await other.claim_jobs([KIND], new_lease(), 10) == []
            before = await cancel(stage)
        await trio.sleep_until(deadline + SHORT.lease_duration / 3)
        assert (stage.errors, steps.context.is_cancelled) == ([], False)
        steps.context.check_lease()
        steps.go_on("committed")
        await stage.over()
    assert before is not None
    assert (before.status, before.output) == ("completed", "done")
    assert (stage.errors, steps.reason, notes(url)) == ([None], None, ["written"])
    assert len(stage.provider.made("renew_lease", stage.id)) == renewals
    assert stage.worker.statistics().totals.completed == 1
    assert stage.lines.events("job.finished", "job.dropped", "job.late") == ["job.finished"]


async def test_a_shutdown_ends_the_rest_and_the_job_stays_completed(url: str) -> None:
    """The second stop cancels; there is nothing to hand back."""
    steps = Steps()
    async with performing(url, steps) as stage:
        steps.go_on("written", "finished")
        await steps.reached("committed")
        stage.worker.stop()
        stage.worker.stop()
        await stage.over()
    assert isinstance(stage.errors[0], trio.Cancelled)
    assert steps.reason is CancelReason.SHUTDOWN
    stage.check_both("written")
    assert stage.provider.made("release_job") == stage.provider.made("finish_jobs") == []


async def raising(_: JobContext) -> object:
    """Goes wrong."""
    raise ValueError("too late")


async def returning_another(_: JobContext) -> object:
    """Returns another result."""
    return JobOutput.json("another")


async def returning_nothing(_: JobContext) -> object:
    """Returns what is no result."""
    return None


async def committing_more(context: JobContext) -> object:
    """Wants to write more."""
    async with context.transaction() as connection:
        await write(connection, "more")
    return DONE


@pytest.mark.parametrize(
    "rest",
    [raising, returning_another, returning_nothing, committing_more],
    ids=lambda f: f.__name__,
)
async def test_however_the_rest_ends_the_result_stands(url: str, rest: Steps) -> None:
    """An error in it is logged with its trace; the job is completed, once."""

    async def script(context: JobContext) -> object:
        async with context.transaction() as connection:
            await write(connection)
            await context.finish(connection, DONE)
        return await rest(context)

    stage = await perform(url, script)
    stage.check_both("written")
    raised = [] if stage.errors == [None] else ["job.raised"]
    assert stage.lines.events("job.raised", "job.rejected") == raised
    assert column(url, stage.id, "error") is None
    assert column(url, stage.id, "attempt_errors") is None


async def test_an_error_that_the_handler_catches_around_the_block_is_its_own(url: str) -> None:
    """Rolled back, the job ends by what the handler returns, as if there had been no block."""

    async def script(context: JobContext) -> object:
        with suppress(ZeroDivisionError):
            async with context.transaction() as connection:
                await write(connection)
                await context.finish(connection, DONE)
                assert 1 / 0
        return JobOutput.json("another")

    stage = await perform(url, script, config=LONG)
    stage.check_both(output="another")
    assert is_clean(url)
