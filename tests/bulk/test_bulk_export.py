"""What an export makes of its source."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from urllib.parse import quote

import pytest
import trio

from hastetrio._outcome import OperationOutcomeError
from hastetrio.bulk import BulkExport
from hastetrio.bulk._instant import parse_instant
from hastetrio.bulk._lines import SourceFile

from .harness import REQUEST, export, make_job, names_in, resource, write_lines


async def test_types_are_sorted_into_files_and_counted(source: Path, output: Path) -> None:
    """Types mixed in files of any name come out one type a file, in the order they were read."""
    patients = [resource("Patient", number) for number in range(5)]
    visits = [resource("Encounter", number) for number in range(3)]
    write_lines(source / "a.ndjson", [patients[0], visits[0], patients[1], visits[1]])
    write_lines(source / "b b.ndjson", [*patients[2:], visits[2]])
    done = await export(BulkExport(source, output))
    assert names_in(output) == ["job-1"]
    assert names_in(done.directory) == ["Encounter.1.ndjson", "Patient.1.ndjson"]
    assert done.lines("Patient.1.ndjson") == patients
    assert done.lines("Encounter.1.ndjson") == visits
    assert done.counts() == {"Encounter": 3, "Patient": 5}


async def test_the_manifest_has_every_required_key(source: Path, output: Path) -> None:
    """Clients rely on all five keys, on `error: []`, and on the kick-off's own address."""
    write_lines(source / "x.ndjson", [resource("Patient")])
    handler = BulkExport(source, output, base_url="https://fhir.example/r4/")
    done = await export(handler)
    started = parse_instant(done.manifest.pop("transactionTime"))
    assert started is not None
    assert done.manifest == {
        "request": REQUEST,
        "requiresAccessToken": True,
        "output": [
            {
                "type": "Patient",
                "url": "https://fhir.example/r4/_async/job-1/files/Patient.1.ndjson",
                "count": 1,
            }
        ],
        "error": [],
    }


async def test_the_transaction_time_is_the_start_of_the_export(source: Path, output: Path) -> None:
    """A resource changed while the export runs is later than its transaction time."""
    write_lines(source / "x.ndjson", [resource("Patient")])
    seen: list[str] = []
    from hastetrio.bulk._instant import instant_now

    done = await export(BulkExport(source, output), on_report=lambda _: seen.append(instant_now()))
    first = parse_instant(seen[0])
    started = parse_instant(done.manifest["transactionTime"])
    assert first is not None
    assert started is not None
    assert started <= first


@pytest.mark.parametrize("content", [None, b"", b"\n\r\n  \n"])
async def test_nothing_to_export_is_a_finished_export(
    source: Path, output: Path, content: bytes | None
) -> None:
    """No file, an empty one or one of blank lines: an empty manifest, not an error."""
    if content is not None:
        (source / "x.ndjson").write_bytes(content)
    done = await export(BulkExport(source, output))
    assert (done.manifest["output"], done.manifest["error"]) == ([], [])
    assert names_in(done.directory) == []


async def test_lines_are_exported_byte_for_byte(source: Path, output: Path) -> None:
    """Spaces, key order, repeated keys, escapes and long numbers stay as they are."""
    lines = [
        b'  {"id" : "1",   "resourceType":"Patient" }\t',
        '{"resourceType":"Patient","name":[{"family":"Žižka \\u00e9 \U0001f525"}]}'.encode(),
        b'{"resourceType":"Patient","x":1.10,"x":' + b"9" * 5000 + b',"y":1e999}',
        b'{"resourceType":"Patient","\\ud800":"\\u0000"}',
    ]
    endings = [b"\r\n", b"\n", b"\r\n", b""]
    content = b"".join(line + ending for line, ending in zip(lines, endings, strict=True))
    (source / "x.ndjson").write_bytes(b"\xef\xbb\xbf" + content)
    done = await export(BulkExport(source, output))
    assert done.problems() == []
    assert (done.directory / "Patient.1.ndjson").read_bytes() == b"\n".join([*lines, b""])


