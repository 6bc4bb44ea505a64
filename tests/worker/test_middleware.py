"""Middleware: what goes around each run, what it is told, and that it can break nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import attrs
import pytest
import trio

from hastetrio import (
    AsyncJobStatus,
    AsyncJobWorker,
    ConfigError,
    JobContext,
    JobMiddleware,
    JobOutput,
    JobRun,
    OperationOutcomeError,
    RetryLater,
    RunOutcome,
    Snooze,
    job_handler,
)
from hastetrio.memory import MemoryJobProvider

from .attempts import FLAT, Plan, Returned, go_on, retrying
from .harness import (
    DEADLINE,
    DONE,
    HOUR,
    KIND,
    LEASE,
    Rig,
    Runs,
    block,
    handler,
    issues,
    never,
    raising,
    returning,
    sleeping,
)

COMPLETED = AsyncJobStatus.COMPLETED

current: ContextVar[str] = ContextVar("current", default="nobody")


@attrs.define
class Book:
    """A middleware that keeps what it is told."""

    entered: list[JobRun] = attrs.field(factory=list)
    outcomes: list[RunOutcome | None] = attrs.field(factory=list)

    @contextmanager
    def __call__(self, run: JobRun) -> Iterator[None]:
        """Keep the run and its outcome."""
        assert run.outcome is None
        self.entered.append(run)
        yield
        self.outcomes.append(run.outcome)

    @property
    def last(self) -> RunOutcome:
        """The outcome that was told last."""
        outcome = self.outcomes[-1]
        assert outcome is not None
        return outcome


def naming(name: str, log: list[str]) -> JobMiddleware:
    """A middleware that writes down when it is entered and left."""

    @contextmanager
    def middleware(run: JobRun) -> Iterator[None]:
        log.append(f"{name} in")
        yield
        log.append(f"{name} out")

    return middleware


async def test_the_first_middleware_is_the_outermost(rig: Rig) -> None:
    """As with the blocks of a `with` statement; the handler is inside of all."""

    async def body(context: JobContext) -> JobOutput:
        log.append("run")
        return DONE

    log: list[str] = []
    async with rig.running(handler(body), middleware=[naming(n, log) for n in "abc"]):
        await rig.ended(await rig.create())
    assert log == ["a in", "b in", "c in", "run", "c out", "b out", "a out"]


async def test_a_middleware_sees_the_handlers_own_context(rig: Rig) -> None:
    """The job, its attempt, and the parameters, as JSON before and typed after."""

    @attrs.frozen
    class Words:
        text: str

    @contextmanager
    def middleware(run: JobRun) -> Iterator[None]:
        seen.append(run.context.parameters)
        yield
        seen.append(run.context.parameters)
        runs.append(run)

    async def body(context: JobContext[Any]) -> JobOutput:
        contexts.append(context)
        return DONE

    seen: list[Any] = []
    runs: list[JobRun] = []
    contexts: list[JobContext] = []
    made = job_handler(KIND, parameters=Words)(body)
    async with rig.running(made, middleware=[middleware]):
        id = await rig.create(parameters={"text": "x"})
        await rig.ended(id)
    assert seen == [{"text": "x"}, Words("x")]
    assert runs[0].context is contexts[0]
    assert (runs[0].job.id, runs[0].job.attempts) == (id, 1)


odd, outcome = ValueError("odd"), OperationOutcomeError("value", "odd")
later, snooze = RetryLater(5, "busy"), Snooze(5)
ANY = object()


@pytest.mark.parametrize(
    ("step", "status", "error"),
    [
        (Returned(DONE), "completed", None),
        (odd, "failed", odd),
        (outcome, "failed", outcome),
        (Returned(None), "failed", None),
        (later, "retried", later),
        (Returned(later), "retried", later),
        (snooze, "snoozed", snooze),
        (Returned(snooze), "snoozed", snooze),
        (ConnectionError(), "retried", ANY),
        (ExceptionGroup("g", [ConnectionError()]), "retried", ANY),
        (ExceptionGroup("g", [Snooze(5)]), "snoozed", ANY),
        (SystemExit(1), "failed", ANY),
    ],
    ids=repr,
)
async def test_a_middleware_is_told_how_the_run_ended(
    rig: Rig, step: BaseException | Returned, status: str, error: object
) -> None:
    """With what the handler raised, or the wish it returned."""
    book = Book()
    async with rig.running(retrying(Plan(step), FLAT), middleware=[book]):
        job = await rig.ended(await rig.create())
    first = book.outcomes[0]
    assert first is not None
    assert (first.status, first.reason) == (status, None)
    if error is not ANY:
        assert first.error is error
    runs = 2 if status in ("retried", "snoozed") else 1
    assert len(book.entered) == len(book.outcomes) == runs
    assert job.status is (AsyncJobStatus.FAILED if status == "failed" else COMPLETED)


async def test_the_last_of_several_attempts_is_told_as_failed(rig: Rig) -> None:
    """By the same rules as the job's own end."""
    book = Book()
    plan = Plan(*[ConnectionError()] * 5)
    async with rig.running(retrying(plan, FLAT), middleware=[book]):
        await rig.ended(await rig.create(max_attempts=2))
    assert [one.status for one in book.outcomes if one] == ["retried", "failed"]


