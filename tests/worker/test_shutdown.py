"""Stopping: drain, cancel, hand back, leave."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from hastetrio import (
    AsyncJob,
    AsyncJobStatus,
    AsyncJobWorker,
    AsyncJobWorkerConfig,
    JobContext,
    JobOutput,
)
from hastetrio._provider import WatchEvent

from .harness import DONE, HOUR, KIND, LEASE, THIRD, Rig, Runs, handler, returning

COMPLETED, ACCEPTED = AsyncJobStatus.COMPLETED, AsyncJobStatus.ACCEPTED


async def test_a_stopped_worker_lets_its_jobs_finish_and_takes_no_more(rig: Rig) -> None:
    """The first stop drains; `run()` returns when the last job has been recorded."""
    runs = Runs(10)
    async with rig.running(handler(runs), max_concurrent_jobs=2) as worker:
        ids = await rig.create_many(3)
        await rig.until(lambda: len(runs.started) == 2)
        worker.stop()
        stopped = trio.current_time()
        late = await rig.create()
        await rig.left(worker)
        assert trio.current_time() - stopped == pytest.approx(10, abs=0.01)
        statuses = [rig.job(id).status for id in (*ids, late)]
    assert statuses == [COMPLETED, COMPLETED, ACCEPTED, ACCEPTED]
    assert runs.cancelled == []


async def test_an_idle_worker_leaves_at_once(rig: Rig) -> None:
    """Nothing is waited for."""
    async with rig.running(handler(returning(DONE)), poll_interval=HOUR) as worker:
        await trio.sleep(100)
        worker.stop()
        await rig.left(worker)
        assert trio.current_time() == pytest.approx(100)


async def test_a_wake_up_on_its_way_when_the_worker_stops_is_not_followed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No claim is sent once the worker was told to stop."""
    # One of the workers that wait a moment before they follow it.
    monkeypatch.setattr("hastetrio._claims._WAKE_JITTER", (0.001, 0.002))
    async with rig.running(handler(returning(DONE)), poll_interval=HOUR) as worker:
        await trio.sleep(100)
        before = len(rig.provider.made("claim_jobs"))
        await rig.create()
        await trio.testing.wait_all_tasks_blocked()
        worker.stop()
        await rig.left(worker)
        assert len(rig.provider.made("claim_jobs")) == before


async def test_jobs_that_do_not_finish_in_time_are_cancelled_and_handed_back(rig: Rig) -> None:
    """After `drain_timeout`, with their reason, and with their attempt."""
    runs = Runs()
    async with rig.running(handler(runs), drain_timeout=13) as worker:
        id = await rig.create(max_attempts=1)
        await runs.begun.wait()
        worker.stop()
        stopped = trio.current_time()
        await rig.left(worker)
    assert runs.cancelled == pytest.approx([stopped + 13])
    assert runs.reasons == ["shutdown"]
    job = rig.job(id)
    assert (job.status, job.attempts, job.hand_backs, job.locked_by) == (ACCEPTED, 0, 1, None)
    assert rig.log.fields("job.handed-back", id)[0]["reason"] == "shutdown"


async def test_a_second_stop_cancels_at_once(rig: Rig) -> None:
    """Whoever stops twice is in a hurry; a third changes nothing."""
    runs = Runs()
    async with rig.running(handler(runs)) as worker:
        id = await rig.create()
        await runs.begun.wait()
        for _ in range(3):
            worker.stop()
        stopped = trio.current_time()
        await rig.left(worker)
        assert trio.current_time() == pytest.approx(stopped)
    assert (runs.reasons, rig.job(id).status) == (["shutdown"], ACCEPTED)


async def test_a_second_stop_ends_a_drain_that_has_begun(rig: Rig) -> None:
    """It may come at any time."""
    runs = Runs()
    async with rig.running(handler(runs)) as worker:
        await rig.create()
        await runs.begun.wait()
        worker.stop()
        await trio.sleep(5)
        worker.stop()
        stopped = trio.current_time()
        await rig.left(worker)
    assert runs.cancelled == pytest.approx([stopped])


async def test_a_cancelled_run_hands_its_jobs_back(rig: Rig) -> None:
    """Handlers see a reason, not a bare cancellation, and the cancellation goes on its way."""
    runs = Runs()
    worker = AsyncJobWorker(
        rig.provider, [handler(runs)], AsyncJobWorkerConfig(lease_duration=LEASE)
    )
    ids = await rig.create_many(3)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            await nursery.start(worker.run)
            await rig.until(lambda: len(runs.started) == 3)
            scope.cancel()
    assert scope.cancelled_caught
    assert runs.reasons == ["shutdown"] * 3
    assert {rig.job(id).status for id in ids} == {ACCEPTED}
    assert {rig.job(id).attempts for id in ids} == {0}


