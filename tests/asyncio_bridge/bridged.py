"""What `run_asyncio` does. Importing it patches asyncio: `test_bridge` runs these in a child."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import logging
import re
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, assert_type

import pytest
import trio
import trio.testing

from hastetrio import (
    AsyncJobStatus,
    AsyncJobWorker,
    CreateAsyncJob,
    JobContext,
    JobFilter,
    JobOutput,
    OperationOutcomeError,
    job_handler,
)
from hastetrio.asyncio_bridge import run_asyncio
from hastetrio.memory import MemoryJobProvider
from hastetrio.testing import FaultyProvider, run_job

import aiohttp  # isort: skip
import trio_asyncio  # type: ignore[import-untyped, unused-ignore]  # isort: skip
from aiohttp import web  # isort: skip

PAGE = Path(__file__).parents[2] / "docs" / "asyncio.md"

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[str]:
    """An aiohttp server on this machine, in the asyncio loop that runs; its address."""
    application = web.Application()
    application.router.add_get("/{name}", answer)
    runner = web.AppRunner(application, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def fetch(name: str) -> str:
    """Ask a server for a page; both are aiohttp's."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0)
        return web.Response(text=f"the page of {request.match_info['name']}")

    async with serving(answer) as address, aiohttp.ClientSession() as session:  # noqa: SIM117
        async with session.get(f"{address}/{name}") as response:
            return await response.text()


async def never() -> NoReturn:
    """Wait for ever."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody sets it")


@asynccontextmanager
async def running(faults: FaultyProvider, run: Any) -> AsyncIterator[tuple[AsyncJobWorker, str]]:  # noqa: ANN401
    """A worker that runs one job; the worker and the job's id. It has drained after the block."""
    job = await faults.create_job("t", "p", CreateAsyncJob(kind="bridged", claims={"sub": "me"}))
    worker = AsyncJobWorker(faults, [job_handler("bridged")(run)])
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        yield worker, job.id
        worker.stop()


def test_a_handler_may_use_an_asyncio_library() -> None:
    """A server and a client of aiohttp, in one call."""

    @job_handler("fetch")
    async def handler(context: JobContext) -> JobOutput:
        text = await run_asyncio(fetch, "ann")
        assert_type(text, str)
        return JobOutput.json(text)

    job = run_job(handler)
    assert job.status is AsyncJobStatus.COMPLETED
    assert job.output == "the page of ann"


async def test_a_client_that_cancels_its_job_cancels_the_request() -> None:
    """The library sees asyncio's own cancellation, and the job is let go of when it has unwound."""
    faults = FaultyProvider(MemoryJobProvider())
    asked = trio.Event()
    released_at_the_end: list[int] = []

    async def hang(request: web.Request) -> web.StreamResponse:
        asked.set()
        return await never()

    async def work(id: str) -> str:
        try:
            async with serving(hang) as address, aiohttp.ClientSession() as session:
                return str(await session.get(f"{address}/ann"))
        except asyncio.CancelledError:
            released_at_the_end.append(len(faults.made("release_job", id)))
            raise

    async def run(context: JobContext) -> JobOutput:
        return JobOutput.json(await run_asyncio(work, context.job.id))

    with trio.fail_after(60):
        async with running(faults, run) as (worker, id):
            await asked.wait()
            await faults.cancel_job("t", "p", id)
    assert released_at_the_end == [0]
    assert len(faults.made("release_job", id)) == 1
    assert worker.statistics().totals.dropped == 1


async def test_a_lost_lease_cancels_the_call(autojump_clock: trio.testing.MockClock) -> None:
    """Nothing is recorded, and the job is given up only when the asyncio code has unwound."""
    faults = FaultyProvider(MemoryJobProvider())
    unwound = trio.Event()
    dropped: list[int] = []
    reasons: list[str] = []

    async def work(context: JobContext) -> None:
        try:
            await never()
        except asyncio.CancelledError:
            await asyncio.sleep(1)
            dropped.append(worker.statistics().totals.dropped)
            reasons.append(str(context.cancel_reason))
            unwound.set()
            raise

    async def run(context: JobContext) -> JobOutput:
        await run_asyncio(work, context)
        raise AssertionError("the scope is cancelled")

    async with running(faults, run) as (worker, id):
        faults.lose_lease(id)
        await unwound.wait()
    assert (dropped, reasons) == ([0], ["lease-lost"])
    assert worker.statistics().totals.dropped == 1
    assert not faults.made("finish_jobs")


