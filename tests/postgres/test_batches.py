"""Calls that wait together become few statements, and none suffers for another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from hastetrio._errors import ProviderUnavailable, UnstorableValue
from hastetrio._model import AsyncJobStatus, JobLease, JobResult, LeaseRenewal
from hastetrio.postgres import PostgresJobProvider
from hastetrio.postgres._unit import Lane

from .harness import (
    KIND,
    PROJECT,
    TENANT,
    column,
    kick_off,
    locked,
    new_lease,
    run,
    statuses,
    until,
    value,
)
from .relay import Relay

# Valid JSON, but jsonb refuses it; a result that encode_json lets through some day.
POISON = JobResult(AsyncJobStatus.COMPLETED, '"\\u0000"', "application/json")
DONE = JobResult.completed({"done": True})


async def claimed(
    provider: PostgresJobProvider, count: int, duration: float = 60.0
) -> tuple[list[str], JobLease]:
    """So many running jobs, held under one lease."""
    await provider.create_jobs(TENANT, PROJECT, [kick_off() for _ in range(count)])
    lease = new_lease(duration)
    return [job.id for job in await provider.claim_jobs([KIND], lease, count)], lease


def count_statements(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each statement that this lane sends from now on."""
    sent: list[int] = []
    fetch = lane.fetch

    async def counting(
        sql: str, parameters: dict[str, Any], budget: float | None = None
    ) -> list[tuple[Any, ...]]:
        sent.append(parameters["ids"].count(",") + 1)
        return await fetch(sql, parameters, budget)

    monkeypatch.setattr(lane, "fetch", counting)
    return sent


