"""Taking over the files of an earlier attempt: killed anywhere, or not as dead as it seemed."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from hastetrio._outcome import OperationOutcomeError
from hastetrio.bulk._directory import JobDirectory
from hastetrio.bulk._export import Export
from hastetrio.bulk._parameters import ExportParameters

from .harness import files_in, names_in, resource, write_lines
from .resuming import FILE_SIZE, write_mixed

FULL = {"Patient.1.ndjson": 4}
LAST = {"Patient.2.ndjson": 4}

# The calls that change something on the disk, or find it.
CALLS = ("open", "mkdir", "rename", "link", "unlink", "rmdir", "listdir")


class Killed(BaseException):
    """A SIGKILL."""


class Power:
    """Runs out after a number of file operations; from then on each of them fails."""

    def __init__(self) -> None:
        self.left: int | None = None

    def spend(self) -> None:
        """One operation."""
        if self.left is None:
            return
        if self.left == 0:
            raise Killed
        self.left -= 1

    @contextlib.contextmanager
    def limited(self, operations: int) -> Iterator[None]:
        """In this block so many operations are done, and no more."""
        self.left = operations
        try:
            with contextlib.ExitStack() as stack:
                for module, name in [*((os, name) for name in CALLS), (io, "open")]:
                    stack.enter_context(
                        mock.patch.object(module, name, self._spending(module, name))
                    )
                yield
        finally:
            self.left = None

    def _spending(self, module: Any, name: str) -> Callable[..., Any]:  # noqa: ANN401
        call = getattr(module, name)

        def limited(*args: Any, **values: Any) -> Any:  # noqa: ANN401
            self.spend()
            return call(*args, **values)

        return limited


@attrs.define
class World:
    """One job's directories, and the state that is saved with it."""

    source: Path
    output: Path
    power: Power = attrs.field(factory=Power)
    state: Any = None

    @property
    def directory(self) -> JobDirectory:
        """The job's directories."""
        return JobDirectory(self.output, "job-1", self.power.spend)

    def attempt(self, claim: str) -> Export:
        """A new attempt, not begun."""
        return Export(
            self.source,
            self.directory,
            claim,
            ExportParameters(),
            file_size=FILE_SIZE,
            line_limit=10_000,
            check=self.power.spend,
        )

    def save(self, export: Export) -> None:
        """What the handler does between two steps."""
        state = export.take_state()
        if state is not None:
            self.power.spend()
            self.state = json.loads(json.dumps(state))
            self.power.spend()
            export.saved()

    def run(self, export: Export, steps: int = 1000) -> None:
        """Up to so many steps; publishing is one."""
        export.begin(self.state)
        self.save(export)
        for _ in range(steps):
            if export.is_done:
                export.publish()
                return
            export.step()
            self.save(export)


def finished(source: Path, output: Path) -> dict[str, bytes]:
    """The files of an export that nothing happens to."""
    world = World(source, output)
    world.run(world.attempt("undisturb"))
    return files_in(world.directory.final)


@contextlib.contextmanager
def a_world() -> Iterator[World]:
    """A source with files in it, and no output yet; saving always, and at no cost."""
    with (
        tempfile.TemporaryDirectory() as place,
        mock.patch("hastetrio.bulk._export.SAVE_SECONDS", 0.0),
        mock.patch("hastetrio.bulk._export._SAVE_SHARE", 0),
        # What power losses do is no business of these tests, and this costs 3 ms a file.
        mock.patch("os.fsync"),
    ):
        source = Path(place) / "source"
        source.mkdir()
        write_mixed(source)
        yield World(source, Path(place) / "output")


class Late:
    """What a paused attempt may still do: files open for writing, and the directory itself."""

    def __init__(self, directory: Path, full: set[str]) -> None:
        self._stack = contextlib.ExitStack()
        self._files: list[int] = []
        self._directory: int | None = None
        if directory.is_dir():
            self._directory = os.open(directory, os.O_DIRECTORY)
            self._stack.callback(os.close, self._directory)
            for name in names_in(directory):
                if name not in full:
                    self._files.append(os.open(directory / name, os.O_WRONLY | os.O_APPEND))
                    self._stack.callback(os.close, self._files[-1])

    def write(self) -> None:
        """Write on into everything, and make a file."""
        for descriptor in self._files:
            os.write(descriptor, b"late\n")
        if self._directory is not None:
            for name in ("Patient.1.ndjson", "Patient.2.ndjson", "Device.9.ndjson"):
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                # Only where it is new: an attempt never opens again what was full.
                with contextlib.suppress(OSError):
                    made = os.open(name, flags | os.O_EXCL, dir_fd=self._directory)
                    os.write(made, b"late\n")
                    os.close(made)

    def end(self) -> None:
        """Close everything."""
        self._stack.close()


