"""Creating and reading: what is stored, what is refused, and who sees it."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import trio

from hastetrio._errors import LiveJobLimit, UnstorableValue
from hastetrio._model import AsyncJobStatus, CreateAsyncJob, JobResult
from hastetrio._provider import AsyncJobProvider

from ._world import DAY, PROJECT, TENANT, World, kick_off, new_lease


async def test_a_created_job_is_queued_as_asked(world: World) -> None:
    """What is returned is what is stored, and a client reads the same."""
    asked = CreateAsyncJob(
        kind="export",
        request="https://fhir.example.org/$export?_type=Patient",
        parameters={"_type": ["Patient"]},
        claims={"sub": "x", "https://haste.health/user_id": "ann", "scope": "system/*.read"},
        retention=3600,
        max_attempts=5,
    )
    job = await world.provider.create_job(TENANT, PROJECT, asked)
    assert (job.tenant, job.project, job.kind) == (TENANT, PROJECT, "export")
    assert (job.request, job.parameters) == (asked.request, asked.parameters)
    assert (job.claims, job.submitted_by) == (asked.claims, "ann")
    assert (job.attempts, job.max_attempts, job.hand_backs) == (0, 5, 0)
    assert job.status is AsyncJobStatus.ACCEPTED
    nothing = (job.progress, job.output, job.output_content_type, job.error, job.locked_by)
    assert nothing == (None,) * 5
    assert (job.lease_expires_at, job.started_at, job.finished_at) == (None,) * 3
    assert job.created_at.tzinfo is not None
    assert await world.read(job.id) == job


async def test_a_queued_job_is_kept_for_its_retention(world: World) -> None:
    """A job nobody ever ran can be read as long as its kick-off asked."""
    job = await world.create(retention=1000)
    await world.pass_time(900)
    assert await world.read(job.id) is not None
    await world.pass_time(200)
    assert await world.read(job.id) is None


async def test_every_job_has_an_id_of_its_own(world: World) -> None:
    """Ids are 26 characters that fit into a URL and onto a command line."""
    jobs = await world.provider.create_jobs(TENANT, PROJECT, [kick_off()] * 40)
    assert len({job.id for job in jobs}) == 40
    for job in jobs:
        assert re.fullmatch("[0-9a-z][0-9a-z-]{25}", job.id)


@pytest.mark.parametrize(
    "parameters", [None, False, 0, "", [], {"a": {"b": [1, 2.5, None, True, "ü🦀\n\\u0000"]}}]
)
async def test_parameters_are_any_json(world: World, parameters: Any) -> None:  # noqa: ANN401
    """A handler gets exactly what the kick-off gave."""
    job = await world.create(parameters=parameters)
    assert job.parameters == parameters
    (claimed,) = await world.provider.claim_jobs([job.kind], new_lease(), 1)
    assert claimed.parameters == parameters
    assert type(claimed.parameters) is type(parameters)


async def test_stored_values_are_nobodys_to_change(world: World) -> None:
    """Changing what was given to a call, or came from one, changes no row."""
    parameters = {"list": [1]}
    job = await world.create(parameters=parameters)
    parameters["list"].append(2)
    job.parameters["list"].append(3)
    job.claims["sub"] = "eve"
    read = await world.read(job.id)
    assert read is not None
    assert (read.parameters, read.claims) == ({"list": [1]}, {"sub": "ann"})


UNSTORABLE = [
    {"a": "nul\0"},
    {"nul\0": 1},
    ["lone \ud800 surrogate"],
    [math.nan],
    [math.inf],
    {"a": object()},
    {"a": {1, 2}},
    b"bytes",
]


@pytest.mark.parametrize("value", UNSTORABLE, ids=repr)
async def test_parameters_that_cannot_be_stored_are_refused(
    world: World,
    value: Any,  # noqa: ANN401
) -> None:
    """The kick-off is told, in words that name the parameters, and nothing is queued."""
    with pytest.raises(UnstorableValue, match="parameters"):
        await world.create(parameters=value)
    assert await world.provider.list_jobs(TENANT, PROJECT) == []


async def test_claims_that_cannot_be_stored_are_refused(world: World) -> None:
    """The kick-off is told, in words that name the claims but not what is in them."""
    job = CreateAsyncJob(kind="work", claims={"sub": "ann", "secret": "nul\0"})
    with pytest.raises(UnstorableValue, match="claims") as caught:
        await world.provider.create_job(TENANT, PROJECT, job)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("what", ["parameters", "claims"])
async def test_parameters_and_claims_of_more_than_a_mebibyte_are_refused(
    world: World, what: str
) -> None:
    """The limit counts bytes of UTF-8; what just fits is stored."""
    frame = len('{"sub":"ann","x":""}')
    for length, fits in ((1024 * 1024 - frame, True), (1024 * 1024 - frame + 1, False)):
        value = {"sub": "ann", "x": "é" * (length // 2) + "e" * (length % 2)}
        if what == "claims":
            job = CreateAsyncJob(kind="work", claims=value)
        else:
            job = kick_off(parameters=value)
        if fits:
            assert await world.provider.create_job(TENANT, PROJECT, job)
        else:
            with pytest.raises(UnstorableValue, match=what):
                await world.provider.create_job(TENANT, PROJECT, job)


@pytest.mark.parametrize("tenant", ["nul\0", "lone \ud800"])
async def test_a_tenant_that_cannot_be_stored_is_refused(world: World, tenant: str) -> None:
    """A name that no column can hold is an error of that call, not of the database."""
    with pytest.raises(UnstorableValue):
        await world.provider.create_job(tenant, PROJECT, kick_off())
    with pytest.raises(UnstorableValue):
        await world.provider.create_job(TENANT, tenant, kick_off())


async def test_several_jobs_are_queued_in_their_order(world: World) -> None:
    """They are returned in the order given, and claimed in it."""
    asked = [kick_off(parameters=number) for number in range(20)]
    jobs = await world.provider.create_jobs(TENANT, PROJECT, asked)
    assert [job.parameters for job in jobs] == list(range(20))
    assert await world.claim(new_lease()) == [job.id for job in jobs]
    assert await world.provider.create_jobs(TENANT, PROJECT, []) == []


async def test_several_jobs_are_queued_all_or_none(world: World) -> None:
    """One that cannot be stored leaves none of its neighbours queued."""
    asked = [kick_off(), kick_off(parameters="nul\0"), kick_off()]
    with pytest.raises(UnstorableValue):
        await world.provider.create_jobs(TENANT, PROJECT, asked)
    assert await world.claim(new_lease()) == []


async def test_a_project_has_no_more_live_jobs_than_its_limit(world: World) -> None:
    """Queued and running jobs count, also of other kinds and submitters."""
    await world.start(kind="running", sub="bob")
    await world.create()
    create = world.provider.create_job
    with pytest.raises(LiveJobLimit) as caught:
        await create(TENANT, PROJECT, kick_off(), live_limit=2)
    assert caught.value.limit == 2
    assert await world.provider.count_live_jobs(TENANT, PROJECT) == 2
    assert await create(TENANT, PROJECT, kick_off(), live_limit=3)
    with pytest.raises(LiveJobLimit):
        await create(TENANT, PROJECT, kick_off(), live_limit=0)


async def test_jobs_that_are_over_or_elsewhere_do_not_fill_a_project(world: World) -> None:
    """Finished, cancelled and expired jobs, swept or not, and other projects' leave room."""
    finished, lease = await world.start(retention=DAY)
    await world.provider.finish_job(finished.id, lease, JobResult.completed(1), DAY)
    await world.cancel((await world.create()).id)
    await world.create("nobody-runs-this", retention=300)
    await world.start(600, kind="running", retention=300)
    await world.pass_time(400)
    await world.provider.create_job(TENANT, "other", kick_off())
    await world.provider.create_job("other", PROJECT, kick_off())
    assert await world.provider.count_live_jobs(TENANT, PROJECT) == 0
    assert await world.provider.create_job(TENANT, PROJECT, kick_off(), live_limit=1)
    assert await world.provider.count_live_jobs(TENANT, PROJECT) == 1


