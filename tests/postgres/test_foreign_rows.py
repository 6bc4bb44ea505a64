"""Rows that other programs wrote: what cannot be read or stored fails alone."""

from __future__ import annotations

import json

import pytest
import trio

from hastetrio import AsyncJob, AsyncJobWorker, AsyncJobWorkerConfig, job_handler
from hastetrio._context import JobContext
from hastetrio._errors import UnstorableValue
from hastetrio._model import JobOutput, JobResult
from hastetrio._outcome import abandoned_outcome
from hastetrio.postgres import PostgresJobProvider

from .harness import (
    KIND,
    PROJECT,
    TENANT,
    column,
    insert,
    kick_off,
    new_lease,
    run,
    statuses,
    until,
    value,
)

# What PostgreSQL stores and Python cannot load, each with the column it stands in.
UNREADABLE = {
    "infinite expiry": {"expires_at": "'infinity'"},
    "infinite past": {"created_at": "'-infinity'"},
    "year 20000": {"created_at": "'20000-01-01'"},
    "year 4000 BC": {"created_at": "'4000-01-01 BC'"},
    "huge integer": {"parameters": "('[1' || repeat('0', 5000) || ']')::jsonb"},
    "huge exponent": {"parameters": "'1e5000'"},
}


def _reads_deep_json() -> bool:
    try:
        json.loads("[" * 5000 + "]" * 5000)
    except RecursionError:
        return False
    return True


# Python 3.12 counts the calls of C apart, and reads all the depth that PostgreSQL stores.
if not _reads_deep_json():
    UNREADABLE |= {
        "deep": {"parameters": "(repeat('[', 5000) || repeat(']', 5000))::jsonb"},
        "deep claims": {"claims": """(repeat('{"a":', 5000) || '1' || repeat('}', 5000))::jsonb"""},
    }

# Odd, but nothing is wrong with it.
ODD_IDS = (
    "a b",
    "../../etc/passwd",
    "a/b?c=d#e",
    "\N{SNOWMAN}\N{PILE OF POO}" * 10,
    "x" * 2000,
    "%s%(id)s{job}",
    "'; DROP TABLE async_jobs; --",
    "-begins-with-a-dash",
    " ",
    "",
    "line\nbreak",
    "a,b",
    '{"a": "b"}',
    "NULL",
    "\\",
    "e\N{COMBINING ACUTE ACCENT}",
)


@job_handler(KIND)
async def work(context: JobContext) -> JobOutput:
    """Answers with what it was given."""
    await trio.lowlevel.checkpoint()
    return JobOutput.json(context.job.parameters)


@work.on_expire
async def remove(job: AsyncJob) -> None:
    """A clean-up, so that expired rows are read."""
    await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("name", UNREADABLE)
async def test_a_row_that_cannot_be_read_fails_alone(
    provider: PostgresJobProvider, url: str, name: str
) -> None:
    """A claim records such a row as failed, and returns its neighbours, the older and the newer."""
    before = insert(url, created_at="now() - interval '2 hours'")
    columns = {"created_at": "now() - interval '1 hour'", **UNREADABLE[name]}
    id = insert(url, **columns)
    after = await provider.create_job(TENANT, PROJECT, kick_off())
    lease = new_lease()
    claimed = [job.id for job in await provider.claim_jobs([KIND], lease, 10)]
    assert claimed == [before, after.id]
    assert statuses(url, [id]) == ["failed"]
    assert column(url, id, "error #>> '{issue,0,code}'") == "processing"
    assert column(url, id, "locked_by") is None
    shown = await provider.read_job(TENANT, PROJECT, id)
    assert shown is not None
    assert (shown.status, shown.error["issue"][0]["code"]) == ("failed", "processing")
    # Its own neighbours' leases are untouched by that.
    assert await provider.finish_job(before, lease, JobResult.completed({}), 60)


async def test_a_job_that_cannot_be_read_is_no_missing_job(
    provider: PostgresJobProvider, url: str
) -> None:
    """It stays visible to its client and in lists, and can be cancelled."""
    id = insert(url, created_at="'infinity'", kind="odd")
    sound = await provider.create_job(TENANT, PROJECT, kick_off())
    shown = await provider.read_job(TENANT, PROJECT, id)
    assert shown is not None
    assert (shown.kind, shown.status, shown.parameters) == ("odd", "accepted", None)
    assert shown.created_at.year == 9999
    assert [job.id for job in await provider.list_jobs(TENANT, PROJECT)] == [id, sound.id]
    with pytest.raises(UnstorableValue, match=f"job {id} was cancelled"):
        await provider.cancel_job(TENANT, PROJECT, id)
    assert statuses(url, [id]) == ["cancelled"]


@pytest.mark.parametrize("limit", [3, 10])
async def test_unreadable_expired_rows_hold_up_no_clean_up(
    provider: PostgresJobProvider, url: str, limit: int
) -> None:
    """The sweep sees past any number of them, in the same round and in the next ones."""
    for _ in range(12):
        insert(url, created_at="'infinity'", expires_at="now() - interval '2 hours'")
    good = [insert(url, expires_at="now() - interval '1 hour'") for _ in range(4)]
    removed: list[str] = []
    while True:
        lease = new_lease(0.7)
        jobs = await provider.claim_expired_jobs([KIND], lease, limit)
        for job in jobs:
            assert await provider.delete_expired_job(job.id, lease)
            removed.append(job.id)
        if len(jobs) < limit:
            break
    assert sorted(removed) == sorted(good)
    # They are left alone for longer than the lease they were looked at under, not for ever.
    held = "SELECT count(*) FROM async_jobs WHERE lease_expires_at > now() + interval '1 hour'"
    assert value(url, held) == 12
    assert value(url, held.replace("1 hour", "7 days")) == 0


