"""What a handler writes and its job's result: both or neither, whatever the handler does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import psycopg
import pytest
import trio

from hastetrio import JobContext, JobOutput, UnstorableValue

from .effects import DONE, Script, effects_table, is_clean, is_sleeping, notes, perform, write
from .harness import column, run, until


@pytest.fixture(autouse=True)
def _effects(url: str) -> Iterator[None]:
    with effects_table(url):
        yield


async def test_effects_and_result_come_at_the_same_moment(url: str) -> None:
    """Nothing shows before the block ends; then all of it does, once."""
    before: list[object] = []

    async def script(context: JobContext) -> JobOutput:
        context.report("nearly")
        async with context.transaction() as connection:
            await write(connection)
            output = await context.finish(connection, DONE)
            before.extend([notes(url), column(url, context.job.id, "status"), context.is_finished])
            # Still in the transaction, and so still of one piece with the result.
            await write(connection, "late")
        before.append(context.is_finished)
        return output

    stage = await perform(url, script)
    stage.check_both("written", "late")
    assert before == [[], "in-progress", False, True]
    by, holder, lease, attempts, progress = run(
        url, "SELECT finished_by, locked_by, lease_expires_at, attempts, progress FROM async_jobs"
    )[0]
    assert (holder, lease, attempts, progress) == (None, None, 1, "nearly")
    assert by.startswith("stage/")


async def test_effects_without_a_result_are_kept_and_the_job_ends_as_ever(url: str) -> None:
    """Several transactions in a row, none of which finishes; what the handler returns counts."""

    async def script(context: JobContext) -> JobOutput:
        for note in ("one", "two"):
            async with context.transaction() as connection:
                await write(connection, note)
        return DONE

    (await perform(url, script)).check_both("one", "two")


async def error_before_finish(context: JobContext) -> object:
    """The block is left by an error, with effects and no result."""
    async with context.transaction() as connection:
        await write(connection)
        raise ValueError("no good")


async def error_after_finish(context: JobContext) -> object:
    """The block is left by an error, with effects and a result."""
    async with context.transaction() as connection:
        await write(connection)
        await context.finish(connection, DONE)
        raise ValueError("no good")


async def swallowed_before_finish(context: JobContext) -> object:
    """A statement fails, and the handler goes on as if nothing had happened."""
    async with context.transaction() as connection:
        await write(connection)
        with pytest.raises(psycopg.errors.DivisionByZero):
            await connection.execute("SELECT 1 / 0")
        return await context.finish(connection, DONE)


async def swallowed_after_finish(context: JobContext) -> object:
    """As before, but the result was given already; a bare COMMIT would answer, and do nothing."""
    async with context.transaction() as connection:
        await write(connection)
        await context.finish(connection, DONE)
        with pytest.raises(psycopg.errors.DivisionByZero):
            await connection.execute("SELECT 1 / 0")
    return DONE


async def swallowed_without_finish(context: JobContext) -> object:
    """As before, without a result."""
    async with context.transaction() as connection:
        await write(connection)
        with pytest.raises(psycopg.errors.DivisionByZero):
            await connection.execute("SELECT 1 / 0")
    return DONE


async def deferred_constraint(context: JobContext) -> object:
    """The COMMIT itself is refused."""
    async with context.transaction() as connection:
        await write(connection)
        await write(connection)
        await context.finish(connection, DONE)
    return DONE


async def no_output(context: JobContext) -> object:
    """The result is none."""
    async with context.transaction() as connection:
        await write(connection)
        return await context.finish(connection, {"not": "an output"})


async def unstorable_output(context: JobContext) -> object:
    """The result holds what no column can."""
    async with context.transaction() as connection:
        await write(connection)
        return await context.finish(connection, JobOutput.json("a\0b"))


async def finish_twice(context: JobContext) -> object:
    """One job has one result."""
    async with context.transaction() as connection:
        await write(connection)
        await context.finish(connection, DONE)
        return await context.finish(connection, DONE)


async def finish_in_two_transactions(context: JobContext) -> object:
    """One job has one result, in whatever transaction."""
    async with context.transaction() as first, context.transaction() as second:
        await write(first)
        await context.finish(first, DONE)
        await write(second, "second")
        return await context.finish(second, DONE)


async def another_connection(context: JobContext) -> object:
    """The result would be in another transaction than the effects."""
    async with context.transaction() as connection:
        await write(connection)
        return await context.finish(object(), DONE)


async def finish_after_the_block(context: JobContext) -> object:
    """Rolled back, and then finished all the same."""
    with suppress(ValueError):
        async with context.transaction() as connection:
            await write(connection)
            raise ValueError("no good")
    return await context.finish(connection, DONE)


async def commit_by_hand(context: JobContext) -> object:
    """What psycopg's users are used to; it would commit without asking whose the job is."""
    async with context.transaction() as connection:
        await write(connection)
        await connection.commit()
    return DONE


