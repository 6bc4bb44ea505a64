"""Handlers that will not behave: the row always ends recorded, dropped or handed back.

In virtual time, on a memory provider: what a handler does has nothing to do with the storage.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import pytest
import trio
from tests.worker.conftest import run_virtually
from tests.worker.harness import DONE, LEASE, Rig, handler

from hastetrio import AsyncJobStatus, AsyncJobWorker, JobContext, JobOutput

virtually = pytest.mark.trio(run=run_virtually)

Body = Callable[[JobContext], Awaitable[JobOutput]]


class Abort(BaseException):
    """An error of a library that nobody is meant to catch."""


def nested(*errors: BaseException) -> BaseException:
    """These errors in a group in a group."""
    return BaseExceptionGroup("outer", [BaseExceptionGroup("inner", list(errors)), ValueError()])


async def until_cancelled() -> None:
    """Wait for the end."""
    await trio.sleep(10 * LEASE)


async def lets_through(context: JobContext) -> JobOutput:
    """As it should be."""
    await until_cancelled()
    return DONE


async def swallows(context: JobContext) -> JobOutput:
    """Takes its cancellation for an error, and returns."""
    try:
        await until_cancelled()
    except trio.Cancelled:
        return DONE
    return DONE


async def shields(context: JobContext) -> JobOutput:
    """Goes on for two leases after its cancellation."""
    try:
        await until_cancelled()
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(2 * LEASE)
    return DONE


async def swallows_and_shields(context: JobContext) -> JobOutput:
    """Both."""
    with trio.CancelScope(shield=True):
        await trio.sleep(3 * LEASE)
    return DONE


async def raises_while_unwinding(error: BaseException, context: JobContext) -> JobOutput:
    """Its clean-up fails."""
    try:
        await until_cancelled()
    finally:
        raise error


async def raises_in_a_child(error: BaseException, context: JobContext) -> JobOutput:
    """A task of its own fails beside the cancellation."""

    async def child() -> None:
        try:
            await until_cancelled()
        except trio.Cancelled:
            raise error from None

    async with trio.open_nursery() as nursery:
        nursery.start_soon(child)
        nursery.start_soon(until_cancelled)
    return DONE


async def leaves_a_thread(context: JobContext) -> JobOutput:
    """A thread of its own goes on, and reports to a job that is over."""
    thread = threading.Thread(target=lambda: context.report("still here"), daemon=True)
    try:
        await until_cancelled()
    finally:
        thread.start()
        thread.join()
    return DONE


async def leaves_a_system_task(context: JobContext) -> JobOutput:
    """A task outside of its nursery goes on."""

    async def go_on() -> None:
        context.report("still here")
        await trio.sleep(LEASE)
        context.report("still here")

    trio.lowlevel.spawn_system_task(go_on)
    await until_cancelled()
    return DONE


BODIES: Mapping[str, Body] = {
    body.__name__: body
    for body in (
        lets_through,
        swallows,
        shields,
        swallows_and_shields,
        leaves_a_thread,
        leaves_a_system_task,
    )
} | {
    f"{what.__name__}({name})": partial(what, error)
    for what in (raises_while_unwinding, raises_in_a_child)
    for name, error in {
        "error": ValueError("x"),
        "base": Abort(),
        "exit": SystemExit(3),
        "generator exit": GeneratorExit(),
        "group": nested(SystemExit(), KeyError(), Abort()),
        "cancelled too": trio.TooSlowError(),
    }.items()
}


async def is_cancelled(rig: Rig, worker: AsyncJobWorker, id: str) -> None:
    """By its client."""
    await rig.cancel(id)


async def expires(rig: Rig, worker: AsyncJobWorker, id: str) -> None:
    """Its time is over."""
    row = rig.memory._table.rows[id]
    row.expires_at = rig.memory._now()


async def is_taken_over(rig: Rig, worker: AsyncJobWorker, id: str) -> None:
    """By another worker."""
    rig.take_over(id)


async def loses_its_lease(rig: Rig, worker: AsyncJobWorker, id: str) -> None:
    """No renewal gets through, for a while."""
    rig.provider.fail("renew_lease", job=id, times=200)


async def loses_its_renewals(rig: Rig, worker: AsyncJobWorker, id: str) -> None:
    """The task that renews is killed."""
    rig.provider.kill_renewals(job=id, times=1)


async def is_shut_down(rig: Rig, worker: AsyncJobWorker, id: str) -> None:
    """The worker stops, at once."""
    worker.stop()
    worker.stop()


async def goes_on(rig: Rig, worker: AsyncJobWorker, id: str) -> None:
    """Nothing happens at all."""


@virtually
@pytest.mark.parametrize(
    "happens",
    [
        is_cancelled,
        expires,
        is_taken_over,
        loses_its_lease,
        loses_its_renewals,
        is_shut_down,
        goes_on,
    ],
    ids=lambda function: function.__name__,
)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_a_row_always_ends_whatever_its_handler_does(
    rig: Rig, body: Body, happens: Callable[[Rig, AsyncJobWorker, str], Awaitable[None]]
) -> None:
    """Recorded, dropped or handed back, once; its slot is free, and the worker goes on."""
    runs = 0

    async def first_misbehaves(context: JobContext) -> JobOutput:
        nonlocal runs
        runs += 1
        if runs > 1:
            return DONE
        return await body(context)

    made = handler(first_misbehaves)
    async with rig.running(made, max_concurrent_jobs=1, cancel_grace=1) as worker:
        id = await rig.create()
        await rig.until(lambda: runs)
        await happens(rig, worker, id)
        if happens is is_shut_down:
            await rig.left(worker)
        else:
            await rig.until(lambda: not rig.exists(id) or _has_ended(rig, id), 100 * LEASE)
            # The one slot is free again.
            await rig.ended(await rig.create())
    if happens in (is_cancelled, expires):
        assert runs == 2
        assert not rig.exists(id) or rig.job(id).status is AsyncJobStatus.CANCELLED
        assert rig.log.count("job.dropped", id) == 1
    elif happens is is_taken_over:
        assert (rig.job(id).locked_by or "").startswith("other/")
        assert rig.log.count("job.dropped", id) == 1
    elif happens is is_shut_down and rig.job(id).status is AsyncJobStatus.ACCEPTED:
        assert (rig.job(id).locked_by, rig.job(id).attempts) == (None, 0)
    else:
        assert rig.job(id).status in (AsyncJobStatus.COMPLETED, AsyncJobStatus.FAILED)
        assert rig.log.count("job.finished", id) == 1
        # Without a reason to leave, its one run is what is recorded.
        assert happens is not goes_on or runs == 2
    assert worker.statistics().unwinding == ()
    assert worker.statistics().held == 0
    assert worker.statistics().free == 1


def _has_ended(rig: Rig, id: str) -> bool:
    job = rig.job(id)
    return not job.status.is_live or (job.locked_by or "").startswith("other/")
