"""The lease is the handler's scope: when it is renewed, and what ends it."""

from __future__ import annotations

import pytest
import trio

from hastetrio import AsyncJobStatus, JobContext, JobOutput

from .harness import (
    DEADLINE,
    DONE,
    LEASE,
    THIRD,
    Rig,
    Runs,
    block,
    gaps,
    handler,
    sleeping,
)

COMPLETED, CANCELLED = AsyncJobStatus.COMPLETED, AsyncJobStatus.CANCELLED


def about(*seconds: float) -> object:
    """Equal to these times, but for rounding."""
    return pytest.approx(list(seconds), abs=1e-6)


async def test_nothing_is_renewed_in_the_first_third(rig: Rig) -> None:
    """A short job pays for no renewal."""
    job = await rig.outcome_of(sleeping(THIRD - 0.1))
    assert job.status is COMPLETED
    assert not rig.provider.made("renew_lease")


async def test_a_renewal_is_sent_at_each_third(rig: Rig) -> None:
    """Counted from when the claim was sent."""
    job = await rig.outcome_of(sleeping(3 * THIRD + 1))
    sent = rig.provider.claimed[0].time
    assert rig.provider.times("renew_lease", job.id) == about(sent + 10, sent + 20, sent + 30)


async def test_jobs_claimed_together_are_renewed_together(rig: Rig) -> None:
    """Then the storage can renew them in one statement."""
    ids = await rig.create_many(3)
    async with rig.running(handler(sleeping(THIRD + 1))):
        for id in ids:
            await rig.ended(id)
    times = {id: rig.provider.times("renew_lease", id)[-1] for id in ids}
    assert len(set(times.values())) == 1


async def test_jobs_claimed_at_different_times_are_renewed_in_their_own_time(rig: Rig) -> None:
    """One clock serves them all, whatever the order in which they come and go."""
    async with rig.running(handler(sleeping(2 * THIRD + 1)), max_concurrent_jobs=10):
        ids: list[str] = []
        for _ in range(5):
            ids.append(await rig.create())
            await trio.sleep(3)
        for id in ids:
            await rig.ended(id)
    sent = {id: claim.time for claim in rig.provider.claimed for id in claim.ids}
    for id in ids:
        times = rig.provider.times("renew_lease", id)
        assert times == about(sent[id] + 10, sent[id] + 20)


async def test_a_renewal_moves_the_deadline(rig: Rig) -> None:
    """The context shows it; the margin is kept from the end of the lease."""

    async def body(context: JobContext) -> JobOutput:
        seen.append(context.lease_deadline)
        await trio.sleep(2 * THIRD + 1)
        seen.append(context.lease_deadline)
        return DONE

    seen: list[float] = []
    await rig.outcome_of(body)
    sent = rig.provider.claimed[0].time
    assert seen == about(sent + DEADLINE, sent + 2 * THIRD + DEADLINE)


async def test_a_slow_renewal_counts_from_when_it_was_sent(rig: Rig) -> None:
    """The storage granted it later, so the deadline here is never the later of the two."""

    async def body(context: JobContext) -> JobOutput:
        await trio.sleep(THIRD + 4.5)
        seen.append(context.lease_deadline)
        return DONE

    seen: list[float] = []
    rig.provider.delay("renew_lease", 4)
    await rig.outcome_of(body)
    sent = rig.provider.claimed[0].time
    assert seen == about(sent + THIRD + DEADLINE)


async def test_a_slow_claim_counts_from_when_it_was_sent(rig: Rig) -> None:
    """The first lease is as old as the request for it."""
    runs = Runs(1)
    rig.provider.delay_answer("claim_jobs", 7)
    async with rig.running(handler(runs)):
        await rig.ended(await rig.create())
    sent = rig.provider.claimed[0].time
    assert [runs.contexts[0].lease_deadline] == about(sent + DEADLINE)


@pytest.mark.parametrize("fault", ["fail", "hang", "delay", "drop"])
async def test_without_renewals_the_deadline_ends_the_handler_before_the_lease_lapses(
    rig: Rig, fault: str
) -> None:
    """Whatever becomes of renewals, the handler leaves a margin before anybody may take the job.

    Then it is handed back, runs again, and gives one result.
    """
    runs, left = Runs(40), []

    async def body(context: JobContext) -> JobOutput:
        try:
            return await runs(context)
        except trio.Cancelled:
            left.append(rig.lease_left(context.job.id))
            raise

    if fault == "delay":
        broken = rig.provider.delay("renew_lease", 100)
    elif fault == "drop":
        broken = rig.provider.drop("renew_lease")
    elif fault == "hang":
        broken = rig.provider.hang("renew_lease")
    else:
        broken = rig.provider.fail("renew_lease")
    async with rig.running(handler(body)):
        id = await rig.create()
        await rig.until(lambda: runs.reasons)
        broken.remove()
        job = await rig.ended(id)
    sent = [claim.time for claim in rig.provider.claimed]
    assert runs.cancelled == about(sent[0] + DEADLINE)
    assert runs.reasons == ["lease-lost"]
    assert min(left) >= LEASE - DEADLINE - 1e-6
    assert (job.status, job.attempts, job.hand_backs) == (COMPLETED, 1, 1)
    assert (len(runs.started), runs.most) == (2, 1)
    assert len(rig.provider.made("finish_job")) == 1