async def test_kick_offs_at_the_same_moment_share_one_limit(world: World) -> None:
    """However many arrive at once, no more are queued than the limit allows."""
    refused = 0

    async def create(provider: AsyncJobProvider) -> None:
        nonlocal refused
        for _ in range(2):
            try:
                await provider.create_job(TENANT, PROJECT, kick_off(), live_limit=3)
            except LiveJobLimit:
                refused += 1

    async with world.peers(5) as servers, trio.open_nursery() as nursery:
        for server in servers:
            nursery.start_soon(create, server)
    assert await world.provider.count_live_jobs(TENANT, PROJECT) == 3
    assert refused == 7


async def test_a_job_is_read_only_where_it_belongs(world: World) -> None:
    """Another tenant, project or submitter finds no such job."""
    job = await world.create(sub="ann")
    read = world.provider.read_job
    assert await read(TENANT, PROJECT, job.id, submitted_by="ann") == job
    assert await read(TENANT, PROJECT, job.id, submitted_by="bob") is None
    assert await read("other", PROJECT, job.id) is None
    assert await read(TENANT, "other", job.id) is None
    assert await read(TENANT, PROJECT, "nowhere") is None


async def test_jobs_are_listed_newest_first_in_pages(world: World) -> None:
    """Each page goes on where the last one ended, without gaps or repeats."""
    jobs = [await world.create() for _ in range(5)]
    await world.provider.create_job(TENANT, "other", kick_off())
    list_jobs = world.provider.list_jobs
    first = await list_jobs(TENANT, PROJECT, limit=2)
    assert first == [jobs[4], jobs[3]]
    newer = await world.create()
    second = await list_jobs(TENANT, PROJECT, limit=2, before=first[-1])
    assert second == [jobs[2], jobs[1]]
    assert await list_jobs(TENANT, PROJECT, limit=2, before=second[-1]) == [jobs[0]]
    assert await list_jobs(TENANT, PROJECT, before=jobs[0]) == []
    assert (await list_jobs(TENANT, PROJECT))[0] == newer


