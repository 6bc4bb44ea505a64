"""Trying again: when, how often, after which errors, and what a job keeps of its attempts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import trio

from hastetrio import (
    AsyncJobStatus,
    JobContext,
    JobLease,
    OperationOutcomeError,
    RetryLater,
    RetryPolicy,
    UnstorableValue,
)

from .attempts import FLAT, POLL, Plan, Returned, asking, history, in_time, retrying
from .harness import DAY, DONE, HOUR, KIND, LEASE, Rig, Runs, gaps, handler, issues

ACCEPTED, COMPLETED = AsyncJobStatus.ACCEPTED, AsyncJobStatus.COMPLETED
INTERNAL = ("fatal", "exception", "The job failed with an internal error.")
BUSY = "the line is busy"


class Busy(OperationOutcomeError):
    """An outcome that a policy may name."""

    def __init__(self) -> None:
        super().__init__("throttled", BUSY)


class Unprintable(Exception):
    """An error that cannot even be described."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class BrokenIssues(OperationOutcomeError):
    """An error whose issues cannot be read."""

    @property
    def issues(self) -> tuple[object, ...]:  # type: ignore[override]
        """Break."""
        raise RuntimeError("no issues")


@pytest.mark.parametrize(
    "error",
    [ConnectionError(BUSY), Busy(), TimeoutError(), ExceptionGroup("two", [ConnectionError()])],
    ids=lambda error: type(error).__name__,
)
async def test_nothing_is_tried_again_unless_the_handler_asks_for_it(
    rig: Rig, error: Exception
) -> None:
    """An error fails the job at its first attempt, whatever attempts are left."""
    plan = Plan(error)
    async with rig.running(handler(plan), poll_interval=60) as worker:
        job = await rig.ended(await rig.create(max_attempts=5))
        await trio.sleep(HOUR)
        totals = worker.statistics().totals
    assert (job.status, job.attempts, plan.attempts) == (AsyncJobStatus.FAILED, 1, [1])
    assert (totals.failed, totals.retried, totals.snoozed) == (1, 0, 0)
    assert [attempt for attempt, _ in history(job)] == [1]


async def test_a_covered_error_is_tried_again_with_a_growing_wait(rig: Rig) -> None:
    """After 10 and 30 s; between the attempts the job is queued, and nobody's."""
    plan = Plan(ConnectionError(BUSY), ConnectionResetError("gone"))
    async with rig.running(retrying(plan, FLAT)) as worker:
        id = await rig.create()
        await rig.until(lambda: rig.log.count("job.retried"))
        job = rig.job(id)
        assert (job.status, job.locked_by, job.attempts) == (ACCEPTED, None, 1)
        assert (job.run_at - rig.memory._now()).total_seconds() == pytest.approx(10, abs=0.01)
        assert worker.statistics().free == 4
        job = await rig.ended(id)
        await rig.until(lambda: rig.log.count("job.finished"))
        totals = worker.statistics().totals
    assert (job.status, job.output, job.attempts, job.error) == (COMPLETED, "done", 3, None)
    first, second = gaps(plan.started)
    assert in_time(first, 10)
    assert in_time(second, 30)
    assert (totals.retried, totals.completed, totals.failed, totals.dropped) == (2, 1, 0, 0)
    assert history(job) == [
        (1, [f"ConnectionError: {BUSY}"]),
        (2, ["ConnectionResetError: gone"]),
    ]


async def test_a_retry_is_logged_with_its_wait_and_its_error_and_not_as_unexpected(
    rig: Rig,
) -> None:
    """Whoever is paged by `job.raised` sleeps on until the last attempt failed too."""
    plan = Plan(ConnectionError(BUSY))
    async with rig.running(retrying(plan, FLAT)):
        id = await rig.create()
        await rig.ended(id)
    (fields,) = rig.log.fields("job.retried", id)
    assert (fields["after"], fields["error"]) == (10, f"ConnectionError: {BUSY}")
    assert fields["attempt"] == 1
    assert rig.log.count("job.raised") == 0


