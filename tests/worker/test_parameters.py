"""Typed parameters: what a handler declares is what it gets, or its job fails before it runs."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import attrs
import pytest

from hastetrio import (
    AsyncJob,
    AsyncJobStatus,
    HandlerOutput,
    JobContext,
    JobHandler,
    JobOutput,
    OperationOutcomeError,
    RetryPolicy,
    job_handler,
)

from .attempts import history
from .harness import DONE, KIND, Rig, issues

COMPLETED = AsyncJobStatus.COMPLETED


class Level(enum.Enum):
    """How fine."""

    COARSE = "coarse"
    FINE = "fine"


@attrs.frozen
class Span:
    """A part of the recording."""

    start: float
    end: float = 10.0


@attrs.frozen
class Transcribe:
    """What the handler of these tests takes."""

    audio: str
    level: Level = Level.COARSE
    spans: list[Span] = attrs.Factory(list)
    _secret: int = 0


@dataclasses.dataclass(frozen=True)
class Plain:
    """The same as a dataclass."""

    text: str
    times: int = 1


def expressions(job: AsyncJob) -> list[tuple[str, list[str]]]:
    """Code and expression of each issue."""
    assert job.status is AsyncJobStatus.FAILED
    return [(issue["code"], issue.get("expression", [])) for issue in job.error["issue"]]


class Seen:
    """A body that keeps the parameters it saw."""

    def __init__(self) -> None:
        self.parameters: list[Any] = []

    async def __call__(self, context: JobContext[Any]) -> JobOutput:
        """Keep them."""
        self.parameters.append(context.parameters)
        return DONE


async def run(
    rig: Rig, parameters: object, declared: type, retries: RetryPolicy | None = None
) -> tuple[AsyncJob, list[Any]]:
    """Run one job of a handler that declares a class; the job, and what its body saw."""
    seen = Seen()
    made: JobHandler[Any] = job_handler(KIND, parameters=declared, retries=retries)(seen)
    async with rig.running(made):
        job = await rig.ended(await rig.create(parameters=parameters))
    return job, seen.parameters


async def test_a_handler_sees_an_instance_of_the_class_it_declares(rig: Rig) -> None:
    """With defaults, enums and nested classes; the row keeps the JSON."""
    given = {"audio": "a.wav", "level": "fine", "spans": [{"start": 1}], "secret": 7}
    job, seen = await run(rig, given, Transcribe)
    assert job.status is COMPLETED
    assert seen == [Transcribe("a.wav", Level.FINE, [Span(1.0)], 7)]
    assert job.parameters == given


async def test_a_dataclass_will_do(rig: Rig) -> None:
    """No library is needed for it."""
    job, seen = await run(rig, {"text": "x"}, Plain)
    assert (job.status, seen) == (COMPLETED, [Plain("x")])


@pytest.mark.parametrize("given", [None, 0, False, "", [], {}, {"$target": "Group/1"}, [1, {}]])
async def test_without_a_class_a_handler_sees_the_json_itself(rig: Rig, given: object) -> None:
    """Whatever it is, also what is false."""
    seen = Seen()
    async with rig.running(job_handler(KIND)(seen)):
        await rig.ended(await rig.create(parameters=given))
    assert seen.parameters == [given]


async def test_the_class_is_found_in_the_annotation_and_in_the_base(rig: Rig) -> None:
    """Nobody has to say it twice."""

    @job_handler("function")
    async def function(context: JobContext[Plain]) -> HandlerOutput:
        return JobOutput.json(context.parameters.text)

    class ByBase(JobHandler[Plain]):
        """A handler as a class."""

        kind = "class"

        async def run(self, context: JobContext[Plain]) -> HandlerOutput:
            """Return the text."""
            return JobOutput.json(context.parameters.text)

    class Derived(ByBase):
        """The class below it declares the same."""

        kind = "derived"

    async with rig.running(function, ByBase(), Derived()):
        for kind in ("function", "class", "derived"):
            job = await rig.ended(await rig.create(kind, parameters={"text": kind}))
            assert job.output == kind
            job = await rig.ended(await rig.create(kind, parameters={}))
            assert expressions(job) == [("required", ["text"])]


async def test_a_mismatch_fails_the_job_with_an_issue_for_each_path(rig: Rig) -> None:
    """All at once, each with its code and its expression; the body never ran."""
    given = {
        "level": "finest",
        "spans": [{"start": 1}, {"start": "x"}, {"end": 2}, 5],
        "secret": "7",
        "extra": 1,
    }
    job, seen = await run(rig, given, Transcribe)
    assert seen == []
    assert sorted(expressions(job)) == [
        ("required", ["audio"]),
        ("required", ["spans[2].start"]),
        ("structure", ["extra"]),
        ("structure", ["secret"]),
        ("structure", ["spans[1].start"]),
        ("structure", ["spans[3]"]),
        ("value", ["level"]),
    ]
    assert ("error", "required", "audio is missing.") in issues(job)
    assert all(severity == "error" for severity, *_ in issues(job))


async def test_a_mismatch_is_a_failure_like_any_other_and_no_surprise(rig: Rig) -> None:
    """In the history, with one attempt; nobody is paged for what a client sent."""
    job, _ = await run(rig, {}, Plain)
    assert job.attempts == 1
    assert history(job) == [(1, ["ParameterMismatch: required: text is missing."])]
    assert rig.log.count("job.raised") == 0


@pytest.mark.parametrize("on", [Exception, OperationOutcomeError], ids=lambda on: on.__name__)
async def test_a_mismatch_is_never_tried_again(rig: Rig, on: type[Exception]) -> None:
    """The parameters of a job do not change, whatever a policy says."""
    job, seen = await run(rig, {}, Plain, RetryPolicy(on=(on,), first=1))
    assert (job.attempts, seen) == (1, [])
    assert expressions(job) == [("required", ["text"])]


async def test_what_the_http_face_adds_is_no_parameter(rig: Rig) -> None:
    """`$target` and `$handling` are left out of the class, and stay in the job's JSON."""
    given = {"text": "x", "$target": "Group/1", "$handling": "lenient"}
    job, seen = await run(rig, given, Plain)
    assert (job.status, seen) == (COMPLETED, [Plain("x")])
    job, _ = await run(rig, given | {"$other": 1}, Plain)
    assert expressions(job) == [("structure", ["$other"])]