async def test_a_renewal_that_errs_changes_nothing_and_is_repeated(rig: Rig) -> None:
    """After a twentieth of the lease at most, with jitter; the job never notices."""
    rig.provider.fail("renew_lease", times=4, error=OSError("no route"))
    job = await rig.outcome_of(sleeping(2 * LEASE))
    times = rig.provider.times("renew_lease", job.id)
    pauses = gaps(times[:5])
    assert all(LEASE / 40 <= gap <= LEASE / 20 for gap in pauses)
    assert len(set(pauses)) == 4
    assert (job.status, job.attempts) == (COMPLETED, 1)
    assert rig.log.count("job.renew-failed", job.id) == 4


async def test_a_renewal_without_an_answer_is_repeated_after_a_sixth_of_the_lease(
    rig: Rig,
) -> None:
    """Early enough for several more before the deadline."""
    rig.provider.hang("renew_lease", times=1)
    job = await rig.outcome_of(sleeping(2 * LEASE))
    first, second = rig.provider.times("renew_lease", job.id)[:2]
    assert 5 + LEASE / 40 <= second - first <= 5 + LEASE / 20 + 1e-6
    assert (job.status, job.attempts) == (COMPLETED, 1)


async def test_a_killed_renewal_task_ends_its_job_at_once_and_no_other(rig: Rig) -> None:
    """The nursery takes the handler along; the job is handed back and gives one result."""
    victim, neighbour = Runs(25), Runs(25)
    async with rig.running(handler(victim), handler(neighbour, "other")):
        id = await rig.create()
        other = await rig.create("other")
        rig.provider.kill_renewals(job=id, times=1)
        job, spared = await rig.ended(id), await rig.ended(other)
    first = rig.provider.times("renew_lease", id)[0]
    assert (victim.cancelled, victim.reasons) == (about(first), ["lease-lost"])
    assert (job.status, job.attempts, len(victim.started)) == (COMPLETED, 1, 2)
    assert (spared.status, neighbour.cancelled) == (COMPLETED, [])
    assert rig.log.count("job.renewal-died", id) == 1
    assert len(rig.provider.made("finish_job", id)) == 1


async def test_a_renewal_killed_after_the_handler_returned_costs_no_result(rig: Rig) -> None:
    """What was returned in time is recorded, however the task beside it ended."""

    async def body(context: JobContext) -> JobOutput:
        await trio.sleep(THIRD + 1)
        return DONE

    class Dies(BaseException):
        pass

    async def dying(*args: object) -> None:
        try:
            await trio.sleep(3)
        finally:
            raise Dies

    rig.memory.renew_lease = dying  # type: ignore[method-assign, assignment]
    job = await rig.outcome_of(body)
    assert (job.status, job.attempts, job.hand_backs) == (COMPLETED, 1, 0)
    assert rig.log.count("job.late") == 0


async def test_a_cancel_ends_the_handler_at_once(rig: Rig) -> None:
    """The notification makes a renewal due, and its answer cancels the scope."""
    runs = Runs()
    async with rig.running(handler(runs)):
        id = await rig.create()
        await runs.begun.wait()
        await trio.sleep(3)
        asked = trio.current_time()
        await rig.cancel(id)
        await rig.until(lambda: rig.job(id).locked_by is None)
        assert trio.current_time() == pytest.approx(asked)
    assert runs.reasons == ["cancelled"]
    assert rig.job(id).status is CANCELLED
    assert rig.log.fields("job.dropped", id)[0]["reason"] == "cancelled"


async def test_a_cancel_without_its_notification_ends_the_handler_at_the_next_renewal(
    rig: Rig,
) -> None:
    """Notifications are hints."""
    runs = Runs()
    async with rig.running(handler(runs)):
        id = await rig.create()
        await runs.begun.wait()
        await trio.sleep(3)
        await rig.cancel_unheard(id)
        await rig.until(lambda: runs.reasons)
    assert (runs.reasons, runs.cancelled) == (["cancelled"], about(runs.started[0] + THIRD))


