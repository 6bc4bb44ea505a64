"""A network that breaks between one worker and the database, in every way a network can."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from tests.postgres.harness import until

from hastetrio import AsyncJobWorker, AsyncJobWorkerConfig, CancelReason, _claims
from hastetrio.postgres import PostgresJobProvider, _listen

from .bodies import SHORT, Gated, Lines
from .history import History
from .network import Network
from .workers import check_untouched, completed, queue, working

Break = Callable[[Network], None]


@pytest.fixture(autouse=True)
def short_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second after a claim that failed, for five; the virtual tests hold it to its value."""
    monkeypatch.setattr(_claims, "ERROR_BACKOFF", 0.5)


@pytest.mark.parametrize(
    "breaks",
    [
        pytest.param(lambda network: network.stall(new=True), id="silent"),
        pytest.param(Network.refuse, id="refused", marks=pytest.mark.slow),
    ],
)
async def test_a_worker_cut_off_loses_its_jobs_to_one_that_is_not_and_joins_again(
    url: str, history: History, network: Network, breaks: Break
) -> None:
    """Its handlers have been cancelled before the other's begin; healed, it runs new jobs."""
    order: list[str] = []
    far = Gated(on_start=lambda id: order.append(f"far {id}"))
    near = Gated(on_start=lambda id: order.append(f"near {id}, {len(far.running)} far"))
    async with (
        PostgresJobProvider.open(network.url, call_budget=SHORT.call_budget) as cut_off,
        PostgresJobProvider.open(url, call_budget=SHORT.call_budget) as provider,
        trio.open_nursery() as nursery,
    ):
        first = AsyncJobWorker(cut_off, [far], SHORT, worker_id="far")
        await nursery.start(first.run)
        ids = queue(url, number=3)
        await until(lambda: len(far.running) == 3)
        breaks(network)
        second = AsyncJobWorker(provider, [near], SHORT, worker_id="near")
        await nursery.start(second.run)
        await until(lambda: len(near.running) == 3)
        assert sorted(order[:3]) == sorted(f"far {id}" for id in ids)
        assert sorted(order[3:]) == sorted(f"near {id}, 0 far" for id in ids)
        assert {run.reason for run in far.ended} == {CancelReason.LEASE_LOST}
        # The near one is full up with one more, so that only the healed one can run the last.
        far.gate.set()
        more = queue(url)
        await until(lambda: len(near.running) == 4)
        network.heal()
        last = queue(url)
        await completed(url, *last)
        near.gate.set()
        await completed(url, *ids, *more)
        first.stop()
        second.stop()
    for id in ids:
        ((token, _), (other, _)) = history.claims(id)
        assert (token.split("/")[0], other.split("/")[0]) == ("far", "near")
        assert history.results(id) == [other]
    # A claim that the network kept back for more than its lease may have been applied before: that
    # costs an attempt, and never a result.
    assert {token.split("/")[0] for token, _ in history.claims(*last)} == {"far"}
    assert [len(history.results(id)) for id in (*more, *last)] == [1, 1]


@pytest.mark.parametrize(
    "breaks",
    [
        pytest.param(lambda network: network.stall(), id="both ways", marks=pytest.mark.slow),
        pytest.param(lambda network: network.stall("up"), id="to it", marks=pytest.mark.slow),
        pytest.param(lambda network: network.stall("down"), id="from it", marks=pytest.mark.slow),
        pytest.param(Network.half_open, id="half open"),
        pytest.param(Network.cut, id="cut", marks=pytest.mark.slow),
    ],
)
async def test_connections_that_fall_silent_are_replaced_in_time(
    url: str, history: History, network: Network, breaks: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No error tells; the budget of each call does, and the job keeps its lease all the time."""
    monkeypatch.setattr(_listen, "_PROBE_INTERVAL", 0.2)
    config = AsyncJobWorkerConfig(lease_duration=3, poll_interval=0.2)
    gated = Gated()
    async with working(network.url, gated, config=config) as (_, worker):
        (id,) = queue(url)
        await until(lambda: gated.running)
        connections = network.accepted
        renewed = worker.statistics().totals.renewals
        breaks(network)
        # Claims, renewals and wake-ups each have a connection of their own.
        await until(lambda: network.accepted >= connections + 3)
        await until(lambda: worker.statistics().totals.renewals > renewed)
        gated.gate.set()
        await completed(url, id)
        later = queue(url)
        await completed(url, *later)
    assert [run.reason for run in gated.ended] == [None, None]
    check_untouched(history, url, id, *later)


async def test_a_claim_whose_answer_the_network_loses_costs_no_attempt(
    url: str, history: History, network: Network
) -> None:
    """The database granted it and nobody here knows; it is handed back before the next claim."""
    config = AsyncJobWorkerConfig(lease_duration=60, poll_interval=0.2)
    gated = Gated()
    gated.gate.set()
    async with working(network.url, gated, config=config, call_budget=0.4) as (_, worker):
        await until(lambda: worker.statistics().totals.claims_empty >= 2)
        network.stall("down")
        ids = queue(url, number=3)
        await until(lambda: all(history.claims(id) for id in ids))
        # Long before the lease of 60 s would have lapsed.
        await completed(url, *ids)
    assert history.ran_once(ids)
    assert {len(history.claims(id)) for id in ids} == {2}


@pytest.mark.slow
async def test_a_slow_network_only_makes_slow(
    url: str, history: History, network: Network, lines: Lines
) -> None:
    """With 30 ms each way jobs run, are renewed and end as always."""
    network.latency = 0.03
    config = AsyncJobWorkerConfig(lease_duration=3, poll_interval=0.2)
    gated = Gated()
    async with working(network.url, gated, config=config) as (_, worker):
        ids = queue(url, number=12)
        await until(lambda: worker.statistics().totals.renewals >= 4)
        gated.gate.set()
        await completed(url, *ids)
    assert lines.texts("job.renew-failed") == lines.texts("claim.failed") == []
    check_untouched(history, url, *ids)


@pytest.mark.slow
async def test_a_database_that_refuses_is_not_stormed(
    url: str, history: History, network: Network, lines: Lines
) -> None:
    """Five hundred jobs ask again and again to be recorded, and hardly anybody knocks."""
    gated = Gated()
    config = AsyncJobWorkerConfig(lease_duration=60, poll_interval=0.2, max_concurrent_jobs=500)
    async with working(network.url, gated, config=config):
        ids = queue(url, number=500)
        await until(lambda: len(gated.running) == 500)
        network.refuse()
        gated.gate.set()
        await until(lambda: len(lines.texts("job.record-retried")) >= 2000)
        assert network.refused < 100
        network.heal()
        await completed(url, *ids)
    assert history.ran_once(ids)
