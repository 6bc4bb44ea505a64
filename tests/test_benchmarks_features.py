"""The benchmark of what handlers may ask for: one short run of every variant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.features import __main__ as features
from benchmarks.features._handlers import VARIANTS


def test_every_variant_is_measured(
    server_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each drains its jobs, and has a line and its rounds."""
    monkeypatch.setenv("BENCH_SERVER", server_url)
    monkeypatch.setattr(features, "tune_collector", lambda: None)
    kept = tmp_path / "rounds.json"
    assert features.main(["--jobs", "20", "--rounds", "2", "--json", str(kept)]) == 0
    rounds = json.loads(kept.read_text("utf-8"))
    assert {name: len(found) for name, found in rounds.items()} == dict.fromkeys(VARIANTS, 2)
    assert all(cost > 0 for found in rounds.values() for cost in found)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(VARIANTS)


def test_a_round_that_loses_jobs_is_no_figure(
    server_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends in one line that names the variant."""
    from benchmarks.features._handlers import Plain

    from hastetrio import HandlerOutput, JobContext

    class Failing(Plain):
        async def work(self, context: JobContext) -> HandlerOutput:
            raise ValueError("no")

    monkeypatch.setenv("BENCH_SERVER", server_url)
    monkeypatch.setattr(features, "tune_collector", lambda: None)
    monkeypatch.setattr(features, "_STALLED", 0.2)
    monkeypatch.setitem(VARIANTS, "nothing", (Failing, ()))
    assert features.main(["--jobs", "2", "--rounds", "1"]) == 1
    assert "nothing: 0 of 2 jobs were completed" in capsys.readouterr().err
