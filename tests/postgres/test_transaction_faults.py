"""Connections that break inside of a handler's transaction, and commits that nobody answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import trio

from hastetrio import CancelReason, JobContext, JobOutput, ProviderUnavailable

from .effects import (
    DONE,
    SHORT,
    Steps,
    effects_table,
    is_clean,
    is_waiting,
    notes,
    performing,
    write,
)
from .harness import column, run, until
from .lossy import Loss, Lossy, open_lossy


@pytest.fixture(autouse=True)
def _effects(url: str) -> Iterator[None]:
    with effects_table(url):
        yield


@pytest.fixture
async def lossy(url: str) -> AsyncIterator[Lossy]:
    """The way to `url` through a gateway that may lose a COMMIT."""
    async with open_lossy(url) as lossy:
        yield lossy


def end_transactions(url: str) -> None:
    """End the sessions of handlers that are in a transaction."""
    rows = run(
        url,
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'hastetrio'"
        " AND state = 'idle in transaction'",
    )
    assert rows == [(True,)]


@pytest.mark.parametrize("finishes", [True, False], ids=["with a result", "effects only"])
async def test_a_connection_that_breaks_before_the_commit_undoes_it(
    url: str, finishes: bool
) -> None:
    """The server ends the session: nothing was done, and the handler is told so."""
    steps = Steps(finishes=finishes)
    async with performing(url, steps) as stage:
        steps.go_on("written")
        await steps.reached("finished")
        end_transactions(url)
        steps.go_on("finished")
        await stage.over()
    assert isinstance(stage.errors[0], ProviderUnavailable)
    stage.check_neither("failed")


async def test_a_connection_that_breaks_before_the_finish_undoes_it(url: str) -> None:
    """There is nothing to be found out: no commit was sent."""
    steps = Steps()
    async with performing(url, steps) as stage:
        await steps.reached("written")
        end_transactions(url)
        steps.go_on("written")
        await stage.over()
    assert isinstance(stage.errors[0], ProviderUnavailable)
    stage.check_neither("failed")


@pytest.mark.parametrize("loss", ["answer", "silence"])
async def test_a_commit_that_was_applied_unanswered_counts(
    url: str, lossy: Lossy, loss: Loss
) -> None:
    """The row is asked, and says so; the handler goes on as if it had been answered."""
    steps = Steps()
    async with performing(url, steps, through=lossy.url, call_budget=0.5) as stage:
        steps.go_on("written")
        await steps.reached("finished")
        lossy.loss = loss
        steps.go_on("finished")
        await steps.reached("committed")
        assert steps.context is not None
        assert steps.context.is_finished
        steps.go_on("committed")
        await stage.over()
    assert lossy.lost.is_set()
    assert (stage.errors, steps.reason) == ([None], None)
    stage.check_both("written")


async def test_a_commit_that_never_arrived_is_known_to_have_failed(url: str, lossy: Lossy) -> None:
    """The row is asked, and says so; the handler is told, and nothing was done."""
    steps = Steps()
    async with performing(url, steps, through=lossy.url) as stage:
        steps.go_on("written")
        await steps.reached("finished")
        lossy.loss = "request"
        steps.go_on("finished")
        await stage.over()
    assert lossy.lost.is_set()
    assert isinstance(stage.errors[0], ProviderUnavailable)
    stage.check_neither("failed")


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_commit_that_may_still_arrive_is_waited_for(
    url: str, lossy: Lossy, arrives: bool
) -> None:
    """Whoever asks the row waits for the transaction that has it, and then knows."""
    steps = Steps()
    async with performing(url, steps, through=lossy.url) as stage:
        steps.go_on("written", "committed")
        await steps.reached("finished")
        lossy.loss = "delay"
        steps.go_on("finished")
        await lossy.lost.wait()
        await until(lambda: is_waiting(url))
        assert (stage.errors, notes(url)) == ([], [])
        if arrives:
            lossy.arrive.set()
        else:
            end_transactions(url)
            lossy.arrive.set()
        await stage.over()
    if arrives:
        stage.check_both("written")
    else:
        assert isinstance(stage.errors[0], ProviderUnavailable)
        stage.check_neither("failed")


@pytest.mark.parametrize("loss", ["answer", "request"])
async def test_without_a_result_an_unanswered_commit_is_told_as_such(
    url: str, lossy: Lossy, loss: Loss
) -> None:
    """No row knows what became of it; the handler is not told that it was done."""
    steps = Steps(finishes=False)
    async with performing(url, steps, through=lossy.url) as stage:
        steps.go_on("written")
        await steps.reached("finished")
        lossy.loss = loss
        steps.go_on("finished")
        await stage.over()
    assert isinstance(stage.errors[0], ProviderUnavailable)
    assert notes(url) == (["written"] if loss == "answer" else [])
    assert stage.status() == "failed"
    assert is_clean(url)


async def test_a_commit_is_asked_about_until_the_database_is_back(url: str, lossy: Lossy) -> None:
    """Nothing is guessed while nobody answers."""
    steps = Steps()
    async with performing(url, steps, through=lossy.url) as stage:
        steps.go_on("written", "committed")
        await steps.reached("finished")
        lossy.loss, lossy.is_closed = "answer", True
        steps.go_on("finished")
        await until(lambda: lossy.turned_away >= 2)
        assert stage.errors == []
        lossy.is_closed = False
        await stage.over()
    stage.check_both("written")


@pytest.mark.slow
async def test_a_commit_that_stays_unknown_until_the_deadline_is_left_to_the_row(
    url: str, lossy: Lossy
) -> None:
    """The handler is cancelled, and neither runs again nor has its result replaced."""
    steps = Steps()
    async with performing(url, steps, config=SHORT, through=lossy.url) as stage:
        steps.go_on("written")
        await steps.reached("finished")
        lossy.loss, lossy.is_closed = "answer", True
        steps.go_on("finished")
        await until(lambda: stage.errors)
        lossy.is_closed = False
        await stage.over()
        result = (stage.status(), column(url, stage.id, "output"), notes(url))
    assert isinstance(stage.errors[0], trio.Cancelled)
    assert steps.reason is CancelReason.LEASE_LOST
    assert result == ("completed", "done", ["written"])
    assert len(stage.errors) == 1
    totals = stage.worker.statistics().totals
    assert (totals.failed, totals.handed_back) == (0, 0)


async def test_a_renewal_that_meets_the_recorded_result_first_ends_nothing(
    url: str, lossy: Lossy
) -> None:
    """While the commit's answer is waited for, a renewal learns that the claim is over."""
    steps = Steps()
    async with performing(url, steps, through=lossy.url, call_budget=0.6) as stage:
        steps.go_on("written")
        await steps.reached("finished")
        lossy.loss = "silence"
        steps.go_on("finished")
        await lossy.lost.wait()
        # Only a renewal's answer is believed; this one says that the claim has ended.
        run(url, "SELECT pg_notify('async_jobs_cancelled', %s)", [stage.id])
        await until(lambda: steps.at == "committed" or stage.errors)
        assert steps.context is not None
        assert (stage.errors, steps.context.is_cancelled) == ([], False)
        steps.go_on("committed")
        await stage.over()
    stage.check_both("written")


