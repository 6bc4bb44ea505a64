"""Wake-ups: sent for what became claimable or was cancelled, and harmless whatever they say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
import trio

from hastetrio._provider import JobCancelled, JobQueued, WatchEvent, WatchRestored
from hastetrio.postgres import PostgresJobProvider

from .harness import (
    KIND,
    PROJECT,
    TENANT,
    insert,
    kick_off,
    new_lease,
    run,
    sessions,
    until,
    value,
)
from .relay import Relay

Events = trio.MemoryReceiveChannel[WatchEvent]


@asynccontextmanager
async def watching(provider: PostgresJobProvider, *kinds: str) -> AsyncIterator[Events]:
    """Events of these kinds, after the first, which says that they flow."""
    async with provider.watch(kinds) as events:
        with trio.fail_after(10):
            assert await events.receive() == WatchRestored()
        yield events


async def receive(events: Events) -> WatchEvent:
    """The next event."""
    with trio.fail_after(10):
        return await events.receive()


async def rest(events: Events, url: str) -> list[WatchEvent]:
    """All events up to now; what was sent before this call comes before its own."""
    insert(url, "the end")
    found = []
    while (event := await receive(events)) != JobQueued("the end"):
        found.append(event)
    return found


async def test_each_way_of_queueing_wakes_once_a_kind(
    provider: PostgresJobProvider, url: str
) -> None:
    """One job, many at once, rows by plain SQL: each statement is one event for each kind."""
    async with watching(provider, KIND, "other", "the end") as events:
        await provider.create_job(TENANT, PROJECT, kick_off())
        assert await rest(events, url) == [JobQueued(KIND)]
        await provider.create_jobs(TENANT, PROJECT, [kick_off() for _ in range(20)])
        assert await rest(events, url) == [JobQueued(KIND)]
        run(
            url,
            "INSERT INTO async_jobs (tenant, project, kind) SELECT 'acme', 'main',"
            " CASE WHEN n % 2 = 0 THEN 'work' ELSE 'other' END FROM generate_series(1, 5000) n",
        )
        assert sorted(await rest(events, url), key=repr) == [JobQueued("other"), JobQueued(KIND)]


async def test_rows_that_are_not_queued_wake_nobody(
    provider: PostgresJobProvider, url: str
) -> None:
    """A finished row that is copied in, or a kind that nobody asked for, is no event."""
    async with watching(provider, KIND, "the end") as events:
        insert(url, status="'completed'")
        insert(url, "no kind of ours")
        assert await rest(events, url) == []


async def test_a_hand_back_and_a_forgotten_claim_wake(
    provider: PostgresJobProvider, url: str
) -> None:
    """A job that is queued again is an event like a new one; its renewal and its end are none."""
    async with watching(provider, KIND, "the end") as events:
        job = await provider.create_job(TENANT, PROJECT, kick_off())
        assert await rest(events, url) == [JobQueued(KIND)]
        for forget in (False, True):
            lease = new_lease()
            await provider.claim_jobs([KIND], lease, 1)
            await provider.renew_lease(job.id, lease)
            assert await rest(events, url) == []
            if forget:
                assert await provider.forget_claim(lease) == 1
            else:
                assert await provider.release_job(job.id, lease)
            assert await rest(events, url) == [JobQueued(KIND)]


async def test_a_job_that_waits_for_its_time_wakes_nobody(
    provider: PostgresJobProvider, url: str
) -> None:
    """However it came to wait; one that is due among those that wait does."""
    async with watching(provider, KIND, "other", "the end") as events:
        later = kick_off(run_at=datetime.now(UTC) + timedelta(hours=1))
        await provider.create_job(TENANT, PROJECT, later)
        await provider.create_jobs(TENANT, PROJECT, [later, later])
        insert(url, run_at="now() + interval '1 second'")
        assert await rest(events, url) == []
        await provider.create_jobs(TENANT, PROJECT, [later, kick_off("other"), later])
        assert await rest(events, url) == [JobQueued("other")]
        insert(url, run_at="now()")
        assert await rest(events, url) == [JobQueued(KIND)]
        insert(url, run_at="now() - interval '1 day'")
        assert await rest(events, url) == [JobQueued(KIND)]


async def test_a_job_that_runs_again_wakes_when_it_is_due_at_once(
    provider: PostgresJobProvider, url: str
) -> None:
    """With a delay, it is nobody's yet; and a job that fails for want of attempts never is."""
    async with watching(provider, KIND, "the end") as events:
        job = await provider.create_job(TENANT, PROJECT, kick_off(max_attempts=2))
        assert await rest(events, url) == [JobQueued(KIND)]
        for after, give_back, heard in (
            (60, True, []),
            (0, True, [JobQueued(KIND)]),
            (0, False, [JobQueued(KIND)]),
            (0, False, []),
        ):
            run(url, "UPDATE async_jobs SET run_at = now() - interval '1 second'")
            lease = new_lease()
            assert len(await provider.claim_jobs([KIND], lease, 1)) == 1
            assert await rest(events, url) == []
            assert await provider.reschedule_job(
                job.id, lease, after, give_back=give_back, retention=60
            )
            assert await rest(events, url) == heard
        assert await provider.retry_job(TENANT, PROJECT, job.id) is not None
        assert await rest(events, url) == [JobQueued(KIND)]