async def roll_back_by_hand(context: JobContext) -> object:
    """The result would be rolled back with the effects, unnoticed."""
    async with context.transaction() as connection:
        await write(connection)
        await context.finish(connection, DONE)
        await connection.rollback()
    return DONE


async def raw_rollback(context: JobContext) -> object:
    """SQL ends the transaction."""
    async with context.transaction() as connection:
        await write(connection)
        await context.finish(connection, DONE)
        await connection.execute("ROLLBACK")
    return DONE


async def raw_rollback_and_begin(context: JobContext) -> object:
    """SQL ends the transaction, and begins another that looks like it."""
    async with context.transaction() as connection:
        await write(connection)
        await context.finish(connection, DONE)
        await connection.execute("ROLLBACK")
        await connection.execute("BEGIN")
    return DONE


async def finish_undone_by_a_savepoint(context: JobContext) -> object:
    """The result is rolled back, but not the transaction."""
    async with context.transaction() as connection:
        await write(connection)
        async with connection.transaction(force_rollback=True):
            await context.finish(connection, DONE)
    return DONE


async def closed_connection(context: JobContext) -> object:
    """The handler closes what it was given."""
    async with context.transaction() as connection:
        await write(connection)
        await context.finish(connection, DONE)
        await connection.close()
    return DONE


async def open_pipeline(context: JobContext) -> object:
    """The result would be sent before what was written is known to have succeeded."""
    async with context.transaction() as connection, connection.pipeline():
        await write(connection)
        return await context.finish(connection, DONE)


REFUSED = [
    (error_before_finish, "no good"),
    (error_after_finish, "no good"),
    (swallowed_before_finish, "a statement of the transaction failed"),
    (swallowed_after_finish, "a statement of the transaction failed"),
    (swallowed_without_finish, "a statement of the transaction failed"),
    (deferred_constraint, "duplicate key"),
    (no_output, "dict, not a JobOutput"),
    (unstorable_output, "holds a NUL character"),
    (finish_twice, "finish() was called before"),
    (finish_in_two_transactions, "finish() was called before"),
    (another_connection, "takes the connection that this job's context.transaction() gave"),
    (finish_after_the_block, "takes the connection that this job's context.transaction() gave"),
    (commit_by_hand, "do not commit: leave the block"),
    (roll_back_by_hand, "do not roll back: raise out of the block"),
    (raw_rollback, "the transaction was ended inside the block"),
    (raw_rollback_and_begin, "the finish was rolled back inside the block"),
    (finish_undone_by_a_savepoint, "the finish was rolled back inside the block"),
    (closed_connection, "connection was closed"),
    (open_pipeline, "a pipeline of the connection is open"),
]


@pytest.mark.parametrize(("script", "text"), REFUSED, ids=[one.__name__ for one, _ in REFUSED])
async def test_what_goes_wrong_leaves_neither_effects_nor_result(
    url: str, script: object, text: str
) -> None:
    """The job fails, the handler is told why in one line, and nothing it wrote is there."""
    stage = await perform(url, script)  # type: ignore[arg-type]
    stage.check_neither("failed")
    assert text in stage.error()
    assert "\n" not in stage.error()
    assert stage.lines.events("job.finished") == ["job.finished"]


@pytest.mark.parametrize("script", [no_output, unstorable_output], ids=lambda one: one.__name__)
async def test_an_output_that_cannot_be_stored_is_told_as_if_it_had_been_returned(
    url: str, script: Script
) -> None:
    """The client reads what is wrong with it, not that something went wrong."""
    stage = await perform(url, script)
    (error,) = run(url, "SELECT error->'issue'->0 FROM async_jobs WHERE id = %s", [stage.id])[0]
    assert error["code"] == "processing"
    assert "The job's result cannot be stored: " in error["diagnostics"]
    assert stage.lines.events("job.raised", "job.rejected") == ["job.rejected"]


