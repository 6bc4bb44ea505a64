"""How a handler's return or error becomes the job's recorded end."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
import trio

from hastetrio import (
    AsyncJobStatus,
    JobContext,
    JobOutput,
    OperationOutcomeError,
    UnstorableValue,
)

from .harness import DONE, KIND, Rig, handler, issues, raising, returning

INTERNAL = ("fatal", "exception", "The job failed with an internal error.")
COMPLETED, FAILED = AsyncJobStatus.COMPLETED, AsyncJobStatus.FAILED


def nested(depth: int) -> list[Any]:
    """A list in a list in a list."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def loop() -> list[Any]:
    """A list that holds itself."""
    value: list[Any] = []
    value.append(value)
    return value


class Lazy(dict[str, Any]):
    """A value that breaks only when it is looked at."""

    def items(self) -> Any:  # noqa: ANN401
        """Break."""
        raise OSError("the file is gone")


class Unprintable(Exception):
    """An error that cannot even be described."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Falsy(Exception):
    """An error that holds itself for nothing, as one with a length of 0 does."""

    def __bool__(self) -> bool:
        return False


class BrokenIssues(OperationOutcomeError):
    """An error whose issues cannot be read."""

    @property
    def issues(self) -> Any:  # noqa: ANN401
        """Break."""
        raise RuntimeError("no issues")


class Abort(BaseException):
    """An error that is no Exception."""


async def test_a_resource_is_recorded_as_fhir_json(rig: Rig) -> None:
    """The status endpoint serves it as the synchronous request would have."""
    bundle = {"resourceType": "Bundle", "type": "searchset"}
    job = await rig.outcome_of(returning(JobOutput.resource(bundle)))
    assert (job.status, job.output) == (COMPLETED, bundle)
    assert job.output_content_type == "application/fhir+json"


@pytest.mark.parametrize("value", [None, 0, "", [], {}, False, {"a": [1, 2.5, "\u00e4\U0001f600"]}])
async def test_any_json_is_recorded_as_it_is(rig: Rig, value: object) -> None:
    """A manifest is an object, but null and an empty text are results too."""
    job = await rig.outcome_of(returning(JobOutput.json(value)))
    assert (job.status, job.output, job.error) == (COMPLETED, value, None)
    assert job.output_content_type == "application/json"


@pytest.mark.parametrize(
    "rubbish", [None, 1, "text", {"resourceType": "Bundle"}, JobOutput, object()], ids=repr
)
async def test_a_return_that_is_no_output_fails_the_job(rig: Rig, rubbish: object) -> None:
    """The outcome names the type that was returned."""
    job = await rig.outcome_of(returning(rubbish))
    name = type(rubbish).__name__
    text = (
        f"The job's result cannot be stored: the handler returned {name}, not a JobOutput or an "
        "instance of an attrs class or dataclass."
    )
    assert issues(job) == [("fatal", "processing", text)]
    assert rig.log.count("job.rejected", job.id) == 1


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (object(), "is not JSON"),
        (b"bytes", "is not JSON"),
        ({1, 2}, "is not JSON"),
        ({(1, 2): "x"}, "is not JSON"),
        (loop(), "is not JSON"),
        (float("nan"), "is not JSON"),
        ([float("inf")], "is not JSON"),
        ({"a": "nul \x00"}, "holds a NUL character"),
        ({"key\x00": 1}, "holds a NUL character"),
        ("\ud800", "holds a lone surrogate"),
        ({"\udfff": 1}, "holds a lone surrogate"),
        (nested(100_000), "is nested too deeply"),
        ("x" * 2000, "has 2,002 bytes, and the limit is 1,024"),
        ("\u00e4" * 600, "has 1,202 bytes, and the limit is 1,024"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) > 5 else "",
)
async def test_an_output_that_cannot_be_stored_fails_the_job_and_says_why(
    rig: Rig, value: object, says: str
) -> None:
    """What the database would refuse never gets there, and the client reads the reason."""
    job = await rig.outcome_of(returning(JobOutput.json(value)), output_limit=1024)
    ((severity, code, diagnostics),) = issues(job)
    assert (severity, code) == ("fatal", "processing")
    assert diagnostics.startswith(f"The job's result cannot be stored: the output {says}")
    assert job.output is None


async def test_an_output_as_large_as_the_limit_is_recorded(rig: Rig) -> None:
    """The limit counts bytes of JSON, and itself is allowed."""
    job = await rig.outcome_of(returning(JobOutput.json("x" * 1022)), output_limit=1024)
    assert job.status is COMPLETED


async def test_an_output_that_breaks_while_it_is_encoded_fails_only_its_job(rig: Rig) -> None:
    """A lazy value may raise anything, and the worker goes on."""
    job = await rig.outcome_of(returning(JobOutput.json(Lazy(a=1))))
    assert issues(job) == [INTERNAL]
    (record,) = rig.log.of("job.raised", job.id)
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], OSError)


@pytest.mark.parametrize("content_type", ["text\x00", 5, "x" * 300], ids=repr)
async def test_a_content_type_that_cannot_be_stored_fails_the_job(
    rig: Rig, content_type: str
) -> None:
    """An output made by hand is checked like any other."""
    job = await rig.outcome_of(returning(JobOutput(1, content_type)))
    assert "the output's content type" in issues(job)[0][2]


async def test_an_outcome_error_fails_the_job_with_its_issues(rig: Rig) -> None:
    """All issues, in the order they were added, and nothing is logged as unexpected."""
    error = OperationOutcomeError("not-found", "no such group", expression=("Group.id",))
    error.add("informational", "looked in two places", "information")
    job = await rig.outcome_of(raising(error))
    assert issues(job) == [
        ("error", "not-found", "no such group"),
        ("information", "informational", "looked in two places"),
    ]
    assert job.error["issue"][0]["expression"] == ["Group.id"]
    assert rig.log.count("job.raised") == 0


async def test_outcome_errors_in_groups_are_all_told(rig: Rig) -> None:
    """Two children of a handler's nursery may fail at once, at any depth."""
    group = ExceptionGroup(
        "outer",
        [
            OperationOutcomeError("value", "one"),
            ExceptionGroup("inner", [OperationOutcomeError("required", "two")]),
        ],
    )
    job = await rig.outcome_of(raising(group))
    assert [issue[1:] for issue in issues(job)] == [("value", "one"), ("required", "two")]
    assert rig.log.count("job.raised") == 0


