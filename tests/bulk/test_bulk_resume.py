"""An export that was cut short goes on behind the source files it had finished, or starts anew."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.fakes import FakeClaim, FakeDesk, make_context

from hastetrio import AsyncJobWorker, AsyncJobWorkerConfig, CancelReason, CreateAsyncJob, JobLease
from hastetrio._errors import LeaseLost, UnstorableValue
from hastetrio.bulk import RESOURCE_TYPES, BulkExport, _export
from hastetrio.memory import MemoryJobProvider

from .harness import export, files_in, make_job, names_in, resource, write_lines
from .resuming import cut_short, undisturbed

pytestmark = pytest.mark.usefixtures("_save_always", "mixed")


async def test_a_resumed_export_reads_only_what_was_not_finished(
    handler: BulkExport, source: Path, output: Path, tmp_path: Path, opened: list[str]
) -> None:
    """It opens no finished source file, and equals an export that nothing happened to."""
    state = await cut_short(handler)
    assert names_in(output) == [".job-1.claim001.tmp"]
    assert opened == ["a.ndjson", "aa.ndjson", "b.ndjson"]
    opened.clear()
    done = await export(handler, claim="claim002", state=state)
    assert opened == ["c.ndjson", "d.ndjson"]
    assert files_in(done.directory) == await undisturbed(source, tmp_path)
    assert len(done.problems()) == 5
    assert names_in(output) == ["job-1"]
    assert not done.reports[0].startswith("Exporting: 0 %")
    assert done.reports[-1] == "Exported: 100 % (22 resources in 6 files, 5 problems)"


async def test_the_manifest_of_a_resumed_export_is_that_of_a_whole_one(
    handler: BulkExport, source: Path, tmp_path: Path
) -> None:
    """Counts and files are the same; the transaction time is that of the first attempt."""
    state = await cut_short(handler)
    done = await export(handler, claim="claim002", state=state)
    other = await export(BulkExport(source, tmp_path / "other", file_size=200))
    assert done.manifest["output"] == other.manifest["output"]
    assert done.manifest["error"] == other.manifest["error"]
    assert done.manifest["transactionTime"] == state["started"]
    assert done.manifest["transactionTime"] <= other.manifest["transactionTime"]


async def test_an_export_may_be_cut_short_again_and_again(
    handler: BulkExport, source: Path, output: Path, tmp_path: Path, opened: list[str]
) -> None:
    """Each attempt goes on where the one before ended, and no source file is read twice."""
    state = None
    # The first save of a resumed attempt is the one that gives the files its name.
    for number, saves in enumerate((1, 2, 1, 2), 1):
        state = await cut_short(handler, saves=saves, claim=f"claim00{number}", state=state)
        assert f".job-1.claim00{number}.tmp" in names_in(output)
    done = await export(handler, claim="claim009", state=state)
    assert opened == ["a.ndjson", "aa.ndjson", "b.ndjson", "c.ndjson", "d.ndjson"]
    assert files_in(done.directory) == await undisturbed(source, tmp_path)
    assert names_in(output) == ["job-1"]


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        (CancelReason.SHUTDOWN, [".job-1.claim001.tmp"]),
        (CancelReason.LEASE_LOST, [".job-1.claim001.tmp"]),
        (CancelReason.CANCELLED, []),
        (CancelReason.EXPIRED, []),
        # A handler's own deadline: the job fails.
        (None, []),
    ],
)
async def test_files_are_kept_only_for_another_attempt(
    handler: BulkExport, output: Path, reason: CancelReason | None, kept: list[str]
) -> None:
    """A job that is over leaves nothing; one that is handed back leaves what expiry removes."""
    await cut_short(handler, reason)
    assert names_in(output) == kept
    await handler.expire(make_job())
    assert names_in(output) == []


async def test_without_a_saved_state_nothing_is_kept(
    handler: BulkExport, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export that has taken no time yet begins again at no cost."""
    monkeypatch.setattr(_export, "SAVE_SECONDS", 5.0)
    held = FakeClaim(make_job())
    with trio.CancelScope() as scope:

        def cancel(_: str) -> None:
            held.cancel_reason = CancelReason.SHUTDOWN
            scope.cancel()

        held.on_report = cancel
        await handler.run(make_context(held))
    assert scope.cancelled_caught
    assert held.state is None
    assert names_in(output) == []


