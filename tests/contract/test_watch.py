"""Watching: the hints that wake a worker before its next poll."""

from __future__ import annotations

import trio

from hastetrio._model import JobResult
from hastetrio._provider import JobCancelled, JobQueued, WatchEvent, WatchRestored

from ._world import DAY, KIND, PROJECT, TENANT, World, kick_off, new_lease


async def heard(channel: trio.MemoryReceiveChannel[WatchEvent], wanted: WatchEvent) -> None:
    """Wait until the event arrives; others may come before it."""
    with trio.fail_after(20):
        async for event in channel:
            if event == wanted:
                return
    raise AssertionError(f"the channel ended before {wanted}")


async def test_a_watch_begins_with_word_that_it_works(world: World) -> None:
    """A watcher that waits for the first event has missed nothing after it."""
    async with world.provider.watch([KIND]) as events:
        with trio.fail_after(20):
            assert await events.receive() == WatchRestored()


async def test_a_new_job_wakes_who_watches_its_kind(world: World) -> None:
    """One watcher hears of its own kinds, and not of others."""
    async with world.provider.watch(["mine", "also-mine"]) as events:
        await heard(events, WatchRestored())
        await world.create("other")
        await world.create("mine")
        with trio.fail_after(20):
            assert await events.receive() == JobQueued("mine")
        await world.provider.create_jobs(TENANT, PROJECT, [kick_off("also-mine")] * 3)
        await heard(events, JobQueued("also-mine"))


async def test_a_foreign_row_wakes_who_watches_its_kind(world: World) -> None:
    """A job that another program inserts is heard of like one that was created here."""
    async with world.provider.watch([KIND]) as events:
        await heard(events, WatchRestored())
        await world.insert_row(tenant=TENANT, project=PROJECT, kind=KIND)
        await heard(events, JobQueued(KIND))


async def test_a_handed_back_job_wakes_who_watches_its_kind(world: World) -> None:
    """A job that is claimable again does not wait for a poll."""
    job, lease = await world.start()
    async with world.provider.watch([KIND]) as events:
        await heard(events, WatchRestored())
        assert await world.provider.release_job(job.id, lease)
        await heard(events, JobQueued(KIND))


async def test_a_forgotten_claim_wakes_who_watches_its_kind(world: World) -> None:
    """Jobs of a claim that was never answered are claimable again, and that is told."""
    _, lease = await world.start()
    async with world.provider.watch([KIND]) as events:
        await heard(events, WatchRestored())
        assert await world.provider.forget_claim(lease) == 1
        await heard(events, JobQueued(KIND))


async def test_a_cancelled_running_job_is_told_of(world: World) -> None:
    """The holder hears of the cancel at once, whichever kinds it watches."""
    job, _ = await world.start()
    async with world.provider.watch(["other"]) as events:
        await heard(events, WatchRestored())
        await world.cancel(job.id)
        await heard(events, JobCancelled(job.id))


async def test_what_makes_no_job_claimable_is_not_told(world: World) -> None:
    """Claims, renewals and results wake nobody: a busy fleet does not wake itself."""
    await world.create()
    async with world.provider.watch([KIND, "last"]) as events:
        await heard(events, WatchRestored())
        lease = new_lease()
        (id,) = await world.claim(lease)
        await world.provider.renew_lease(id, lease, "half")
        await world.provider.finish_job(id, lease, JobResult.completed(1), DAY)
        await world.create("last")
        with trio.fail_after(20):
            assert await events.receive() == JobQueued("last")


async def test_every_watcher_hears_every_event(world: World) -> None:
    """Watchers do not take events from each other."""
    async with world.provider.watch([KIND]) as one, world.provider.watch([KIND]) as other:
        await heard(one, WatchRestored())
        await heard(other, WatchRestored())
        await world.create()
        await heard(one, JobQueued(KIND))
        await heard(other, JobQueued(KIND))


async def test_a_watcher_that_does_not_read_holds_up_nobody(world: World) -> None:
    """Calls go on while a watcher sleeps, and other watchers hear all the same."""
    async with world.provider.watch([KIND]), world.provider.watch([]) as awake:
        await heard(awake, WatchRestored())
        for _ in range(5):
            jobs = await world.provider.create_jobs(TENANT, PROJECT, [kick_off()] * 40)
            assert len(jobs) == 40
        for _ in range(150):
            job, _ = await world.start(kind="other")
            await world.cancel(job.id)
            await heard(awake, JobCancelled(job.id))


async def test_a_watch_that_ended_leaves_nothing_behind(world: World) -> None:
    """After the block a reader sees the end, and calls go on as before."""
    async with world.provider.watch([KIND]) as events:
        await heard(events, WatchRestored())
    with trio.fail_after(20):
        try:
            while True:
                await events.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            pass
    await world.create()