async def test_an_outcome_error_beside_another_is_told_and_the_other_is_logged(rig: Rig) -> None:
    """The client reads what was meant for it, the operator all of it."""
    group = BaseExceptionGroup("both", [OperationOutcomeError("value", "one"), Abort("secret")])
    job = await rig.outcome_of(raising(group))
    assert [issue[1:] for issue in issues(job)] == [("value", "one")]
    (record,) = rig.log.of("job.raised", job.id)
    assert record.exc_info is not None
    assert repr(record.exc_info[1]) == repr(group)


async def test_a_handlers_own_nursery_may_fail_the_job(rig: Rig) -> None:
    """A trio nursery wraps the error in a group; its sibling's cancellation is not seen."""

    async def body(context: JobContext) -> JobOutput:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise OperationOutcomeError("timeout", "too slow")

    job = await rig.outcome_of(body)
    assert issues(job) == [("error", "timeout", "too slow")]


async def test_long_diagnostics_are_cut_to_the_outcomes_limit(rig: Rig) -> None:
    """The job still fails with its own code, in an outcome that fits."""
    error = OperationOutcomeError("processing", "\u00e4\U0001f600" * 50_000)
    for number in range(1000):
        error.add("value", f"issue {number}", expression=("Patient.name",) * 3)
    job = await rig.outcome_of(raising(error), outcome_limit=2048)
    assert len(json.dumps(job.error).encode()) <= 2048
    found = issues(job)
    assert found[0][1] == "processing"
    assert found[0][2].startswith("\u00e4\U0001f600")
    assert found[1][1:] == ("value", "issue 0")


