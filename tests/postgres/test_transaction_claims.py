"""A job that is cancelled, lost or renewed no more while its handler has a transaction open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
import trio
import trio.testing

from hastetrio import AsyncJob, CancelReason, JobContext, LeaseLost
from hastetrio.postgres import PostgresJobProvider

from .effects import (
    DONE,
    SHORT,
    Steps,
    cancel,
    effects_table,
    is_clean,
    is_sleeping,
    is_waiting,
    let_lapse,
    notes,
    performing,
    take_over,
    write,
)
from .harness import KIND, column, new_lease, run, until


@pytest.fixture(autouse=True)
def _effects(url: str) -> Iterator[None]:
    with effects_table(url):
        yield


@pytest.mark.parametrize("finishes", [True, False], ids=["with a result", "effects only"])
async def test_a_cancel_inside_the_block_undoes_it(url: str, finishes: bool) -> None:
    """The client's cancel comes first, so there are no effects and no result."""
    steps = Steps(finishes=finishes)
    async with performing(url, steps) as stage:
        await steps.reached("written")
        if not finishes:
            steps.go_on("written")
            await steps.reached("finished")
        before = await cancel(stage)
        await stage.over()
    assert before is not None
    assert before.status == "in-progress"
    assert steps.reason is CancelReason.CANCELLED
    stage.check_neither("cancelled")
    assert column(url, stage.id, "locked_by") is None
    assert stage.lines.events("job.dropped", "job.finished") == ["job.dropped"]


async def test_a_cancel_between_finish_and_commit_comes_after_the_result(url: str) -> None:
    """It waits for the row, and then cancels a completed job, whose effects stay."""
    steps = Steps()
    found: list[AsyncJob | None] = []
    async with performing(url, steps) as stage, trio.open_nursery() as nursery:
        steps.go_on("written")
        await steps.reached("finished")

        async def client() -> None:
            found.append(await cancel(stage))

        nursery.start_soon(client)
        await until(lambda: is_waiting(url))
        steps.go_on("finished", "committed")
        await stage.over()
        await until(lambda: found)
    assert found[0] is not None
    assert (found[0].status, found[0].output) == ("completed", "done")
    assert (stage.status(), column(url, stage.id, "output")) == ("cancelled", None)
    assert (notes(url), steps.reason) == (["written"], None)
    assert stage.worker.statistics().totals.completed == 1


@pytest.mark.parametrize("finishes", [True, False], ids=["before its finish", "before its commit"])
async def test_what_another_claim_has_taken_is_undone(url: str, finishes: bool) -> None:
    """The fence holds: the handler meets LeaseLost and is cancelled; the thief is left alone."""
    steps = Steps(finishes=finishes)
    async with performing(url, steps) as stage:
        await steps.reached("written")
        if not finishes:
            steps.go_on("written")
            await steps.reached("finished")
        take_over(url, stage.id)
        steps.go_on("written", "finished")
        await stage.over()
    (error,) = stage.errors
    assert isinstance(error, LeaseLost)
    assert steps.reason is CancelReason.LEASE_LOST
    stage.check_neither("in-progress")
    assert column(url, stage.id, "locked_by") == "thief/1-aaaaaaaa"
    assert stage.lines.events("job.dropped", "job.not-ours", "job.finished") == ["job.dropped"]


@pytest.mark.parametrize("finishes", [True, False], ids=["with a result", "effects only"])
async def test_a_lapsed_lease_that_nobody_took_is_good_enough(url: str, finishes: bool) -> None:
    """The database decides by whose the row is, not by the clock."""
    steps = Steps(finishes=finishes)
    async with performing(url, steps) as stage:
        await steps.reached("written")
        let_lapse(url, stage.id)
        steps.go_on("written", "finished", "committed")
        await stage.over()
    stage.check_both("written")


@pytest.mark.parametrize("where", ["written", pytest.param("finished", marks=pytest.mark.slow)])
async def test_without_renewals_the_deadline_undoes_it(url: str, where: str) -> None:
    """The handler is cancelled, the server has no transaction and no lock left, the job goes on."""
    steps = Steps()
    if where == "finished":
        steps.go_on("written")
    async with performing(url, steps, config=SHORT) as stage:
        await steps.reached(where)
        stage.provider.fail("renew_lease")
        stage.provider.fail("claim_jobs")
        await until(lambda: stage.errors)
        assert is_clean(url)
        await stage.over()
    assert steps.reason is CancelReason.LEASE_LOST
    stage.check_neither("accepted")
    assert stage.lines.events("job.handed-back", "job.late") == ["job.handed-back"]


