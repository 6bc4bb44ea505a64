"""The benchmark against the peers: its figures, its rounds, its one run, without any peer."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.peers import _venvs
from benchmarks.peers._adapter import Server
from benchmarks.peers._ceiling import BATCH, _filled, find_pgbench, script
from benchmarks.peers._race import FAILURES_ALLOWED, Race, jobs_for
from benchmarks.peers._report import Pair, Report, Spread, verdict
from benchmarks.peers._run import Outcome, RunFailed, Runner
from benchmarks.peers._systems import CEILINGS, OURS, PEERS, System
from benchmarks.peers._venvs import NotToBeHad, complaint, environment_of, find_python

PEER = PEERS[0]
PROGRAM = Path(sys.executable)


def outcome(system: System, rate: float) -> Outcome:
    """A run at that rate."""
    return Outcome(system=system.key, jobs=1000, seconds=1000 / rate, cpu=0.1, python="3.11.0")


def pair(ours: float | None, other: float | None, *errors: str) -> Pair:
    """A pair of runs at these rates; None for one that failed."""
    return Pair(
        round=1,
        system=PEER.key,
        ours=None if ours is None else outcome(OURS, ours),
        other=None if other is None else outcome(PEER, other),
        errors=errors,
    )


def report(*pairs: Pair, left_out: dict[str, str] | None = None) -> Report:
    """A report of these rounds."""
    return Report(pairs, left_out or {}, {"machine": "two cores"}, "2026-01-01T00:00:00+00:00")


def figures(spread: Spread | None) -> tuple[float, float, float]:
    """Median, least and most."""
    assert spread is not None
    return spread.median, spread.least, spread.most


def test_a_ratio_is_the_median_of_the_pairs_and_not_of_medians() -> None:
    """A slow minute that hits both runs of a pair leaves the ratio as it was."""
    measured = report(pair(6000, 1000), pair(300, 100), pair(8000, 2000))
    assert figures(measured.ratio(PEER.key)) == pytest.approx((4, 3, 6))
    assert figures(measured.rates(OURS.key)) == pytest.approx((6000, 300, 8000))


def test_a_failed_run_costs_its_pair_and_nothing_else() -> None:
    """The partner of a failed run counts for its rate, and for no ratio."""
    measured = report(pair(6000, None, "boom"), pair(None, 500, "bang"), pair(2000, 1000))
    assert figures(measured.ratio(PEER.key)) == pytest.approx((2, 2, 2))
    assert len(measured.outcomes(OURS.key)) == len(measured.outcomes(PEER.key)) == 2


def test_the_text_tells_figures_failures_and_who_was_left_out() -> None:
    """Nothing that did not run goes unsaid."""
    text = report(
        pair(6000, 2000), pair(6000, None, "x: boom"), left_out={"oban": "no such wheel"}
    ).text()
    row = next(line for line in text.splitlines() if line.startswith(PEER.title))
    assert "2,000" in row
    assert "3.00x" in row
    assert row.endswith("2x   3x      aim")
    assert "left out: oban: no such wheel" in text
    assert "failed in round 1: x: boom" in text


def test_a_system_without_a_figure_has_no_row() -> None:
    """A peer whose every run failed is told among the failures, and breaks no table."""
    text = report(pair(6000, None, "boom")).text()
    assert not any(line.startswith(PEER.title) for line in text.splitlines())
    assert "boom" in text


@pytest.mark.parametrize(
    ("median", "expected"), [(2.99, "must"), (3, "aim"), (2, "must"), (1.99, "MISSED")]
)
def test_a_verdict_is_by_the_median(median: float, expected: str) -> None:
    """A figure is reached when it is met, and a miss is called one."""
    assert verdict(Spread(median, 0.1, 99), attrs.evolve(PEER, must=2, aim=3)) == expected
    assert verdict(None, PEER) == ""


def test_the_json_holds_every_run() -> None:
    """The medians can be worked out again from the file."""
    value = json.loads(report(pair(6000, 2000), pair(5000, None, "boom")).to_json())
    assert [one["ours"]["jobs"] / one["ours"]["seconds"] for one in value["rounds"]] == [
        pytest.approx(6000),
        pytest.approx(5000),
    ]
    assert value["rounds"][1]["other"] is None
    assert value["rounds"][1]["errors"] == ["boom"]
    assert value["systems"][PEER.key]["ours_to_it"]["median"] == pytest.approx(3)


def test_the_plot_is_a_small_png(tmp_path: Path) -> None:
    """It is drawn from any number of systems and runs, in a folder that may be missing."""
    pytest.importorskip("matplotlib")
    file = tmp_path / "figures" / "peers.png"
    report(pair(6000, 2000), pair(5000, None)).plot(file)
    assert file.read_bytes().startswith(b"\x89PNG")
    assert file.stat().st_size < 80_000


def race(run: Callable[[System, Path, int], Outcome], *systems: System) -> Race:
    """A race of these against ours, with that in place of real runs."""
    contenders = [(system, PROGRAM) for system in systems]
    return Race(PROGRAM, contenders, run, jobs=None, say=lambda _: None)


def test_each_run_of_another_follows_one_of_ours() -> None:
    """Both runs of a ratio meet the machine in the same state."""
    order: list[str] = []

    def run(system: System, _: Path, jobs: int) -> Outcome:
        assert jobs == system.jobs
        order.append(system.key)
        return outcome(system, 1000)

    race(run, PEERS[0], PEERS[1]).round(1)
    assert order == [OURS.key, PEERS[0].key, OURS.key, PEERS[1].key]


def test_a_system_that_keeps_failing_is_given_up_and_the_others_go_on() -> None:
    """One broken peer costs its timeout a few times, not in every round."""

    def run(system: System, _: Path, jobs: int) -> Outcome:
        if system is PEERS[0]:
            raise RunFailed("boom")
        return outcome(system, 1000)

    running = race(run, PEERS[0], PEERS[1])
    for number in range(1, 6):
        running.round(number)
    found = [one.system for one in running.pairs]
    assert found.count(PEERS[0].key) == FAILURES_ALLOWED
    assert found.count(PEERS[1].key) == 5


def test_pgbench_gets_whole_batches_for_each_connection() -> None:
    """Any number of jobs is brought to one that comes out even."""
    one, four = CEILINGS
    assert jobs_for(one, 2050) == 2000
    assert jobs_for(four, 2050) == 2000
    assert jobs_for(four, 10) == 4 * BATCH
    assert jobs_for(PEER, 2050) == 2050


def test_a_new_parameter_of_a_statement_is_asked_for_by_name() -> None:
    """Who changes a statement is told where pgbench's value for it belongs."""
    assert _filled("SELECT %(a)s -- what: why\n, '%%'", {"a": "1"}) == "SELECT 1\n, '%'"
    with pytest.raises(ValueError, match=r"parameter 'b'.*_ceiling\.py"):
        _filled("SELECT %(b)s", {"a": "1"})