def full_files(state: Any) -> set[str]:  # noqa: ANN401  # JSON is any value
    """The files that whoever saved this state opens no more."""
    outputs = {} if state is None else state["outputs"]
    return {
        f"{stem}.{number}.ndjson"
        for stem, numbers in outputs.items()
        for number in range(1, len(numbers) // 2)
    }


@settings(max_examples=40)
@given(st.lists(st.integers(0, 90), max_size=4), st.booleans())
def test_an_export_killed_anywhere_is_whole_in_the_end(kills: list[int], is_late: bool) -> None:
    """Killed before any file operation, time and again: nothing is missing, mixed or done twice.

    What a killed attempt was about to write, it may still write: into what it held open.
    """
    with a_world() as world:
        expected = finished(world.source, world.output.with_name("undisturbed"))
        late: list[Late] = []
        for number, operations in enumerate(kills):
            claim = f"claim{number}"
            killed = world.attempt(claim)
            with contextlib.suppress(Killed), world.power.limited(operations):
                world.run(killed)
            if killed._current is not None:
                killed._current.close()
            if is_late:
                late.append(Late(world.directory.temporary(claim), full_files(world.state)))
        is_published = world.directory.final.exists()
        export = world.attempt("lastclaim")
        export.begin(world.state)
        for one in late:
            one.write()
        if world.state is not None and not is_published:
            # No kill costs what was saved.
            assert world.state["sources"] <= 5 - len(export._names)
            event("went on")
        world.save(export)
        for one in late:
            one.write()
        while not export.is_done:
            export.step()
            world.save(export)
        export.publish()
        for one in late:
            one.write()
            one.end()
        assert files_in(world.directory.final) == expected
        left = set(names_in(world.output)) - {"job-1"}
        assert not left or is_late
        world.directory.remove()
        assert names_in(world.output) == []


@settings(max_examples=20)
@given(st.integers(1, 5), st.lists(st.booleans(), max_size=12))
def test_an_attempt_that_was_paused_changes_nothing(steps: int, turns: list[bool]) -> None:
    """Two attempts in turns, the first of which does not know yet that it was overtaken."""
    with a_world() as world:
        expected = finished(world.source, world.output.with_name("undisturbed"))
        paused, successor = world.attempt("claim001"), world.attempt("claim002")
        world.run(paused, steps)
        was_published = world.directory.final.exists()
        successor.begin(world.state)
        world.save(successor)

        def go_on_late() -> None:
            with contextlib.suppress(OperationOutcomeError):
                if paused.is_done:
                    paused.publish()
                else:
                    paused.step()
                # The storage does not take its state.
                paused.take_state()

        for is_late in turns:
            if is_late:
                go_on_late()
            elif not successor.is_done:
                successor.step()
                world.save(successor)
            assert world.directory.final.exists() == was_published
        while not successor.is_done:
            successor.step()
        successor.publish()
        for _ in range(3):
            go_on_late()
        paused.close()
        assert files_in(world.directory.final) == expected
        assert names_in(world.output) == ["job-1"]


def earlier_attempt(output: Path) -> tuple[JobDirectory, Path]:
    """The directories of a job, and the one an attempt has written two files into."""
    directory = JobDirectory(output, "job-1", lambda: None)
    temporary = directory.begin("c1")
    for name in (*FULL, *LAST):
        (temporary / name).write_bytes(b"{1}\n")
    return directory, temporary


def test_a_write_under_way_does_not_reach_the_successor(output: Path) -> None:
    """A file held open by the earlier attempt is no file of the later one's."""
    directory, temporary = earlier_attempt(output)
    with (temporary / "Patient.2.ndjson").open("ab") as held:
        held.write(b"{2}\n")
        held.flush()
        mine = directory.adopt("c1", "c2", full=FULL, last=LAST)
        held.write(b"{late}\n")
    assert files_in(mine) == {"Patient.1.ndjson": b"{1}\n", "Patient.2.ndjson": b"{1}\n"}
    directory.forget("c1")
    directory.publish("c2")
    assert names_in(output) == ["job-1"]


def test_a_file_made_late_is_not_in_the_successor_s_directory(output: Path) -> None:
    """An attempt that had found its directory, and then was paused, makes its file elsewhere."""
    directory, temporary = earlier_attempt(output)
    found = os.open(temporary, os.O_DIRECTORY)
    mine = directory.adopt("c1", "c2", full=FULL, last=LAST)
    for name in ("Patient.2.ndjson", "Patient.3.ndjson"):
        made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, dir_fd=found)
        os.write(made, b"{late}\n")
        os.close(made)
    os.close(found)
    assert files_in(mine) == {"Patient.1.ndjson": b"{1}\n", "Patient.2.ndjson": b"{1}\n"}
    directory.forget("c1")
    assert names_in(output) == [".job-1.c2.tmp"]


