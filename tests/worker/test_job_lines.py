"""Lines that handlers log themselves carry their job's id, in both forms."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from hastetrio import AsyncJob, ConfigError, JobContext, JobFilter, JobOutput
from hastetrio._log import JsonFormatter, TextFormatter, configure
from hastetrio.testing import run_job

from .harness import DONE, Rig, handler, raising

theirs = logging.getLogger("clinic.transcribe")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """A stream for the log; the root logger is put back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)


async def tells(context: JobContext) -> JobOutput:
    """Log from the handler, from a child task, and from a thread."""

    async def child() -> None:
        theirs.info("child")

    theirs.info("pages: %d", 12)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(child)
    await trio.to_thread.run_sync(lambda: theirs.info("thread"))
    return DONE


def objects(stream: io.StringIO) -> list[dict[str, Any]]:
    """The objects of a log in JSON, one a line."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_handlers_lines_carry_the_jobs_id_in_json(stream: io.StringIO) -> None:
    """Also those of its child tasks and threads; the events carry it as they are declared."""
    configure("info", "json", stream)
    job = run_job(handler(tells))
    lines = objects(stream)
    own = [line for line in lines if line["logger"] == theirs.name]
    assert [line["message"] for line in own] == ["pages: 12", "child", "thread"]
    assert {line["job"] for line in own} == {job.id}
    assert all("event" not in line for line in own)
    assert all(line.keys() == {"time", "level", "logger", "message", "job"} for line in own)
    events = {line["event"]: line for line in lines if "event" in line}
    assert events["job.running"]["job"] == job.id
    assert events["job.finished"]["status"] == "completed"
    assert events["job.finished"]["level"] == "info"
    assert "job" not in events["worker.starting"]


def test_a_handlers_lines_carry_the_jobs_id_in_text(stream: io.StringIO) -> None:
    """In brackets; an event names its job itself."""
    configure("info", "text", stream)
    job = run_job(handler(tells))
    lines = stream.getvalue().splitlines()
    own = [line for line in lines if theirs.name in line]
    assert [line.split(" ", 1)[1] for line in own] == [
        f"INFO    {theirs.name} [{job.id}] {text}" for text in ("pages: 12", "child", "thread")
    ]
    (running,) = [line for line in lines if "Running job" in line]
    assert running.endswith(f" INFO    hastetrio Running job (work {job.id})")


async def test_lines_of_jobs_that_run_at_once_are_told_apart(rig: Rig) -> None:
    """Each handler has its own context, and none leaks into the worker."""

    async def body(context: JobContext) -> JobOutput:
        for _ in range(3):
            theirs.warning(context.job.id)
            await trio.sleep(1)
        return DONE

    async def expire(job: AsyncJob) -> None:
        theirs.warning(job.id)

    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    keep = Keep()
    keep.addFilter(JobFilter())
    theirs.addHandler(keep)
    try:
        async with rig.running(handler(body, expire=expire)):
            ids = await rig.create_many(3)
            ids.append(rig.insert_expired())
            for id in ids[:3]:
                await rig.ended(id)
            theirs.warning("outside")
    finally:
        theirs.removeHandler(keep)
    inside = [record for record in records if record.getMessage() != "outside"]
    assert len(inside) == 9
    assert all(record.__dict__["job"] == record.getMessage() for record in inside)
    assert [r.__dict__["job"] for r in records if r.getMessage() == "outside"] == [None]


async def test_lines_of_a_clean_up_carry_the_jobs_id(rig: Rig) -> None:
    """It runs for one job like a handler."""
    seen: list[object] = []

    async def expire(job: AsyncJob) -> None:
        record = logging.makeLogRecord({"msg": "removing"})
        JobFilter().filter(record)
        seen.append(record.__dict__["job"])

    id = rig.insert_expired()
    async with rig.running(handler(raising(OSError()), expire=expire)):
        await rig.removed(id)
    assert seen == [id]


def test_a_job_that_a_record_names_itself_is_kept() -> None:
    """A handler may log about another job."""
    record = logging.makeLogRecord({"msg": "see there", "job": "other"})
    assert JobFilter().filter(record)
    assert record.__dict__["job"] == "other"


def test_a_thread_of_ones_own_has_no_job(stream: io.StringIO) -> None:
    """Only trio's threads inherit the context; the documentation says so."""

    async def body(context: JobContext) -> JobOutput:
        thread = threading.Thread(target=theirs.info, args=("apart",))
        thread.start()
        await trio.to_thread.run_sync(thread.join)
        return DONE

    configure("info", "json", stream)
    run_job(handler(body))
    (line,) = [line for line in objects(stream) if line["message"] == "apart"]
    assert "job" not in line


def test_an_unexpected_error_is_logged_with_its_traceback(stream: io.StringIO) -> None:
    """In JSON on the same line, so that a collector keeps them together."""
    configure("info", "json", stream)
    run_job(handler(raising(ValueError("odd\nnumber"))))
    (line,) = [line for line in objects(stream) if line.get("event") == "job.raised"]
    assert line["level"] == "error"
    assert line["traceback"].startswith("Traceback (most recent call last)")
    assert "ValueError: odd\nnumber" in line["traceback"]


async def test_no_value_of_a_row_begins_a_line_of_its_own(rig: Rig) -> None:
    """Ids made by others may be any text, also one that looks like a line of this log."""
    forged = "x\n2026-01-01T00:00:00.000+00:00 ERROR   hastetrio forged\r\x1b[2J\u2028"
    rig.memory.insert_row(id=forged, tenant="t", project="p", kind="work")
    async with rig.running(handler(tells)):
        await rig.ended(forged)
    own = logging.makeLogRecord({"msg": "from the handler", "job": forged})
    for record in (*rig.log.of("job.running", forged), own):
        assert len(TextFormatter().format(record).splitlines()) == 1
        assert "\x1b" not in TextFormatter().format(record)
        assert json.loads(JsonFormatter().format(record))["message"]


def test_a_message_of_a_handler_may_have_several_lines() -> None:
    """They are its author's choice."""
    record = logging.makeLogRecord({"msg": "one\ntwo", "job": "x", "levelname": "INFO"})
    assert TextFormatter().format(record).endswith("[x] one\ntwo")


def test_any_value_fits_into_json() -> None:
    """Fields and messages that are no JSON, or not even text, do not break the line."""
    record = logging.makeLogRecord({"msg": "\ud800", "event": "e", "fields": {"o": {1, 2}}})
    assert json.loads(JsonFormatter().format(record))["o"] == "{1, 2}"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("loud", "text"), "log level must be debug, info, warning or error, not 'loud'"),
        (("info", "xml"), "log format must be text or json, not 'xml'"),
    ],
)
def test_a_level_or_format_there_is_not_is_one_clear_line(
    arguments: tuple[str, Any], says: str
) -> None:
    """And the logging set-up stays as it was."""
    before = logging.getLogger().handlers[:]
    with pytest.raises(ConfigError) as caught:
        configure(*arguments)
    assert str(caught.value) == says
    assert logging.getLogger().handlers == before


def test_the_level_holds_for_handlers_too(stream: io.StringIO) -> None:
    """One setting for all that runs in the worker."""
    configure("warning", "text", stream)
    run_job(handler(tells))
    assert stream.getvalue() == ""