def test_the_script_has_no_variable_but_the_ids() -> None:
    """One claim and one finish, with nothing left that pgbench would take for its own."""
    text = script()
    assert "%(" not in text
    assert text.count(":ids") == 1
    assert text.count("UPDATE async_jobs") == 2


@pytest.mark.parametrize("system", CEILINGS, ids=lambda system: system.key)
def test_pgbench_drains_our_jobs(server_url: str, system: System) -> None:
    """The ceiling is of jobs that are recorded as done, on one connection and on several."""
    program = find_pgbench()
    if program is None:
        pytest.skip("there is no pgbench here")
    measured = Runner(server_url, 60).run(system, program, 2000)
    assert 1000 <= measured.jobs <= 2000
    assert measured.seconds > 0


def test_our_adapter_drains_its_jobs(server_url: str) -> None:
    """The whole talk with an adapter, from its order to its figures; no database is left."""
    measured = Runner(server_url, 60).run(OURS, PROGRAM, 250)
    assert measured.jobs == 250
    assert 0 <= measured.tail <= measured.seconds
    assert measured.cpu > 0
    assert set(measured.versions) == {"hastetrio", "psycopg", "trio"}
    assert databases(server_url) == []


@pytest.mark.parametrize(
    ("module", "words"),
    [("_missing", "No module named benchmarks.peers._missing"), ("_venvs", "said nothing")],
)
def test_an_adapter_that_ends_early_says_why(server_url: str, module: str, words: str) -> None:
    """A broken peer gives one line, and leaves neither process nor database."""
    with pytest.raises(RunFailed, match=words):
        Runner(server_url, 60).run(attrs.evolve(OURS, module=module), PROGRAM, 10)
    assert databases(server_url) == []