async def test_a_transaction_is_opened_when_the_database_is_back(url: str, lossy: Lossy) -> None:
    """Nothing has been done yet, so that waiting costs nothing."""
    ready = trio.Event()

    async def script(context: JobContext) -> JobOutput:
        await ready.wait()
        async with context.transaction() as connection:
            await write(connection)
            return await context.finish(connection, DONE)

    async with performing(url, script, through=lossy.url) as stage:
        lossy.is_closed = True
        ready.set()
        await until(lambda: lossy.turned_away >= 2)
        assert stage.errors == []
        lossy.is_closed = False
        await stage.over()
    stage.check_both("written")


@pytest.mark.slow
async def test_waiting_for_a_connection_is_bounded_by_the_lease(url: str, lossy: Lossy) -> None:
    """The job's deadline ends it, and the job is handed back."""

    async def script(context: JobContext) -> JobOutput:
        lossy.is_closed = True
        async with context.transaction() as connection:
            return await context.finish(connection, DONE)

    async with performing(url, script, config=SHORT, through=lossy.url) as stage:
        await until(lambda: stage.errors)
        stage.provider.fail("claim_jobs")
        lossy.is_closed = False
        await stage.over()
    assert isinstance(stage.errors[0], trio.Cancelled)
    stage.check_neither("accepted")