async def test_a_claim_under_way_when_the_worker_stops_is_handed_back(rig: Rig) -> None:
    """Its jobs are not started, and not left to their lease."""
    runs = Runs()
    rig.provider.delay_answer("claim_jobs", 5)
    async with rig.running(handler(runs)) as worker:
        id = await rig.create()
        await rig.until(
            lambda: rig.job(id).status is AsyncJobStatus.IN_PROGRESS or rig.provider.asked
        )
        await trio.sleep(5.1)
        await rig.wait_for_status(id, AsyncJobStatus.IN_PROGRESS)
        worker.stop()
        await rig.left(worker)
    job = rig.job(id)
    assert (job.status, job.attempts, runs.started) == (ACCEPTED, 0, [])


async def test_a_claim_unanswered_when_the_worker_stops_is_forgotten(rig: Rig) -> None:
    """The last chance to hand back what it took."""
    rig.provider.drop_wakeups()
    async with rig.running(handler(returning(DONE)), poll_interval=5) as worker:
        # Virtual time: past the claim that every worker begins with.
        await trio.sleep(1)
        rig.provider.drop("claim_jobs")
        id = await rig.create()
        await rig.wait_for_status(id, AsyncJobStatus.IN_PROGRESS)
        worker.stop()
        await rig.left(worker)
    assert (rig.job(id).status, rig.job(id).attempts) == (ACCEPTED, 0)


async def test_a_result_returned_after_the_shutdowns_cancel_is_recorded(rig: Rig) -> None:
    """The lease is still ours; the work is done, why do it twice?"""

    async def body(context: JobContext) -> JobOutput:
        begun.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            reasons.append(str(context.cancel_reason))
            return JobOutput.json("just in time")
        raise AssertionError

    begun, reasons = trio.Event(), list[str]()
    async with rig.running(handler(body)) as worker:
        id = await rig.create()
        await begun.wait()
        worker.stop()
        worker.stop()
        await rig.left(worker)
    assert (rig.job(id).status, rig.job(id).output) == (COMPLETED, "just in time")
    assert reasons == ["shutdown"]
    assert rig.log.fields("job.late", id)[0]["reason"] == "shutdown"


async def test_an_error_raised_after_the_shutdowns_cancel_is_no_result(rig: Rig) -> None:
    """The job is handed back and runs elsewhere; the error is logged."""

    async def body(context: JobContext) -> JobOutput:
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            raise OSError("connection closed")

    begun = trio.Event()
    async with rig.running(handler(body)) as worker:
        id = await rig.create()
        await begun.wait()
        worker.stop()
        worker.stop()
        await rig.left(worker)
    assert (rig.job(id).status, rig.job(id).attempts) == (ACCEPTED, 0)
    assert rig.log.count("job.raised", id) == 1


async def test_while_the_worker_drains_leases_are_renewed_and_cancels_are_heard(rig: Rig) -> None:
    """Until the last handler has left."""
    runs = Runs(2 * LEASE - 1)
    async with rig.running(handler(runs), drain_timeout=HOUR) as worker:
        stays, goes = await rig.create_many(2)
        await rig.until(lambda: len(runs.started) == 2)
        worker.stop()
        await trio.sleep(LEASE + 3)
        asked = trio.current_time()
        await rig.cancel(goes)
        await rig.until(lambda: runs.reasons)
        assert runs.reasons == ["cancelled"]
        assert runs.cancelled == pytest.approx([asked])
        await rig.left(worker)
    assert rig.job(stays).status is COMPLETED
    assert len(rig.provider.made("renew_lease", stays)) == 5


async def test_run_waits_for_a_stuck_handler_and_statistics_name_it(rig: Rig) -> None:
    """Its lease goes on being renewed: nobody else starts the job beside it."""

    async def body(context: JobContext) -> JobOutput:
        begun.set()
        with trio.CancelScope(shield=True):
            await go.wait()
        return DONE

    begun, go = trio.Event(), trio.Event()
    async with rig.running(handler(body)) as worker:
        id = await rig.create()
        await begun.wait()
        assert worker.statistics().unwinding == ()
        worker.stop()
        worker.stop()
        try:
            await trio.sleep(HOUR)
            assert not rig.has_left(worker)
            assert worker.statistics().unwinding == (id,)
            assert rig.lease_left(id) > 0
        finally:
            go.set()
        await rig.left(worker)
    assert rig.job(id).status is COMPLETED