async def test_a_cancel_of_a_running_job_is_heard_by_everybody(
    provider: PostgresJobProvider, url: str
) -> None:
    """Who runs the job need not be known; a cancel of one that waits tells nobody."""
    running = await provider.create_job(TENANT, PROJECT, kick_off())
    await provider.claim_jobs([KIND], new_lease(), 1)
    waiting = await provider.create_job(TENANT, PROJECT, kick_off())
    async with watching(provider, "the end") as events, watching(provider, "none") as others:
        await provider.cancel_job(TENANT, PROJECT, waiting.id)
        await provider.cancel_job(TENANT, PROJECT, running.id)
        assert await rest(events, url) == [JobCancelled(running.id)]
        assert await receive(others) == JobCancelled(running.id)


async def test_a_rolled_back_job_wakes_nobody(provider: PostgresJobProvider, url: str) -> None:
    """Only what was committed is told."""
    async with watching(provider, KIND, "the end") as events:
        run(
            url,
            "BEGIN; INSERT INTO async_jobs (tenant, project, kind) VALUES ('a', 'b', 'work');"
            " ROLLBACK",
        )
        assert await rest(events, url) == []


async def test_notifications_can_be_switched_off_for_a_database(database_url: str) -> None:
    """With hastetrio.notify off nothing is sent, for inserts as for cancels, and all else works."""
    name = value(database_url, "SELECT current_database()")
    run(database_url, f"ALTER DATABASE {name} SET hastetrio.notify = 'off'")
    async with (
        PostgresJobProvider.open(database_url) as provider,
        watching(provider, KIND, "the end") as events,
    ):
        job = await provider.create_job(TENANT, PROJECT, kick_off())
        assert len(await provider.claim_jobs([KIND], new_lease(), 1)) == 1
        await provider.cancel_job(TENANT, PROJECT, job.id)
        run(database_url, f"ALTER DATABASE {name} RESET hastetrio.notify")
        # From here on they are sent: the end is the first that is.
        assert await rest(events, database_url) == []


async def test_garbage_on_the_channels_is_ignored(provider: PostgresJobProvider, url: str) -> None:
    """Payloads that name no kind of ours, or nothing, are dropped; ids are only hints."""
    async with watching(provider, KIND, "the end") as events:
        for payload in ("", " ", "WORK", "work ", "work\nwork", '{"kind": "work"}', "x" * 7999):
            run(url, "SELECT pg_notify('async_jobs_queued', %s)", [payload])
        run(url, "SELECT pg_notify('async_jobs_cancelled', '')")
        run(url, "SELECT pg_notify('async_jobs', 'work')")
        assert await rest(events, url) == []
        run(url, "SELECT pg_notify('async_jobs_cancelled', '\N{PILE OF POO} no such job')")
        assert await rest(events, url) == [JobCancelled("\N{PILE OF POO} no such job")]


async def test_an_interrupted_watch_says_when_it_is_restored(
    provider: PostgresJobProvider, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After its connection was ended, events flow again, behind a word that some may be missing."""
    async with watching(provider, KIND, "the end") as events:
        for _ in range(2):
            ((pid, _),) = sessions(url)
            run(url, "SELECT pg_terminate_backend(%s, 5000)", [pid])
            assert await receive(events) == WatchRestored()
            insert(url)
            assert await rest(events, url) == [JobQueued(KIND)]
    assert len(caplog.records) == 2
    assert not any("\n" in record.getMessage() for record in caplog.records)


async def test_a_watch_outlives_a_server_that_is_away(url: str, relay: Relay) -> None:
    """It tries again until it is answered, whether connections are cut or never answered."""
    async with (
        PostgresJobProvider.open(relay.url, call_budget=0.3) as provider,
        watching(provider, KIND) as events,
    ):
        relay.stall()
        relay.cut()
        attempts = relay.accepted
        await until(lambda: relay.accepted > attempts)
        insert(url)
        relay.resume()
        assert await receive(events) == WatchRestored()
        insert(url)
        assert await receive(events) == JobQueued(KIND)


async def test_a_silent_watch_is_found_out_by_its_probe(
    url: str, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half-open connection shows nothing; a question now and then tells."""
    from hastetrio.postgres import _listen

    monkeypatch.setattr(_listen, "_PROBE_INTERVAL", 0.05)
    async with (
        PostgresJobProvider.open(relay.url, call_budget=0.5) as provider,
        watching(provider, KIND) as events,
    ):
        insert(url)
        assert await receive(events) == JobQueued(KIND)
        relay.stall()
        attempts = relay.accepted
        await until(lambda: relay.accepted > attempts)
        relay.resume()
        assert await receive(events) == WatchRestored()


async def test_a_reader_that_is_slow_misses_no_kind(
    provider: PostgresJobProvider, url: str
) -> None:
    """More events than the channel holds wait for their reader; equal ones are told once."""
    kinds = [f"kind-{n}" for n in range(300)]
    async with watching(provider, *kinds, "the end") as events:
        for _ in range(3):
            for start in range(0, 300, 100):
                run(
                    url,
                    "INSERT INTO async_jobs (tenant, project, kind)"
                    " SELECT 'acme', 'main', unnest(%s::text[])",
                    [kinds[start : start + 100]],
                )
        found = await rest(events, url)
    assert {event.kind for event in found if isinstance(event, JobQueued)} == set(kinds)


async def test_a_watch_that_ends_leaves_no_connection(url: str) -> None:
    """Leaving the block, or being cancelled in it, closes the connection."""
    async with PostgresJobProvider.open(url) as provider:
        async with watching(provider, KIND):
            assert len(sessions(url)) == 1
        with trio.CancelScope() as scope:
            async with watching(provider, KIND):
                scope.cancel()
                await trio.sleep_forever()
        await until(lambda: not sessions(url))
