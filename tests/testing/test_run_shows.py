"""What `run_job` shows of a run: every progress text, and every log record."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Iterator

import pytest
import trio

from hastetrio import (
    AsyncJob,
    AsyncJobStatus,
    AsyncJobWorkerConfig,
    JobContext,
    JobOutput,
    OperationOutcomeError,
    job_handler,
)
from hastetrio.testing import FinishedJob, _run, run_job

HOUR = 3600.0
DONE = JobOutput.json("done")

log = logging.getLogger("tests.a_handlers_own")


class Kept(logging.Handler):
    """Keeps what reaches it, as anybody's handler."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message."""
        self.messages.append(record.getMessage())


@pytest.fixture
def root() -> Iterator[Kept]:
    """A handler at the root, whose level is the usual one."""
    kept, logger = Kept(), logging.getLogger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    logger.addHandler(kept)
    yield kept
    assert logger.level == logging.WARNING
    assert kept in logger.handlers
    logger.removeHandler(kept)
    logger.setLevel(level)


def events(job: FinishedJob) -> list[str]:
    """The names of hastetrio's events among the logs."""
    return [record.__dict__["event"] for record in job.logs if "event" in record.__dict__]


def own(job: FinishedJob) -> list[str]:
    """What the handler logged itself."""
    return [record.getMessage() for record in job.logs if record.name == log.name]


@job_handler("chatty")
async def chatty(context: JobContext) -> JobOutput:
    """Report and log, at several levels."""
    context.report("one")
    context.report("two")
    log.debug("not by default")
    log.info("begun")
    await trio.sleep(HOUR)
    context.report("three")
    log.warning("nearly there")
    return DONE


def test_every_progress_text_is_shown() -> None:
    """Those that were overwritten before anybody could read them too."""
    job = run_job(chatty)
    assert job.progress_texts == ("one", "two", "three")
    assert job.progress == "three"


def test_progress_texts_are_shown_as_they_are_stored() -> None:
    """Cut and cleaned, so that the last is the job's progress."""

    @job_handler("raw")
    async def raw(context: JobContext) -> JobOutput:
        context.report("a\x00b" + "c" * 20)
        return DONE

    job = run_job(raw, config=AsyncJobWorkerConfig(progress_limit=10))
    assert job.progress_texts == ("a�b" + "c" * 7,)
    assert job.progress == job.progress_texts[-1]


def test_a_report_that_is_no_text_is_still_refused() -> None:
    """And is not among the texts."""

    @job_handler("wrong")
    async def wrong(context: JobContext) -> JobOutput:
        with pytest.raises(TypeError, match="progress is a text, not int"):
            context.report(1)  # type: ignore[arg-type]
        return DONE

    assert run_job(wrong).progress_texts == ()


def test_a_context_is_what_it_was() -> None:
    """Listening to the reports takes nothing else away from it."""

    @job_handler("asks")
    async def asks(context: JobContext) -> JobOutput:
        assert type(context) is JobContext
        context.report("first")
        return JobOutput.json(
            [context.attempt, len(context.claim), context.is_cancelled, context.lease_deadline]
        )

    assert run_job(asks).output == [1, 8, False, 55]


def test_the_logs_of_a_run_are_shown() -> None:
    """Our events and the handler's own lines, from INFO on, in their order."""
    job = run_job(chatty)
    assert [record.getMessage().split(" (")[0] for record in job.logs] == [
        "Running job",
        "begun",
        "nearly there",
        "Job completed after 3600.000 s",
    ]
    assert events(job) == ["job.running", "job.finished"]


def test_a_loggers_own_level_decides_where_it_has_one() -> None:
    """Whoever wants a handler's debug lines says so where one says so."""
    level = log.level
    log.setLevel(logging.DEBUG)
    try:
        assert own(run_job(chatty)) == ["not by default", "begun", "nearly there"]
        log.setLevel(logging.ERROR)
        assert own(run_job(chatty)) == []
    finally:
        log.setLevel(level)


def test_log_lines_have_the_virtual_time() -> None:
    """Which is what a person needs who asks when the third attempt began."""
    lines = run_job(chatty).log_text.splitlines()
    assert f"    0.000 INFO    {log.name} begun" in lines
    assert f" 3600.000 WARNING {log.name} nearly there" in lines


def test_a_handlers_error_is_in_the_log_whole() -> None:
    """With a traceback that begins where the handler ran, and holds nothing of our making."""

    @job_handler("broken")
    async def broken(context: JobContext) -> JobOutput:
        raise LookupError("no such shelf")

    text = run_job(broken).log_text
    assert "Traceback (most recent call last):" in text
    assert text.count("LookupError: no such shelf") == 1
    assert "During handling" not in text