@pytest.mark.parametrize("fault", ["fail", "hang"])
async def test_a_storage_that_is_away_does_not_hold_up_the_shutdown(rig: Rig, fault: str) -> None:
    """After `cancel_grace` the worker gives up telling it; the leases lapse."""
    runs = Runs()
    async with rig.running(handler(runs), cancel_grace=4) as worker:
        ids = await rig.create_many(3)
        await rig.until(lambda: len(runs.started) == 3)
        # Virtual time, past the claims that the notifications led to: one that is out when the
        # storage goes is asked about once more, within a call's budget.
        await trio.sleep(0.2)
        with rig.outage(hang=fault == "hang"):
            worker.stop()
            worker.stop()
            stopped = trio.current_time()
            await rig.left(worker)
        assert trio.current_time() - stopped <= 4.01
        assert worker.statistics().totals.unrecorded == 3
    assert runs.reasons == ["shutdown"] * 3
    assert {rig.job(id).status for id in ids} == {AsyncJobStatus.IN_PROGRESS}
    assert rig.log.count("job.record-failed") == 3


async def test_results_that_cannot_be_recorded_are_given_up_after_drain_and_grace(
    rig: Rig,
) -> None:
    """A drain does not wait for ever for a storage that is away."""
    runs = Runs(1)
    rig.provider.fail("finish_job")
    async with rig.running(handler(runs), drain_timeout=10, cancel_grace=4) as worker:
        id = await rig.create()
        await rig.until(lambda: rig.provider.made("finish_job"))
        worker.stop()
        stopped = trio.current_time()
        await rig.left(worker)
        assert trio.current_time() - stopped == pytest.approx(14, abs=0.01)
    assert rig.log.count("job.record-failed", id) == 1


async def test_a_handler_that_leaves_after_the_grace_still_gets_one_try(rig: Rig) -> None:
    """The storage may well be there: only the patience is over."""

    async def body(context: JobContext) -> JobOutput:
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(60)
        raise AssertionError

    begun = trio.Event()
    async with rig.running(handler(body)) as worker:
        id = await rig.create()
        await begun.wait()
        worker.stop()
        worker.stop()
        await rig.left(worker)
    assert (rig.job(id).status, rig.job(id).attempts) == (ACCEPTED, 0)


async def test_sweeps_that_hang_do_not_hold_up_the_shutdown(rig: Rig) -> None:
    """They end with the grace at the latest."""
    rig.provider.hang("fail_abandoned_jobs")
    rig.provider.hang("claim_expired_jobs")
    async with rig.running(handler(returning(DONE))) as worker:
        await trio.sleep(1)
        worker.stop()
        worker.stop()
        await rig.left(worker)
        assert trio.current_time() <= 1 + 5.01


async def test_a_worker_runs_once(rig: Rig) -> None:
    """One that has stopped stays stopped; a second `run()` says so."""
    async with rig.running(handler(returning(DONE))) as worker:
        with pytest.raises(RuntimeError, match="a worker runs once; make another"):
            await worker.run()
        worker.stop()
        await rig.left(worker)
        with pytest.raises(RuntimeError, match="a worker runs once"):
            await worker.run()


async def test_started_gives_the_workers_id_once_it_listens(rig: Rig) -> None:
    """A job queued after that wakes it."""
    worker = AsyncJobWorker(rig.provider, [handler(returning(DONE))], worker_id="me")
    async with trio.open_nursery() as nursery:
        assert await nursery.start(worker.run) == "me"
        assert rig.memory._watchers._watchers
        worker.stop()


async def test_without_notifications_the_worker_starts_all_the_same(rig: Rig) -> None:
    """Behind some poolers they never flow; after 5 s the poll has to do."""

    @asynccontextmanager
    async def silent(
        kinds: Collection[str],
    ) -> AsyncGenerator[trio.MemoryReceiveChannel[WatchEvent]]:
        send, receive = trio.open_memory_channel[WatchEvent](1)
        with send, receive:
            yield receive

    rig.memory.watch = silent  # type: ignore[method-assign]
    async with rig.running(handler(returning(DONE))):
        assert trio.current_time() == pytest.approx(5)
        assert (await rig.ended(await rig.create())).status is COMPLETED


async def test_a_worker_stopped_while_it_waits_for_notifications_leaves_at_once(rig: Rig) -> None:
    """It does not wait for what it no longer needs."""

    @asynccontextmanager
    async def silent(
        kinds: Collection[str],
    ) -> AsyncGenerator[trio.MemoryReceiveChannel[WatchEvent]]:
        send, receive = trio.open_memory_channel[WatchEvent](1)
        with send, receive:
            yield receive

    rig.memory.watch = silent  # type: ignore[method-assign]
    worker = AsyncJobWorker(rig.provider, [handler(returning(DONE))])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        await trio.sleep(1)
        worker.stop()
    assert trio.current_time() == pytest.approx(1)


