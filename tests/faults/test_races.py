"""Two calls for one row at the same moment, in either order: one defined winner.

The first call's statement runs in a transaction that stays open, so that the second meets its
locked row and its uncommitted change. The first is committed when the second has its answer, or
waits for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import attrs
import pytest
import trio
from tests.postgres.harness import (
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

from hastetrio import JobLease, LeaseRenewal
from hastetrio._model import AsyncJobStatus, JobResult
from hastetrio._outcome import abandoned_outcome
from hastetrio.postgres import PostgresJobProvider

from .history import History, tamper

DONE: Final = JobResult.completed("done")
RENEWED, LOST = LeaseRenewal.RENEWED, LeaseRenewal.LOST


@attrs.define
class Race:
    """One job, whoever holds it, and a worker of the same id that would like to."""

    id: str
    held: JobLease
    other: JobLease = attrs.field(factory=lambda: new_lease(worker="twin"))
    another: JobLease = attrs.field(factory=lambda: new_lease(worker="twin"))


Call = Callable[[PostgresJobProvider, Race], Awaitable[object]]


async def finish(provider: PostgresJobProvider, race: Race) -> object:
    """The holder records its result."""
    return await provider.finish_job(race.id, race.held, DONE, 60)


async def renew(provider: PostgresJobProvider, race: Race) -> object:
    """The holder renews."""
    return await provider.renew_lease(race.id, race.held)


async def release(provider: PostgresJobProvider, race: Race) -> object:
    """The holder hands back."""
    return await provider.release_job(race.id, race.held)


async def delete(provider: PostgresJobProvider, race: Race) -> object:
    """The holder has cleaned up."""
    return await provider.delete_expired_job(race.id, race.held)


async def cancel(provider: PostgresJobProvider, race: Race) -> object:
    """The client cancels; the status it replaced."""
    before = await provider.cancel_job(TENANT, PROJECT, race.id)
    return before.status.value if before is not None else None


async def claim(provider: PostgresJobProvider, race: Race) -> object:
    """Another worker of the same id claims."""
    return len(await provider.claim_jobs([KIND], race.other, 5))


async def claim_too(provider: PostgresJobProvider, race: Race) -> object:
    """A third worker of the same id claims."""
    return len(await provider.claim_jobs([KIND], race.another, 5))


async def abandon(provider: PostgresJobProvider, race: Race) -> object:
    """A sweep fails what is abandoned."""
    return await provider.fail_abandoned_jobs(abandoned_outcome(), 60, 5)


async def expire(provider: PostgresJobProvider, race: Race) -> object:
    """A sweep takes what has expired."""
    return len(await provider.claim_expired_jobs([KIND], race.other, 5))


async def expire_too(provider: PostgresJobProvider, race: Race) -> object:
    """Another worker's sweep takes what has expired."""
    return len(await provider.claim_expired_jobs([KIND], race.another, 5))


QUEUED: Final = "status = 'accepted', attempts = 0, locked_by = NULL, lease_expires_at = NULL"
HELD: Final = "lease_expires_at = now() + interval '60 s'"
LAPSED: Final = "lease_expires_at = now() - interval '1 s'"
LAST: Final = f"{LAPSED}, attempts = max_attempts"
EXPIRED: Final = f"{LAPSED}, expires_at = now() - interval '1 s'"
EXPIRING: Final = f"{LAPSED}, expires_at = now() + interval '0.3 s'"
CLEANING: Final = f"status = 'cancelled', {EXPIRED}"

ACCEPTED, IN_PROGRESS, COMPLETED, FAILED, OVER = (status.value for status in AsyncJobStatus)
GONE: Final = "gone"


@asynccontextmanager
async def uncommitted(provider: PostgresJobProvider) -> AsyncIterator[None]:
    """What `provider` does in the block is committed at its end."""
    lanes = (provider._claims, provider._clients, provider._finishes, provider._renewals)
    for lane in lanes:
        async with lane.unit() as connection:
            await connection.execute("BEGIN")
    yield
    for lane in lanes:
        async with lane.unit() as connection:
            await connection.execute("COMMIT")


def is_waiting(url: str) -> bool:
    """Whether a call waits for the row, for its lock or by asking again and again."""
    found = run(
        url,
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'hastetrio'"
        " AND (wait_event_type = 'Lock' OR query LIKE '%%AS a (id, token)\nLEFT JOIN%%')",
    )
    return found != []


