"""Unique keys: while a job with the key is live, creating another returns that one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import trio

from hastetrio._errors import LiveJobLimit, ProviderUnavailable
from hastetrio._model import CreateAsyncJob, JobResult
from hastetrio._provider import AsyncJobProvider
from hastetrio.postgres import PostgresJobProvider
from hastetrio.postgres._create import Creation
from hastetrio.postgres._unit import open_session

from ._world import (
    DAY,
    KIND,
    MINUTE,
    PROJECT,
    TENANT,
    PostgresWorld,
    World,
    kick_off,
    new_lease,
)

KEY = "nightly"


def keyed(key: str | None = KEY, kind: str = KIND, **values: Any) -> CreateAsyncJob:  # noqa: ANN401
    """A job to create under a unique key."""
    return kick_off(kind, unique_key=key, **values)


async def live(world: World) -> int:
    """The live jobs of the project."""
    return await world.provider.count_live_jobs(TENANT, PROJECT)


async def test_creating_again_returns_the_live_job(world: World) -> None:
    """Whatever else is asked for, queued or running: nothing more is queued, nothing changed."""
    job = await world.create(unique_key=KEY, parameters={"a": 1})
    assert job.unique_key == KEY
    again = await world.create(unique_key=KEY, parameters={"b": 2}, sub="bob", max_attempts=9)
    assert again == job
    lease = new_lease()
    assert await world.claim(lease) == [job.id]
    running = await world.create(unique_key=KEY)
    assert (running.id, running.locked_by) == (job.id, lease.token)
    assert await live(world) == 1
    await world.pass_time(2 * MINUTE)
    assert (await world.create(unique_key=KEY)).id == job.id
    assert await world.claim(new_lease()) == [job.id]


async def test_a_key_is_of_one_project_and_kind(world: World) -> None:
    """The same key elsewhere, another one here, and none at all, are other jobs."""
    create = world.provider.create_job
    jobs = [
        await create(TENANT, PROJECT, keyed()),
        await create(TENANT, PROJECT, keyed("weekly")),
        await create(TENANT, PROJECT, keyed(kind="other")),
        await create(TENANT, "other", keyed()),
        await create("other", PROJECT, keyed()),
        await create(TENANT, PROJECT, keyed(None)),
        await create(TENANT, PROJECT, keyed(None)),
        await create(TENANT, PROJECT, keyed(KEY.upper())),
    ]
    assert len({job.id for job in jobs}) == len(jobs)


@pytest.mark.parametrize(
    "end",
    ["completed", "failed", "cancelled", "cancelled while running", "abandoned", "expired",
     "expired while running", "swept"],
)  # fmt: skip
async def test_the_key_of_a_job_that_is_over_is_free(world: World, end: str) -> None:
    """Also before any sweep has come by, and while a body still unwinds."""
    job = await world.create(unique_key=KEY, retention=300, max_attempts=1)
    lease = new_lease(600)
    if end not in ("expired", "swept", "cancelled"):
        await world.claim(lease)
    if end in ("completed", "failed"):
        result = JobResult.completed(1) if end == "completed" else JobResult.failed({})
        assert await world.provider.finish_job(job.id, lease, result, DAY)
    elif end.startswith("cancelled"):
        await world.cancel(job.id)
    elif end == "abandoned":
        assert await world.provider.reschedule_job(job.id, lease, 0, give_back=False, retention=DAY)
    else:
        await world.pass_time(400)
        if end == "swept":
            await world.sweep(new_lease())
    new = await world.create(unique_key=KEY)
    assert new.id != job.id
    assert (new.unique_key, new.attempts) == (KEY, 0)
    assert (await world.create(unique_key=KEY)).id == new.id
    assert await live(world) == 1
    if end == "expired while running":
        assert await world.provider.release_job(job.id, lease)
    assert (await world.create(unique_key=KEY)).id == new.id


async def test_a_job_that_waits_or_comes_back_keeps_its_key(world: World) -> None:
    """Before its time, between two attempts, and after a hand-back, it is the one."""
    job = await world.create(unique_key=KEY, run_at=await world.moment(100))
    assert (await world.create(unique_key=KEY)).id == job.id
    await world.pass_time(110)
    for again in ("release", "forget", "later"):
        lease = new_lease()
        assert await world.claim(lease) == [job.id]
        if again == "release":
            assert await world.provider.release_job(job.id, lease)
        elif again == "forget":
            assert await world.provider.forget_claim(lease) == 1
        else:
            assert await world.provider.reschedule_job(
                job.id, lease, 100, give_back=False, retention=DAY
            )
        assert (await world.create(unique_key=KEY)).id == job.id
    assert await live(world) == 1


async def test_a_batch_has_each_key_once(world: World) -> None:
    """Of those that share a key the first is queued; live ones are found; all come in order."""
    there = await world.create(unique_key="there")
    over = await world.create(unique_key="over", retention=100)
    await world.pass_time(200)
    asked = [
        keyed("new", parameters=1),
        keyed(None, parameters=2),
        keyed("there", parameters=3),
        keyed("new", parameters=4),
        keyed("over", parameters=5),
        keyed("new", "other", parameters=6),
        keyed(None, parameters=7),
        keyed("over", parameters=8),
    ]
    jobs = await world.provider.create_jobs(TENANT, PROJECT, asked)
    assert [job.parameters for job in jobs] == [1, 2, {}, 1, 5, 6, 7, 5]
    assert jobs[2].id == there.id
    assert jobs[0].id == jobs[3].id
    assert jobs[4].id == jobs[7].id != over.id
    assert await live(world) == 6
    claimed = await world.provider.claim_jobs([KIND, "other"], new_lease(), 10)
    assert [job.parameters for job in claimed] == [{}, 1, 2, 5, 6, 7]


async def test_a_job_that_is_found_is_refused_by_no_limit(world: World) -> None:
    """Nothing is added to the project; what would be is refused as ever."""
    create = world.provider.create_job
    job = await create(TENANT, PROJECT, keyed(), live_limit=1)
    assert (await create(TENANT, PROJECT, keyed(), live_limit=1)).id == job.id
    assert (await create(TENANT, PROJECT, keyed(), live_limit=0)).id == job.id
    for other in (keyed("other"), keyed(kind="other"), kick_off()):
        with pytest.raises(LiveJobLimit) as caught:
            await create(TENANT, PROJECT, other, live_limit=1)
        assert caught.value.limit == 1
    assert await live(world) == 1


async def test_an_expired_holder_of_a_key_does_not_count(world: World) -> None:
    """Neither for the key nor for the limit; beyond the limit nobody gets the key."""
    create = world.provider.create_job
    old = await create(TENANT, PROJECT, keyed(retention=100))
    await world.pass_time(200)
    new = await create(TENANT, PROJECT, keyed(), live_limit=1)
    assert new.id != old.id
    other = await create(TENANT, PROJECT, keyed("short", retention=100))
    await world.pass_time(200)
    with pytest.raises(LiveJobLimit):
        await create(TENANT, PROJECT, keyed("short"), live_limit=1)
    made = await create(TENANT, PROJECT, keyed("short"), live_limit=2)
    assert made.id not in (new.id, other.id)


async def test_kick_offs_with_one_key_at_the_same_moment_are_one_job(world: World) -> None:
    """However many servers ask at once, with a limit or without, all get the same id."""
    ids: list[str] = []

    async def create(provider: AsyncJobProvider, live_limit: int | None) -> None:
        for _ in range(4):
            job = await provider.create_job(TENANT, PROJECT, keyed(), live_limit=live_limit)
            ids.append(job.id)

    async with world.peers(6) as servers, trio.open_nursery() as nursery:
        for number, server in enumerate(servers):
            nursery.start_soon(create, server, 1 if number % 2 else None)
    assert len(ids) == 24
    assert len(set(ids)) == 1
    assert await live(world) == 1


async def test_a_key_that_becomes_free_at_that_moment_is_one_job_again(world: World) -> None:
    """While its holder is over by its time, all who ask at once get the same new one."""
    old = await world.create(unique_key=KEY, retention=100)
    await world.pass_time(200)
    ids: set[str] = set()

    async def create(provider: AsyncJobProvider) -> None:
        for _ in range(3):
            ids.add((await provider.create_job(TENANT, PROJECT, keyed())).id)

    async with world.peers(6) as servers, trio.open_nursery() as nursery:
        for server in servers:
            nursery.start_soon(create, server)
    assert len(ids) == 1
    assert old.id not in ids


async def test_a_key_taken_and_given_up_all_the_time_has_one_job_at_a_time(world: World) -> None:
    """Servers create while a worker finishes and a client cancels: none fails, none is doubled."""
    done = trio.Event()
    most = 0

    async def create(provider: AsyncJobProvider, live_limit: int | None) -> None:
        for _ in range(12):
            job = await provider.create_job(TENANT, PROJECT, keyed(), live_limit=live_limit)
            assert job.unique_key == KEY

    async def end(provider: AsyncJobProvider) -> None:
        nonlocal most
        turn = 0
        while not done.is_set():
            lease = new_lease()
            jobs = await provider.claim_jobs([KIND], lease, 10)
            most = max(most, len(jobs))
            for job in jobs:
                turn += 1
                if turn % 2:
                    await provider.finish_job(job.id, lease, JobResult.completed(turn), DAY)
                else:
                    await provider.cancel_job(TENANT, PROJECT, job.id)

    async with world.peers(5) as (worker, *servers), trio.open_nursery() as nursery:
        nursery.start_soon(end, worker)
        async with trio.open_nursery() as clients:
            for number, server in enumerate(servers):
                clients.start_soon(create, server, 2 if number % 2 else None)
        done.set()
    assert most == 1


@pytest.mark.parametrize("over", [False, True], ids=["new", "of expired jobs"])
async def test_batches_with_keys_in_opposite_order_wait_for_one_another(
    world: World, over: bool
) -> None:
    """Servers that create the same jobs, each in an order of its own, do not block one another."""
    jobs = [keyed(f"key-{n}", kind) for n in range(4) for kind in ("a", "b", "c")]
    if over:
        short = [keyed(job.unique_key, job.kind, retention=100) for job in jobs[::2]]
        await world.provider.create_jobs(TENANT, PROJECT, short)
        await world.pass_time(200)
    # By key, by kind, and both from behind.
    orders = [
        jobs,
        jobs[::-1],
        sorted(jobs, key=lambda job: (job.kind, job.unique_key or "")),
        sorted(jobs, key=lambda job: (job.kind, job.unique_key or ""), reverse=True),
        sorted(jobs, key=lambda job: (job.unique_key or "", -ord(job.kind))),
        jobs[6:] + jobs[:6],
    ]
    found: dict[tuple[str, str | None], set[str]] = {}

    async def create(provider: AsyncJobProvider, asked: Sequence[CreateAsyncJob]) -> None:
        for job in await provider.create_jobs(TENANT, PROJECT, asked):
            found.setdefault((job.kind, job.unique_key), set()).add(job.id)

    async with world.peers(len(orders)) as servers:
        # The sessions are there, so that the statements meet.
        for server in servers:
            await server.count_live_jobs(TENANT, PROJECT)
        async with trio.open_nursery() as nursery:
            for server, asked in zip(servers, orders, strict=True):
                nursery.start_soon(create, server, asked)
    assert len(found) == len(jobs)
    assert all(len(ids) == 1 for ids in found.values())
    assert await live(world) == len(jobs)


async def test_a_foreign_program_cannot_double_a_key(world: World) -> None:
    """A row that names the key of a live job is refused; of one that is over it is not."""
    job = await world.create(unique_key=KEY)
    columns = {"tenant": TENANT, "project": PROJECT, "kind": KIND, "unique_key": KEY}
    with pytest.raises((ValueError, psycopg.errors.UniqueViolation)):
        await world.insert_row(**columns)
    await world.insert_row(**columns, status="completed")
    await world.cancel(job.id)
    id = await world.insert_row(**columns, expires_at=timedelta(seconds=MINUTE))
    assert (await world.create(unique_key=KEY)).id == id


# In a transaction of the caller's, which only PostgreSQL has.


in_a_database = pytest.mark.parametrize("storage", ["postgres"], indirect=True)


@in_a_database
async def test_a_key_in_the_callers_transaction_is_taken_with_it(
    world: World, contract_database: str
) -> None:
    """Others wait for the outcome: committed, it is their job too; rolled back, it is theirs."""
    provider = world.provider
    assert isinstance(provider, PostgresJobProvider)
    connection = await open_session(contract_database, 5)
    try:
        for commits in (True, False):
            key = f"commits: {commits}"
            found: list[str] = []

            async def create(
                server: AsyncJobProvider, key: str = key, found: list[str] = found
            ) -> None:
                job = await server.create_job(TENANT, PROJECT, keyed(key))
                found.append(job.id)

            async with (
                world.peers(2) as servers,
                trio.open_nursery() as nursery,
                connection.transaction(force_rollback=not commits),
            ):
                mine = await provider.create_job(TENANT, PROJECT, keyed(key), connection=connection)
                again = await provider.create_job(
                    TENANT, PROJECT, keyed(key), connection=connection
                )
                assert again.id == mine.id
                assert await world.read(mine.id) is None
                for server in servers:
                    nursery.start_soon(create, server)
                await _until_waiting(world, 2)
                assert found == []
            assert len(set(found)) == 1
            assert (found[0] == mine.id) == commits
            assert (await world.read(mine.id) is not None) == commits
    finally:
        await connection.close()


@in_a_database
@pytest.mark.parametrize("apart", ["by key", "by kind"])
async def test_batches_that_meet_in_the_middle_do_not_block_one_another(
    world: World, contract_database: str, apart: str
) -> None:
    """What two batches have in common, both take in one order, in whichever they name it."""
    provider = world.provider
    assert isinstance(provider, PostgresJobProvider)
    a, b, c = (
        keyed(name, KIND) if apart == "by key" else keyed(KEY, name) for name in ("a", "b", "c")
    )
    connection = await open_session(contract_database, 5)
    batches: list[list[str]] = []

    async def create(server: AsyncJobProvider, *asked: CreateAsyncJob) -> None:
        jobs = await server.create_jobs(TENANT, PROJECT, asked)
        batches.append([job.id for job in jobs])

    try:
        async with (
            world.peers(2) as (first, second),
            trio.open_nursery() as nursery,
            connection.transaction(force_rollback=True),
        ):
            # The first batch has taken a and waits here for b; the second wants a, and c.
            await provider.create_job(TENANT, PROJECT, b, connection=connection)
            nursery.start_soon(create, first, a, b, c)
            await _until_waiting(world, 1)
            nursery.start_soon(create, second, c, a)
            await _until_waiting(world, 2)
    finally:
        await connection.close()
    of_two, of_three = sorted(batches, key=len)
    assert of_two == [of_three[2], of_three[0]]


@in_a_database
async def test_a_key_given_up_in_the_middle_is_not_taken_for_a_limit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder ends after it was met and before it is looked at: the new job is queued."""
    old, lease = await world.start(unique_key=KEY)
    find = Creation._find

    async def find_late(self: Creation, *arguments: Any) -> None:  # noqa: ANN401
        await world.provider.finish_job(old.id, lease, JobResult.completed(1), DAY)
        await find(self, *arguments)

    monkeypatch.setattr(Creation, "_find", find_late)
    new = await world.provider.create_job(TENANT, PROJECT, keyed(), live_limit=5)
    assert new.id != old.id
    monkeypatch.undo()
    assert (await world.create(unique_key=KEY)).id == new.id


