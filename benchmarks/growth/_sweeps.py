"""Whether the sweep of expired jobs keeps up with workers that finish as fast as they can."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import attrs
import psycopg

from benchmarks.growth import _jobs
from benchmarks.growth._figures import table
from benchmarks.growth._processes import workers

if TYPE_CHECKING:
    from collections.abc import Sequence

_SLOTS: Final = 100

# Seconds between looks, and the longest to wait for the last row to go.
_LOOK: Final = 0.25
_PATIENCE: Final = 300.0

# What is looked at, each by an index: ids of what has not begun, and what has expired and is there.
_LOOKS: Final = (
    "SELECT (SELECT count(*) FROM async_jobs WHERE status = 'accepted' AND kind = 'kind-0'),"
    " (SELECT count(*) FROM async_jobs WHERE expires_at <= now()),"
    " (SELECT count(*) FROM async_jobs WHERE status = 'in-progress')"
)

HANDLERS: Final = {"no-op": "without a clean-up", "leaving": "with a clean-up each"}


@attrs.frozen
class Look:
    """How things stood.

    Attributes:
        at: Seconds since the workers began.
        left: Jobs not finished.
        expired: Rows that have expired and are still there.
    """

    at: float
    left: int
    expired: int


@attrs.frozen
class Swept:
    """How a run went.

    Attributes:
        looks: In their order.
        jobs: How many jobs there were.
    """

    looks: tuple[Look, ...]
    jobs: int

    @property
    def finished_at(self) -> float:
        """When the last job had finished, in seconds."""
        return next((look.at for look in self.looks if not look.left), self.looks[-1].at)

    @property
    def most(self) -> int:
        """The most expired rows there were at once."""
        return max(look.expired for look in self.looks)

    @property
    def gone_at(self) -> float:
        """When the last row was gone, in seconds."""
        return self.looks[-1].at


def by_handler(
    server_url: str, jobs: int, processes: int, retention: float, interval: float
) -> dict[str, Swept]:
    """Expired rows over time, by whether the handler has a clean-up of its own.

    Args:
        server_url: The server.
        jobs: How many jobs to finish.
        processes: Worker processes.
        retention: Seconds from completion until a job has expired.
        interval: Seconds between sweeps.
    """
    config = {
        "max_concurrent_jobs": _SLOTS,
        "retention": retention,
        "maintenance_interval": interval,
    }
    found = {}
    for handler in HANDLERS:
        with _jobs.migrated(server_url, "growth_sweep") as url:
            _jobs.queue(url, jobs)
            with workers(
                url, processes, handler=handler, kinds=_jobs.kinds(1), config=config
            ) as started:
                began = time.perf_counter()
                for one in started:
                    one.begin()
                found[handler] = Swept(tuple(_watch(url, began)), jobs)
    return found


def _watch(url: str, began: float) -> Sequence[Look]:
    looks: list[Look] = []
    with psycopg.connect(url, autocommit=True) as connection:
        while True:
            row = connection.execute(_LOOKS).fetchone()
            assert row is not None  # noqa: S101  # an aggregate
            queued, expired, running = row
            looks.append(Look(time.perf_counter() - began, queued + running, expired))
            everything = connection.execute("SELECT NOT EXISTS (SELECT FROM async_jobs)").fetchone()
            if (everything and everything[0]) or looks[-1].at > _PATIENCE:
                return looks
            time.sleep(_LOOK)


def sweeps_table(swept: dict[str, Swept], processes: int, retention: float, interval: float) -> str:
    """How far the sweep falls behind, and when it has caught up."""
    return table(
        f"Expired rows while {processes} processes finish jobs kept for {retention:g} s"
        f" (a sweep every {interval:g} s)",
        ("jobs", "handlers", "finished/s", "most expired", "s behind", "gone after the last, s"),
        [
            (
                *(f"{one.jobs:,}", HANDLERS[handler], f"{one.jobs / one.finished_at:,.0f}"),
                f"{one.most:,}",
                f"{one.most / (one.jobs / one.finished_at):.1f}",
                f"{max(0.0, one.gone_at - one.finished_at):.1f}",
            )
            for handler, one in swept.items()
        ],
        "s behind: the most expired rows, in seconds of finishing. A sweep every so many seconds"
        " leaves as many.",
    )
