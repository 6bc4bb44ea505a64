"""What a handler author writes, and what is refused at registration."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.fakes import FakeClaim, make_context

from hastetrio._context import CancelReason, JobContext
from hastetrio._errors import ConfigError
from hastetrio._handler import JobHandler, job_handler
from hastetrio._model import AsyncJob, AsyncJobStatus, JobOutput
from hastetrio._registration import handlers_by_kind

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def a_job(id: str = "x", parameters: object = None, attempts: int = 1) -> AsyncJob:
    """A job that is running."""
    return AsyncJob(
        id=id,
        tenant="t",
        project="p",
        kind="k",
        status=AsyncJobStatus.IN_PROGRESS,
        request="",
        parameters=parameters,
        claims={"sub": "ann"},
        submitted_by="ann",
        attempts=attempts,
        created_at=NOW,
        updated_at=NOW,
        expires_at=NOW,
        run_at=NOW,
    )


class Echo(JobHandler):
    """A handler as a class."""

    kind = "echo"

    async def run(self, context: JobContext) -> JobOutput:
        """Return the parameters."""
        return JobOutput.json(context.job.parameters)


def test_a_context_shows_the_claim_it_belongs_to() -> None:
    """A handler sees its job, which attempt it is, its claim's name and its deadline."""
    job = a_job(attempts=2)
    context = make_context(FakeClaim(job, "abcdefgh", deadline=12.5))
    assert context.job is job
    assert (context.attempt, context.claim, context.lease_deadline) == (2, "abcdefgh", 12.5)


@pytest.mark.parametrize("reason", CancelReason)
def test_a_context_tells_that_and_why_it_is_cancelled(reason: CancelReason) -> None:
    """A thread between two steps can ask whether to go on."""
    claim = FakeClaim(a_job())
    context = make_context(claim)
    assert (context.is_cancelled, context.cancel_reason) == (False, None)
    claim.cancel_reason = reason
    assert (context.is_cancelled, context.cancel_reason) == (True, reason)


def test_a_report_is_a_text() -> None:
    """Progress goes to the claim as it is; anything but text is a mistake of the handler's."""
    claim = FakeClaim(a_job())
    context = make_context(claim)
    context.report("half")
    for wrong in (1, None, b"half"):
        with pytest.raises(TypeError, match="progress is a text"):
            context.report(wrong)  # type: ignore[arg-type]
    assert claim.reports == ["half"]


async def test_a_class_is_a_handler() -> None:
    """It runs by its method, and cleans up nothing unless it says so."""
    handler = Echo()
    output = await handler.run(make_context(FakeClaim(a_job(parameters=[1]))))
    assert output == JobOutput.json([1])
    await handler.expire(a_job())


async def test_a_function_is_a_handler() -> None:
    """The decorated function is run, under the kind it was given, and keeps its docstring."""

    @job_handler("double")
    async def double(context: JobContext) -> JobOutput:
        """Double it."""
        return JobOutput.json(context.job.parameters * 2)

    assert isinstance(double, JobHandler)
    assert (double.kind, double.__doc__) == ("double", "Double it.")
    output = await double.run(make_context(FakeClaim(a_job(parameters=21))))
    assert output == JobOutput.json(42)
    await double.expire(a_job())


async def test_a_function_handler_may_clean_up() -> None:
    """A second function is decorated as the clean-up, and stays callable by itself."""
    expired: list[str] = []

    @job_handler("files")
    async def files(context: JobContext) -> JobOutput:
        return JobOutput.json(None)

    @files.on_expire
    async def remove(job: AsyncJob) -> None:
        expired.append(job.id)

    await files.expire(a_job(id="1"))
    await remove(a_job(id="2"))
    assert expired == ["1", "2"]


def test_function_handlers_do_not_share_their_kind() -> None:
    """One class serves all decorated functions, and each keeps its own kind."""

    async def run(context: JobContext) -> JobOutput:
        return JobOutput.json(None)

    one, two = job_handler("one")(run), job_handler("two")(run)
    assert handlers_by_kind([one, two]) == {"one": one, "two": two}


def test_handlers_are_found_by_their_kinds() -> None:
    """Any iterable of handlers is registered, also none."""
    handler = Echo()
    assert handlers_by_kind(iter([handler])) == {"echo": handler}
    assert handlers_by_kind([]) == {}


class Nameless(Echo):
    """A handler without a kind."""

    kind = ""


class Numbered(Echo):
    """A handler whose kind is no text."""

    kind = 7  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("handlers", "text"),
    [
        ([Echo], r"Echo is a class; register an instance of it: Echo\(\)"),
        (["echo"], "'echo' is not a JobHandler"),
        ([None], "None is not a JobHandler"),
        ([Nameless()], "Nameless has no kind"),
        ([Numbered()], "Numbered has no kind"),
        ([Echo(), Echo()], "two handlers are registered for the kind 'echo'"),
    ],
)
def test_what_cannot_be_registered_is_refused(handlers: list[JobHandler], text: str) -> None:
    """The error is one line that names what is wrong."""
    with pytest.raises(ConfigError, match=text) as caught:
        handlers_by_kind(handlers)
    assert "\n" not in str(caught.value)