async def test_files_are_bounded_and_numbered(source: Path, output: Path) -> None:
    """No file exceeds the bound, except one that holds a single line beyond it."""
    small = [resource("Patient", number) for number in range(10)]
    large = resource("Patient", 99, text="x" * 500)
    write_lines(source / "x.ndjson", [*small[:5], large, *small[5:]])
    bound = 3 * (len(small[0]) + 1)
    done = await export(BulkExport(source, output, file_size=bound))
    counts = [(item["url"].rpartition("/")[2], item["count"]) for item in done.manifest["output"]]
    assert counts == [(f"Patient.{n}.ndjson", c) for n, c in enumerate([3, 2, 1, 3, 2], 1)]
    exported = [line for name, _ in counts for line in done.lines(name)]
    assert exported == [*small[:5], large, *small[5:]]
    assert done.lines("Patient.3.ndjson") == [large]


async def test_files_are_listed_by_their_numbers(source: Path, output: Path) -> None:
    """The tenth file comes after the ninth, not after the first."""
    write_lines(source / "x.ndjson", [resource("Patient", number) for number in range(11)])
    done = await export(BulkExport(source, output, file_size=1))
    names = [item["url"].rpartition("/")[2] for item in done.manifest["output"]]
    assert names == [f"Patient.{number}.ndjson" for number in range(1, 12)]


async def test_bad_lines_are_listed_and_stop_nothing(source: Path, output: Path) -> None:
    """Each bad line is one OperationOutcome naming file and line; every good line is exported."""
    good = [resource("Patient", number) for number in range(3)]
    bad = {
        b'{"resourceType":"Patient"': "structure",
        b'["Patient"]': "structure",
        b'"Patient"': "structure",
        b"null": "structure",
        b'{"id":"1"}': "required",
        b'{"resourceType":7}': "required",
        b'{"resourceType":"../../x"}': "value",
        b'{"resourceType":"ActorDefinition"}': "value",
        b'{"resourceType":"Patient","x":NaN}': "structure",
        b'{"resourceType":"Patient","x":-Infinity}': "structure",
        b'{"resourceType":"Patient","x":"\x00"}': "structure",
        b'{"resourceType":"Patient","x":"\xff"}': "structure",
        b'{"resourceType":"Patient"}{"resourceType":"Patient"}': "structure",
        b"[" * 100_000: "structure",
        b'{"resourceType":"Patient","x":"' + b"x" * 200_000 + b'"}': "too-long",
    }
    write_lines(source / "x.ndjson", [good[0], *bad, good[1], b"", good[2]])
    done = await export(BulkExport(source, output, line_limit=150_000))
    assert done.lines("Patient.1.ndjson") == good
    problems = done.problems()
    assert [issue["code"] for issue in problems] == list(bad.values())
    for number, issue in enumerate(problems, 2):
        assert f"x.ndjson line {number}:" in issue["diagnostics"]
        assert issue["severity"] == "error"
    (item,) = done.manifest["error"]
    assert item["type"] == "OperationOutcome"
    assert item["url"].endswith("/errors.1.ndjson")
    assert item["count"] == len(bad)


async def test_the_list_of_problems_says_nothing_of_their_content(
    source: Path, output: Path
) -> None:
    """A broken line may be about a patient: the error file names its place only."""
    write_lines(source / "x.ndjson", [b'{"name": "Secret', b'{"resourceType":"Secret"}'])
    done = await export(BulkExport(source, output))
    text = json.dumps(done.problems())
    assert len(done.problems()) == 2
    assert "Secret" not in text
    assert str(source) not in text


async def test_the_list_of_problems_is_bounded(source: Path, output: Path) -> None:
    """A source that is all rubbish makes a thousand entries, and one that counts the rest."""
    write_lines(source / "x.ndjson", [b"rubbish"] * 2345)
    done = await export(BulkExport(source, output))
    problems = done.problems()
    assert len(problems) == 1001
    assert done.manifest["error"][0]["count"] == 1001
    assert "1,345 more" in problems[-1]["diagnostics"]


