"""Metrics: what Prometheus gets to read, with few labels, and a database that may be away."""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs
import httpx2
import prometheus_client
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from hastetrio import AsyncJobStatus, Counts, ProviderUnavailable, WorkerStatistics
from hastetrio._operation import Level, Operation
from hastetrio.fhir import make_app
from hastetrio.fhir._health import probes_app
from hastetrio.fhir._metrics import Metrics
from hastetrio.postgres import QueueOverview
from hastetrio.postgres._overview import Holder, KindWaiting, StatusCount

from .harness import BASE, PREFER, PUBLIC, check_outcome, face, handler

RUNNING, WAITING = AsyncJobStatus.IN_PROGRESS, AsyncJobStatus.ACCEPTED
EMPTY = QueueOverview((), (), 0, ())
BUSY = QueueOverview(
    counts=(StatusCount(RUNNING, "export", 3), StatusCount(WAITING, "export", 2)),
    waiting=(KindWaiting("export", 2, 12.5),),
    lapsed=1,
    holders=(Holder("w1", ("export",), 2, 30.0), Holder("w2", ("export",), 1, 20.0)),
)

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@attrs.define
class Queue:
    """A queue whose overview is told."""

    shown: QueueOverview = EMPTY
    looks: int = 0
    error: Callable[[], Exception] | None = None
    seconds: float = 0.0

    async def overview(self) -> QueueOverview:
        """Answer as told."""
        self.looks += 1
        await trio.sleep(self.seconds)
        if self.error is not None:
            raise self.error()
        return self.shown


async def scrape(metrics: Metrics) -> Samples:
    """What Prometheus reads, by name and labels."""
    transport = httpx2.ASGITransport(probes_app([metrics.route()]))
    async with httpx2.AsyncClient(transport=transport, base_url="http://inside.invalid") as http:
        answer = await http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def labelled(**labels: str) -> frozenset[tuple[str, str]]:
    """Labels, as `scrape` has them."""
    return frozenset(labels.items())


def names(samples: Samples) -> set[str]:
    """The names of what was read."""
    return {name for name, _ in samples}


async def test_the_queue_is_shown_by_status_and_kind() -> None:
    """What an operator's alerts are made of."""
    found = await scrape(Metrics(Queue(BUSY).overview))
    assert found["hastetrio_jobs", labelled(status="in-progress", kind="export")] == 3
    assert found["hastetrio_jobs", labelled(status="accepted", kind="export")] == 2
    assert found["hastetrio_oldest_waiting_seconds", labelled(kind="export")] == 12.5
    assert found["hastetrio_leases", labelled()] == 3
    assert found["hastetrio_leases_lapsed", labelled()] == 1
    assert found["hastetrio_workers", labelled()] == 2
    assert found["hastetrio_database_up", labelled()] == 1


async def test_rare_kinds_share_a_label() -> None:
    """Kinds are any text: a thousand of them must not be a thousand series."""
    counts = [StatusCount(WAITING, f"kind-{n}", n + 1) for n in range(1000)]
    waiting = [KindWaiting(f"kind-{n}", n + 1, float(n)) for n in range(1000)]
    found = await scrape(
        Metrics(Queue(QueueOverview(tuple(counts), tuple(waiting), 0, ())).overview)
    )
    jobs = {labels: value for (name, labels), value in found.items() if name == "hastetrio_jobs"}
    assert len(jobs) == 101
    assert sum(jobs.values()) == sum(one.count for one in counts)
    assert jobs[labelled(status="accepted", kind="kind-999")] == 1000
    assert jobs[labelled(status="accepted", kind="other")] == sum(range(1, 901))
    assert found["hastetrio_oldest_waiting_seconds", labelled(kind="other")] == 899


@pytest.mark.parametrize("error", [lambda: ProviderUnavailable("away"), lambda: RuntimeError("?")])
async def test_a_database_that_is_away_fails_no_scrape(error: Callable[[], Exception]) -> None:
    """The worker's figures matter most just then."""
    metrics = Metrics(Queue(BUSY, error=error).overview, lambda: STATISTICS)
    found = await scrape(metrics)
    assert found["hastetrio_database_up", labelled()] == 0
    assert "hastetrio_jobs" not in names(found)
    assert found["hastetrio_worker_slots", labelled()] == 4


async def test_a_database_that_is_slow_holds_up_no_scrape(autojump_clock: MockClock) -> None:
    """Prometheus gives up after ten seconds, and then has nothing."""
    began = trio.current_time()
    found = await scrape(Metrics(Queue(BUSY, seconds=60).overview))
    assert trio.current_time() - began < 10
    assert found["hastetrio_database_up", labelled()] == 0


async def test_the_queue_is_looked_at_once_in_five_seconds(autojump_clock: MockClock) -> None:
    """Each look reads the table; scrapers come in any number."""
    queue = Queue(BUSY, seconds=0.5)
    metrics = Metrics(queue.overview)
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(scrape, metrics)
    assert queue.looks == 1
    await trio.sleep(5)
    queue.error = lambda: ProviderUnavailable("away")
    found = await scrape(metrics)
    assert queue.looks == 2
    # Figures that are no longer so are not shown again.
    assert "hastetrio_jobs" not in names(found)


def _counts() -> Counts:
    counts = Counts(
        claims=10, claims_empty=7, claims_failed=2, claimed=5, completed=3, failed=1, cleaned_up=2
    )
    counts.granted(20.5, 60)
    counts.granted(59.0, 60)
    return counts