async def test_each_failed_attempt_is_kept_with_its_time(rig: Rig) -> None:
    """As ISO times with a zone, in order."""
    before = datetime.now(UTC)
    async with rig.running(retrying(Plan(*[ConnectionError()] * 2), FLAT)):
        job = await rig.ended(await rig.create())
    first, second = (datetime.fromisoformat(entry["at"]) for entry in job.attempt_errors)
    assert (first - before).total_seconds() == pytest.approx(0, abs=5)
    assert (second - first).total_seconds() == pytest.approx(10, abs=POLL + 0.1)


async def test_an_error_that_is_not_covered_fails_the_job_at_once(rig: Rig) -> None:
    """Also in a later attempt; the errors before it are not forgotten."""
    async with rig.running(retrying(Plan(ConnectionError(), ValueError("odd")), FLAT)):
        job = await rig.ended(await rig.create())
    assert issues(job) == [INTERNAL]
    assert history(job) == [(1, ["ConnectionError"]), (2, ["ValueError: odd"])]
    assert rig.log.count("job.raised") == 1


@pytest.mark.parametrize(("policy", "job"), [(2, 10), (10, 2), (2, 2)])
async def test_attempts_are_bounded_by_the_policy_and_by_the_job(
    rig: Rig, policy: int, job: int
) -> None:
    """The smaller number counts; the last failure is the job's outcome, and logged whole."""
    plan = Plan(*[ConnectionError(BUSY)] * 20)
    retries = RetryPolicy(attempts=policy, first=1, on=(ConnectionError,))
    async with rig.running(retrying(plan, retries)) as worker:
        ended = await rig.ended(await rig.create(max_attempts=job))
        await rig.until(lambda: rig.log.count("job.finished"))
        totals = worker.statistics().totals
    assert (ended.attempts, plan.attempts) == (2, [1, 2])
    assert issues(ended) == [INTERNAL]
    assert (totals.retried, totals.failed) == (1, 1)
    (record,) = rig.log.of("job.raised")
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ConnectionError)
    assert len(history(ended)) == 2


@pytest.mark.parametrize("on", [(Exception,), (ConnectionError, ValueError)])
async def test_an_outcome_is_the_handlers_last_word_unless_a_policy_names_it(
    rig: Rig, on: tuple[type[Exception], ...]
) -> None:
    """What the client is to know does not become true by trying again."""
    async with rig.running(retrying(Plan(Busy()), RetryPolicy(on=on))):
        job = await rig.ended(await rig.create())
    assert issues(job) == [("error", "throttled", BUSY)]
    assert job.attempts == 1


@pytest.mark.parametrize("on", [OperationOutcomeError, Busy])
async def test_an_outcome_that_a_policy_names_is_tried_again_and_told_in_the_end(
    rig: Rig, on: type[Exception]
) -> None:
    """By its own class or one above it; spent, the client reads its issues."""
    retries = RetryPolicy(attempts=2, first=1, on=(on,))
    async with rig.running(retrying(Plan(Busy(), Busy(), Busy()), retries)):
        job = await rig.ended(await rig.create())
    assert issues(job) == [("error", "throttled", BUSY)]
    assert job.attempts == 2
    assert history(job)[1] == (2, [f"Busy: throttled: {BUSY}"])


async def test_another_outcome_than_the_one_named_is_not_tried_again(rig: Rig) -> None:
    """A policy for throttling says nothing about what was not found."""
    error = OperationOutcomeError("not-found", "no such group")
    async with rig.running(retrying(Plan(error), RetryPolicy(on=(Busy,)))):
        job = await rig.ended(await rig.create())
    assert (issues(job)[0][1], job.attempts) == ("not-found", 1)


@pytest.mark.parametrize(
    ("group", "again"),
    [
        (ExceptionGroup("g", [ConnectionError(), ConnectionError()]), True),
        (ExceptionGroup("g", [ExceptionGroup("h", [ConnectionError()]), TimeoutError()]), True),
        (ExceptionGroup("g", [ConnectionError(), ValueError()]), False),
        (ExceptionGroup("g", [ConnectionError(), ExceptionGroup("h", [ValueError()])]), False),
        (ExceptionGroup("g", [ConnectionError(), Busy()]), False),
        (BaseExceptionGroup("g", [ConnectionError(), SystemExit()]), False),
    ],
    ids=str,
)
async def test_of_a_group_every_error_must_be_covered(
    rig: Rig, group: BaseException, again: bool
) -> None:
    """The children of a nursery fail together, and one that is not covered decides."""
    retries = RetryPolicy(first=1, on=(ConnectionError, TimeoutError))
    async with rig.running(retrying(Plan(group), retries)):
        job = await rig.ended(await rig.create())
    assert (job.status is COMPLETED, job.attempts) == (again, 2 if again else 1)