async def test_exactly_the_bound_of_problems_needs_no_rest(source: Path, output: Path) -> None:
    """With a thousand problems nothing is left out, and nothing says so."""
    write_lines(source / "x.ndjson", [b"rubbish"] * 1000)
    done = await export(BulkExport(source, output))
    assert len(done.problems()) == 1000


async def test_exported_operation_outcomes_are_no_problems(source: Path, output: Path) -> None:
    """A source may hold OperationOutcomes: they are output, apart from the error file."""
    outcome = resource("OperationOutcome")
    write_lines(source / "x.ndjson", [outcome, b"rubbish"])
    done = await export(BulkExport(source, output))
    assert done.lines("OperationOutcome.1.ndjson") == [outcome]
    assert done.counts() == {"OperationOutcome": 1}
    assert len(done.problems()) == 1


async def test_type_and_since_choose_what_is_exported(source: Path, output: Path) -> None:
    """Only the wanted types, changed after the wanted moment; a bad line is still a problem."""
    old = {"meta": {"lastUpdated": "2026-01-01T00:00:00Z"}}
    new = {"meta": {"lastUpdated": "2026-01-01T00:00:00-01:00"}}
    write_lines(
        source / "x.ndjson",
        [
            resource("Patient", 1, **old),
            resource("Patient", 2, **new),
            resource("Encounter", 3, **new),
            resource("Device", 4, **new),
            resource("Device", 5),
            b"rubbish",
        ],
    )
    parameters = {"_type": "Patient,Device", "_since": "2026-01-01T00:30:00Z"}
    done = await export(BulkExport(source, output), parameters=parameters)
    assert done.lines("Patient.1.ndjson") == [resource("Patient", 2, **new)]
    assert done.lines("Device.1.ndjson") == [resource("Device", 4, **new), resource("Device", 5)]
    assert done.counts() == {"Device": 2, "Patient": 1}
    assert len(done.problems()) == 1


async def test_bad_parameters_fail_the_job_before_anything_is_written(
    source: Path, output: Path
) -> None:
    """The error carries the issues, and no directory is made."""
    with pytest.raises(OperationOutcomeError, match="_type"):
        await export(BulkExport(source, output), parameters={"_type": "Nothing"})
    assert names_in(output.parent) == ["source"]


async def test_what_is_no_plain_file_is_passed_over(source: Path, output: Path) -> None:
    """Directories, hidden files and other names are ignored; links to files are read."""
    write_lines(source / "x.ndjson", [resource("Patient", 1)])
    (source / "directory.ndjson").mkdir()
    write_lines(source / "directory.ndjson" / "inner.ndjson", [resource("Patient", 2)])
    write_lines(source / "._x.ndjson", [b"rubbish"])
    write_lines(source / "x.json", [b"rubbish"])
    write_lines(source.parent / "outside", [resource("Device")])
    (source / "link.ndjson").symlink_to(source.parent / "outside")
    (source / "directory-link.ndjson").symlink_to(source / "directory.ndjson")
    done = await export(BulkExport(source, output))
    assert done.counts() == {"Device": 1, "Patient": 1}
    assert done.problems() == []


async def test_what_cannot_be_read_is_a_problem_and_stops_nothing(
    source: Path, output: Path
) -> None:
    """A dangling link, a named pipe and a name that is not text: one entry each, the rest goes."""
    (source / "a.ndjson").symlink_to(source / "nowhere")
    os.mkfifo(source / "b.ndjson")
    write_lines(source / "c.ndjson", [resource("Patient")])
    odd = os.fsdecode(b"d\xff.ndjson")
    try:
        (source / odd).symlink_to(source / "nowhere")
        names = ["a.ndjson", "b.ndjson", "d\ufffd.ndjson"]
    except OSError:  # a file system that takes text only
        names = ["a.ndjson", "b.ndjson"]
    done = await export(BulkExport(source, output))
    assert done.counts() == {"Patient": 1}
    problems = done.problems()
    assert [issue["diagnostics"].split(" cannot")[0] for issue in problems] == names
    assert problems[0]["code"] == "not-found"
    assert problems[1]["code"] == "exception"