STATISTICS = WorkerStatistics(worker="w1", slots=4, free=1, held=3, unwinding=(), totals=_counts())


async def test_the_worker_is_shown() -> None:
    """Claims, ends, clean-ups, slots and leases."""
    found = await scrape(Metrics(None, lambda: STATISTICS))
    assert found["hastetrio_worker_slots_free", labelled()] == 1
    assert found["hastetrio_worker_leases_held", labelled()] == 3
    claims = {
        r: found["hastetrio_worker_claims_total", labelled(result=r)] for r in ("ok", "empty")
    }
    assert claims == {"ok": 3, "empty": 7}
    assert found["hastetrio_worker_claims_total", labelled(result="failed")] == 2
    assert found["hastetrio_worker_finishes_total", labelled(result="completed")] == 3
    assert found["hastetrio_worker_finishes_total", labelled(result="failed")] == 1
    assert found["hastetrio_worker_cleanups_total", labelled(result="ok")] == 2
    assert "hastetrio_database_up" not in names(found)


async def test_renewal_lateness_is_a_histogram() -> None:
    """One half a second late, one 39: the second is beyond the last class."""
    found = await scrape(Metrics(None, lambda: STATISTICS))
    name = "hastetrio_worker_renewal_lateness_seconds"
    assert found[f"{name}_bucket", labelled(le="0.25")] == 0
    assert found[f"{name}_bucket", labelled(le="0.5")] == 1
    assert found[f"{name}_bucket", labelled(le="30.0")] == 1
    assert found[f"{name}_bucket", labelled(le="+Inf")] == 2
    assert found[f"{name}_count", labelled()] == 2
    assert math.isclose(found[f"{name}_sum", labelled()], 39.5)
    worst = found["hastetrio_worker_renewal_worst_ratio", labelled()]
    assert math.isclose(worst, 59 / 60)


async def test_requests_are_counted_by_template() -> None:
    """Neither ids nor paths nor methods that clients make up become labels."""
    metrics = Metrics(None, None, ["work", "purge"])
    purge = Operation(name="purge", levels=[Level.TYPE, Level.INSTANCE])
    app = make_app(face([handler(), handler("purge", purge)]), [metrics.route()])
    transport = httpx2.ASGITransport(metrics.instrumented(app))
    async with httpx2.AsyncClient(transport=transport, base_url="http://inside.invalid") as http:
        started = await http.post(f"{BASE}/$work", headers=PREFER)
        status = started.headers["content-location"].removeprefix(PUBLIC)
        await http.get(status)
        await http.get(f"{BASE}/_async/none-such")
        await http.get(f"{status}/files/x.ndjson")
        await http.get(f"{BASE}/_async")
        await http.get(f"{BASE}/metadata")
        await http.post(f"{BASE}/Patient/$purge", headers=PREFER)
        await http.post(f"{BASE}/Patient/7/$purge", headers=PREFER)
        await http.post(f"{BASE}/$made-up-by-a-client")
        await http.request("BREW", "/anything")
        await http.get("/metrics")
    found = await scrape(metrics)
    requests = {
        tuple(dict(labels)[key] for key in ("route", "method", "status")): value
        for (name, labels), value in found.items()
        if name == "hastetrio_http_requests_total"
    }
    assert requests == {
        ("$work", "POST", "202"): 1,
        ("_async/{id}", "GET", "202"): 1,
        ("_async/{id}", "GET", "404"): 1,
        ("_async/{id}/files/{name}", "GET", "404"): 1,
        ("_async", "GET", "200"): 1,
        ("metadata", "GET", "200"): 1,
        ("{type}/$purge", "POST", "202"): 1,
        ("{type}/{id}/$purge", "POST", "202"): 1,
        ("other", "POST", "404"): 1,
        ("other", "other", "404"): 1,
        ("/metrics", "GET", "200"): 1,
    }
    durations = labelled(route="_async/{id}", method="GET")
    assert found["hastetrio_http_request_duration_seconds_count", durations] == 2


async def test_polls_that_come_too_early_are_counted() -> None:
    """Whether clients keep to what they are told is worth knowing."""
    metrics = Metrics(None)
    transport = httpx2.ASGITransport(metrics.instrumented(make_app(face())))
    async with httpx2.AsyncClient(transport=transport, base_url="http://inside.invalid") as http:
        started = await http.post(f"{BASE}/$work", headers=PREFER)
        status = started.headers["content-location"].removeprefix(PUBLIC)
        answers = [(await http.get(status)).status_code for _ in range(40)]
    refused = answers.count(429)
    assert refused
    assert (await scrape(metrics))["hastetrio_polls_throttled_total", labelled()] == refused


async def test_the_default_registry_is_left_alone() -> None:
    """A program that embeds this one may have metrics of its own."""
    metrics = Metrics(Queue(BUSY).overview, lambda: STATISTICS)
    assert "hastetrio_build_info" in names(await scrape(metrics))
    assert b"hastetrio" not in prometheus_client.generate_latest()


async def test_metrics_are_only_read() -> None:
    """Anything else is refused as everywhere."""
    transport = httpx2.ASGITransport(probes_app([Metrics(None).route()]))
    async with httpx2.AsyncClient(transport=transport, base_url="http://inside.invalid") as http:
        answer = await http.post("/metrics")
    assert answer.status_code == 405
    check_outcome(answer)