async def test_a_timeout_and_a_mismatch_are_told_as_failures(rig: Rig) -> None:
    """A middleware goes around them too."""

    @attrs.frozen
    class Words:
        text: str

    book = Book()
    slow = job_handler("slow", timeout=5)(sleeping())
    typed = job_handler("typed", parameters=Words)(never)
    async with rig.running(slow, typed, middleware=[book]):
        for kind, code in (("slow", "timeout"), ("typed", "required")):
            job = await rig.ended(await rig.create(kind))
            assert issues(job)[0][1] == code
            assert book.last.status == "failed"
            assert isinstance(book.last.error, OperationOutcomeError)


@pytest.mark.parametrize("ends", ["leaves", "returns", "raises", "retries"])
@pytest.mark.parametrize("reason", ["cancelled", "expired", "lease-lost", "shutdown"])
async def test_a_run_that_does_not_count_is_told_as_cancelled_with_its_reason(
    rig: Rig, reason: str, ends: str
) -> None:
    """However the handler left; only after a shutdown does what it returned count."""

    async def body(context: JobContext) -> object:
        if context.job.id in begun:
            return DONE
        begun.append(context.job.id)
        if ends == "leaves":
            await trio.sleep_forever()
        await go_on(1)
        if ends == "raises":
            raise OSError("disk")
        return DONE if ends == "returns" else RetryLater(5)

    book = Book()
    begun: list[str] = []
    async with rig.running(retrying(body, FLAT), middleware=[book], drain_timeout=1) as worker:
        id = await rig.create(retention=15 if reason == "expired" else HOUR)
        await rig.until(lambda: rig.job(id).status is AsyncJobStatus.IN_PROGRESS)
        await rig.until(lambda: begun or rig.log.count("job.running"))
        await trio.testing.wait_all_tasks_blocked()
        if reason == "cancelled":
            await rig.cancel(id)
        elif reason == "lease-lost":
            rig.take_over(id)
        elif reason == "shutdown":
            worker.stop()
        await rig.until(lambda: not worker.statistics().held and book.outcomes)
    counts = reason == "shutdown" and ends in ("returns", "retries")
    status = "cancelled"
    if counts:
        status = {"returns": "completed", "retries": "retried"}[ends]
    assert (book.last.status, str(book.last.reason)) == (status, reason)
    assert isinstance(book.last.error, OSError) is (ends == "raises")
    totals = worker.statistics().totals
    assert (totals.completed + totals.retried == 1) is counts


async def test_a_middleware_is_left_when_the_lease_is_lost(rig: Rig) -> None:
    """Each one, in its order, though the handler's scope is cancelled."""
    log: list[str] = []
    runs = Runs()
    broken = rig.provider.fail("renew_lease")
    async with rig.running(handler(runs), middleware=[naming(n, log) for n in "ab"]):
        await rig.create()
        await runs.begun.wait()
        await rig.until(lambda: rig.log.count("job.handed-back"))
        assert log[:4] == ["a in", "b in", "b out", "a out"]
        broken.remove()
    assert runs.cancelled[0] == pytest.approx(DEADLINE, abs=0.1)


async def test_context_variables_of_a_middleware_are_the_handlers_and_nobody_elses(
    rig: Rig,
) -> None:
    """Also in its child tasks and threads; jobs that run at the same time have their own."""

    @contextmanager
    def middleware(run: JobRun) -> Iterator[None]:
        before.append(current.get())
        token = current.set(str(run.job.parameters))
        yield
        current.reset(token)

    async def body(context: JobContext) -> JobOutput:
        seen = [current.get()]
        await trio.sleep(5)
        async with trio.open_nursery() as nursery:

            async def child() -> None:
                seen.append(current.get())

            nursery.start_soon(child)
        seen.append(await context.run_sync(current.get))
        return JobOutput.json(seen)

    before: list[str] = []
    async with rig.running(handler(body), middleware=[middleware]):
        ids = [await rig.create(parameters=name) for name in ("one", "two", "three")]
        for id, name in zip(ids, ("one", "two", "three"), strict=True):
            assert (await rig.ended(id)).output == [name] * 3
    assert before == ["nobody"] * 3
    assert current.get() == "nobody"


def raising_when_called(run: JobRun) -> AbstractContextManager[object]:
    """A middleware that breaks before it is entered."""
    raise OSError("called")


@contextmanager
def raising_on_enter(run: JobRun) -> Iterator[None]:
    """A middleware that breaks before the handler."""
    if run.outcome is None:
        raise OSError("entered")
    yield


@contextmanager
def raising_on_exit(run: JobRun) -> Iterator[None]:
    """A middleware that breaks after the handler."""
    yield
    raise OSError("left")


def no_manager(run: JobRun) -> AbstractContextManager[object]:
    """A middleware that returns no context manager."""
    return None  # type: ignore[return-value]