async def test_a_file_that_disappears_mid_run_is_a_problem(source: Path, output: Path) -> None:
    """A file deleted after the export began is listed; the files after it are exported."""
    for name in "abc":
        write_lines(source / f"{name}.ndjson", [resource("Patient")])
    done = await export(
        BulkExport(source, output),
        on_report=lambda _: (source / "b.ndjson").unlink(missing_ok=True),
    )
    assert done.counts() == {"Patient": 2}
    assert done.problems()[0]["diagnostics"].startswith("b.ndjson ")


async def test_a_file_that_fails_while_being_read_is_a_problem(
    source: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk error in one file leaves the others exported, and does not repeat for ever."""
    write_lines(source / "a.ndjson", [resource("Patient")])
    write_lines(source / "b.ndjson", [resource("Device")])
    read = SourceFile.read

    def fail_first(file: SourceFile) -> object:
        if file.bytes_read == 0 and file._unread == (source / "a.ndjson").stat().st_size:
            raise OSError(5, "Input/output error")
        return read(file)

    monkeypatch.setattr(SourceFile, "read", fail_first)
    done = await export(BulkExport(source, output))
    assert done.counts() == {"Device": 1}
    assert done.problems()[0]["diagnostics"].startswith("a.ndjson ")


async def test_a_source_that_is_gone_fails_without_naming_its_path(
    source: Path, output: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The client learns that the data cannot be read; the path is for the log."""
    handler = BulkExport(source, output)
    shutil.rmtree(source)
    with (
        caplog.at_level(logging.ERROR, logger="hastetrio.bulk"),
        pytest.raises(OperationOutcomeError) as caught,
    ):
        await export(handler)
    assert caught.value.issues[0].code == "exception"
    assert str(source) not in json.dumps(caught.value.to_json())
    assert str(source) in caplog.text


async def test_an_output_that_cannot_be_written_fails_without_naming_its_path(
    source: Path, output: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file in the way of the output directory: a clear outcome, the path in the log only."""
    write_lines(source / "x.ndjson", [resource("Patient")])
    handler = BulkExport(source, output)
    write_lines(output, [b"in the way"])
    with (
        caplog.at_level(logging.ERROR, logger="hastetrio.bulk"),
        pytest.raises(OperationOutcomeError) as caught,
    ):
        await export(handler)
    assert caught.value.issues[0].code == "no-store"
    assert str(output) not in json.dumps(caught.value.to_json())
    assert str(output) in caplog.text


async def test_output_taken_away_mid_run_fails_and_leaves_nothing(
    source: Path, output: Path
) -> None:
    """When the place to write to vanishes, the job fails; no half export gets a final name."""
    write_lines(source / "x.ndjson", [resource("Patient")])
    with pytest.raises(OperationOutcomeError, match="could not be written"):
        await export(BulkExport(source, output), on_report=lambda _: shutil.rmtree(output))
    assert names_in(output) == []


async def test_an_output_inside_the_source_is_not_exported(source: Path) -> None:
    """Exports of earlier jobs do not become input of later ones."""
    write_lines(source / "x.ndjson", [resource("Patient")])
    handler = BulkExport(source, source / "exports")
    for job_id in ("one", "x.ndjson", "two"):
        done = await export(handler, job_id=job_id)
        assert done.counts() == {"Patient": 1}
    assert names_in(source) == ["exports", "x.ndjson"]


async def test_a_second_attempt_starts_clean(source: Path, output: Path) -> None:
    """What a killed attempt left does not show in the next one, and is gone afterwards."""
    write_lines(source / "x.ndjson", [resource("Patient")])
    (output / ".job-1.deadbeef.tmp").mkdir(parents=True)
    write_lines(output / ".job-1.deadbeef.tmp" / "Patient.1.ndjson", [b"half"])
    handler = BulkExport(source, output)
    for claim in ("claim001", "claim002"):
        done = await export(handler, claim=claim)
        assert done.lines("Patient.1.ndjson") == [resource("Patient")]
        assert names_in(output) == ["job-1"]


async def test_nothing_is_under_the_final_name_while_it_runs(source: Path, output: Path) -> None:
    """A reader of the output directory never sees a half export."""
    write_lines(source / "x.ndjson", [resource("Patient")])
    handler = BulkExport(source, output)
    seen: list[bool] = []
    await export(handler, on_report=lambda _: seen.append(handler.directory_of("job-1").exists()))
    assert seen[0] is False
    assert seen[-1] is True


async def test_progress_rises_to_100_and_stays_short(source: Path, output: Path) -> None:
    """Each report says how many percent of the bytes are done; the last says what came out."""
    write_lines(source / "x.ndjson", [resource("Patient", n, x="x" * 900) for n in range(100)])
    write_lines(source / "y.ndjson", [b"rubbish"])
    done = await export(BulkExport(source, output, pace=1e-9))
    percents = [int(text.split(" %")[0].rpartition(" ")[2]) for text in done.reports]
    assert percents == sorted(percents)
    assert percents[0] == 0
    assert percents[-1] == 100
    assert len(percents) > 4
    assert all(len(text) < 100 for text in done.reports)
    assert done.reports[-1] == "Exported: 100 % (100 resources in 1 file, 1 problem)"


async def test_a_paced_export_sleeps_between_its_steps(
    source: Path, output: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The pace is slept on trio's clock, once for every 16 KiB."""
    write_lines(source / "x.ndjson", [resource("Patient", n, x="x" * 950) for n in range(64)])
    size = (source / "x.ndjson").stat().st_size
    await export(BulkExport(source, output, pace=10))
    assert 10 * (size // 16384) <= trio.current_time() <= 10 * (size // 16384 + 3)


@pytest.mark.parametrize("job_id", ["../../escape", "/abs", "a/b", "x" * 5000, "Ü~ %", ".hidden"])
async def test_any_job_id_stays_inside_the_output(source: Path, output: Path, job_id: str) -> None:
    """The files lie in one directory of the output, and the address names the id, encoded."""
    write_lines(source / "x.ndjson", [resource("Patient")])
    handler = BulkExport(source, output)
    done = await export(handler, job_id=job_id)
    assert names_in(output) == [done.directory.name]
    assert names_in(output.parent) == ["output", "source"]
    base = "http://localhost:8000/w/t%201/p/api/v1/fhir/r4"
    address = f"{base}/_async/{quote(job_id, safe='')}/files/Patient.1.ndjson"
    assert done.manifest["output"][0]["url"] == address
    await handler.expire(make_job(job_id))
    assert names_in(output) == []


async def test_addresses_can_point_at_files_served_from_the_disk(
    source: Path, output: Path
) -> None:
    """With {directory} the address is base, directory and file: what a plain web server serves."""
    write_lines(source / "x.ndjson", [resource("Patient")])
    handler = BulkExport(
        source,
        output,
        base_url="https://files.example/{tenant}",
        file_path="{directory}/{name}",
        requires_access_token=False,
    )
    done = await export(handler, job_id="a/b")
    url = done.manifest["output"][0]["url"]
    assert url == f"https://files.example/t%201/{done.directory.name}/Patient.1.ndjson"
    assert done.manifest["requiresAccessToken"] is False


async def test_expire_removes_the_job_and_nothing_else(source: Path, output: Path) -> None:
    """The neighbour's export and the source stay; a repeat and a job without files are fine."""
    write_lines(source / "x.ndjson", [resource("Patient")])
    handler = BulkExport(source, output)
    await export(handler, job_id="one")
    await export(handler, job_id="two")
    (output / ".one.c0ffee00.tmp").mkdir()
    for _ in range(2):
        await handler.expire(make_job("one"))
        await handler.expire(make_job("never-ran"))
    assert names_in(output) == ["two"]
    assert names_in(source) == ["x.ndjson"]
