"""The directories of a job: whose they are, and that no attempt spoils another's."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastetrio.bulk import directory_name
from hastetrio.bulk._directory import JobDirectory

from .harness import names_in


def no_check() -> None:
    """Never stops a deletion."""


def directory_of(output: Path, job_id: str = "job-1") -> JobDirectory:
    """The directories of a job, used outside a worker's thread."""
    return JobDirectory(output, job_id, no_check)


@pytest.mark.parametrize("job_id", ["a", "-a", "0k3-x.y", "a" * 64, "a..b", "x.ndjson"])
def test_a_plain_id_is_its_own_directory(job_id: str) -> None:
    """The ids this project makes, and FHIR's in lower case, can be found by eye."""
    assert directory_name(job_id) == job_id


@pytest.mark.parametrize(
    "job_id",
    [
        "",
        ".",
        "..",
        ".a",
        "../x",
        "/etc",
        "a/b",
        "a b",
        "a\n",
        "A",
        "ä",
        "_a",
        "a" * 65,
        "x" * 9000,
    ],
)
def test_any_other_id_is_one_safe_name(job_id: str) -> None:
    """No id leads out of the output directory, hides, or is too long for a file system."""
    name = directory_name(job_id)
    assert name.startswith("_")
    assert len(name) == 65
    assert name[1:].isalnum()


@given(st.text(max_size=70), st.text(max_size=70))
def test_different_ids_have_different_directories(first: str, second: str) -> None:
    """Two jobs never share a directory, not even where the file system ignores case."""
    names = {directory_name(job_id).lower() for job_id in (first, second)}
    assert len(names) == len({first, second})


def test_a_hash_is_no_id_of_its_own() -> None:
    """A job whose id is another's hashed name has a directory of its own."""
    hashed = directory_name("a/b")
    assert directory_name(hashed) != hashed


def test_a_finished_attempt_is_under_its_final_name_alone(output: Path) -> None:
    """Publishing leaves one directory, with the files in it."""
    directory = directory_of(output)
    (directory.begin("c1") / "f").write_text("1")
    assert not directory.final.exists()
    directory.publish("c1")
    assert names_in(output) == ["job-1"]
    assert (directory.final / "f").read_text() == "1"


def test_a_later_attempt_replaces_an_export_whose_result_was_lost(output: Path) -> None:
    """Nothing of the earlier export is mixed into the later one."""
    directory = directory_of(output)
    for claim in ("c1", "c2"):
        (directory.begin(claim) / claim).write_text(claim)
        directory.publish(claim)
    assert names_in(output) == ["job-1"]
    assert names_in(directory.final) == ["c2"]


def test_an_attempt_that_was_overtaken_cannot_publish(output: Path) -> None:
    """Once a successor began, what the earlier attempt still does leaves no trace."""
    directory = directory_of(output)
    stale = directory.begin("c1")
    directory.begin("c2")
    with pytest.raises(FileNotFoundError):
        (stale / "f").write_text("late")
    with pytest.raises(FileNotFoundError):
        directory.publish("c1")
    assert names_in(output) == [".job-1.c2.tmp"]
    directory.publish("c2")
    with pytest.raises(FileNotFoundError):
        directory.publish("c1")
    assert names_in(output) == ["job-1"]


def test_an_expired_job_cannot_be_published_late(output: Path) -> None:
    """A late attempt does not bring back what expiry removed."""
    directory = directory_of(output)
    directory.begin("c1")
    directory.remove()
    with pytest.raises(FileNotFoundError):
        directory.publish("c1")
    assert names_in(output) == []


def test_a_job_leaves_other_jobs_alone(output: Path) -> None:
    """Beginning and removing touch only the job's own names, also among ids that look alike."""
    others = ["a.b", "a.tmp", "a.old", "b", "a-", "a.b.c1", "a/b"]
    for other in others:
        directory = directory_of(output, other)
        (directory.begin("c1") / "f").write_text(other)
        directory.publish("c1")
        (directory.begin("c2") / "f").write_text(other)
    before = names_in(output)
    assert len(before) == 2 * len(others)
    directory = directory_of(output, "a")
    directory.begin("c1")
    directory.begin("c2")
    directory.publish("c2")
    directory.remove()
    assert names_in(output) == before


def test_removing_is_repeatable_and_fine_without_files(output: Path) -> None:
    """Expiry runs for jobs that never ran, and again after a crash."""
    directory = directory_of(output)
    directory.remove()
    directory.begin("c1")
    directory.publish("c1")
    directory.begin("c2")
    (output / ".job-1.0123456789abcdef.old").mkdir()
    directory.remove()
    directory.remove()
    assert names_in(output) == []


def test_removing_follows_no_link(output: Path, tmp_path: Path) -> None:
    """Links in an export, and a link in its place, lead to files that stay."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "f").write_text("kept")
    directory = directory_of(output)
    temporary = directory.begin("c1")
    (temporary / "to-directory").symlink_to(kept)
    (temporary / "to-file").symlink_to(kept / "f")
    (temporary / "inner").mkdir()
    (temporary / "inner" / "to-directory").symlink_to(kept)
    directory.publish("c1")
    directory.remove()
    assert names_in(output) == []
    directory.final.symlink_to(kept)
    directory.remove()
    assert (kept / "f").read_text() == "kept"
    assert directory.final.is_symlink()


@pytest.mark.parametrize("job_id", ["job-1", "job.old"])
def test_a_deletion_that_is_stopped_goes_on_the_next_time(output: Path, job_id: str) -> None:
    """A cancelled clean-up has given up the final name, and the next one finishes."""

    class StoppedError(Exception):
        pass

    steps = 0

    def stop() -> None:
        nonlocal steps
        steps += 1
        if steps == 2:
            raise StoppedError

    directory = directory_of(output, job_id)
    temporary = directory.begin("c1")
    for number in range(3):
        (temporary / str(number)).write_text("")
    directory.publish("c1")
    with pytest.raises(StoppedError):
        JobDirectory(output, job_id, stop).remove()
    (left,) = names_in(output)
    assert left.startswith(".")
    assert left.endswith(".old")
    assert len(names_in(output / left)) == 2
    directory.remove()
    assert names_in(output) == []


def test_a_claim_of_any_text_is_a_safe_name(output: Path) -> None:
    """A claim with a slash or dots stays inside the output directory, and is cleaned up."""
    directory = directory_of(output)
    assert directory.begin("../../x").parent == output
    directory.remove()
    assert names_in(output) == []
