"""Several providers at the same rows at once: no error, no deadlock, no row out of shape."""

from __future__ import annotations

import random

import trio

from hastetrio._errors import ProviderUnavailable
from hastetrio._model import JobLease, JobResult, LeaseRenewal
from hastetrio._outcome import abandoned_outcome
from hastetrio.postgres import PostgresJobProvider

from .harness import KIND, PROJECT, TENANT, kick_off, locked, run, value

SEED = 20261130
SECONDS = 2.5
PROVIDERS = 3
ACTORS = 4

# One row a transition: what the row was, and what it became.
AUDIT = """
DROP TABLE IF EXISTS audit;
CREATE TABLE audit (n bigserial, op text, was async_jobs, now async_jobs,
  at timestamptz DEFAULT clock_timestamp());
CREATE OR REPLACE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO audit (op, was, now) VALUES (TG_OP, OLD, NEW); RETURN NULL; END $$;
CREATE OR REPLACE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON async_jobs
  FOR EACH ROW EXECUTE FUNCTION audit();
"""
NO_AUDIT = "DROP TRIGGER audit ON async_jobs; DROP TABLE audit; DROP FUNCTION audit"

# What must never be seen, whatever the order of events.
NEVER = {
    "a lease that shrank under its holder": (
        "op = 'UPDATE' AND (was).locked_by = (now).locked_by"
        " AND (now).lease_expires_at < (was).lease_expires_at"
    ),
    "a result recorded without a lease": (
        "op = 'UPDATE' AND (was).status <> (now).status AND (now).status = 'completed'"
        " AND ((was).locked_by IS NULL OR (now).finished_by <> (was).locked_by)"
    ),
    "a result of another than the holder": (
        "(now).status = 'completed'"
        " AND (now).output #>> '{}' <> split_part((now).finished_by, '/', 1)"
    ),
    "a result that was replaced": (
        "op = 'UPDATE' AND (was).status IN ('completed', 'failed') AND (now).status"
        " NOT IN ((was).status, 'cancelled')"
    ),
    "a cancelled job that came back": (
        "op = 'UPDATE' AND (was).status = 'cancelled' AND (now).status <> 'cancelled'"
    ),
    "a lease that was taken before it lapsed": (
        "op = 'UPDATE' AND (was).locked_by <> (now).locked_by"
        " AND (was).lease_expires_at > (now).updated_at"
    ),
    "an attempt too many": "op = 'UPDATE' AND (now).attempts > (was).attempts + 1",
    "more hand-backs than ten": "(now).hand_backs > 10",
    "an expired job that was finished": (
        "op = 'UPDATE' AND (was).status = 'in-progress' AND (now).status = 'completed'"
        " AND (was).expires_at <= (now).updated_at"
    ),
    "a removal of a job that had not expired": ("op = 'DELETE' AND (was).expires_at > at"),
    "a removal of a job that nobody had taken for it": (
        "op = 'DELETE' AND (was).locked_by IS NULL"
    ),
}