@in_a_database
async def test_a_limit_in_the_callers_transaction_spoils_nothing(
    world: World, contract_database: str
) -> None:
    """Refused or found, the transaction goes on; a key that was freed in it is freed with it."""
    provider = world.provider
    assert isinstance(provider, PostgresJobProvider)
    old = await world.create(unique_key="old", retention=100)
    await world.pass_time(200)
    connection = await open_session(contract_database, 5)

    async def create(key: str, live_limit: int | None = None) -> str:
        job = await provider.create_job(
            TENANT, PROJECT, keyed(key), connection=connection, live_limit=live_limit
        )
        return job.id

    try:
        async with connection.transaction():
            first = await create("first", 1)
            with pytest.raises(LiveJobLimit):
                await create("second", 1)
            assert await create("first", 1) == first
        assert await live(world) == 1
        async with connection.transaction(force_rollback=True):
            assert await create("old") != old.id
        assert (await world.stored(old.id))["unique_key"] == "old"
        async with connection.transaction():
            new = await create("old", 2)
        assert (await world.stored(old.id))["unique_key"] is None
        assert (await world.create(unique_key="old")).id == new
    finally:
        await connection.close()


@in_a_database
async def test_a_key_that_stays_undecided_is_waited_for_in_bounds(
    world: World, contract_database: str
) -> None:
    """Who waits for somebody's open transaction is told so in time, and can ask again."""
    provider = world.provider
    assert isinstance(provider, PostgresJobProvider)
    connection = await open_session(contract_database, 5)
    try:
        async with (
            PostgresJobProvider.open(contract_database, call_budget=0.3) as impatient,
            connection.transaction(),
        ):
            mine = await provider.create_job(TENANT, PROJECT, keyed(), connection=connection)
            with pytest.raises(ProviderUnavailable):
                await impatient.create_job(TENANT, PROJECT, keyed())
            assert (await impatient.create_job(TENANT, PROJECT, keyed("other"))).id != mine.id
    finally:
        await connection.close()
    assert (await world.create(unique_key=KEY)).id == mine.id


async def _until_waiting(world: World, number: int) -> None:
    """Wait until so many sessions wait for a lock; nothing tells of it."""
    assert isinstance(world, PostgresWorld)
    with trio.fail_after(15):
        while await world.waiting() < number:  # noqa: ASYNC110
            await trio.sleep(0.01)