def test_lines_from_threads_are_shown() -> None:
    """From trio's threads, and from those a library starts."""

    @job_handler("threads")
    async def threads(context: JobContext) -> JobOutput:
        await trio.to_thread.run_sync(log.info, "from trio's")

        def plain() -> None:
            # Without the context of the task: so does a thread pool of a library.
            thread = threading.Thread(target=log.info, args=["from a plain one"])
            thread.start()
            thread.join()

        contextvars.Context().run(plain)
        return DONE

    assert own(run_job(threads)) == ["from trio's", "from a plain one"]


def test_lines_from_elsewhere_are_not_shown() -> None:
    """A thread that was there before belongs to somebody else."""
    ask, said = threading.Event(), threading.Event()

    def neighbour() -> None:
        ask.wait(10)
        log.warning("from the neighbour")
        said.set()

    thread = threading.Thread(target=neighbour)
    thread.start()

    @job_handler("quiet")
    async def quiet(context: JobContext) -> JobOutput:
        ask.set()
        said.wait(10)
        log.warning("from the handler")
        return DONE

    try:
        job = run_job(quiet)
    finally:
        ask.set()
        thread.join()
    assert own(job) == ["from the handler"]


def test_others_see_what_they_saw_before(root: Kept) -> None:
    """A test that counts what was logged is not told more because of us."""
    job = run_job(chatty)
    assert "begun" in own(job)
    assert root.messages == ["nearly there"]


def test_runs_at_the_same_time_keep_their_own(root: Kept) -> None:
    """Each its own lines; the last to end puts the root back."""
    inside, go = threading.Event(), threading.Event()

    @job_handler("first")
    async def first(context: JobContext) -> JobOutput:
        inside.set()
        await trio.to_thread.run_sync(go.wait, 10)
        log.info("first")
        return DONE

    @job_handler("second")
    async def second(context: JobContext) -> JobOutput:
        log.info("second")
        return DONE

    jobs: list[FinishedJob] = []
    thread = threading.Thread(target=lambda: jobs.append(run_job(first)))
    thread.start()
    try:
        assert inside.wait(10)
        jobs.append(run_job(second))
        assert logging.getLogger().level == logging.INFO
    finally:
        go.set()
        thread.join()
    assert [own(job) for job in jobs] == [["second"], ["first"]]
    assert root.messages == []


async def test_inside_of_a_loop_it_shows_as_much() -> None:
    """Where the run is in a thread of its own."""
    job = run_job(chatty)
    assert job.progress_texts == ("one", "two", "three")
    assert own(job) == ["begun", "nearly there"]


def test_a_finished_job_is_a_job() -> None:
    """For whatever takes one; its printed form tells what went wrong, and no claims."""

    @job_handler("failing")
    async def failing(context: JobContext) -> JobOutput:
        log.error("the disk\nis full")
        raise OperationOutcomeError("no-store", "there is no room", expression=("a.b",))

    job = run_job(failing, claims={"sub": "secret"})
    assert isinstance(job, AsyncJob)
    assert job.status is AsyncJobStatus.FAILED
    assert repr(job) == (
        "FinishedJob(failing failed at attempt 1 of 3; no-store: there is no room (at a.b); "
        "logged the disk is full)"
    )


def test_a_job_without_a_result_tells_its_log_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error that ends the test has what was logged as a note."""

    @job_handler("endless")
    async def endless(context: JobContext) -> JobOutput:
        log.info("waiting for a friend")
        await trio.Event().wait()
        return DONE

    # Fewer looks and renewals on the day that it waits.
    monkeypatch.setattr(_run, "_LOOK", 1e5)
    with pytest.raises(LookupError) as caught:
        run_job(endless, config=AsyncJobWorkerConfig(lease_duration=1e5, poll_interval=1e5))
    assert "waiting for a friend" in "\n".join(caught.value.__notes__)


def test_time_waits_for_a_thread_of_any_limiter() -> None:
    """As it does for trio's own, or the lease of a slow thread would run away from it."""
    go = threading.Event()

    @job_handler("limited")
    async def limited(context: JobContext) -> JobOutput:
        before = trio.current_time()
        await trio.to_thread.run_sync(go.wait, 0.1, limiter=trio.CapacityLimiter(1))
        return JobOutput.json(trio.current_time() - before)

    assert run_job(limited).output < 20