@pytest.mark.parametrize(
    ("state", "first", "answer", "second", "other_answer", "status"),
    [
        (HELD, finish, True, cancel, COMPLETED, OVER),
        (HELD, cancel, IN_PROGRESS, finish, False, OVER),
        (HELD, finish, True, finish, True, COMPLETED),
        (HELD, cancel, IN_PROGRESS, cancel, None, OVER),
        (HELD, renew, RENEWED, cancel, IN_PROGRESS, OVER),
        (HELD, cancel, IN_PROGRESS, renew, LeaseRenewal.CANCELLED, OVER),
        (HELD, release, True, cancel, ACCEPTED, OVER),
        (HELD, cancel, IN_PROGRESS, release, True, OVER),
        (QUEUED, claim, 1, cancel, IN_PROGRESS, OVER),
        (QUEUED, cancel, ACCEPTED, claim, 0, OVER),
        (QUEUED, claim, 1, claim_too, 0, IN_PROGRESS),
        (LAPSED, claim, 1, claim_too, 0, IN_PROGRESS),
        (LAPSED, claim, 1, finish, False, IN_PROGRESS),
        (LAPSED, finish, True, claim, 0, COMPLETED),
        (LAPSED, claim, 1, renew, LOST, IN_PROGRESS),
        (LAPSED, renew, RENEWED, claim, 0, IN_PROGRESS),
        (LAPSED, claim, 1, release, False, IN_PROGRESS),
        (LAPSED, release, True, claim, 0, ACCEPTED),
        (LAST, abandon, 1, finish, False, FAILED),
        (LAST, finish, True, abandon, 0, COMPLETED),
        (LAST, abandon, 1, renew, LOST, FAILED),
        (LAST, renew, RENEWED, abandon, 0, IN_PROGRESS),
        (LAST, abandon, 1, cancel, FAILED, OVER),
        (LAST, cancel, IN_PROGRESS, abandon, 0, OVER),
        (LAST, abandon, 1, abandon, 0, FAILED),
        (EXPIRED, expire, 1, finish, False, OVER),
        (EXPIRING, finish, True, expire, 0, COMPLETED),
        (EXPIRED, expire, 1, renew, LOST, OVER),
        (EXPIRED, renew, LeaseRenewal.EXPIRED, expire, 0, IN_PROGRESS),
        (CLEANING, expire, 1, renew, LOST, OVER),
        (CLEANING, renew, LeaseRenewal.CANCELLED, expire, 0, OVER),
        (EXPIRED, expire, 1, release, False, OVER),
        (EXPIRED, release, True, expire, 0, OVER),
        (EXPIRED, expire, 1, expire_too, 0, OVER),
        (CLEANING, expire, 1, delete, False, OVER),
        (CLEANING, delete, True, expire, 0, GONE),
    ],
    ids=lambda part: part.__name__ if callable(part) else "",
)
async def test_each_race_has_one_winner_in_either_order(
    url: str,
    history: History,
    state: str,
    first: Call,
    answer: object,
    second: Call,
    other_answer: object,
    status: str,
) -> None:
    """Whoever comes first is told so, the other hears what became of the row; nothing deadlocks."""
    answers: list[object] = []
    async with (
        PostgresJobProvider.open(url) as one,
        PostgresJobProvider.open(url) as two,
    ):
        job = await two.create_job(TENANT, PROJECT, kick_off())
        race = Race(job.id, new_lease(worker="twin"))
        await two.claim_jobs([KIND], race.held, 1)
        tamper(url, f"UPDATE async_jobs SET {state}")  # noqa: S608

        async def follow() -> None:
            answers.append(await second(two, race))

        async with trio.open_nursery() as nursery, uncommitted(one):
            assert await first(one, race) == answer
            if state == EXPIRING:
                passed = "SELECT expires_at <= clock_timestamp() FROM async_jobs"
                await until(lambda: value(url, passed))
            nursery.start_soon(follow)
            await until(lambda: answers or is_waiting(url))
        assert answers == [other_answer]
    assert statuses(url, [race.id]) == [status]
    assert len(history.results(race.id)) == (status in (COMPLETED, FAILED) or COMPLETED in answers
                                             or FAILED in answers)  # fmt: skip
    if claim in (first, second) and IN_PROGRESS in (status, *answers):
        winner = race.held if answer is RENEWED else race.other
        assert column(url, race.id, "locked_by") == winner.token


@pytest.mark.parametrize("state", [CLEANING, EXPIRED, HELD], ids=["cancelled", "expired", "held"])
async def test_a_renewal_that_is_answered_has_extended_the_lease(url: str, state: str) -> None:
    """While somebody locks the row it is asked again: a clean-up must not believe in a lease."""
    async with PostgresJobProvider.open(url) as provider:
        job = await provider.create_job(TENANT, PROJECT, kick_off())
        race = Race(job.id, new_lease())
        await provider.claim_jobs([KIND], race.held, 1)
        tamper(url, f"UPDATE async_jobs SET {state}, locked_by = locked_by")  # noqa: S608
        before = column(url, job.id, "lease_expires_at")
        answers: list[object] = []

        async def ask() -> None:
            answers.append(await renew(provider, race))

        async with trio.open_nursery() as nursery:
            with locked(url, job.id):
                nursery.start_soon(ask)
                await until(lambda: answers or is_waiting(url))
                assert answers == []
        assert column(url, job.id, "lease_expires_at") > before


async def test_of_two_workers_with_one_id_each_ends_only_its_own(
    url: str, history: History
) -> None:
    """The token names the claim: whichever order they end in, the zombie's calls touch nothing."""
    async with PostgresJobProvider.open(url) as provider:
        for zombie_first in (True, False):
            job = await provider.create_job(TENANT, PROJECT, kick_off())
            race = Race(job.id, new_lease(worker="twin"))
            assert await claim(provider, Race(job.id, race.held, race.held)) == 1
            tamper(url, f"UPDATE async_jobs SET {LAPSED} WHERE id = %s", [job.id])  # noqa: S608
            assert await claim(provider, race) == 1
            successor = Race(job.id, race.other)
            if zombie_first:
                assert [await call(provider, race) for call in (renew, finish, release)] == [
                    LOST,
                    False,
                    False,
                ]
                assert column(url, job.id, "locked_by") == race.other.token
                assert await finish(provider, successor) is True
            else:
                assert await finish(provider, successor) is True
                assert [await call(provider, race) for call in (renew, finish, release)] == [
                    LOST,
                    False,
                    False,
                ]
            assert history.results(job.id) == [race.other.token]