async def test_jobs_are_listed_by_status_kind_and_submitter(world: World) -> None:
    """Each filter alone, and all of them together, show only what fits."""
    running, _ = await world.start(kind="a", sub="ann")
    waiting = await world.create("a", sub="bob")
    other = await world.create("b", sub="ann")

    async def listed(**filters: Any) -> list[str]:  # noqa: ANN401
        return [job.id for job in await world.provider.list_jobs(TENANT, PROJECT, **filters)]

    assert await listed() == [other.id, waiting.id, running.id]
    assert await listed(status=AsyncJobStatus.ACCEPTED) == [other.id, waiting.id]
    assert await listed(kind="a") == [waiting.id, running.id]
    assert await listed(submitted_by="ann") == [other.id, running.id]
    assert await listed(status=AsyncJobStatus.ACCEPTED, kind="a", submitted_by="ann") == []


@pytest.mark.parametrize("bad", ["a\x00b", "a\ud800b"])
async def test_a_text_that_no_row_can_hold_finds_none(world: World, bad: str) -> None:
    """Clients choose these texts; there is nothing to be found under them, and no error."""
    await world.create()
    assert await world.provider.list_jobs(bad, PROJECT) == []
    assert await world.provider.list_jobs(TENANT, bad) == []
    assert await world.provider.list_jobs(TENANT, PROJECT, kind=bad) == []
    assert await world.provider.list_jobs(TENANT, PROJECT, submitted_by=bad) == []
    assert await world.provider.count_live_jobs(bad, PROJECT) == 0
    assert await world.provider.count_live_jobs(TENANT, bad) == 0
    assert await world.provider.read_job(TENANT, PROJECT, bad) is None
    assert await world.provider.cancel_job(TENANT, PROJECT, bad) is None
