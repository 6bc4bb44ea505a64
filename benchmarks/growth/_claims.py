"""What a claim of a hundred jobs costs: by backlog, by kinds, beside a transaction left open."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Final

import attrs
import psycopg
import trio

from benchmarks.growth import _jobs
from benchmarks.growth._figures import Spread, table
from hastetrio import JobLease, JobResult
from hastetrio.postgres import PostgresJobProvider
from hastetrio.postgres._rows import job_query
from hastetrio.postgres._unit import open_session, unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastetrio.postgres import TrioConnection

LIMIT: Final = 100

# Rounds that are not counted: caches fill, and statements become prepared ones at the sixth.
_WARM_UP: Final = 8

_BUDGET: Final = 60.0


@attrs.frozen
class Cost:
    """What claims cost, in milliseconds.

    Attributes:
        call: The whole call of `claim_jobs`, a hundred jobs made of its rows.
        statement: The statement alone, sent and answered.
    """

    call: Spread
    statement: Spread


class _Claimer:
    """Claims a hundred jobs and puts them back, again and again.

    Args:
        provider: Where the jobs are.
        connection: A session like the provider's own, for the statement alone.
        kinds: The kinds to claim.
    """

    def __init__(
        self, provider: PostgresJobProvider, connection: TrioConnection, kinds: Sequence[str]
    ) -> None:
        self._provider = provider
        self._connection = connection
        self._kinds = list(kinds)
        self._calls: list[float] = []
        self._statements: list[float] = []

    async def round(self) -> None:
        """One call, and one statement alone; what they took is put back."""
        lease = JobLease("growth", 600.0)
        began = time.perf_counter()
        jobs = await self._provider.claim_jobs(self._kinds, lease, LIMIT)
        self._calls.append((time.perf_counter() - began) * 1000)
        if len(jobs) != LIMIT:
            raise RuntimeError(f"a claim of {LIMIT} took {len(jobs)}: the backlog is too small")
        await self._provider.forget_claim(lease)
        lease = JobLease("growth", 600.0)
        self._statements.append(await self._statement(lease))
        await self._provider.forget_claim(lease)

    async def _statement(self, lease: JobLease) -> float:
        parameters = {
            "kinds": self._kinds,
            "exclude": [],
            "limit": LIMIT,
            "last_chances": 1,
            "token": lease.token,
            "lease": lease.duration,
        }
        # Not rolled back: psycopg would forget what is prepared, and have each one planned anew.
        async with unit(self._connection, _BUDGET) as connection:
            began = time.perf_counter()
            # Nothing is made of the rows until they are fetched.
            await connection.execute(job_query("claim_jobs"), parameters, prepare=True)
            return (time.perf_counter() - began) * 1000

    def cost(self) -> Cost:
        """What the rounds after the warm-up cost; counting begins anew."""
        cost = Cost(Spread.of(self._calls[_WARM_UP:]), Spread.of(self._statements[_WARM_UP:]))
        self._calls, self._statements = [], []
        return cost


async def _claimer(stack: AsyncExitStack, url: str, kinds: Sequence[str]) -> _Claimer:
    provider = await stack.enter_async_context(PostgresJobProvider.open(url, call_budget=_BUDGET))
    connection = await open_session(url, _BUDGET)
    stack.callback(connection.discard)
    return _Claimer(provider, connection, kinds)


async def _rounds(claimers: Sequence[_Claimer], rounds: int) -> list[Cost]:
    """The costs of each, measured in turns, each time beginning with another."""
    for number in range(_WARM_UP + rounds):
        first = number % len(claimers)
        for claimer in (*claimers[first:], *claimers[:first]):
            await claimer.round()
    return [claimer.cost() for claimer in claimers]


def by_backlog(server_url: str, sizes: Sequence[int], rounds: int) -> dict[int, Cost]:
    """The cost of a claim of three kinds, by how many jobs wait."""
    with ExitStack() as databases:
        urls = []
        for size in sizes:
            url = databases.enter_context(_jobs.migrated(server_url, f"growth_backlog_{size}"))
            _jobs.queue(url, size, over=3)
            urls.append(url)

        async def measure() -> list[Cost]:
            async with AsyncExitStack() as stack:
                claimers = [await _claimer(stack, url, _jobs.kinds(3)) for url in urls]
                return await _rounds(claimers, rounds)

        return dict(zip(sizes, trio.run(measure), strict=True))


def by_kinds(server_url: str, counts: Sequence[int], backlog: int, rounds: int) -> dict[int, Cost]:
    """The cost of a claim by how many kinds it asks for, of as many as there are."""
    with _jobs.migrated(server_url, "growth_kinds") as url:
        _jobs.queue(url, backlog, over=max(counts))

        async def measure() -> list[Cost]:
            async with AsyncExitStack() as stack:
                claimers = [await _claimer(stack, url, _jobs.kinds(count)) for count in counts]
                return await _rounds(claimers, rounds)

        return dict(zip(counts, trio.run(measure), strict=True))


# What a transaction left open does, in time.
BEFORE, OPEN, ENDED, VACUUMED = "before", "open", "ended", "vacuumed"


def by_dead_rows(server_url: str, dead: int, rounds: int) -> dict[str, Cost]:
    """The cost of a claim while a transaction that sees the past is open, and afterwards.

    Args:
        server_url: The server.
        dead: How many jobs are claimed and finished meanwhile: each leaves a dead row in the index
            of what is queued, before all that waits, and another in that of what runs.
        rounds: How many claims are measured in each state.
    """
    with _jobs.migrated(server_url, "growth_dead") as url:
        _jobs.run(url, "ALTER TABLE async_jobs SET (autovacuum_enabled = false)")
        _jobs.queue(url, dead + 100_000, over=3)

        async def measure() -> dict[str, Cost]:
            costs = {}
            async with AsyncExitStack() as stack:
                claimer = await _claimer(stack, url, _jobs.kinds(3))
                (costs[BEFORE],) = await _rounds([claimer], rounds)
                with psycopg.connect(url) as idle:
                    idle.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                    idle.execute("SELECT 1")
                    await _work_through(url, dead)
                    (costs[OPEN],) = await _rounds([claimer], rounds)
                    idle.rollback()
                (costs[ENDED],) = await _rounds([claimer], rounds)
                _jobs.run(url, "VACUUM async_jobs")
                (costs[VACUUMED],) = await _rounds([claimer], rounds)
            return costs

        return trio.run(measure)


async def _work_through(url: str, count: int) -> None:
    """Claim and finish the oldest jobs, as workers do."""
    async with PostgresJobProvider.open(url, call_budget=_BUDGET) as provider:
        while count > 0:
            # So short that what it leaves in the index of leases counts as lapsed from then on.
            lease = JobLease("growth", 1.0)
            jobs = await provider.claim_jobs(_jobs.kinds(3), lease, min(count, 500))
            async with trio.open_nursery() as nursery:
                for job in jobs:
                    nursery.start_soon(
                        provider.finish_job, job.id, lease, JobResult.completed(None), 86400.0
                    )
            count -= len(jobs)


def backlog_table(costs: dict[int, Cost]) -> str:
    """By backlog, with the ratio that matters."""
    first, last = min(costs), max(costs)
    big, small = costs[last], costs[first]
    return table(
        f"Claim of {LIMIT} jobs of 3 kinds, by jobs queued (ms; median, tenths left out)",
        ("queued", "claim_jobs", "its statement"),
        [(f"{size:,}", cost.call.text(), cost.statement.text()) for size, cost in costs.items()],
        f"{last:,} against {first:,} (must 1.5x, aim 1.1x):"
        f" call {big.call.median / small.call.median:.2f}x,"
        f" statement {big.statement.median / small.statement.median:.2f}x;"
        f" the fastest tenths, which other load disturbs least:"
        f" call {big.call.low / small.call.low:.2f}x,"
        f" statement {big.statement.low / small.statement.low:.2f}x",
    )


def kinds_table(costs: dict[int, Cost], backlog: int) -> str:
    """By kinds."""
    return table(
        f"Claim of {LIMIT} jobs among {backlog:,}, by kinds asked for (ms)",
        ("kinds", "claim_jobs", "its statement"),
        [(f"{count}", cost.call.text(), cost.statement.text()) for count, cost in costs.items()],
    )


def dead_table(costs: dict[str, Cost], dead: int) -> str:
    """While a transaction is open, and afterwards, with the factors."""
    base = costs[BEFORE]
    said = {
        BEFORE: "before",
        OPEN: f"open, {dead:,} jobs later",
        ENDED: "it has ended",
        VACUUMED: "vacuum has run",
    }
    return table(
        f"Claim of {LIMIT} jobs of 3 kinds beside a transaction left open (ms)",
        ("transaction", "claim_jobs", "factor", "its statement", "factor"),
        [
            (
                said[state],
                *(cost.call.text(), f"{cost.call.median / base.call.median:.2f}x"),
                cost.statement.text(),
                f"{cost.statement.median / base.statement.median:.2f}x",
            )
            for state, cost in costs.items()
        ],
    )