def test_an_attempt_that_was_taken_over_from_can_do_nothing_by_name(output: Path) -> None:
    """It can neither make a file, nor publish, nor delete what its successor has."""
    directory, temporary = earlier_attempt(output)
    mine = directory.adopt("c1", "c2", full=FULL, last=LAST)
    with pytest.raises(FileNotFoundError):
        (temporary / "Patient.2.ndjson").open("ab")
    with pytest.raises(FileNotFoundError):
        directory.publish("c1")
    directory.discard("c1")
    assert len(names_in(mine)) == 2
    directory.forget("c1")
    assert len(names_in(mine)) == 2


def test_full_files_are_not_copied(output: Path) -> None:
    """They may have any size: the successor has the same file."""
    directory, temporary = earlier_attempt(output)
    full = (temporary / "Patient.1.ndjson").stat().st_ino
    last = (temporary / "Patient.2.ndjson").stat().st_ino
    mine = directory.adopt("c1", "c2", full=FULL, last=LAST)
    assert (mine / "Patient.1.ndjson").stat().st_ino == full
    assert (mine / "Patient.2.ndjson").stat().st_ino != last


def test_a_file_system_without_links_has_copies(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a file cannot be linked, taking over takes longer, and that is all."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    directory, _ = earlier_attempt(output)
    mine = directory.adopt("c1", "c2", full=FULL, last=LAST)
    assert files_in(mine) == {"Patient.1.ndjson": b"{1}\n", "Patient.2.ndjson": b"{1}\n"}


def test_other_attempts_are_stopped_too(output: Path) -> None:
    """Only the attempt that was taken over from is left, until it is forgotten."""
    directory, _ = earlier_attempt(output)
    (output / ".job-1.c0.tmp").mkdir()
    (output / ".job-1.c0.old").mkdir()
    directory.adopt("c1", "c2", full=FULL, last=LAST)
    assert names_in(output) == [".job-1.c1.old", ".job-1.c2.tmp"]
    directory.remove()
    assert names_in(output) == []


def test_what_a_state_names_was_brought_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file that was written since the last state is synced before the next, and no other."""
    monkeypatch.setattr("hastetrio.bulk._export.SAVE_SECONDS", 0.0)
    source, synced = tmp_path / "source", list[str]()
    source.mkdir()
    for name, types in (("a", ["Patient", "Device"]), ("b", ["Device"]), ("c", ["Group"])):
        write_lines(source / f"{name}.ndjson", [resource(one) for one in types])
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(Path(f"/dev/fd/{descriptor}").resolve().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr("hastetrio.bulk._export._SAVE_SHARE", 0)
    world = World(source, tmp_path / "output")
    export = world.attempt("claim001")
    export.begin()
    export.step()
    assert synced == ["Device.1.ndjson", "Patient.1.ndjson"]
    export.step()
    assert synced[2:] == ["Device.1.ndjson"]
    world.save(export)
    # A copy is a new file.
    world.attempt("claim002").begin(world.state)
    assert sorted(synced[3:]) == ["Device.1.ndjson", "Patient.1.ndjson"]