async def test_a_task_left_behind_has_ended_before_the_job_is_recorded(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It is cancelled when the function returns, and may take its time to clean up."""
    faults = FaultyProvider(MemoryJobProvider())
    cancelled = trio.Event()
    finished: list[int] = []

    async def linger() -> None:
        try:
            await never()
        finally:
            cancelled.set()
            await asyncio.sleep(3)
            finished.append(len(faults.made("finish_jobs")) + len(faults.made("finish_job")))

    async def work() -> str:
        task = asyncio.create_task(linger())
        await asyncio.sleep(1)
        return task.get_name()

    async def run(context: JobContext) -> JobOutput:
        return JobOutput.json(await run_asyncio(work))

    async with running(faults, run) as (worker, _):
        await cancelled.wait()
    assert finished == [0]
    assert worker.statistics().totals.completed == 1


async def test_an_error_leaves_as_it_was_raised() -> None:
    """The same object, in no group, caused by nothing of ours."""
    mine = LookupError("mine")

    async def fail() -> None:
        await asyncio.sleep(0)
        raise mine

    with pytest.raises(LookupError) as caught:
        await run_asyncio(fail)
    assert caught.value is mine
    assert mine.__cause__ is None
    assert mine.__context__ is None


async def test_a_group_and_a_cancellation_of_its_own_leave_as_they_were_raised() -> None:
    """Neither is taken for one of the loop's groups, or for a cancelled scope."""

    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(cancel_itself())
            tasks.create_task(fetch("\0"))
            raise OSError("first")

    async def cancel_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    with pytest.raises(ExceptionGroup) as caught:
        await run_asyncio(group)
    assert [type(error) for error in caught.value.exceptions] == [OSError]
    with pytest.raises(asyncio.CancelledError):
        await run_asyncio(cancel_itself)


def test_an_error_fails_the_job() -> None:
    """With its issues, as in a handler without the bridge."""

    async def refuse() -> None:
        await asyncio.sleep(0)
        raise OperationOutcomeError("value", "no such page")

    @job_handler("refuse")
    async def handler(context: JobContext) -> JobOutput:
        await run_asyncio(refuse)
        raise AssertionError("it raises")

    job = run_job(handler)
    assert job.status is AsyncJobStatus.FAILED
    assert job.error["issue"][0]["diagnostics"] == "no such page"


def test_log_lines_of_asyncio_code_name_the_job() -> None:
    """Context variables cross: into the function, and into the tasks it starts."""

    async def named() -> Any:  # noqa: ANN401
        record = logging.makeLogRecord({})
        JobFilter().filter(record)
        return record.__dict__["job"]

    async def both() -> Any:  # noqa: ANN401
        return [await named(), await asyncio.create_task(named())]

    @job_handler("named")
    async def handler(context: JobContext) -> JobOutput:
        return JobOutput.json(await run_asyncio(both))

    job = run_job(handler)
    assert job.output == [job.id, job.id]


async def test_what_asyncio_offers_works(autojump_clock: trio.testing.MockClock) -> None:
    """Timeouts, groups, threads and generators; time is the worker's."""

    async def count() -> AsyncIterator[int]:
        for number in range(3):
            yield number

    async def work(first: int, *, second: str) -> list[object]:
        with suppress(TimeoutError):
            async with asyncio.timeout(3600):
                await never()
        async with asyncio.TaskGroup() as tasks:
            child = tasks.create_task(asyncio.sleep(1, second))
        thread = await asyncio.to_thread(threading.current_thread)
        assert thread is not threading.current_thread()
        return [first, child.result(), [number async for number in count()]]

    began = trio.current_time()
    assert await run_asyncio(partial(work, second="b"), 1) == [1, "b", [0, 1, 2]]
    assert trio.current_time() - began == pytest.approx(3601, abs=1)


async def test_calls_side_by_side_have_loops_of_their_own() -> None:
    """One that ends, or is cancelled, leaves the others alone."""
    loops: set[int] = set()
    first, second = trio.Event(), trio.Event()

    async def wait(mine: trio.Event) -> None:
        loops.add(id(asyncio.get_running_loop()))
        mine.set()
        await never()

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_asyncio, wait, first)
            nursery.start_soon(run_asyncio, wait, second)
            await first.wait()
            await second.wait()
            assert await run_asyncio(fetch, "bob") == "the page of bob"
            scope.cancel()
    assert len(loops) == 2