@pytest.mark.parametrize(
    "broken",
    [raising_when_called, raising_on_enter, raising_on_exit, no_manager],
    ids=lambda broken: broken.__name__,
)
@pytest.mark.parametrize("step", [Returned(DONE), ValueError("odd"), RetryLater(1)], ids=repr)
async def test_a_middleware_that_breaks_is_logged_and_changes_nothing(
    rig: Rig, broken: JobMiddleware, step: BaseException | Returned
) -> None:
    """Neither the job's end nor its neighbours in the list."""
    log: list[str] = []
    around = [naming("a", log), broken, naming("b", log)]
    runs = 2 if isinstance(step, RetryLater) else 1
    async with rig.running(retrying(Plan(step)), middleware=around):
        job = await rig.ended(await rig.create())
    failed = isinstance(step, ValueError)
    assert job.status is (AsyncJobStatus.FAILED if failed else COMPLETED)
    assert log == ["a in", "b in", "b out", "a out"] * runs
    records = rig.log.of("job.middleware-failed", job.id)
    assert len(records) == runs
    assert all(record.exc_info for record in records)


async def test_a_middleware_that_raises_on_the_way_out_hides_no_cancellation(rig: Rig) -> None:
    """The lease is lost all the same."""
    runs = Runs()
    async with rig.running(handler(runs), middleware=[raising_on_exit]):
        id = await rig.create()
        await runs.begun.wait()
        await rig.cancel(id)
        await rig.until(lambda: rig.job(id).locked_by is None)
    assert rig.log.fields("job.dropped")[0]["reason"] == "cancelled"


async def test_a_middleware_swallows_no_error_of_the_handlers(rig: Rig) -> None:
    """A manager that says it has dealt with the error is not asked."""

    class Swallowing:
        """A context manager that swallows."""

        def __enter__(self) -> None:
            """Begin."""

        def __exit__(self, *_: object) -> bool:
            """Swallow."""
            return True

    def middleware(run: JobRun) -> AbstractContextManager[object]:
        return Swallowing()

    async with rig.running(retrying(Plan(ValueError("odd"))), middleware=[middleware]):
        job = await rig.ended(await rig.create())
    assert job.status is AsyncJobStatus.FAILED


async def test_a_middleware_does_not_go_around_clean_ups(rig: Rig) -> None:
    """It is about runs."""

    async def expire(job: object) -> None:
        pass

    book = Book()
    expired = rig.insert_expired()
    made = handler(returning(DONE), expire=expire)
    async with rig.running(made, middleware=[book], maintenance_interval=5):
        await rig.removed(expired)
    assert book.entered == []


async def test_a_job_that_was_over_before_it_began_enters_no_middleware(rig: Rig) -> None:
    """There is no run: its lease lapsed while a neighbour blocked the loop."""
    book = Book()

    async def body(context: JobContext) -> JobOutput:
        if not rig.log.count("job.handed-back"):
            block(LEASE)
        return DONE

    ids = await rig.create_many(2)
    async with rig.running(handler(body), middleware=[book]):
        for id in ids:
            await rig.ended(id)
    assert rig.log.count("job.running") == 4
    assert [one.status for one in book.outcomes if one] == ["cancelled", "completed", "completed"]


async def test_an_interrupted_run_is_told_as_cancelled(rig: Rig) -> None:
    """The job is handed back, and the worker ends."""
    book = Book()
    interrupt = KeyboardInterrupt()
    ids: list[str] = []

    async def work() -> None:
        async with rig.running(handler(raising(interrupt)), middleware=[book]):
            ids.append(await rig.create())
            await trio.sleep(HOUR)

    with pytest.raises(BaseExceptionGroup) as caught:
        await work()
    assert caught.group_contains(KeyboardInterrupt)
    assert book.outcomes == [RunOutcome("cancelled", interrupt, None)]
    assert rig.job(ids[0]).hand_backs == 1


@pytest.mark.parametrize(
    ("middleware", "says"),
    [
        (Book(), "middleware must be a list, not Book"),
        ("module:attr", "middleware must be a list, not str"),
        (None, "middleware must be a list, not NoneType"),
        ([Book(), "module:attr"], "'module:attr' is no middleware: it cannot be called with a run"),
        ([None], "None is no middleware"),
    ],
    ids=repr,
)
def test_what_is_no_list_of_middlewares_is_refused(middleware: Any, says: str) -> None:  # noqa: ANN401
    """Before there is a worker, in one line."""
    with pytest.raises(ConfigError) as caught:
        AsyncJobWorker(MemoryJobProvider(), [handler(returning(DONE))], middleware=middleware)
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)


async def test_what_a_middleware_reads_from_the_run_is_what_the_job_has(rig: Rig) -> None:
    """Progress and state can be looked at from outside of the handler."""

    @contextmanager
    def middleware(run: JobRun) -> Iterator[None]:
        yield
        states.append(run.context.state)

    async def body(context: JobContext) -> JobOutput:
        await context.save_state(5)
        return DONE

    states: list[object] = []
    made: list[Callable[[JobRun], AbstractContextManager[object]]] = [middleware]
    async with rig.running(handler(body), middleware=made):
        await rig.ended(await rig.create())
    assert states == [5]