async def test_a_retention_beyond_all_time_is_refused_where_it_is_written(url: str) -> None:
    """No later statement, least of all a sweep for everybody, can trip over a row's retention."""
    for retention in ("100000 years", "-1 day", "3651 days"):
        with pytest.raises(Exception, match="async_jobs_retention_in_range"):
            insert(url, retention=f"'{retention}'")
    insert(url, retention="'3650 days'")


async def test_ids_may_be_any_text(provider: PostgresJobProvider, url: str) -> None:
    """Each call of a job's life takes an id as it is, in one batch with all the others."""
    for id in ODD_IDS:
        run(
            url,
            "INSERT INTO async_jobs (id, tenant, project, kind)"
            " VALUES (%s, 'acme', 'main', 'work')",
            [id],
        )
    lease = new_lease()
    jobs = await provider.claim_jobs([KIND], lease, 100, exclude=ODD_IDS[:1])
    assert sorted(job.id for job in jobs) == sorted(ODD_IDS[1:])
    ended: list[str] = []

    async def end(id: str) -> None:
        await provider.renew_lease(id, lease, "progress")
        if len(id) % 2:
            assert await provider.release_job(id, lease)
            assert await provider.cancel_job(TENANT, PROJECT, id) is not None
        else:
            assert await provider.finish_job(id, lease, JobResult.completed({}), 60)
            assert await provider.read_job(TENANT, PROJECT, id) is not None
        ended.append(id)

    async with trio.open_nursery() as nursery:
        for job in jobs:
            nursery.start_soon(end, job.id)
    assert sorted(ended) == sorted(ODD_IDS[1:])


async def test_a_cancel_of_any_id_is_heard(provider: PostgresJobProvider, url: str) -> None:
    """A notification carries an id as it is; one too long for it is cancelled all the same."""
    ids = [id for id in ODD_IDS if id]
    for id in [*ids, "x" * 9000]:
        run(
            url,
            "INSERT INTO async_jobs (id, tenant, project, kind)"
            " VALUES (%s, 'acme', 'main', 'work')",
            [id],
        )
    await provider.claim_jobs([KIND], new_lease(), 100)
    heard = set()
    async with provider.watch([KIND]) as events:
        await events.receive()
        for id in ["x" * 9000, *ids]:
            assert await provider.cancel_job(TENANT, PROJECT, id) is not None
        for _ in [id for id in ids if len(id.encode()) < 2000]:
            heard.add(getattr(await events.receive(), "id", None))
    assert heard == {id for id in ids if len(id.encode()) < 2000}


async def test_kinds_of_any_length_are_inserted_claimed_and_counted(
    provider: PostgresJobProvider, url: str
) -> None:
    """A kind too long for a notification fails no insert and is claimed by its handlers."""
    kind = "k" * 9000
    id = insert(url, kind)
    jobs = await provider.claim_jobs([kind, KIND], new_lease(), 5)
    assert [job.id for job in jobs] == [id]
    overview = await provider.overview()
    assert [count.kind for count in overview.counts] == [kind]


@pytest.mark.parametrize("claims", ["[1, 2]", '"ann"', "null", "true", "12"])
async def test_claims_of_any_shape_reach_the_handler(
    provider: PostgresJobProvider, url: str, claims: str
) -> None:
    """Claims are opaque JSON: those that are no object are handed over as they are."""
    insert(url, claims=f"'{claims}'")
    (job,) = await provider.claim_jobs([KIND], new_lease(), 5)
    assert (
        job.claims
        == {"[1, 2]": [1, 2], '"ann"': "ann", "null": None, "true": True, "12": 12}[claims]
    )


async def test_a_row_without_attempts_is_neither_run_nor_in_the_way(
    provider: PostgresJobProvider, url: str
) -> None:
    """Rows that the checks refuse cannot be inserted, and attempts are counted to the brim."""
    for columns in ({"max_attempts": "0"}, {"max_attempts": "-1"}, {"attempts": "-1"}):
        with pytest.raises(Exception, match=r"async_jobs_(queued_is_free|attempts_in_range)"):
            insert(url, **columns)
    id = insert(url, max_attempts="2147483647", attempts="2147483646")
    (job,) = await provider.claim_jobs([KIND], new_lease(), 5)
    assert (job.id, job.attempts) == (id, 2147483647)


async def test_a_worker_runs_the_neighbours_of_every_bad_row(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A queue of rows that nobody can read stops neither the claims nor the sweeps of a worker."""
    bad = [insert(url, **columns) for columns in UNREADABLE.values()]
    over = [
        insert(url, created_at="'infinity'", expires_at="now() - interval '2 hours'")
        for _ in range(12)
    ]
    async with PostgresJobProvider.open(url) as provider:
        good = await provider.create_jobs(TENANT, PROJECT, [kick_off() for _ in range(9)])
        gone = [insert(url, expires_at="now() - interval '1 hour'") for _ in range(3)]
        worker = AsyncJobWorker(
            provider, [work], AsyncJobWorkerConfig(max_concurrent_jobs=2, poll_interval=0.1)
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            await until(lambda: statuses(url, gone) == ["gone"] * 3)
            await until(lambda: set(statuses(url, [job.id for job in good])) == {"completed"})
            await until(lambda: set(statuses(url, bad)) == {"failed"})
            worker.stop()
        await provider.fail_abandoned_jobs(abandoned_outcome(), 60, 100)
        assert worker.statistics().totals.completed == 9
        assert worker.statistics().totals.claims_failed == 0
    assert set(statuses(url, over)) == {"cancelled"}
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
