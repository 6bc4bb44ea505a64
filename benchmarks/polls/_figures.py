"""What was measured, and what must hold of it."""

from __future__ import annotations

from typing import Any, Final

import attrs

# The largest share of a lease that may pass between two grants: the next renewal then still has
# half of it to come in.
MOST_OF_LEASE: Final = 0.5

_NAME: Final = "hastetrio_worker_"


@attrs.frozen(kw_only=True)
class Renewals:
    """How a worker kept its leases.

    Attributes:
        granted: Renewals that were granted.
        failed: Renewals that were not answered.
        mean_late_ms: How long after they were due, a third into the lease, they were granted.
        worst: The largest share of a lease between two grants.
        lost: Jobs whose lease was lost, or that were handed back, or started twice.
    """

    granted: int
    failed: int
    mean_late_ms: float
    worst: float
    lost: int

    @classmethod
    def of(cls, metrics: dict[str, float], started_twice: int) -> Renewals:
        """What the metrics of a worker say."""
        late = f"{_NAME}renewal_lateness_seconds"
        granted = metrics[f"{late}_count"]
        ended = [metrics[f'{_NAME}finishes_total{{result="{name}"}}'] for name in _LOST]
        return cls(
            granted=int(granted),
            failed=int(metrics[f'{_NAME}renewals_total{{result="failed"}}']),
            mean_late_ms=metrics[f"{late}_sum"] / granted * 1000 if granted else 0.0,
            worst=metrics[f"{_NAME}renewal_worst_ratio"],
            lost=int(sum(ended)) + started_twice,
        )


_LOST: Final = ("dropped", "handed_back", "unrecorded")


@attrs.frozen(kw_only=True)
class Figures:
    """A whole run.

    Attributes:
        machine: What it ran on.
        settings: What was asked for.
        polls: What the load generator measured.
        quiet: The renewals without load.
        loaded: The renewals under load.
        sessions: The server's database connections: before the downloads, with them stalled, and
            the most seen under load with them.
    """

    machine: dict[str, str]
    settings: dict[str, float]
    polls: dict[str, Any]
    quiet: Renewals
    loaded: Renewals
    sessions: dict[str, int]

    @property
    def rate(self) -> float:
        """Polls a second that were answered with a status."""
        return float(self.polls["statuses"].get("202", 0)) / float(self.polls["seconds"])

    @property
    def problems(self) -> list[str]:
        """What does not hold that must."""
        found = []
        if self.loaded.worst >= MOST_OF_LEASE:
            found.append(
                f"a renewal came after {self.loaded.worst:.2f} of the lease; {MOST_OF_LEASE} is "
                "the most"
            )
        if self.loaded.lost or self.quiet.lost:
            found.append(f"{self.loaded.lost + self.quiet.lost} jobs lost their lease")
        if self.sessions["downloading"] > self.sessions["before"]:
            found.append("a download holds a database connection")
        if others := {k: v for k, v in self.polls["statuses"].items() if k not in ("202", "429")}:
            found.append(f"polls were answered with other statuses: {others}")
        return found

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {**attrs.asdict(self), "polls_per_second": self.rate, "problems": self.problems}

    def text(self) -> str:
        """All of it, for people."""
        polls, sessions = self.polls, self.sessions
        answered = (
            f"polls answered       {self.rate:8.0f} a second, p50 {polls['p50_ms']:.1f} ms, "
            f"p99 {polls['p99_ms']:.1f} ms, worst {polls['worst_ms']:.0f} ms"
        )
        connections = (
            f"database connections {sessions['before']:8d} before, "
            f"{sessions['downloading']} with stalled downloads, "
            f"{sessions['loaded']} at most under load"
        )
        lines = [
            answered,
            f"polls refused (429)  {polls['statuses'].get('429', 0):8d}",
            _line("renewals, no load", self.quiet),
            _line("renewals, under load", self.loaded),
            connections,
            *(f"PROBLEM: {one}" for one in self.problems),
        ]
        return "\n".join(lines)


def _line(name: str, renewals: Renewals) -> str:
    return (
        f"{name:20} {renewals.granted:8d} granted {renewals.mean_late_ms:.1f} ms late on average; "
        f"at worst {renewals.worst:.2f} of the lease between two; {renewals.failed} failed, "
        f"{renewals.lost} jobs lost"
    )
