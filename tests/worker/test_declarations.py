"""What a handler declares is looked at before a worker runs, and nonsense is refused."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from hastetrio import (
    AsyncJobWorker,
    ConfigError,
    HandlerOutput,
    JobContext,
    JobHandler,
    JobTimeout,
    OperationOutcomeError,
    ParameterMismatch,
    RetryPolicy,
    job_handler,
)
from hastetrio._handler import attempts_of
from hastetrio.memory import MemoryJobProvider

from .harness import DONE, returning


@attrs.frozen
class Words:
    """Parameters as they should be."""

    text: str


@dataclasses.dataclass
class Pages:
    """Others."""

    number: int


class Plain:
    """A class that JSON cannot be turned into."""


@attrs.define
class Deep:
    """Parameters one of whose fields no JSON fits."""

    inner: list[Inner]


@attrs.define
class Inner:
    """A part of them."""

    call: Callable[[], None]


@attrs.define
class One:
    """One of two that look alike."""

    a: int


@attrs.define
class Other:
    """The other."""

    a: int


@attrs.define
class Alike:
    """Parameters of which nobody can say what they are."""

    which: One | Other


@attrs.define
class Unresolved:
    """Parameters of a type that nobody knows."""

    text: Unknown  # type: ignore[name-defined]  # noqa: F821


def made(**declared: Any) -> JobHandler:  # noqa: ANN401
    """A handler of the kind "words" that declares this."""
    return job_handler("words", **declared)(returning(DONE))


def register(handler: JobHandler) -> AsyncJobWorker:
    """Make a worker of it."""
    return AsyncJobWorker(MemoryJobProvider(), [handler])


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"timeout": 0}, "timeout must be a finite number of seconds, more than 0, not 0"),
        ({"timeout": -1}, "timeout must be a finite number of seconds, more than 0, not -1"),
        ({"timeout": math.nan}, "timeout must be a finite number"),
        ({"timeout": math.inf}, "timeout must be a finite number"),
        ({"timeout": 1e12}, "timeout must be at most"),
        ({"timeout": "5"}, "timeout must be a number of seconds, not '5'"),
        ({"timeout": True}, "timeout must be a number of seconds, not True"),
        ({"retries": 5}, "retries must be a RetryPolicy, not 5"),
        ({"retries": RetryPolicy}, "retries must be a RetryPolicy, not <class"),
        ({"retries": {"attempts": 5}}, "retries must be a RetryPolicy, not {"),
        (
            {"retries": RetryPolicy(on=(OSError, JobTimeout))},
            "retries name JobTimeout, but there is no timeout",
        ),
        (
            {"retries": RetryPolicy(on=(OSError, ParameterMismatch))},
            "retries name ParameterMismatch, which is never tried again",
        ),
        ({"parameters": Plain}, "parameters must be an attrs class or a dataclass, not <class"),
        ({"parameters": dict}, "parameters must be an attrs class or a dataclass, not <class"),
        ({"parameters": Words("x")}, "parameters must be an attrs class or a dataclass, not Words"),
        ({"parameters": Deep}, "JSON cannot be turned into Deep: "),
        ({"parameters": Alike}, "JSON cannot be turned into Alike: "),
        ({"parameters": Unresolved}, "an annotation of Unresolved cannot be resolved"),
    ],
    ids=str,
)
def test_a_declaration_that_makes_no_sense_is_refused(declared: dict[str, Any], says: str) -> None:
    """Before there is a worker, in one line that names the handler."""
    with pytest.raises(ConfigError) as caught:
        register(made(**declared))
    assert str(caught.value).startswith(f"the handler of 'words': {says}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("attribute", ["timeout", "retries", "parameters"])
def test_a_class_is_held_to_the_same(attribute: str) -> None:
    """Attributes of a class are what arguments of the decorator are."""

    class Handler(JobHandler):
        """A handler as a class."""

        kind = "words"

        async def run(self, context: JobContext) -> HandlerOutput:
            """Do nothing."""
            return DONE

    setattr(Handler, attribute, object())
    with pytest.raises(ConfigError, match=f"^the handler of 'words': {attribute} must be"):
        register(Handler())


@pytest.mark.parametrize(
    "declared",
    [
        {},
        {"timeout": 0.001},
        {"timeout": 3600},
        {"retries": RetryPolicy()},
        {"retries": RetryPolicy(on=(JobTimeout,)), "timeout": 5},
        {"retries": RetryPolicy(on=(OperationOutcomeError,))},
        {"parameters": Words},
        {"parameters": Pages, "retries": RetryPolicy(), "timeout": 5},
    ],
    ids=str,
)
def test_a_declaration_that_makes_sense_is_taken(declared: dict[str, Any]) -> None:
    """Each by itself, and all together."""
    handler = made(**declared)
    register(handler)
    for name in ("timeout", "retries", "parameters"):
        assert getattr(handler, name) == declared.get(name)


def test_two_classes_for_the_same_parameters_are_refused() -> None:
    """The annotation and the argument must say the same; at the definition already."""
    with pytest.raises(ConfigError) as caught:

        @job_handler("words", parameters=Pages)  # type: ignore[arg-type]  # that is the mistake
        async def words(context: JobContext[Words]) -> HandlerOutput:
            return DONE

    text = "the handler of 'words' takes JobContext[Words], and its parameters are 'Pages'"
    assert str(caught.value).startswith(text)


def test_the_class_may_be_said_once_or_twice() -> None:
    """As an argument, in the annotation, or in both."""

    @job_handler("words", parameters=Words)
    async def both(context: JobContext[Words]) -> HandlerOutput:
        return DONE

    @job_handler("words")
    async def annotation(context: JobContext[Words]) -> HandlerOutput:
        return DONE

    @job_handler("words", parameters=Words)
    async def argument(context: Any) -> HandlerOutput:  # noqa: ANN401
        return DONE

    @job_handler("words")
    async def neither(context: JobContext) -> HandlerOutput:
        return DONE

    @job_handler("words")
    async def anything(context: JobContext[Any]) -> HandlerOutput:
        return DONE

    found = [one.parameters for one in (both, annotation, argument, neither, anything)]
    assert found == [Words, Words, Words, None, None]


def test_an_annotation_that_says_nothing_at_run_time_is_refused() -> None:
    """The handler would be given a dict, and find that out in its first job."""

    @attrs.frozen
    class Local:
        text: str

    async def local(context: JobContext[Local]) -> HandlerOutput:
        return DONE

    async def plain(context: JobContext[Plain]) -> HandlerOutput:
        return DONE

    for function, words in (
        (local, "say parameters="),
        (plain, "Plain: decorate that class with @attrs.frozen or @dataclass"),
    ):
        with pytest.raises(ConfigError, match=words):
            job_handler("words")(function)
    assert job_handler("words", parameters=Local)(local).parameters is Local


def test_a_base_that_says_nothing_at_run_time_is_refused() -> None:
    """As with a function; where JSON itself is meant, it may be said."""
    with pytest.raises(ConfigError, match="say parameters, and define the class before"):

        class Later(JobHandler["Words"]):
            """A handler of words."""

    with pytest.raises(ConfigError, match="decorate that class with"):

        class Odd(JobHandler[Plain]):
            """A handler of something else."""

    class Bare(JobHandler[dict[str, Any]]):
        """A handler of any object."""

        async def run(self, context: JobContext[dict[str, Any]]) -> HandlerOutput:
            return DONE

    assert Bare().parameters is None


def test_a_class_finds_its_parameters_in_its_base() -> None:
    """Unless it says so itself; a class derived from it has them too."""

    class Typed(JobHandler[Words]):
        """A handler of words."""

        kind = "words"

        async def run(self, context: JobContext[Words]) -> HandlerOutput:
            """Do nothing."""
            return DONE

    class Derived(Typed):
        """One more."""

    class Untyped(JobHandler):
        """A handler of anything."""

        kind = "words"

        async def run(self, context: JobContext) -> HandlerOutput:
            """Do nothing."""
            return DONE

    assert Typed().parameters is Derived().parameters is Words
    assert Untyped().parameters is None
    for one in (Typed, Derived, Untyped):
        register(one())


@pytest.mark.parametrize(
    ("retries", "attempts"), [(None, 3), (RetryPolicy(attempts=7), 7), (RetryPolicy(), 3)]
)
def test_new_jobs_get_the_attempts_of_their_handlers_policy(
    retries: RetryPolicy | None, attempts: int
) -> None:
    """And three where there is none, or nobody knows the handler."""
    assert attempts_of(made(retries=retries)) == attempts
    assert attempts_of(None) == 3
