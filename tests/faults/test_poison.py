"""One row that the database will not take: its neighbours go through in the same round."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio
from tests.postgres.harness import KIND, column, new_lease, run, statuses, until

from hastetrio import AsyncJobWorkerConfig, LeaseRenewal
from hastetrio._errors import ProviderUnavailable, UnstorableValue
from hastetrio._model import JobResult
from hastetrio.postgres import PostgresJobProvider

from .bodies import Gated, Lines
from .history import History
from .workers import completed, queue, working

# What the value's own fault is, what a trigger of the host's says, and a page that is broken.
REFUSALS = {"23514": UnstorableValue, "P0001": ProviderUnavailable, "XX001": ProviderUnavailable}


@contextmanager
def refusing(url: str, id: str, sqlstate: str) -> Iterator[None]:
    """Every statement that touches this row fails while the block lasts."""
    run(
        url,
        "CREATE FUNCTION refuse_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f"  RAISE EXCEPTION 'poison' USING ERRCODE = '{sqlstate}'; END $$;"
        "CREATE TRIGGER refuse_row BEFORE UPDATE ON async_jobs FOR EACH ROW"
        f"  WHEN (OLD.id = '{id}' AND OLD.status = 'in-progress')"
        "  EXECUTE FUNCTION refuse_row()",
    )
    try:
        yield
    finally:
        run(url, "DROP TRIGGER refuse_row ON async_jobs; DROP FUNCTION refuse_row")


@pytest.mark.parametrize("call", ["finish", "renew", "release"])
@pytest.mark.parametrize(
    "sqlstate", ["23514", "P0001", pytest.param("XX001", marks=pytest.mark.slow)]
)
async def test_a_row_that_is_refused_leaves_its_batch_alone(
    url: str,
    provider: PostgresJobProvider,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    sqlstate: str,
) -> None:
    """It alone is told; the 63 others are answered in the same round, in a few statements."""
    ids = queue(url, number=64)
    lease = new_lease()
    assert len(await provider.claim_jobs([KIND], lease, 100)) == 64
    lane = provider._renewals if call == "renew" else provider._finishes
    statements: list[str] = []
    fetch = lane.fetch

    async def counted(sql: str, *arguments: object) -> object:
        statements.append(sql)
        return await fetch(sql, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(lane, "fetch", counted)
    told: dict[str, object] = {}

    async def ask(id: str) -> None:
        try:
            if call == "finish":
                told[id] = await provider.finish_job(id, lease, JobResult.completed(id), 60)
            elif call == "renew":
                told[id] = await provider.renew_lease(id, lease)
            else:
                told[id] = await provider.release_job(id, lease)
        except UnstorableValue:
            told[id] = UnstorableValue
        except ProviderUnavailable:
            told[id] = ProviderUnavailable

    with refusing(url, ids[37], sqlstate):
        async with trio.open_nursery() as nursery:
            for id in ids:
                nursery.start_soon(ask, id)
    good = LeaseRenewal.RENEWED if call == "renew" else True
    assert told == dict.fromkeys(ids, good) | {ids[37]: REFUSALS[sqlstate]}
    # A descent of six levels, two statements each, and the first call that went ahead alone.
    assert len(statements) <= 2 * 6 + 3


@pytest.mark.slow
async def test_a_workers_other_jobs_keep_their_leases_beside_a_poisoned_row(
    url: str, history: History, lines: Lines
) -> None:
    """Its own lease lapses in time, nothing is recorded for it, and it runs again once healed."""
    config = AsyncJobWorkerConfig(lease_duration=1.2, poll_interval=0.2, max_concurrent_jobs=20)
    gated = Gated()
    async with working(url, gated, config=config) as (_, worker):
        ids = queue(url, number=20)
        await until(lambda: len(gated.running) == 20)
        with refusing(url, ids[7], "P0001"):
            await until(lambda: gated.ended)
            assert [run.id for run in gated.ended] == [ids[7]]
            assert worker.statistics().totals.renewals >= 19
            gated.gate.set()
            await completed(url, *ids[:7], *ids[8:])
            assert statuses(url, [ids[7]]) == ["in-progress"]
        await completed(url, ids[7])
    assert {run.id: run.attempt for run in gated.ended[:20]} == dict.fromkeys(ids, 1)
    assert all(len(history.results(id)) == 1 for id in ids)
    assert {column(url, id, "attempts") for id in ids} == {1}