async def test_a_forged_cancel_notification_only_makes_a_renewal_due(rig: Rig) -> None:
    """Only the renewal's answer is believed."""
    runs = Runs(5)
    async with rig.running(handler(runs)):
        id = await rig.create()
        await runs.begun.wait()
        rig.memory._watchers.cancelled(id)
        rig.memory._watchers.cancelled("no-such-job")
        job = await rig.ended(id)
    assert (job.status, runs.cancelled) == (COMPLETED, [])
    assert len(rig.provider.made("renew_lease", id)) == 1


async def test_a_cancel_while_a_renewal_is_under_way_is_asked_about_again(rig: Rig) -> None:
    """The one under way may have been answered before the cancel was recorded."""
    runs = Runs()
    rig.provider.delay_answer("renew_lease", 4, times=1)
    async with rig.running(handler(runs)):
        id = await rig.create()
        await runs.begun.wait()
        await trio.sleep(THIRD + 1)
        await rig.cancel(id)
        await rig.until(lambda: runs.reasons)
    sent = rig.provider.claimed[0].time
    assert runs.cancelled == about(sent + THIRD + 4)


async def test_all_leases_are_asked_about_when_notifications_flow_again(rig: Rig) -> None:
    """A cancel may have been missed in between."""
    runs = Runs()
    async with rig.running(handler(runs), max_concurrent_jobs=5):
        ids = await rig.create_many(3)
        await rig.until(lambda: len(runs.started) == 3)
        await rig.cancel_unheard(ids[1])
        at = trio.current_time()
        rig.restore_watch()
        await rig.until(lambda: runs.reasons)
        assert runs.cancelled == about(at)
    assert {call.id for call in rig.provider.made("renew_lease")} == set(ids)


async def test_a_job_past_its_expiry_is_ended_with_that_reason(rig: Rig) -> None:
    """It is over: its row is released, and nothing is recorded."""
    runs = Runs()
    async with rig.running(handler(runs)):
        id = await rig.create(retention=THIRD + 5)
        await rig.until(lambda: runs.reasons and rig.job(id).locked_by is None)
        sent = rig.provider.claimed[0].time
        assert (runs.reasons, runs.cancelled) == (["expired"], about(sent + 2 * THIRD))
        assert rig.job(id).status is CANCELLED
        assert rig.log.fields("job.dropped", id)[0]["reason"] == "expired"
    assert not rig.provider.made("finish_job")


async def test_a_job_that_was_taken_over_is_left_alone(rig: Rig) -> None:
    """Once its renewal says so the handler ends, and the row is not touched again."""
    runs = Runs()
    async with rig.running(handler(runs)):
        id = await rig.create()
        await runs.begun.wait()
        rig.take_over(id)
        await rig.until(lambda: runs.reasons)
        await trio.sleep(LEASE - 1)
        assert rig.job(id).locked_by == "other/1-zzzzzzzz"
    sent = rig.provider.claimed[0].time
    assert (runs.reasons, runs.cancelled) == (["lease-lost"], about(sent + THIRD))
    assert rig.provider.times("renew_lease", id) == about(sent + THIRD)
    assert not rig.provider.made("finish_job")
    assert not rig.provider.made("release_job")
    assert rig.log.fields("job.dropped", id)[0]["reason"] == "lease-lost"


async def test_a_context_tells_attempt_claim_and_cancellation(rig: Rig) -> None:
    """The attempt counts from 1, the claim's name is new each time, the reason stands."""
    runs = Runs(1)

    async def body(context: JobContext) -> JobOutput:
        contexts.append(context)
        if context.attempt == 1:
            rig.take_over(context.job.id)
            await trio.sleep_forever()
        return await runs(context)

    contexts: list[JobContext] = []
    async with rig.running(handler(body)):
        await rig.ended(await rig.create())
    first, second = contexts
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.claim != second.claim
    assert {len(first.claim), len(second.claim)} == {8}
    assert (first.is_cancelled, str(first.cancel_reason)) == (True, "lease-lost")
    assert (second.is_cancelled, second.cancel_reason) == (False, None)


async def test_code_that_asks_is_told_at_the_deadline_without_a_checkpoint(rig: Rig) -> None:
    """A handler that cannot be cancelled still learns that its lease is over."""

    async def body(context: JobContext) -> JobOutput:
        block(DEADLINE - 0.5)
        seen.append(context.is_cancelled)
        block(1)
        seen.append(context.is_cancelled)
        seen.append(str(context.cancel_reason))
        rig.memory._table.rows[context.job.id].max_attempts = 1
        return DONE

    seen: list[object] = []
    async with rig.running(handler(body)):
        await rig.create()
        await rig.until(lambda: len(seen) >= 3)
    assert seen[:3] == [False, True, "lease-lost"]