async def test_calls_that_wait_together_share_statements(
    provider: PostgresJobProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 renewals, then 300 finishes, each asked for alone, need three statements at most."""
    ids, lease = await claimed(provider, 300)
    renewals = count_statements(provider._renewals, monkeypatch)
    finishes = count_statements(provider._finishes, monkeypatch)
    answers: list[object] = []

    async def renew(id: str) -> None:
        answers.append(await provider.renew_lease(id, lease, f"renewed {id}"))

    async def finish(id: str) -> None:
        answers.append(await provider.finish_job(id, lease, DONE, 60))

    for call, expected in ((renew, LeaseRenewal.RENEWED), (finish, True)):
        answers.clear()
        async with trio.open_nursery() as nursery:
            for id in ids:
                nursery.start_soon(call, id)
        assert answers == [expected] * 300
    assert sum(renewals) == sum(finishes) == 300
    assert max(len(renewals), len(finishes)) <= 3


async def test_answers_go_to_those_who_asked(provider: PostgresJobProvider, url: str) -> None:
    """In one batch of every state, each caller hears of its own row, under its own token."""
    (held, again, cancelled, expired), lease = await claimed(provider, 4)
    zombie = new_lease()
    run(url, "UPDATE async_jobs SET expires_at = now() WHERE id = %s", [expired])
    await provider.cancel_job(TENANT, PROJECT, cancelled)
    answers: dict[tuple[str, str], LeaseRenewal] = {}

    async def renew(id: str, lease: JobLease) -> None:
        answers[id, lease.token] = await provider.renew_lease(id, lease)

    async with trio.open_nursery() as nursery:
        for id in (held, again, cancelled, expired, "no such job"):
            nursery.start_soon(renew, id, lease)
            nursery.start_soon(renew, id, zombie)
    assert answers == {
        (held, lease.token): LeaseRenewal.RENEWED,
        (again, lease.token): LeaseRenewal.RENEWED,
        (cancelled, lease.token): LeaseRenewal.CANCELLED,
        (expired, lease.token): LeaseRenewal.EXPIRED,
        ("no such job", lease.token): LeaseRenewal.LOST,
        **{
            (id, zombie.token): LeaseRenewal.LOST
            for id in (held, again, cancelled, expired, "no such job")
        },
    }


async def test_a_zombies_finish_and_its_successors_may_share_a_batch(
    provider: PostgresJobProvider, url: str
) -> None:
    """Of two finishes of one job in one statement, only the holder's is recorded."""
    (id,), first = await claimed(provider, 1, 0.7)
    run(url, "UPDATE async_jobs SET lease_expires_at = now() - interval '1 second'")
    second = new_lease()
    assert len(await provider.claim_jobs([KIND], second, 1)) == 1
    answers: dict[str, bool] = {}
    assert not await provider.finish_job(id, first, JobResult.completed("zombie"), 60)
    assert statuses(url, [id]) == ["in-progress"]

    async def finish(lease: JobLease, by: str) -> None:
        result = JobResult.completed(by)
        answers[by] = await provider.finish_job(id, lease, result, 60, by)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(finish, first, "zombie")
            nursery.start_soon(finish, second, "holder")
    assert answers == {"zombie": False, "holder": True}
    assert run(url, "SELECT output, progress FROM async_jobs") == [("holder", "holder")]


async def test_a_poison_row_fails_alone(
    provider: PostgresJobProvider, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch with a value that the server refuses is halved until that row stands alone."""
    ids, lease = await claimed(provider, 64)
    poisoned = {ids[17], ids[40]}
    sent = count_statements(provider._finishes, monkeypatch)
    refused: set[str] = set()

    async def finish(id: str) -> None:
        try:
            result = POISON if id in poisoned else DONE
            assert await provider.finish_job(id, lease, result, 60)
        except UnstorableValue:
            refused.add(id)

    async with trio.open_nursery() as nursery:
        for id in ids:
            nursery.start_soon(finish, id)
    assert refused == poisoned
    assert statuses(url, ids).count("completed") == 62
    assert statuses(url, sorted(poisoned)) == ["in-progress"] * 2
    # Two descents of six levels, and not one statement for each row.
    assert len(sent) <= 2 * 2 * 6 + 1


async def test_poisoned_progress_fails_alone_too(provider: PostgresJobProvider, url: str) -> None:
    """NUL and lone surrogates in a progress text are replaced before anything is sent."""
    ids, lease = await claimed(provider, 3)
    async with trio.open_nursery() as nursery:
        for id, text in zip(ids, ("a\x00b", "a\ud800b", "fine"), strict=True):
            nursery.start_soon(provider.renew_lease, id, lease, text)
    assert [column(url, id, "progress") for id in ids] == ["a\ufffdb", "a\ufffdb", "fine"]


async def test_a_caller_that_leaves_takes_nobody_along(url: str, relay: Relay) -> None:
    """Callers cancelled while they wait, or while their statement is under way, leave at once."""
    async with PostgresJobProvider.open(relay.url) as provider:
        ids, lease = await claimed(provider, 30)
        await provider.renew_lease(ids[0], lease)
        relay.stall()
        answers: list[LeaseRenewal] = []

        async def renew(id: str) -> None:
            answers.append(await provider.renew_lease(id, lease))

        scope, left = trio.CancelScope(), trio.Event()

        async def leave() -> None:
            with scope:
                async with trio.open_nursery() as leaving:
                    leaving.start_soon(renew, ids[0])
                    await relay.blocked.wait()
                    for id in ids[1::2]:
                        leaving.start_soon(renew, id)
            left.set()

        async with trio.open_nursery() as staying:
            staying.start_soon(leave)
            await relay.blocked.wait()
            for id in ids[2::2]:
                staying.start_soon(renew, id)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            await left.wait()
            assert not answers
            relay.resume()
        assert answers == [LeaseRenewal.RENEWED] * 14


async def test_closing_a_provider_answers_all_who_wait(url: str, relay: Relay) -> None:
    """The statement under way is ended; those behind it, and later ones, hear that it is closed."""
    answers: list[str] = []

    async def renew(provider: PostgresJobProvider, id: str, lease: JobLease) -> None:
        try:
            await provider.renew_lease(id, lease)
        except ProviderUnavailable as error:
            answers.append(str(error))

    # The time is up only if somebody was never answered.
    with trio.move_on_after(10):
        async with trio.open_nursery() as nursery:
            async with PostgresJobProvider.open(relay.url, call_budget=0.5) as provider:
                ids, lease = await claimed(provider, 3)
                await provider.renew_lease(ids[0], lease)
                relay.stall()
                nursery.start_soon(renew, provider, ids[0], lease)
                await relay.blocked.wait()
                nursery.start_soon(renew, provider, ids[1], lease)
                nursery.start_soon(renew, provider, ids[2], lease)
                await trio.testing.wait_all_tasks_blocked()
            relay.resume()
            await renew(provider, ids[0], lease)
    assert len(answers) == 4
    assert answers.count("the provider is closed") >= 3


@pytest.mark.parametrize("call", ["renew", "finish", "release", "delete"])
async def test_a_row_that_somebody_locks_delays_no_neighbour(
    provider: PostgresJobProvider, url: str, call: str
) -> None:
    """Its neighbours are answered while the lock is held; its own call once it is let go."""
    ids, lease = await claimed(provider, 20)
    if call == "delete":
        run(url, "UPDATE async_jobs SET expires_at = now() - interval '1 second'")
    calls: dict[str, Callable[[str], Any]] = {
        "renew": lambda id: provider.renew_lease(id, lease),
        "finish": lambda id: provider.finish_job(id, lease, DONE, 60),
        "release": lambda id: provider.release_job(id, lease),
        "delete": lambda id: provider.delete_expired_job(id, lease),
    }
    expected = LeaseRenewal.RENEWED if call == "renew" else True
    answers: dict[str, object] = {}

    async def ask(id: str) -> None:
        answers[id] = await calls[call](id)

    async with trio.open_nursery() as nursery:
        with locked(url, ids[7]):
            for id in ids:
                nursery.start_soon(ask, id)
            await until(lambda: len(answers) == 19)
            assert ids[7] not in answers
            # Asked again, in vain, more than once.
            await provider.renew_lease(ids[7], new_lease())
            assert ids[7] not in answers
    assert answers == dict.fromkeys(ids, expected)


async def test_a_row_locked_beyond_the_budget_is_unavailable_not_lost(url: str) -> None:
    """Nobody is told that a job is lost while somebody else's transaction holds its row."""
    async with PostgresJobProvider.open(url, call_budget=0.2) as provider:
        (id,), lease = await claimed(provider, 1)
        with locked(url, id):
            for call in (
                lambda: provider.renew_lease(id, lease),
                lambda: provider.finish_job(id, lease, DONE, 60),
                lambda: provider.release_job(id, lease),
            ):
                with pytest.raises(ProviderUnavailable, match="another transaction holds"):
                    await call()
        assert await provider.finish_job(id, lease, DONE, 60)


async def test_a_row_that_expired_under_the_lock_is_deleted_all_the_same(
    provider: PostgresJobProvider, url: str
) -> None:
    """A deletion of a row that is not expired any more answers no, and does not wait."""
    (id,), lease = await claimed(provider, 1)
    assert not await provider.delete_expired_job(id, lease)
    assert not await provider.delete_expired_job("no such job", lease)
    run(url, "UPDATE async_jobs SET expires_at = now()")
    assert not await provider.delete_expired_job(id, new_lease())
    assert await provider.delete_expired_job(id, lease)


async def test_large_results_are_recorded_beside_small_ones(
    provider: PostgresJobProvider, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result of 16 MiB goes alone; small ones asked for at the same time all go through."""
    ids, lease = await claimed(provider, 40)
    sent = count_statements(provider._finishes, monkeypatch)
    large = JobResult.completed("x" * (16 * 1024 * 1024 - 2))

    async def finish(id: str) -> None:
        assert await provider.finish_job(id, lease, large if id == ids[5] else DONE, 60)

    async with trio.open_nursery() as nursery:
        for id in ids:
            nursery.start_soon(finish, id)
    assert statuses(url, ids) == ["completed"] * 40
    length = "SELECT length(output #>> '{}') FROM async_jobs WHERE id = %s"
    assert value(url, length, [ids[5]]) == 16 * 1024 * 1024 - 2
    assert 1 in sent
    assert len(sent) <= 4