class Actor:
    """Does at random what workers, sweeps and clients do, and remembers what it holds."""

    def __init__(self, provider: PostgresJobProvider, number: int) -> None:
        self.provider = provider
        self.worker = f"worker-{number}"
        self.random = random.Random(SEED + number)  # noqa: S311
        self.held: list[tuple[str, JobLease]] = []
        self.done = 0
        self.finished: list[str] = []
        self._actions = [
            *(self._create, self._claim, self._claim, self._renew, self._renew, self._finish),
            *(self._finish, self._release, self._cancel, self._sweep, self._abandon, self._clean),
        ]

    async def run(self, end: float) -> None:
        """Act until the time is over."""
        while trio.current_time() < end:
            await self.random.choice(self._actions)()
            self.done += 1

    def _new_lease(self) -> JobLease:
        return JobLease(self.worker, self.random.choice([0.3, 60.0]))

    async def _create(self) -> None:
        jobs = [
            kick_off(max_attempts=2, retention=self.random.choice([0.05, 60.0])) for _ in range(5)
        ]
        await self.provider.create_jobs(TENANT, PROJECT, jobs)

    async def _claim(self) -> None:
        lease = self._new_lease()
        try:
            jobs = await self.provider.claim_jobs([KIND, "other"], lease, 5)
        except ProviderUnavailable as error:
            # On a busy machine half of the short lease may be too little; anything else is not.
            if "did not answer within 0.15 s" not in str(error):
                raise
            await self.provider.forget_claim(lease)
            return
        for job in jobs:
            self.held.append((job.id, lease))

    async def _renew(self) -> None:
        async with trio.open_nursery() as nursery:
            for id, lease in self.held[:10]:
                nursery.start_soon(self._renew_one, id, lease)

    async def _renew_one(self, id: str, lease: JobLease) -> None:
        # Shorter than before, as a renewal that was under way for long would be.
        shorter = JobLease(lease.worker, self.random.choice([0.01, lease.duration]), lease.token)
        if await self.provider.renew_lease(id, shorter, "on its way") is LeaseRenewal.LOST:
            self.held = [entry for entry in self.held if entry != (id, lease)]

    async def _finish(self) -> None:
        # Some are kept, so that they are finished, renewed and released again.
        async with trio.open_nursery() as nursery:
            for id, lease in self.random.sample(self.held, min(4, len(self.held))):
                nursery.start_soon(self._finish_one, id, lease)

    async def _finish_one(self, id: str, lease: JobLease) -> None:
        if await self.provider.finish_job(id, lease, JobResult.completed(self.worker), 60):
            self.finished.append(id)

    async def _release(self) -> None:
        if self.held:
            id, lease = self.random.choice(self.held)
            await self.provider.release_job(id, lease, give_back=self.random.random() < 0.5)

    async def _cancel(self) -> None:
        if self.held:
            await self.provider.cancel_job(TENANT, PROJECT, self.random.choice(self.held)[0])

    async def _sweep(self) -> None:
        lease = self._new_lease()
        for job in await self.provider.claim_expired_jobs([KIND], lease, 5):
            if self.random.random() < 0.7:
                await self.provider.delete_expired_job(job.id, lease)

    async def _abandon(self) -> None:
        await self.provider.fail_abandoned_jobs(abandoned_outcome(), 0.05, 10)

    async def _clean(self) -> None:
        await self.provider.forget_claim(self._new_lease())
        self.held = self.held[-30:]


async def _disturb(url: str, end: float) -> None:
    """Lock rows now and then, as another program's transaction would."""
    while trio.current_time() < end:
        ids = [id for (id,) in run(url, "SELECT id FROM async_jobs ORDER BY random() LIMIT 2")]
        try:
            with locked(url, *ids):
                await trio.sleep(0.01)
        except AssertionError:
            # Removed meanwhile.
            continue


async def test_providers_at_the_same_rows_never_deadlock_nor_err(url: str) -> None:
    """Every call is answered without an error, and the history of every row is lawful."""
    run(url, AUDIT)
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    before = value(url, deadlocks)
    actors: list[Actor] = []

    async def one(number: int, end: float) -> None:
        async with PostgresJobProvider.open(url) as provider, trio.open_nursery() as nursery:
            for place in range(ACTORS):
                actor = Actor(provider, number * ACTORS + place)
                actors.append(actor)
                nursery.start_soon(actor.run, end)

    async with trio.open_nursery() as nursery:
        end = trio.current_time() + SECONDS
        nursery.start_soon(_disturb, url, end)
        for number in range(PROVIDERS):
            nursery.start_soon(one, number, end)
    try:
        assert sum(actor.done for actor in actors) > 200
        assert sum(len(actor.finished) for actor in actors) > 20
        assert value(url, deadlocks) == before
        for what, condition in NEVER.items():
            rows = run(url, f"SELECT was, now FROM audit WHERE {condition} LIMIT 1")  # noqa: S608
            assert not rows, what
        twice = run(
            url,
            "SELECT (now).id FROM audit WHERE op = 'UPDATE' AND (was).status <> (now).status"
            " AND (now).status IN ('completed', 'failed') GROUP BY 1 HAVING count(*) > 1",
        )
        assert not twice
    finally:
        run(url, NO_AUDIT)