def test_a_run_that_hangs_is_ended(server_url: str, tmp_path: Path) -> None:
    """An adapter that never gets ready costs its timeout; it and its children are gone then."""
    pids = tmp_path / "pids"
    program = tmp_path / "hangs"
    program.write_text(f"#!/bin/sh\nsleep 600 >&- 2>&- &\necho $$ $! > {pids}\nwait\n")
    program.chmod(0o755)
    with pytest.raises(RunFailed, match="not ready in time"):
        Runner(server_url, 1).run(OURS, program, 10)
    processes = [int(pid) for pid in pids.read_text().split()]
    end = time.monotonic() + 20
    while any(map(is_alive, processes)) and time.monotonic() < end:
        time.sleep(0.01)
    assert [pid for pid in processes if is_alive(pid)] == []
    assert databases(server_url) == []


def test_jobs_that_were_not_recorded_make_no_figure(server_url: str) -> None:
    """A system that loses jobs is no fast one."""
    with pytest.raises(RunFailed, match="9 of 10 jobs are recorded"):
        Runner(server_url, 60).run(attrs.evolve(OURS, recorded="SELECT 9"), PROGRAM, 10)


def is_alive(pid: int) -> bool:
    """Whether that process still runs; one that is dead and only not yet buried does not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc/self").exists()
    return state != "Z"


def databases(server_url: str) -> list[str]:
    """The benchmark's databases on that server."""
    with psycopg.connect(server_url) as connection:
        rows = connection.execute(
            "SELECT datname FROM pg_database WHERE datname LIKE 'hastetrio_peers_%'"
        )
        return [str(row[0]) for row in rows]


@pytest.mark.parametrize("host", ["localhost", "/run/a folder"])
def test_a_server_is_named_alike_in_every_form(host: str) -> None:
    """Peers that take a URL reach the same database as those that take a conninfo."""
    server = Server(host, 5433, "o'hara", "p\\ss w/rd'", "data")
    expected = {
        "host": host,
        "port": "5433",
        "user": "o'hara",
        "password": "p\\ss w/rd'",
        "dbname": "data",
    }
    assert conninfo_to_dict(server.conninfo) == expected
    assert conninfo_to_dict(server.url) == expected


def test_an_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is used again as it is, and made anew when its requirements change or it is torn."""
    made: list[tuple[str, ...]] = []

    def make(folder: Path, python: str, requirements: tuple[str, ...]) -> None:
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").touch()
        made.append(requirements)

    def get(system: System) -> Path:
        return environment_of(system, tmp_path, [], lambda _: None)

    monkeypatch.setattr(_venvs, "_make", make)
    interpreter = get(PEER)
    assert interpreter == tmp_path / PEER.environment / "bin" / "python"
    get(PEER)
    assert len(made) == 1
    get(attrs.evolve(PEER, requirements=("other",)))
    assert made[1:] == [("other",)]
    interpreter.unlink()
    get(attrs.evolve(PEER, requirements=("other",)))
    assert len(made) == 3


def test_an_environment_whose_making_failed_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is told each time, and a half-made environment never passes for a whole one."""

    def make(folder: Path, python: str, requirements: tuple[str, ...]) -> None:
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").touch()
        raise NotToBeHad("no such wheel")

    monkeypatch.setattr(_venvs, "_make", make)
    for _ in range(2):
        with pytest.raises(NotToBeHad, match="no such wheel"):
            environment_of(PEER, tmp_path, [], lambda _: None)


def test_a_peer_for_a_later_python_says_so(tmp_path: Path) -> None:
    """Broken stand-ins are passed over, and the way out is named."""
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    assert find_python((3, 11), [str(broken)]) == sys.executable
    with pytest.raises(NotToBeHad, match=r"needs Python 3\.99 or later.*--python"):
        find_python((3, 99), [str(broken)])


def test_the_line_that_matters_is_picked() -> None:
    """Of pip's many lines the error is told, of a traceback its last line."""
    assert complaint("WARNING: x\nERROR: no wheel\nhint: y\n") == "ERROR: no wheel"
    assert complaint("Traceback:\n  File x\nValueError: boom\n") == "ValueError: boom"
    assert complaint("") == ""