@pytest.mark.parametrize("given", [None, 5, "text", [], [{"text": "x"}], True])
async def test_parameters_that_are_no_object_are_refused_as_a_whole(
    rig: Rig, given: object
) -> None:
    """There is no path to say."""
    job, seen = await run(rig, given, Plain)
    assert (expressions(job), seen) == ([("structure", [])], [])
    assert issues(job)[0][2].startswith("The parameters must be an object, not ")


async def test_a_class_of_several_thousand_wrong_items_ends_in_an_outcome_that_fits(
    rig: Rig,
) -> None:
    """A hundred issues are told; the outcome keeps within its limit."""
    job, _ = await run(rig, {"audio": "x", "spans": [{}] * 5000}, Transcribe)
    assert len(job.error["issue"]) == 100
    assert expressions(job)[0] == ("required", ["spans[0].start"])


@attrs.frozen
class Picky:
    """A class whose validator raises what the test wants."""

    error: str = attrs.field()

    @error.validator
    def _check(self, attribute: object, value: str) -> None:
        raise {"key": KeyError("k"), "os": OSError("disk"), "exit": RuntimeError()}[value]


@pytest.mark.parametrize("error", ["key", "os", "exit"])
async def test_a_validator_that_raises_something_odd_refuses_the_value(
    rig: Rig, error: str
) -> None:
    """The job fails for its parameters, and the client reads nothing of the inside."""
    job, seen = await run(rig, {"error": error}, Picky, RetryPolicy(first=1))
    ((_, code, text),) = issues(job)
    assert (code, text, seen) == ("value", "The parameters have a value that is not accepted.", [])
    assert job.attempts == 1