async def test_an_attempt_stopped_while_it_takes_over_takes_nothing_away(
    handler: BulkExport,
    source: Path,
    output: Path,
    tmp_path: Path,
    opened: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The state still names the earlier attempt, and the one after goes on from there."""
    state = await cut_short(handler)
    with monkeypatch.context() as patches:

        def refuse(_: int) -> None:
            raise LeaseLost("paused for too long")

        patches.setattr(os, "fsync", refuse)
        held = FakeClaim(make_job(), "claim002", CancelReason.LEASE_LOST, state=state)
        with pytest.raises(LeaseLost):
            await handler.run(make_context(held))
    assert names_in(output) == [".job-1.claim001.old"]
    opened.clear()
    done = await export(handler, claim="claim003", state=state)
    assert opened == ["c.ndjson", "d.ndjson"]
    assert files_in(done.directory) == await undisturbed(source, tmp_path)
    assert names_in(output) == ["job-1"]


async def test_a_lost_lease_is_let_through(handler: BulkExport, output: Path) -> None:
    """An attempt that learns by saving that it was overtaken ends, and publishes nothing."""

    def lose(_: object) -> None:
        raise LeaseLost("another's")

    with pytest.raises(LeaseLost):
        await export(handler, on_save=lose)
    assert names_in(output) == []


async def test_a_state_that_cannot_be_saved_fails_nothing(
    handler: BulkExport, source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The export goes on without, tries no more, and says so once."""
    tries: list[object] = []

    def refuse(state: object) -> None:
        tries.append(state)
        raise UnstorableValue("the state has 70,000 bytes, and the limit is 65,536")

    done = await export(handler, on_save=refuse)
    assert len(tries) == 1
    assert "70,000 bytes" in caplog.text
    assert files_in(done.directory) == await undisturbed(source, tmp_path)


async def test_a_storage_that_is_away_holds_nothing_up(
    handler: BulkExport, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """A save that is not answered is given up after a second; there will be another."""
    tries: list[object] = []

    async def wait(_: FakeDesk, held: FakeClaim, state: object) -> None:
        tries.append(state)
        await trio.sleep_forever()

    monkeypatch.setattr(FakeDesk, "save_state", wait)
    done = await export(handler)
    assert len(tries) == 4
    # Beside the four seconds: those that the clean-up, in a thread, may take at most.
    assert trio.current_time() <= 4 * 1.0 + 3.0
    assert done.counts()["Group"] == 4


async def test_a_resumed_export_that_saved_nothing_leaves_nothing(
    handler: BulkExport, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it took over stays until its own state is saved; at the latest it goes at the end."""
    state = await cut_short(handler)
    monkeypatch.setattr("hastetrio.bulk._handler._SAVE_PATIENCE", 0.0)

    async def wait(*_: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(FakeDesk, "save_state", wait)
    seen: list[list[str]] = []
    done = await export(
        handler, claim="claim002", state=state, on_report=lambda _: seen.append(names_in(output))
    )
    assert seen[0] == [".job-1.claim001.old", ".job-1.claim002.tmp"]
    assert done.counts()["Group"] == 4
    assert names_in(output) == ["job-1"]


async def test_a_thousand_small_files_are_few_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state is saved every five seconds at most, however many files were finished."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.001
        return now

    source = tmp_path / "small"
    source.mkdir()
    for number in range(1000):
        write_lines(source / f"{number:04}.ndjson", [resource("Patient", number)])
    monkeypatch.setattr(_export, "SAVE_SECONDS", 1.0)
    monkeypatch.setattr("hastetrio.bulk._export.time.monotonic", clock)
    saved: list[Any] = []
    handler = BulkExport(source, tmp_path / "output")
    done = await export(handler, on_save=saved.append)
    assert done.counts() == {"Patient": 1000}
    assert now - 1 < len(saved) + 1
    assert len(saved) <= now
    assert saved


async def test_a_state_stays_small(tmp_path: Path) -> None:
    """All types, problems without end and many source files have a tenth of what a state may."""
    source = tmp_path / "many"
    source.mkdir()
    write_lines(source / "a.ndjson", [resource(name) for name in sorted(RESOURCE_TYPES)])
    write_lines(source / "b.ndjson", [b"rubbish"] * 1500)
    for number in range(50):
        (source / f"c{number}.ndjson").write_bytes(b"")
    saved: list[Any] = []
    await export(BulkExport(source, tmp_path / "output"), on_save=saved.append)
    assert saved[-1]["sources"] == 51
    assert saved[-1]["problems"] == 1500
    assert len(saved[-1]["outputs"]) == 147
    sizes = [len(json.dumps(state)) for state in saved]
    assert max(sizes) < 6500
    # Source files as such add nothing but digits.
    assert sizes[-1] < sizes[1] + 5


async def test_a_worker_that_stops_hands_over_to_the_next(
    handler: BulkExport, source: Path, output: Path, tmp_path: Path, opened: list[str]
) -> None:
    """Between two real workers: what the first had finished, the second does not read."""
    saved = trio.Event()

    class Provider(MemoryJobProvider):
        async def save_state(self, id: str, lease: JobLease, state: str) -> bool:
            done = await super().save_state(id, lease, state)
            if json.loads(state)["sources"] == 3 and not saved.is_set():
                saved.set()
                await trio.sleep_forever()
            return done

    provider = Provider()
    config = AsyncJobWorkerConfig(poll_interval=0.1)
    job = await provider.create_job(
        "t", "p", CreateAsyncJob(kind="bulk-export", claims={"sub": "u"})
    )
    async with trio.open_nursery() as nursery:
        first = AsyncJobWorker(provider, [handler], config)
        await nursery.start(first.run)
        await saved.wait()
        first.stop()
        first.stop()
    (left,) = names_in(output)
    assert left.endswith(".tmp")
    opened.clear()
    async with trio.open_nursery() as nursery:
        second = AsyncJobWorker(provider, [handler], config)
        await nursery.start(second.run)
        with trio.fail_after(10):
            while not second.statistics().totals.completed:  # noqa: ASYNC110  # no event for it
                await trio.sleep(0.01)
        second.stop()
    assert opened == ["c.ndjson", "d.ndjson"]
    assert files_in(handler.directory_of(job.id)) == await undisturbed(source, tmp_path)
    assert names_in(output) == [job.id]