async def test_a_statement_cancelled_under_way_leaves_neither(url: str) -> None:
    """An inner timeout that the handler swallows costs the transaction; the server stops, too."""

    async def script(context: JobContext) -> JobOutput:
        async with context.transaction() as connection:
            await write(connection)
            await context.finish(connection, DONE)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.execute, "SELECT pg_sleep(60)")
                await until(lambda: is_sleeping(url))
                nursery.cancel_scope.cancel()
        return DONE

    stage = await perform(url, script)
    assert "a statement of the transaction was cancelled" in stage.error()
    await until(lambda: not is_sleeping(url))
    await until(lambda: is_clean(url))
    stage.check_neither("failed")


async def test_a_savepoint_undoes_its_own_part_only(url: str) -> None:
    """Whether a statement fails in it, an error leaves it, or it is cancelled."""

    async def script(context: JobContext) -> JobOutput:
        async with context.transaction() as connection:
            await write(connection)
            with suppress(psycopg.errors.DivisionByZero):
                async with connection.transaction():
                    await write(connection, "before a failure")
                    await connection.execute("SELECT 1 / 0")
            with suppress(ValueError):
                async with connection.transaction():
                    await write(connection, "before an error")
                    raise ValueError("no good")
            with trio.CancelScope() as scope:
                async with connection.transaction():
                    await write(connection, "before a cancel")
                    scope.cancel()
                    await trio.sleep_forever()
            async with connection.transaction(force_rollback=True):
                await write(connection, "on trial")
            async with connection.transaction():
                await write(connection, "kept")
                return await context.finish(connection, DONE)

    (await perform(url, script)).check_both("written", "kept")


async def test_a_result_that_is_refused_in_a_savepoint_may_be_replaced(url: str) -> None:
    """The server refuses the first one; the second counts, and the effects stay."""
    run(
        url,
        "ALTER TABLE async_jobs ADD CONSTRAINT short CHECK (length(output::text) < 50) NOT VALID",
    )

    async def script(context: JobContext) -> JobOutput:
        async with context.transaction() as connection:
            await write(connection)
            with pytest.raises(UnstorableValue, match="refuses the value"):
                async with connection.transaction():
                    await context.finish(connection, JobOutput.json("long" * 20))
            return await context.finish(connection, DONE)

    try:
        stage = await perform(url, script)
    finally:
        run(url, "ALTER TABLE async_jobs DROP CONSTRAINT short")
    stage.check_both("written")


async def test_after_a_rollback_the_job_may_be_finished_in_another_transaction(url: str) -> None:
    """A result that was undone is none."""

    async def script(context: JobContext) -> JobOutput:
        with pytest.raises(ValueError, match="no good"):
            await error_after_finish(context)
        async with context.transaction() as connection:
            await write(connection, "again")
            return await context.finish(connection, DONE)

    (await perform(url, script)).check_both("again")


async def test_after_the_commit_nothing_more_can_be_asked_for(url: str) -> None:
    """A second transaction or result, a state, a renewal: each is refused, and the job stands."""
    refused: list[str] = []

    async def script(context: JobContext) -> JobOutput:
        async with context.transaction() as connection:
            await write(connection)
            output = await context.finish(connection, DONE)
            # The row is locked by this very task: these would wait for themselves.
            with pytest.raises(RuntimeError, match=r"locked .* call confirm_lease\(\) before it"):
                await context.confirm_lease()
            with pytest.raises(RuntimeError, match=r"locked .* call save_state\(\) before it"):
                await context.save_state(1)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: context.finish(connection, DONE),
            lambda: error_before_finish(context),
            lambda: context.save_state(1),
            context.confirm_lease,
            # The connection may be another job's by now.
            lambda: write(connection, "stray"),
            connection.commit,
        ]
        for call in calls:
            with pytest.raises(Exception) as caught:  # noqa: PT011
                await call()
            refused.append(f"{caught.type.__name__}: {caught.value}")
        return output

    (await perform(url, script)).check_both("written")
    assert [text.partition(":")[0] for text in refused] == [
        *("RuntimeError", "RuntimeError", "LeaseLost", "LeaseLost", "RuntimeError", "RuntimeError")
    ]
    assert "is recorded already" in refused[1]
    assert "block only" in refused[4]
