"""What Prometheus reads: the families of metrics, made of the queue, a worker and HTTP requests."""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import attrs
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from hastetrio._statistics import RENEWAL_BUCKETS

if TYPE_CHECKING:
    from hastetrio._statistics import WorkerStatistics
    from hastetrio.postgres import QueueOverview

# Kinds are texts that clients' programs choose: those beyond the most frequent share a label.
_MOST_KINDS: Final = 100
_OTHER: Final = "other"

_REQUEST_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

# The method is the client's to choose, too.
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


@attrs.define
class Requests:
    """HTTP requests, counted since the process started."""

    answered: Counter[tuple[str, str, str]] = attrs.field(factory=Counter)
    throttled: int = 0
    _classes: dict[tuple[str, str], list[int]] = attrs.field(
        factory=lambda: defaultdict(lambda: [0] * (len(_REQUEST_BUCKETS) + 1))
    )
    _seconds: Counter[tuple[str, str]] = attrs.field(factory=Counter)

    def count(self, route: str, method: str, status: int | None, elapsed: float) -> None:
        """Count a request.

        Args:
            route: The template of its path.
            method: Its method, as the client sent it.
            status: How it was answered; None if it was not.
            elapsed: Seconds until its answer was sent.
        """
        method = method if method in _METHODS else _OTHER
        self.answered[route, method, str(status or "none")] += 1
        self._classes[route, method][bisect_left(_REQUEST_BUCKETS, elapsed)] += 1
        self._seconds[route, method] += elapsed  # type: ignore[assignment]  # a float does as well

    def families(self) -> Iterator[Metric]:
        """The families of these counts."""
        answered = CounterMetricFamily(
            "hastetrio_http_requests",
            "HTTP requests by route, method and status.",
            labels=["route", "method", "status"],
        )
        for labels, count in self.answered.items():
            answered.add_metric(labels, count)
        yield answered
        duration = HistogramMetricFamily(
            "hastetrio_http_request_duration_seconds",
            "Seconds from a request's head until its answer was sent.",
            labels=["route", "method"],
        )
        for key, classes in self._classes.items():
            duration.add_metric(key, _cumulated(_REQUEST_BUCKETS, classes), self._seconds[key])
        yield duration
        yield CounterMetricFamily(
            "hastetrio_polls_throttled",
            "Status requests refused because they came sooner than told.",
            value=self.throttled,
        )


def _cumulated(ends: Sequence[float], classes: Sequence[int]) -> list[tuple[str, float]]:
    total = 0
    buckets: list[tuple[str, float]] = []
    for end, count in zip([*map(str, ends), "+Inf"], classes, strict=True):
        total += count
        buckets.append((end, total))
    return buckets


# How a job may end for a worker; the names of `Counts`.
_ENDS: Final = (
    *("completed", "failed", "retried", "snoozed", "dropped", "handed_back", "unrecorded"),
)


def build_family() -> Metric:
    """Which program this is."""
    return _gauges(
        "hastetrio_build_info",
        "The program's version; always 1.",
        ["version", "python"],
        [((version("hastetrio"), platform.python_version()), 1)],
    )


def queue_families(overview: QueueOverview) -> Iterator[Metric]:
    """How the whole queue stands; the same from every process."""
    totals: Counter[str] = Counter()
    for one in overview.counts:
        totals[one.kind] += one.count
    kept = {kind for kind, _ in totals.most_common(_MOST_KINDS)}

    def label(kind: str) -> str:
        return kind if kind in kept else _OTHER

    jobs: Counter[tuple[str, str]] = Counter()
    for one in overview.counts:
        jobs[one.status.value, label(one.kind)] += one.count
    oldest: dict[str, float] = {}
    delayed: Counter[str] = Counter()
    for waiting in overview.waiting:
        kind = label(waiting.kind)
        oldest[kind] = max(oldest.get(kind, 0.0), waiting.oldest_seconds)
        delayed[kind] += waiting.delayed
    yield _gauges(
        "hastetrio_jobs",
        "Jobs that have not expired, by status and kind.",
        ["status", "kind"],
        jobs.items(),
    )
    yield _gauges(
        "hastetrio_oldest_waiting_seconds",
        "How long the longest due job of a kind has waited.",
        ["kind"],
        (((kind,), seconds) for kind, seconds in oldest.items()),
    )
    yield _gauges(
        "hastetrio_jobs_delayed",
        "Queued jobs of a kind that wait for their time.",
        ["kind"],
        (((kind,), count) for kind, count in delayed.items()),
    )
    yield GaugeMetricFamily(
        "hastetrio_leases",
        "Jobs held by any worker.",
        value=sum(holder.jobs for holder in overview.holders),
    )
    yield GaugeMetricFamily(
        "hastetrio_leases_lapsed",
        "Running jobs whose lease has lapsed: another worker may take them.",
        value=overview.lapsed,
    )
    yield GaugeMetricFamily(
        "hastetrio_workers", "Workers that hold a job.", value=len(overview.holders)
    )


def worker_families(worker: WorkerStatistics) -> Iterator[Metric]:
    """How this process's worker stands."""
    totals = worker.totals
    for name, text, value in (
        ("slots", "Jobs the worker runs at once.", worker.slots),
        ("slots_free", "Slots that are free.", worker.free),
        ("leases_held", "Rows the worker holds, clean-ups included.", worker.held),
    ):
        yield GaugeMetricFamily(f"hastetrio_worker_{name}", text, value=value)
    for name, text, results in (
        (
            "claims",
            "Claims sent, by what came of them.",
            {
                "ok": totals.claims - totals.claims_empty,
                "empty": totals.claims_empty,
                "failed": totals.claims_failed,
            },
        ),
        (
            "finishes",
            "Runs ended, by how.",
            {name: getattr(totals, name) for name in _ENDS},
        ),
        (
            "renewals",
            "Renewals answered, and those that failed.",
            {"ok": totals.renewals, "failed": totals.renewals_failed},
        ),
        (
            "cleanups",
            "Clean-ups after expired jobs.",
            {"ok": totals.cleaned_up, "failed": totals.cleanups_failed},
        ),
    ):
        family = CounterMetricFamily(f"hastetrio_worker_{name}", text, labels=["result"])
        for result, count in results.items():
            family.add_metric([result], count)
        yield family
    yield CounterMetricFamily(
        "hastetrio_worker_jobs_claimed", "Jobs claimed.", value=totals.claimed
    )
    yield HistogramMetricFamily(
        "hastetrio_worker_renewal_lateness_seconds",
        "How long after they were due, a third into the lease, renewals were granted.",
        buckets=_cumulated(RENEWAL_BUCKETS, totals.renewal_lateness),
        sum_value=totals.renewal_lateness_sum,
    )
    yield GaugeMetricFamily(
        "hastetrio_worker_renewal_worst_ratio",
        "The largest share of a lease that passed between two grants since the start.",
        value=totals.renewal_worst,
    )


def _gauges(
    name: str,
    text: str,
    labels: Sequence[str],
    values: Iterable[tuple[Sequence[str], float]],
) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family