async def test_a_watch_that_fails_is_begun_again(rig: Rig) -> None:
    """Whatever it raised; the poll goes on in the meantime."""
    watch, failures = rig.memory.watch, list[int]()

    @asynccontextmanager
    async def failing(
        kinds: Collection[str],
    ) -> AsyncGenerator[trio.MemoryReceiveChannel[WatchEvent]]:
        async with watch(kinds) as events:
            if len(failures) < 3:
                failures.append(1)
                raise OSError("no route")
            yield events

    rig.memory.watch = failing  # type: ignore[method-assign]
    async with rig.running(handler(returning(DONE)), poll_interval=HOUR):
        await trio.sleep(60)
        asked = trio.current_time()
        await rig.ended(await rig.create())
        assert trio.current_time() - asked < 0.01
    assert rig.log.fields("watch.failed") == [{"error": "OSError: no route"}] * 3


async def test_a_watch_that_breaks_while_it_ends_does_not_spoil_the_shutdown(rig: Rig) -> None:
    """Its last words come in a group with the cancellation."""
    watch = rig.memory.watch

    @asynccontextmanager
    async def breaking(
        kinds: Collection[str],
    ) -> AsyncGenerator[trio.MemoryReceiveChannel[WatchEvent]]:
        async def breaks() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise OSError("connection closed")

        async with watch(kinds) as events, trio.open_nursery() as nursery:
            nursery.start_soon(breaks)
            yield events

    rig.memory.watch = breaking  # type: ignore[method-assign]
    async with rig.running(handler(returning(DONE))) as worker:
        id = await rig.create()
        await rig.ended(id)
        worker.stop()
        await rig.left(worker)
    assert rig.job(id).status is COMPLETED


async def test_a_worker_stopped_before_it_runs_starts_no_job(rig: Rig) -> None:
    """It leaves at once, and the queue is as it was."""
    runs = Runs()
    id = await rig.create()
    worker = AsyncJobWorker(rig.provider, [handler(runs)])
    worker.stop()
    with trio.fail_after(1):
        await worker.run()
    assert (rig.job(id).status, rig.job(id).attempts, runs.started) == (ACCEPTED, 0, [])


async def test_a_worker_run_in_a_cancelled_scope_leaves_at_once(rig: Rig) -> None:
    """Nothing it took is left behind."""
    runs = Runs()
    id = await rig.create()
    worker = AsyncJobWorker(rig.provider, [handler(runs)])
    with trio.CancelScope() as scope:
        scope.cancel()
        await worker.run()
    assert scope.cancelled_caught
    assert trio.current_time() < 1
    assert (rig.job(id).status, rig.job(id).attempts) == (ACCEPTED, 0)


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), BaseExceptionGroup("x", [ValueError(), KeyboardInterrupt()])],
    ids=["alone", "group"],
)
async def test_a_keyboard_interrupt_hands_all_jobs_back_and_leaves_run(
    rig: Rig, error: BaseException
) -> None:
    """It is the person at the keyboard who speaks, not the handler."""
    neighbour = Runs()

    async def body(context: JobContext) -> JobOutput:
        await neighbour.begun.wait()
        raise error

    worker = AsyncJobWorker(rig.provider, [handler(body), handler(neighbour, "other")])
    ids = [await rig.create(), await rig.create("other")]
    with trio.fail_after(60), pytest.raises(KeyboardInterrupt):
        await worker.run()
    assert neighbour.reasons == ["shutdown"]
    assert [rig.job(id).status for id in ids] == [ACCEPTED, ACCEPTED]
    assert [rig.job(id).attempts for id in ids] == [0, 0]
    assert rig.log.fields("job.handed-back", ids[0])[0]["reason"] == "interrupted"


async def test_a_keyboard_interrupt_in_a_clean_up_leaves_run_too(rig: Rig) -> None:
    """The row is released for the next sweep."""

    async def expire(job: AsyncJob) -> None:
        raise KeyboardInterrupt

    id = rig.insert_expired()
    worker = AsyncJobWorker(rig.provider, [handler(returning(DONE), KIND, expire)])
    with trio.fail_after(60), pytest.raises(KeyboardInterrupt):
        await worker.run()
    assert rig.job(id).locked_by is None


async def test_a_job_handed_back_by_one_worker_is_run_by_the_next(rig: Rig) -> None:
    """At once: the hand-back wakes it."""
    runs = Runs(THIRD)
    async with rig.running(handler(runs), worker_id="one", max_concurrent_jobs=1) as worker:
        id = await rig.create()
        await runs.begun.wait()
        async with rig.running(handler(runs), worker_id="two", poll_interval=HOUR):
            worker.stop()
            worker.stop()
            stopped = trio.current_time()
            job = await rig.ended(id)
    assert (job.status, job.attempts, runs.most) == (COMPLETED, 1, 1)
    assert runs.started[1] - stopped < 0.01
    assert str(job.finished_by).startswith("two/")