async def test_the_errors_of_a_real_nursery_are_tried_again(rig: Rig) -> None:
    """The nursery wraps what a child raises; its siblings' cancellations are no errors."""

    async def body(context: JobContext) -> object:
        async def call() -> None:
            if context.attempt < 3:
                raise ConnectionError(BUSY)

        async with trio.open_nursery() as nursery:
            if context.attempt < 3:
                nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(call)
        return DONE

    async with rig.running(retrying(body, FLAT)):
        job = await rig.ended(await rig.create())
    assert (job.status, job.attempts) == (COMPLETED, 3)
    assert history(job)[0] == (1, [f"ConnectionError: {BUSY}"])


@pytest.mark.parametrize("how", ["raised", "returned"])
@pytest.mark.parametrize("after", [0, 7, 500.5])
async def test_a_handler_may_ask_for_another_attempt_by_itself(
    rig: Rig, how: str, after: float
) -> None:
    """Without any policy, and at the time it names."""
    plan = Plan(asking(how, RetryLater(after, BUSY)))
    async with rig.running(retrying(plan)) as worker:
        job = await rig.ended(await rig.create())
        totals = worker.statistics().totals
    assert (job.status, job.attempts, plan.attempts) == (COMPLETED, 2, [1, 2])
    (waited,) = gaps(plan.started)
    assert in_time(waited, after)
    assert history(job) == [(1, [BUSY])]
    assert totals.retried == 1
    assert rig.log.fields("job.retried")[0]["after"] == after
    assert rig.log.fields("job.retried")[0]["error"] == f"RetryLater: {BUSY}"
    assert rig.log.count("job.raised") == 0


@pytest.mark.parametrize("how", ["raised", "returned"])
@pytest.mark.parametrize(
    ("retries", "waits"),
    [(None, (1, 2)), (RetryPolicy(first=40, factor=5, jitter=0, on=(KeyError,)), (40, 200))],
    ids=["default", "policy"],
)
async def test_who_names_no_time_waits_as_the_policy_says_or_a_second_doubled(
    rig: Rig, how: str, retries: RetryPolicy | None, waits: tuple[float, float]
) -> None:
    """The policy's errors do not matter for it: the handler asked."""
    plan = Plan(*[asking(how, RetryLater())] * 2)
    async with rig.running(retrying(plan, retries)):
        job = await rig.ended(await rig.create())
    assert (job.status, job.attempts) == (COMPLETED, 3)
    for waited, wait in zip(gaps(plan.started), waits, strict=True):
        assert in_time(waited, wait * 0.9, wait * 1.1)
    assert history(job)[0] == (1, ["RetryLater: the handler asks to be run again later"])


@pytest.mark.parametrize("how", ["raised", "returned"])
@pytest.mark.parametrize(("policy", "most"), [(None, 3), (2, 3), (9, 3)])
async def test_a_wish_without_attempts_left_fails_the_job_as_transient_with_its_reason(
    rig: Rig, how: str, policy: int | None, most: int
) -> None:
    """The client reads why, and that it may try again itself; nobody is paged."""
    retries = None if policy is None else RetryPolicy(attempts=policy)
    attempts = min(policy or most, most)
    plan = Plan(*[asking(how, RetryLater(1, BUSY))] * 9)
    async with rig.running(retrying(plan, retries)) as worker:
        job = await rig.ended(await rig.create(max_attempts=most))
        await rig.until(lambda: rig.log.count("job.finished"))
        totals = worker.statistics().totals
    text = f"The job was given up after {attempts} attempts: {BUSY}"
    assert issues(job) == [("error", "transient", text)]
    assert history(job) == [(n, [BUSY]) for n in range(1, attempts + 1)]
    assert rig.log.count("job.raised") == 0
    assert (totals.retried, totals.failed) == (attempts - 1, 1)