async def test_nothing_is_started_in_a_cancelled_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is over does not begin a request, nor open a loop for it."""
    monkeypatch.delattr(trio_asyncio, "open_loop")
    with trio.CancelScope() as scope:
        scope.cancel()
        await run_asyncio(never)
    assert scope.cancelled_caught


async def test_a_function_that_swallows_its_cancellation_gives_its_result() -> None:
    """As asyncio has it; the scope stays cancelled, and the worker calls the job late."""
    started = trio.Event()

    async def swallow() -> str:
        with suppress(asyncio.CancelledError):
            started.set()
            await never()
        await asyncio.sleep(0)
        return "done"

    result = None

    async def call() -> None:
        nonlocal result
        result = await run_asyncio(swallow)
        await trio.lowlevel.checkpoint()
        raise AssertionError("the scope is cancelled")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await started.wait()
        nursery.cancel_scope.cancel()
    assert result == "done"


@pytest.mark.parametrize("where", ["function", "task", "callback"])
async def test_an_exit_ends_the_call_and_no_more(where: str) -> None:
    """Raised by the call when the rest has unwound; the loop is not lost under it."""
    unwound = []

    def leave() -> NoReturn:
        sys.exit(4)

    async def leave_later() -> None:
        await asyncio.sleep(0)
        leave()

    async def work() -> None:
        task = None
        try:
            if where == "function":
                leave()
            if where == "task":
                task = asyncio.create_task(leave_later())
            else:
                asyncio.get_running_loop().call_soon(leave)
            await never()
        finally:
            await asyncio.sleep(0)
            if task is not None:
                assert isinstance(task.exception(), SystemExit)
            unwound.append(1)

    with pytest.raises(SystemExit) as caught:
        await run_asyncio(work)
    assert caught.value.code == 4
    assert unwound


async def test_control_c_does_not_strike_inside_of_the_loop() -> None:
    """It would end the loop under its tasks; trio gives it to the main task instead."""

    async def ask() -> list[bool]:
        return [trio.lowlevel.currently_ki_protected(), await asyncio.create_task(ask_again())]

    async def ask_again() -> bool:
        return trio.lowlevel.currently_ki_protected()

    assert not trio.lowlevel.currently_ki_protected()
    assert await run_asyncio(ask) == [True, True]


async def test_errors_that_asyncio_only_logs_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A callback's, and that of a task which was left behind; the result is not lost for them."""

    def strike() -> None:
        raise LookupError("in a callback")

    async def stumble() -> None:
        try:
            await never()
        finally:
            raise OSError("while it was cancelled")

    async def work() -> str:
        asyncio.get_running_loop().call_soon(strike)
        task = asyncio.create_task(stumble())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return f"{task.done()}"

    assert await run_asyncio(work) == "False"
    records = [record for record in caplog.records if record.name == "asyncio"]
    errors = [str(record.exc_info[1]) for record in records if record.exc_info]
    assert errors == ["in a callback", "while it was cancelled"]


async def test_trio_code_may_be_called_through_trio_asyncio() -> None:
    """In both directions: arguments and results, and errors as they were raised."""

    async def thread(number: int) -> int:
        return await trio.to_thread.run_sync(abs, number)

    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise LookupError("from trio")

    async def ask() -> Any:  # noqa: ANN401
        return await trio_asyncio.trio_as_aio(thread)(-3)

    assert await run_asyncio(ask) == 3
    with pytest.raises(LookupError, match="from trio"):
        await run_asyncio(trio_asyncio.trio_as_aio(fail))


def test_plain_asyncio_still_works() -> None:
    """On a loop of trio-asyncio's, once the bridge was imported."""
    assert asyncio.run(fetch("ann")) == "the page of ann"


class _Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"x" * len(self.path)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def pages() -> Iterator[str]:
    """A web server of the standard library, in a thread."""
    with http.server.HTTPServer(("127.0.0.1", 0), _Pages) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_the_handler_of_the_documentation_works() -> None:
    """What a reader copies measures pages, reports, and fails where a page cannot be had."""
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(compile(block, PAGE.name, "exec"), namespace)  # noqa: S102
    handler = namespace["measure_pages"]
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as closed, pages() as address:
        refused = f"http://127.0.0.1:{closed.getsockname()[1]}"
        closed.close()
        urls = [f"{address}/a", f"{address}/abc"]
        job = run_job(handler, parameters={"urls": urls})
        assert job.output == {urls[0]: 2, urls[1]: 4}
        assert job.progress == "2 of 2 pages"
        failed = run_job(handler, parameters={"urls": [*urls, refused]})
    assert failed.status is AsyncJobStatus.FAILED
