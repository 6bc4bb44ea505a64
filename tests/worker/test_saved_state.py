"""Saved state: what one attempt keeps for the next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from hastetrio import (
    AsyncJob,
    AsyncJobStatus,
    JobContext,
    JobOutput,
    LeaseLost,
    RetryLater,
    UnstorableValue,
)

from .attempts import FLAT, retrying
from .harness import DEADLINE, DONE, HOUR, LEASE, Rig, handler

COMPLETED = AsyncJobStatus.COMPLETED
LIMIT = 64 * 1024

Then = Callable[[JobContext], Awaitable[Any]]


class Saving:
    """A body whose first run saves a state and then does something, and whose later runs look.

    Args:
        state: What is saved.
        then: What is done after that.
    """

    def __init__(self, state: object, then: Then | None = None) -> None:
        self.seen: list[object] = []
        self.saved: list[float] = []
        self.begun = trio.Event()
        self._state = state
        self._then = then

    async def __call__(self, context: JobContext) -> Any:  # noqa: ANN401
        """Look, and save."""
        self.seen.append(context.state)
        if len(self.seen) == 1:
            self.begun.set()
            await context.save_state(self._state)
            self.saved.append(trio.current_time())
            if self._then is not None:
                return await self._then(context)
        return DONE


async def fail(context: JobContext) -> None:
    """End the attempt."""
    raise ConnectionError


async def stay(context: JobContext) -> None:
    """Wait to be cancelled."""
    await trio.sleep_forever()


async def run(rig: Rig, body: Saving) -> AsyncJob:
    """Run one job to its end."""
    async with rig.running(retrying(body, FLAT)):
        return await rig.ended(await rig.create())


@pytest.mark.parametrize("state", [{"page": 7, "files": ["a", "\u00e4"]}, [], 0, "", False, 1.5])
async def test_the_next_attempt_finds_what_the_last_one_saved(rig: Rig, state: object) -> None:
    """Any JSON, also what is false; the first attempt finds none."""
    body = Saving(state, fail)
    job = await run(rig, body)
    assert body.seen == [None, state]
    assert (job.status, job.attempts) == (COMPLETED, 2)


async def test_the_latest_state_wins_and_none_is_none(rig: Rig) -> None:
    """A handler may also start over."""

    async def body(context: JobContext) -> object:
        seen.append(context.state)
        if context.attempt == 1:
            await context.save_state(1)
            await context.save_state(2)
        elif context.attempt == 2:
            await context.save_state(None)
        return DONE if context.attempt == 3 else RetryLater(1)

    seen: list[object] = []
    async with rig.running(retrying(body)):
        await rig.ended(await rig.create())
    assert seen == [None, 2, None]


async def test_a_handler_sees_what_it_saved_as_the_storage_has_it(rig: Rig) -> None:
    """A value that is changed afterwards changes no state, and what is read is a copy."""

    async def body(context: JobContext) -> JobOutput:
        state = {"done": [1]}
        await context.save_state(state)
        state["done"].append(2)
        context.state["done"].append(3)
        return JobOutput.json([context.state, rig.job(context.job.id).state])

    job = await rig.outcome_of(body)
    assert job.output == [{"done": [1]}] * 2


async def test_a_state_is_gone_when_the_job_has_ended(rig: Rig) -> None:
    """It is for the next attempt, and there is none."""
    job = await run(rig, Saving("x"))
    assert (job.status, job.state) == (COMPLETED, None)


async def test_a_state_survives_a_worker_that_was_stopped(rig: Rig) -> None:
    """The job is handed back, and goes on elsewhere from where it was."""
    body = Saving({"page": 7}, stay)
    async with rig.running(handler(body), drain_timeout=1) as first:
        id = await rig.create()
        await rig.until(lambda: body.saved)
        first.stop()
        await rig.left(first)
        async with rig.running(handler(body)):
            await rig.ended(id)
    assert body.seen == [None, {"page": 7}]


async def test_a_state_survives_a_lease_that_lapsed(rig: Rig) -> None:
    """As when the process was killed: whoever takes the job finds it."""
    body = Saving({"page": 7}, stay)
    async with rig.running(handler(body)):
        id = await rig.create()
        await rig.until(lambda: body.saved)
        broken = rig.provider.fail("renew_lease")
        await rig.until(lambda: rig.log.count("job.handed-back"))
        broken.remove()
        await rig.ended(id)
    assert body.seen == [None, {"page": 7}]


async def test_a_state_of_64_kib_is_the_largest(rig: Rig) -> None:
    """Of JSON, in bytes; one that is larger changes nothing, and the handler is told."""

    async def body(context: JobContext) -> JobOutput:
        await context.save_state("x" * (LIMIT - 2))
        with pytest.raises(UnstorableValue, match=r"the state has 65,537 bytes.* 65,536"):
            await context.save_state("y" * (LIMIT - 1))
        with pytest.raises(UnstorableValue, match="the state has"):
            await context.save_state("\u00e4" * (LIMIT // 2))
        return JobOutput.json(context.state[:3])

    job = await rig.outcome_of(body)
    assert job.output == "xxx"
    assert len(rig.provider.made("save_state")) == 1


@pytest.mark.parametrize("state", [object(), {1, 2}, float("nan"), "nul \x00", "\ud800", b"x"])
async def test_a_state_that_is_no_json_is_refused(rig: Rig, state: object) -> None:
    """Before anything is sent; the handler may go on."""

    async def body(context: JobContext) -> JobOutput:
        with pytest.raises(UnstorableValue, match="the state"):
            await context.save_state(state)
        return DONE

    assert (await rig.outcome_of(body)).status is COMPLETED
    assert not rig.provider.made("save_state")


@pytest.mark.parametrize("fault", ["fail", "drop", "hang"])
async def test_a_storage_that_is_away_for_a_while_is_asked_again(rig: Rig, fault: str) -> None:
    """The lease goes on being renewed; the handler goes on when the state is saved."""
    getattr(rig.provider, fault)("save_state", times=3)
    body = Saving({"page": 7}, fail)
    job = await run(rig, body)
    assert (job.status, body.seen) == (COMPLETED, [None, {"page": 7}])
    assert len(rig.provider.made("save_state")) == 4
    events = rig.log.fields("job.call-retried", job.id)
    assert len(events) == 3
    assert all(event["error"].startswith("ProviderUnavailable: ") for event in events)


async def test_while_the_storage_is_away_the_lease_has_the_last_word(rig: Rig) -> None:
    """It is asked until the deadline, and not a moment longer."""
    ended: list[float] = []

    async def body(context: JobContext) -> JobOutput:
        if context.job.hand_backs:
            return DONE
        try:
            await context.save_state(1)
        finally:
            ended.append(trio.current_time())
        return DONE

    faults = [rig.provider.fail(name) for name in ("save_state", "renew_lease")]
    async with rig.running(handler(body)):
        id = await rig.create()
        await rig.until(lambda: rig.log.count("job.handed-back"))
        for fault in faults:
            fault.remove()
        await rig.ended(id)
    assert ended[0] == pytest.approx(DEADLINE, abs=0.1)


@pytest.mark.parametrize("reason", ["cancelled", "expired", "lease-lost"])
async def test_a_state_of_a_job_that_is_lost_is_not_saved_and_the_handler_is_told(
    rig: Rig, reason: str
) -> None:
    """It was not known here yet: the refusal finds out why, and cancels the scope."""

    async def body(context: JobContext) -> JobOutput:
        if reason == "cancelled":
            await rig.cancel_unheard(context.job.id)
        elif reason == "expired":
            rig.memory._table.rows[context.job.id].expires_at = rig.memory._now()
        else:
            rig.take_over(context.job.id)
        with pytest.raises(LeaseLost, match=f"no longer to be run here: {reason}"):
            await context.save_state("mine")
        told.append(str(context.cancel_reason))
        await trio.sleep_forever()

    told: list[str] = []
    async with rig.running(handler(body), maintenance_interval=HOUR):
        id = await rig.create()
        await rig.until(lambda: rig.log.count("job.dropped"))
        assert trio.current_time() < LEASE / 3
        assert rig.job(id).state is None
    assert told == [reason]
    assert rig.log.fields("job.dropped")[0]["reason"] == reason


async def test_a_handler_that_goes_on_after_its_cancellation_saves_nothing(rig: Rig) -> None:
    """The next one may have begun: nothing is even asked."""

    async def body(context: JobContext) -> JobOutput:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                try:
                    await context.save_state("late")
                except LeaseLost as error:
                    told.append(str(error))
            raise

    told: list[str] = []
    async with rig.running(handler(body)):
        id = await rig.create()
        await rig.until(lambda: rig.job(id).status is AsyncJobStatus.IN_PROGRESS)
        await rig.cancel(id)
        await rig.until(lambda: told)
    assert told == ["the job is no longer to be run here: cancelled"]
    assert not rig.provider.made("save_state")


async def test_saving_is_a_checkpoint(rig: Rig) -> None:
    """A handler that does nothing but save can be cancelled all the same."""

    async def body(context: JobContext) -> JobOutput:
        with trio.CancelScope() as scope:
            scope.cancel()
            await context.save_state("x")
        return JobOutput.json([scope.cancelled_caught, context.state])

    assert (await rig.outcome_of(body)).output == [True, None]