async def test_diagnostics_with_characters_that_cannot_be_stored_are_cleaned(rig: Rig) -> None:
    """NUL and lone surrogates are replaced; the issue is told all the same."""
    job = await rig.outcome_of(raising(OperationOutcomeError("value", "a\x00b\ud800c")))
    assert issues(job) == [("error", "value", "a\ufffdb\ufffdc")]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("secret"),
        Unprintable(),
        Falsy("secret"),
        SystemExit(3),
        Abort("secret"),
        GeneratorExit(),
        MemoryError(),
        trio.TooSlowError(),
        trio.BrokenResourceError(),
        ExceptionGroup("secret", [ValueError("a"), ExceptionGroup("b", [KeyError("c")])]),
        BaseExceptionGroup("secret", [SystemExit(1), ValueError()]),
        StopAsyncIteration(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_any_other_error_fails_the_job_neutrally_and_is_logged_whole(
    rig: Rig, error: BaseException
) -> None:
    """The client learns nothing of the inside, the log everything, and the worker goes on."""

    async def body(context: JobContext) -> JobOutput:
        if context.job.parameters == "good":
            return DONE
        raise error

    async with rig.running(handler(body)):
        bad = await rig.create()
        job = await rig.ended(bad)
        good = await rig.create(parameters="good")
        assert (await rig.ended(good)).status is COMPLETED
    assert issues(job) == [INTERNAL]
    assert job.attempts == 1
    (record,) = rig.log.of("job.raised", bad)
    assert record.exc_info is not None
    assert type(record.exc_info[1]) is type(error)


@pytest.mark.parametrize(
    "error",
    [
        BrokenIssues("value", "secret"),
        OperationOutcomeError("value", "secret", expression=(5,)),  # type: ignore[arg-type]
    ],
    ids=["issues", "expression"],
)
async def test_an_outcome_error_that_cannot_be_read_fails_its_job_neutrally(
    rig: Rig, error: OperationOutcomeError
) -> None:
    """Reading an error runs code of the handler's; what that raises is logged too."""
    job = await rig.outcome_of(raising(error))
    assert issues(job) == [INTERNAL]
    assert rig.log.count("job.raised", job.id) == 1


async def test_what_only_looks_awaitable_fails_its_job(rig: Rig) -> None:
    """An object that is called may return anything, which is an error like any other."""

    class Body:
        def __call__(self, context: JobContext) -> JobOutput:
            return DONE

    job = await rig.outcome_of(Body())  # type: ignore[arg-type]
    assert issues(job) == [INTERNAL]


async def test_a_cancellation_from_elsewhere_is_an_error_of_the_handlers(rig: Rig) -> None:
    """A kept Cancelled that is raised again belongs to nobody: the job fails, nothing hangs."""

    async def body(context: JobContext) -> JobOutput:
        kept: list[BaseException] = []
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.lowlevel.checkpoint()
            except trio.Cancelled as error:
                kept.append(error)
        raise kept[0]

    job = await rig.outcome_of(body)
    assert issues(job) == [INTERNAL]
    assert rig.log.count("job.raised", job.id) == 1


async def test_a_scope_that_was_never_closed_fails_only_its_job(rig: Rig) -> None:
    """A handler may corrupt trio's stack of scopes: its job ends once, and the worker goes on."""

    async def body(context: JobContext) -> JobOutput:
        if context.job.parameters != "good":
            trio.CancelScope().__enter__()
        return DONE

    async with rig.running(handler(body)):
        bad = await rig.create()
        await rig.ended(bad)
        good = await rig.create(parameters="good")
        assert (await rig.ended(good)).status is COMPLETED
    assert rig.job(bad).attempts == 1


async def test_a_neighbour_of_a_failing_job_never_notices(rig: Rig) -> None:
    """Jobs share a worker and nothing else."""
    go_on = trio.Event()

    async def body(context: JobContext) -> JobOutput:
        if context.job.parameters == "bad":
            raise Abort
        await go_on.wait()
        return DONE

    async with rig.running(handler(body)):
        neighbour = await rig.create()
        await rig.wait_for_status(neighbour, AsyncJobStatus.IN_PROGRESS)
        await rig.ended(await rig.create(parameters="bad"))
        go_on.set()
        assert (await rig.ended(neighbour)).status is COMPLETED


async def test_a_kind_without_a_handler_is_failed_as_unsupported(rig: Rig) -> None:
    """A provider that hands out what was not asked for does not leave the job in progress."""
    id = await rig.create("other")
    claim_jobs = rig.memory.claim_jobs

    async def claim_any(kinds: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        return await claim_jobs([*kinds, "other"], *args, **options)

    rig.memory.claim_jobs = claim_any  # type: ignore[method-assign]
    async with rig.running(handler(returning(DONE))):
        job = await rig.ended(id)
    assert issues(job) == [("fatal", "not-supported", "No handler for job kind 'other'.")]


async def test_what_the_storage_refuses_is_recorded_as_a_failure_and_told_so(rig: Rig) -> None:
    """A result that passes every check may still be refused; the log says how the job ended."""
    rig.provider.fail("finish_job", times=1, error=UnstorableValue("no room"))
    async with rig.running(handler(returning(DONE))) as worker:
        id = await rig.create()
        job = await rig.ended(id)
        await rig.until(lambda: rig.log.count("job.finished", id))
        totals = worker.statistics().totals
    text = "The job's result cannot be stored: the database refuses a value in it."
    assert issues(job) == [("fatal", "processing", text)]
    assert [fields["status"] for fields in rig.log.fields("job.finished", id)] == ["failed"]
    assert (totals.completed, totals.failed) == (0, 1)


async def test_a_job_whose_every_result_is_refused_is_let_go_and_never_called_finished(
    rig: Rig,
) -> None:
    """Its attempt counts, so that it ends as abandoned and not in a circle."""
    rig.provider.fail("finish_job", error=UnstorableValue("never"))
    async with rig.running(handler(returning(DONE))) as worker:
        id = await rig.create(max_attempts=2)
        job = await rig.ended(id)
        await rig.until(lambda: worker.statistics().held == 0)
        totals = worker.statistics().totals
    assert "abandoned" in issues(job)[0][2]
    assert rig.log.count("job.finished") == 0
    assert attrs.asdict(totals) | {"completed": 0, "failed": 0} == attrs.asdict(totals)
    assert totals.unrecorded == 2


async def test_the_result_is_fenced_by_the_claims_token(rig: Rig) -> None:
    """`finished_by` names the claim, under the worker's id."""
    async with rig.running(handler(returning(DONE)), worker_id="me"):
        id = await rig.create(KIND)
        job = await rig.ended(id)
    assert job.finished_by is not None
    assert job.finished_by.startswith("me/")
    assert (job.locked_by, job.lease_expires_at) == (None, None)
