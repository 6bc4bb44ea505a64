"""`run_job`: a handler's own tests, without a database and without waiting."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import trio

from hastetrio import (
    AsyncJobStatus,
    AsyncJobWorkerConfig,
    ConfigError,
    JobContext,
    JobHandler,
    JobOutput,
    OperationOutcomeError,
    UnstorableValue,
    job_handler,
)
from hastetrio.testing import run_job

from .harness import DONE, HOUR, handler, issues, raising, returning, sleeping

COMPLETED, FAILED = AsyncJobStatus.COMPLETED, AsyncJobStatus.FAILED


@job_handler("echo")
async def echo(context: JobContext) -> JobOutput:
    """Return what the handler was given."""
    job = context.job
    return JobOutput.json([job.parameters, job.claims, job.submitted_by, job.request, job.attempts])


def test_it_returns_the_finished_job() -> None:
    """Parameters, claims and request reach the handler as they are given."""
    job = run_job(echo, parameters=[1], claims={"sub": "ann", "x": 1}, request="https://a/b")
    assert job.status is COMPLETED
    assert job.output == [[1], {"sub": "ann", "x": 1}, "ann", "https://a/b", 1]


def test_nothing_but_the_handler_is_needed() -> None:
    """There are defaults for the rest."""
    assert run_job(echo).output == [{}, {"sub": "test"}, "test", "", 1]


@pytest.mark.parametrize("parameters", [0, False, "", []], ids=repr)
def test_parameters_that_are_falsy_are_given_as_they_are(parameters: object) -> None:
    """Only None stands for the default."""
    assert run_job(echo, parameters=parameters).output[0] == parameters


async def test_it_works_inside_of_a_trio_test() -> None:
    """As an ordinary call."""
    assert run_job(echo).status is COMPLETED


def test_it_works_inside_of_an_asyncio_test() -> None:
    """Whatever loop the test belongs to."""

    async def test() -> Any:  # noqa: ANN401
        return run_job(echo).status

    assert asyncio.run(test()) is COMPLETED


def test_sleeping_takes_no_time() -> None:
    """A handler may sleep for hours: its lease is renewed, and the test returns."""
    job = run_job(handler(sleeping(5 * HOUR)))
    assert job.status is COMPLETED
    assert job.attempts == 1
    assert job.finished_at is not None
    assert job.started_at is not None
    assert (job.finished_at - job.started_at).total_seconds() == pytest.approx(5 * HOUR, abs=1)


def test_a_handler_that_never_ends_is_an_error() -> None:
    """Its job expires after a day, and the test is told, not left waiting."""
    with pytest.raises(LookupError, match="the job ended without a result"):
        run_job(handler(sleeping()))


def test_a_handler_that_fails_its_job_is_seen_to() -> None:
    """The job is returned with its outcome; nothing is raised."""
    job = run_job(handler(raising(OperationOutcomeError("value", "no such type"))))
    assert issues(job) == [("error", "value", "no such type")]
    assert run_job(handler(raising(OSError()))).status is FAILED
    assert run_job(handler(returning(None))).status is FAILED


def test_claims_that_name_nobody_are_an_error() -> None:
    """As at a kick-off."""
    with pytest.raises(ValueError, match="the claims name nobody"):
        run_job(echo, claims={})


def test_parameters_that_are_no_json_are_an_error() -> None:
    """As at a kick-off, and not wrapped in a group."""
    with pytest.raises(UnstorableValue, match="the parameters"):
        run_job(echo, parameters={1, 2})


async def test_its_errors_are_the_same_inside_of_a_loop() -> None:
    """Raised by the call, not lost in a thread."""
    with pytest.raises(UnstorableValue):
        run_job(echo, parameters={1, 2})


def test_a_class_is_refused_clearly() -> None:
    """An instance is wanted."""

    class Echo(JobHandler):
        kind = "echo"

        async def run(self, context: JobContext) -> JobOutput:
            return DONE

    with pytest.raises(ConfigError, match=r"register an instance of it: Echo\(\)"):
        run_job(Echo)  # type: ignore[arg-type]


def test_limits_can_be_given() -> None:
    """With the worker's own settings."""
    job = run_job(
        handler(returning(JobOutput.json("x" * 2000))),
        config=AsyncJobWorkerConfig(output_limit=1024),
    )
    assert "the limit is 1,024" in issues(job)[0][2]


def test_progress_is_on_the_job() -> None:
    """The last that was reported."""

    async def body(context: JobContext) -> JobOutput:
        context.report("half")
        await trio.sleep(HOUR)
        context.report("all")
        return DONE

    assert run_job(handler(body)).progress == "all"


def test_a_handlers_thread_works_while_time_stands_nearly_still() -> None:
    """Its lease does not run away from it, and it may report and ask from there."""
    go = threading.Event()

    async def body(context: JobContext) -> JobOutput:
        def work() -> tuple[bool, float]:
            go.wait(0.2)
            context.report("from a thread")
            return context.is_cancelled, context.lease_deadline

        before = trio.current_time()
        cancelled, deadline = await trio.to_thread.run_sync(work)
        return JobOutput.json([cancelled, deadline, trio.current_time() - before])

    job = run_job(handler(body))
    cancelled, deadline, passed = job.output
    assert (cancelled, deadline, job.progress) == (False, 55, "from a thread")
    assert passed < 20


def test_a_thread_may_call_back_into_trio() -> None:
    """A sleep it asks for passes as it does outside."""

    async def body(context: JobContext) -> JobOutput:
        await trio.to_thread.run_sync(lambda: trio.from_thread.run(trio.sleep, 0.05))
        return DONE

    assert run_job(handler(body)).status is COMPLETED


def test_a_handler_may_wait_for_a_socket() -> None:
    """Time does not run away from what is real."""

    async def body(context: JobContext) -> JobOutput:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]

        def write() -> None:
            import socket

            with socket.create_connection(("127.0.0.1", port)) as connection:
                go.wait(0.1)
                connection.sendall(b"x")

        go, before = threading.Event(), trio.current_time()
        thread = threading.Thread(target=write)
        thread.start()
        async with listeners[0]:
            stream = await listeners[0].accept()
            async with stream:
                read = await stream.receive_some(1)
        thread.join()
        return JobOutput.json([read.decode(), trio.current_time() - before])

    read, passed = run_job(handler(body)).output
    assert read == "x"
    assert passed < 20


def test_no_thread_of_it_is_left() -> None:
    """A test suite calls it a thousand times."""

    async def test() -> None:
        run_job(echo)

    trio.run(test)
    assert not [thread for thread in threading.enumerate() if "run_job" in thread.name]
