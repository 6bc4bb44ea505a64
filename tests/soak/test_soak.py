"""A soak of two minutes finds nothing, and an interrupted one leaves nothing."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tools.soak_plan import fault_plan, job_plan

ROOT = Path(__file__).parents[2]


def test_a_seed_replays_its_plan() -> None:
    """The same number gives the same faults and jobs, another number others."""
    assert fault_plan(7, 60, 4, 2.5) == fault_plan(7, 60, 4, 2.5) != fault_plan(8, 60, 4, 2.5)
    jobs = [job_plan(7, number, 2.5) for number in range(50)]
    assert jobs == [job_plan(7, number, 2.5) for number in range(50)]
    assert jobs != [job_plan(8, number, 2.5) for number in range(50)]


def test_a_plan_holds_every_fault_and_ends_in_time() -> None:
    """Two minutes bring every kind of fault, to every worker, one at a time on each."""
    plan = fault_plan(7, 120, 4, 2.5)
    assert len({fault.kind for fault in plan}) == 10
    assert {fault.slot for fault in plan} == {-1, 0, 1, 2, 3}
    assert all(fault.at + fault.seconds <= 120 for fault in plan)
    for slot in range(-1, 4):
        mine = [fault for fault in plan if fault.slot == slot]
        assert all(a.at + a.seconds < b.at for a, b in itertools.pairwise(mine))


def _command(*arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / "tools" / "soak.py"), *arguments]


@pytest.mark.slow
def test_a_soak_of_two_minutes_finds_nothing() -> None:
    """Under real kills, stops and restarts every promise is kept."""
    done = subprocess.run(_command("--seconds", "120"), text=True, capture_output=True)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_soak_leaves_nothing(number: signal.Signals) -> None:
    """Workers, server and folder are gone when the command has ended."""
    place = Path(tempfile.mkdtemp(prefix="hastetrio-soak-test-"))
    place.chmod(0o755)
    soak = subprocess.Popen(
        _command("--seconds", "60"),
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(place)},
    )
    assert soak.stdout is not None
    with soak.stdout:
        while "faults in" not in soak.stdout.readline():
            assert soak.poll() is None
        (folder,) = place.iterdir()
        journal = folder / "journal.jsonl"
        while not journal.exists() or journal.read_text().count("spawn") < 4:
            assert soak.poll() is None
        workers = [
            json.loads(line)["pid"] for line in journal.read_text().splitlines() if "spawn" in line
        ]
        soak.send_signal(number)
        soak.stdout.read()
        assert soak.wait() == 128 + number
    assert list(place.iterdir()) == []
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    place.rmdir()