async def test_a_wish_without_a_reason_is_given_up_in_a_whole_sentence(rig: Rig) -> None:
    """Nothing is told that the handler did not say."""
    async with rig.running(retrying(Plan(*[RetryLater(0)] * 9))):
        job = await rig.ended(await rig.create(max_attempts=2))
    assert issues(job) == [("error", "transient", "The job was given up after 2 attempts.")]


async def test_the_only_attempt_cannot_be_repeated(rig: Rig) -> None:
    """Who creates a job with one attempt means it."""
    async with rig.running(retrying(Plan(RetryLater(0, BUSY)))):
        job = await rig.ended(await rig.create(max_attempts=1))
    assert (job.attempts, issues(job)[0][1]) == (1, "transient")


@pytest.mark.parametrize(
    ("group", "again"),
    [
        (ExceptionGroup("g", [RetryLater(7)]), True),
        (ExceptionGroup("g", [ExceptionGroup("h", [RetryLater(7)])]), True),
        (ExceptionGroup("g", [RetryLater(7), ValueError("odd")]), False),
    ],
    ids=str,
)
async def test_a_wish_from_within_a_nursery_counts_when_nothing_else_went_wrong(
    rig: Rig, group: ExceptionGroup[Exception], again: bool
) -> None:
    """Beside another error it is part of what went wrong."""
    plan = Plan(group)
    async with rig.running(retrying(plan)):
        job = await rig.ended(await rig.create())
    assert job.attempts == (2 if again else 1)
    if again:
        assert in_time(gaps(plan.started)[0], 7)
    else:
        assert issues(job) == [INTERNAL]


async def test_what_is_kept_of_an_attempt_is_bounded_and_can_be_stored(rig: Rig) -> None:
    """The first ten leaves of a group, one line and 500 characters each, without NUL."""
    leaves: list[Exception] = [
        ValueError("two\nlines\x00\ud800"),
        OperationOutcomeError("value", "for the client"),
        Unprintable(),
        ValueError("x" * 10_000),
        *[KeyError(number) for number in range(20)],
    ]
    group = ExceptionGroup("outer", [leaves[0], ExceptionGroup("inner", leaves[1:])])
    async with rig.running(retrying(Plan(group))):
        job = await rig.ended(await rig.create())
    ((_, errors),) = history(job)
    assert errors[:3] == [
        "ValueError: two lines\ufffd\ufffd",
        "OperationOutcomeError: value: for the client",
        "Unprintable",
    ]
    assert errors[3] == f"ValueError: {'x' * 488}"
    assert errors[4:] == [f"KeyError: {number}" for number in range(6)]


async def test_a_job_remembers_its_last_ten_failures(rig: Rig) -> None:
    """Oldest first, with the numbers of their attempts."""
    plan = Plan(*[ConnectionError(str(number)) for number in range(1, 15)])
    retries = RetryPolicy(attempts=20, first=1, factor=1, on=(ConnectionError,))
    async with rig.running(retrying(plan, retries)):
        job = await rig.ended(await rig.create(max_attempts=20))
    assert job.status is COMPLETED
    assert history(job) == [(n, [f"ConnectionError: {n}"]) for n in range(5, 15)]


NO_OUTPUT = "not a JobOutput or an instance of an attrs class or dataclass"


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (
            Returned(None),
            f"UnstorableValue: the handler returned NoneType, {NO_OUTPUT}",
        ),
        (BrokenIssues("value", "x"), "RuntimeError: no issues"),
        (SystemExit(3), "SystemExit: 3"),
    ],
    ids=["no-output", "no-issues", "no-exception"],
)
async def test_every_failure_is_in_the_history(
    rig: Rig, step: BaseException | Returned, text: str
) -> None:
    """Also one of the result, of the error itself, and of what is no Exception."""
    async with rig.running(retrying(Plan(step), RetryPolicy())):
        job = await rig.ended(await rig.create())
    assert history(job) == [(1, [text])]


