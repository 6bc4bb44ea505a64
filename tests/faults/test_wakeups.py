"""Wake-ups that are wrong, too many, or never come: only latency changes."""

from __future__ import annotations

from functools import partial

import psycopg
import trio
from tests.postgres.harness import (
    PROJECT,
    TENANT,
    insert,
    kick_off,
    run,
    statuses,
    until,
    value,
)

from hastetrio import AsyncJobWorker, AsyncJobWorkerConfig
from hastetrio.postgres import PostgresJobProvider

from .bodies import SHORT, Gated, Lines
from .history import History
from .pooler import open_pooler
from .workers import check_untouched, completed, queue, working

_GARBAGE = (
    "SELECT pg_notify(channel, payload) FROM unnest(ARRAY['async_jobs_queued',"
    " 'async_jobs_cancelled', 'async_jobs']) AS c (channel), unnest(ARRAY['', ' ', E'work\\nwork',"
    " '{\"kind\": \"work\"}', 'WORK', repeat('x', 7999), E'\\U0001F4A9', '%s', '\\x00']) AS p"
    " (payload)"
)


async def test_a_flood_and_garbage_only_cost_a_few_claims(
    url: str, history: History, lines: Lines
) -> None:
    """20,000 notifications, half of them lies about the running job: it runs on, and others run."""
    gated = Gated()
    config = AsyncJobWorkerConfig(lease_duration=60, poll_interval=3600)
    async with working(url, gated, config=config) as (_, worker):
        first = insert(url)
        await until(lambda: gated.running)
        before, renewals = worker.statistics().totals.claims, worker.statistics().totals.renewals
        began = trio.current_time()

        def flood() -> None:
            run(url, _GARBAGE)
            run(url, "SELECT pg_notify('async_jobs_cancelled', n::text)"
                " FROM generate_series(1, 10000) n")  # fmt: skip
            # Equal notifications of one transaction are sent once, so each has its own.
            run(
                url,
                "DO $$ BEGIN FOR n IN 1..5000 LOOP PERFORM pg_notify('async_jobs_queued', 'work');"
                f" PERFORM pg_notify('async_jobs_cancelled', '{first}'); COMMIT; END LOOP; END $$",
            )

        await trio.to_thread.run_sync(flood)
        later = insert(url)
        await until(lambda: len(gated.running) == 2)
        await until(lambda: worker.statistics().totals.renewals > renewals)
        gated.gate.set()
        await completed(url, first, later)
        totals = worker.statistics().totals
        # Ten a second that led to nothing, and the last that led to the job.
        assert totals.claims - before <= 10 * (trio.current_time() - began) + 3
        assert totals.renewals < 5000
    assert lines.texts("watch.failed") == lines.texts("claim.failed") == []
    check_untouched(history, url, first, later)


async def test_without_notifications_the_poll_and_the_renewals_do_it_all(
    database_url: str,
) -> None:
    """Switched off for the database, jobs start with the next poll, cancels end with a renewal."""
    name = value(database_url, "SELECT current_database()")
    run(database_url, f"ALTER DATABASE {name} SET hastetrio.notify = 'off'")
    gated = Gated()
    async with working(database_url, gated, config=SHORT) as (provider, _):
        heard: list[object] = []
        with psycopg.connect(database_url, autocommit=True) as listener:
            listener.execute("LISTEN async_jobs_queued")
            listener.execute("LISTEN async_jobs_cancelled")
            listener.add_notify_handler(heard.append)
            job = await provider.create_job(TENANT, PROJECT, kick_off())
            await until(lambda: gated.running)
            await provider.cancel_job(TENANT, PROJECT, job.id)
            await until(lambda: gated.ended)
            gated.gate.set()
            ids = [(await provider.create_job(TENANT, PROJECT, kick_off())).id for _ in range(5)]
            await completed(database_url, *ids)
            listener.execute("SELECT 1")
        assert heard == []
    assert [str(run.reason) for run in gated.ended] == ["cancelled", *["None"] * 5]


def has_renewed(worker: AsyncJobWorker, times: int) -> bool:
    """Whether a worker has renewed so often."""
    return worker.statistics().totals.renewals >= times


async def test_behind_a_pooler_without_sessions_all_works_but_wake_ups(
    url: str, history: History, lines: Lines
) -> None:
    """No statement relies on the connection of the one before; nothing fails, two workers share."""
    gated, other = Gated(), Gated()
    async with open_pooler(url) as pooler:
        async with (
            PostgresJobProvider.open(pooler.url, prepared_statements=False) as provider,
            PostgresJobProvider.open(pooler.url, prepared_statements=False) as second,
            trio.open_nursery() as nursery,
        ):
            workers = [
                AsyncJobWorker(provider, [gated], SHORT),
                AsyncJobWorker(second, [other], SHORT),
            ]
            for worker in workers:
                await nursery.start(worker.run)
            (cancelled,) = queue(url)
            await until(lambda: gated.running or other.running)
            assert await provider.cancel_job(TENANT, PROJECT, cancelled) is not None
            await until(lambda: gated.ended or other.ended)
            ids = [*queue(url, number=8)]
            await until(lambda: len(gated.running) + len(other.running) == 8)
            for worker in workers:
                await until(partial(has_renewed, worker, 10))
            gated.gate.set()
            other.gate.set()
            more = queue(url, number=30)
            await completed(url, *ids, *more)
            for worker in workers:
                worker.stop()
        assert pooler.switched > 5
    for event in ("claim.failed", "job.renew-failed", "job.record-retried", "sweep.failed"):
        assert lines.texts(event) == []
    assert statuses(url, [cancelled]) == ["cancelled"]
    assert history.ran_once([*ids, *more])
