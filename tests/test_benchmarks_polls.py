"""The benchmark of status polls: what its figures mean, and one short run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.polls.__main__ import main
from benchmarks.polls._figures import Figures, Renewals

GOOD = Renewals(granted=100, failed=0, mean_late_ms=3.0, worst=0.35, lost=0)


def figures(
    *,
    loaded: Renewals = GOOD,
    statuses: dict[str, int] | None = None,
    downloading: int = 7,
) -> Figures:
    """Figures of a run of 10 s."""
    polls: dict[str, Any] = {"seconds": 10.0, "p50_ms": 30.0, "p99_ms": 60.0, "worst_ms": 90.0}
    return Figures(
        machine={},
        settings={},
        polls=polls | {"statuses": statuses or {"202": 8000, "429": 5}},
        quiet=GOOD,
        loaded=loaded,
        sessions={"before": 7, "downloading": downloading, "loaded": 8},
    )


def test_refused_polls_count_apart() -> None:
    """A 429 reads no row, so that it is no poll that was answered."""
    found = figures()
    assert found.rate == 800
    assert found.problems == []
    assert "PROBLEM" not in found.text()


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (figures(loaded=Renewals(granted=1, failed=0, mean_late_ms=1, worst=0.5, lost=0)), "0.50"),
        (figures(loaded=Renewals(granted=1, failed=0, mean_late_ms=1, worst=0.1, lost=2)), "lost"),
        (figures(downloading=8), "download"),
        (figures(statuses={"202": 1, "500": 2}), "500"),
    ],
)
def test_what_must_hold_is_said_where_it_does_not(found: Figures, word: str) -> None:
    """A late renewal, a lost lease, a held connection, an error: each is a problem of its own."""
    (problem,) = found.problems
    assert word in problem
    assert f"PROBLEM: {problem}" in found.text()
    assert found.to_json()["problems"] == [problem]


def test_leases_are_lost_in_several_ways() -> None:
    """Dropped, handed back, not recorded, or started twice."""
    name = "hastetrio_worker_"
    metrics = {
        f"{name}renewal_lateness_seconds_count": 4.0,
        f"{name}renewal_lateness_seconds_sum": 0.02,
        f"{name}renewal_worst_ratio": 0.4,
        f'{name}renewals_total{{result="failed"}}': 1.0,
        f'{name}finishes_total{{result="dropped"}}': 1.0,
        f'{name}finishes_total{{result="handed_back"}}': 2.0,
        f'{name}finishes_total{{result="unrecorded"}}': 3.0,
    }
    found = Renewals.of(metrics, 4)
    assert found == Renewals(granted=4, failed=1, mean_late_ms=5.0, worst=0.4, lost=10)


@pytest.mark.slow
def test_a_short_run_measures_everything(
    tmp_path: Path, server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polls are answered, renewals are seen, and no download holds a connection."""
    monkeypatch.setenv("BENCH_SERVER", server_url)
    monkeypatch.chdir(Path(__file__).parents[1])
    report = tmp_path / "figures.json"
    main(["--seconds", "3", "--connections", "4", "--jobs", "10", "--json", str(report)])
    found = json.loads(report.read_text("utf-8"))
    assert found["polls"]["statuses"]["202"] > 0
    assert set(found["polls"]["statuses"]) == {"202"}
    assert found["quiet"]["granted"] >= 10
    assert found["loaded"]["granted"] >= 10
    assert found["loaded"]["lost"] == 0
    assert found["sessions"]["downloading"] == found["sessions"]["before"] > 0