async def test_a_job_that_waits_takes_no_slot(rig: Rig) -> None:
    """A worker of one slot runs the others meanwhile."""
    plan = Plan(RetryLater(HOUR))
    async with rig.running(
        retrying(plan), handler(Runs(1), "other"), max_concurrent_jobs=1, poll_interval=30
    ):
        id = await rig.create()
        await rig.until(lambda: rig.log.count("job.retried"))
        for _ in range(3):
            await rig.ended(await rig.create("other"))
        assert rig.job(id).status is ACCEPTED
        assert (await rig.ended(id)).status is COMPLETED


async def test_a_waiting_job_can_be_cancelled(rig: Rig) -> None:
    """It is never run again, and nothing of its history stays."""
    plan = Plan(RetryLater(100))
    async with rig.running(retrying(plan), poll_interval=60):
        id = await rig.create()
        await rig.until(lambda: rig.log.count("job.retried"))
        await rig.cancel(id)
        await trio.sleep(HOUR)
    assert plan.attempts == [1]
    assert not rig.exists(id) or rig.job(id).status is AsyncJobStatus.CANCELLED


async def test_a_job_does_not_expire_while_it_waits(rig: Rig) -> None:
    """Its time counts from when it is to run again, where that is later."""
    async with rig.running(retrying(Plan(RetryLater(DAY))), poll_interval=600):
        id = await rig.create(retention=60)
        await rig.until(lambda: rig.log.count("job.retried"))
        left = (rig.job(id).expires_at - rig.memory._now()).total_seconds()
        assert left == pytest.approx(DAY + 60, abs=1)
        await rig.until(lambda: not rig.job(id).status.is_live, 2 * DAY)
        assert rig.job(id).status is COMPLETED


async def test_progress_goes_with_a_retry(rig: Rig) -> None:
    """A client that asks between two attempts reads how far the first one came."""

    async def body(context: JobContext) -> object:
        if context.attempt == 1:
            context.report("half of it")
            raise ConnectionError
        return DONE

    async with rig.running(retrying(body, FLAT)):
        id = await rig.create()
        await rig.until(lambda: rig.log.count("job.retried"))
        assert rig.job(id).progress == "half of it"
        await rig.ended(id)


async def test_a_job_of_a_late_start_waits_for_its_time(rig: Rig) -> None:
    """A kick-off may name it; it costs no attempt."""
    runs = Runs(1)
    async with rig.running(handler(runs)):
        start = trio.current_time() + 100
        due = rig.memory._now() + timedelta(seconds=100)
        job = await rig.ended(await rig.create(run_at=due))
    assert job.attempts == 1
    assert in_time(runs.started[0] - start, 0)


async def test_any_worker_may_run_the_next_attempt(rig: Rig) -> None:
    """The row is nobody's while it waits."""
    plan = Plan(RetryLater(20))
    async with rig.running(retrying(plan), worker_id="first") as first:
        id = await rig.create()
        await rig.until(lambda: rig.log.count("job.retried"))
        first.stop()
        await rig.left(first)
        async with rig.running(retrying(plan), worker_id="second"):
            job = await rig.ended(id)
    assert (job.status, job.attempts) == (COMPLETED, 2)
    assert (job.finished_by or "").startswith("second/")


async def test_a_claim_under_another_token_is_not_rescheduled(rig: Rig) -> None:
    """The fence knows the claim: what another one holds stays as it is."""
    id = await rig.create()
    await rig.memory.claim_jobs([KIND], JobLease("w", LEASE), 1)
    done = await rig.memory.reschedule_job(
        id, JobLease("w", LEASE), 1, give_back=False, retention=DAY
    )
    assert (done, rig.job(id).status) == (False, AsyncJobStatus.IN_PROGRESS)


async def test_what_the_storage_refuses_of_a_failure_is_left_out(rig: Rig) -> None:
    """The attempt is repeated all the same, without that text in its history."""
    rig.provider.fail("reschedule_job", times=1, error=UnstorableValue("no room"))
    async with rig.running(retrying(Plan(ConnectionError(BUSY)), FLAT)):
        job = await rig.ended(await rig.create())
    assert (job.status, job.attempts, job.attempt_errors) == (COMPLETED, 2, None)
    assert rig.log.count("job.rejected", job.id) == 1
    assert rig.log.count("job.retried", job.id) == 1