async def test_a_killed_renewal_task_undoes_it(url: str) -> None:
    """It takes the handler along, whose statement is under way; the server stops that, too."""

    async def script(context: JobContext) -> object:
        async with context.transaction() as connection:
            await write(connection)
            await connection.execute("SELECT pg_sleep(60)")
        return DONE

    async with performing(url, script, config=SHORT) as stage:
        await until(lambda: is_sleeping(url))
        stage.provider.kill_renewals()
        stage.provider.fail("claim_jobs")
        await until(lambda: stage.errors)
        await until(lambda: is_clean(url))
        await stage.over()
    stage.check_neither("accepted")
    assert stage.lines.events("job.renewal-died") == ["job.renewal-died"]


async def test_between_finish_and_commit_nobody_else_can_have_the_job(url: str) -> None:
    """Its lease has lapsed, by anybody's clock but the handler's; the row is locked."""
    steps = Steps()
    async with performing(url, steps) as stage, PostgresJobProvider.open(url) as other:
        await steps.reached("written")
        let_lapse(url, stage.id)
        steps.go_on("written")
        await steps.reached("finished")
        assert await other.claim_jobs([KIND], new_lease(), 10) == []
        assert await other.fail_abandoned_jobs({"resourceType": "OperationOutcome"}, 60, 10) == 0
        steps.go_on("finished", "committed")
        await stage.over()
        assert await other.claim_jobs([KIND], new_lease(), 10) == []
    stage.check_both("written")


@pytest.fixture
def slow_commits(url: str) -> Iterator[None]:
    """A COMMIT with effects waits while the advisory lock 4711 is somebody's."""
    # A deferred trigger runs in the COMMIT.
    run(
        url,
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END$$;"
        " CREATE CONSTRAINT TRIGGER dawdle AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION dawdle()",
    )
    yield
    run(url, "DROP FUNCTION dawdle CASCADE")


@contextmanager
def locked_out(url: str) -> Iterator[None]:
    """The advisory lock 4711 is somebody's while the block lasts."""
    with psycopg.connect(url) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(4711)")
        yield


@pytest.mark.usefixtures("slow_commits")
async def test_a_commit_without_a_result_lets_nobody_in_between(url: str) -> None:
    """The claim is seen to stand under a lock that lasts until the effects are there."""
    steps = Steps(finishes=False)
    async with performing(url, steps) as stage, PostgresJobProvider.open(url) as other:
        await steps.reached("written")
        let_lapse(url, stage.id)
        with locked_out(url):
            steps.go_on("written", "finished")
            await until(lambda: is_waiting(url))
            assert await other.claim_jobs([KIND], new_lease(), 10) == []
        steps.go_on("committed")
        await stage.over()
    stage.check_both("written")


@pytest.mark.usefixtures("slow_commits")
async def test_a_commit_under_way_is_waited_for_whatever_ends_the_handler(url: str) -> None:
    """A shutdown cancels the handler inside of its commit; what was committed is known."""
    steps = Steps()
    async with performing(url, steps) as stage:
        await steps.reached("written")
        with locked_out(url):
            steps.go_on("written", "finished")
            await until(lambda: is_waiting(url))
            stage.worker.stop()
            stage.worker.stop()
            await until(lambda: steps.context and steps.context.is_cancelled)
            assert (stage.errors, notes(url), stage.status()) == ([], [], "in-progress")
        await stage.over()
    assert steps.reason is CancelReason.SHUTDOWN
    stage.check_both("written")


async def test_other_tasks_wait_for_the_commit_with_what_needs_the_row(url: str) -> None:
    """A state, a certainty: they come after it, when there is no claim any more."""
    steps = Steps()
    refused: list[str] = []

    async def script(context: JobContext) -> object:
        async def confirm() -> None:
            with pytest.raises(LeaseLost, match="recorded"):
                await context.confirm_lease()
            refused.append(steps.at)

        async def save() -> None:
            with pytest.raises(LeaseLost, match="recorded"):
                await context.save_state(1)
            refused.append(steps.at)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(steps, context)
            await steps.reached("finished")
            nursery.start_soon(confirm)
            nursery.start_soon(save)
            await trio.testing.wait_all_tasks_blocked()
            steps.go_on("finished")
            await until(lambda: len(refused) == 2)
            steps.go_on("committed")
        return DONE

    async with performing(url, script) as stage:
        steps.go_on("written")
        await stage.over()
    assert (refused, stage.errors) == (["committed"] * 2, [None])
    stage.check_both("written")


async def test_after_an_undone_finish_the_lease_is_renewed_again(url: str) -> None:
    """Nothing was renewed while the row was locked; the handler goes on under its lease."""
    ends: list[Any] = []

    async def script(context: JobContext) -> object:
        with suppress(ZeroDivisionError):
            async with context.transaction() as connection:
                await write(connection)
                await context.finish(connection, DONE)
                assert 1 / 0
        ends.append(column(url, context.job.id, "lease_expires_at"))
        await until(lambda: column(url, context.job.id, "lease_expires_at") > ends[0])
        await context.confirm_lease()
        return DONE

    async with performing(url, script) as stage:
        await stage.over()
    stage.check_both()
