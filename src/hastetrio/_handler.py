"""All that a handler author sees: `JobHandler`, `@job_handler`, `JobContext`, `CancelReason`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from enum import StrEnum
from typing import Any, Protocol

from hastetrio._errors import ConfigError
from hastetrio._model import AsyncJob, JobOutput
from hastetrio._operation import Operation, ResultFile
from hastetrio._storable import is_text


class CancelReason(StrEnum):
    """Why a handler's scope was cancelled."""

    CANCELLED = "cancelled"
    """The client cancelled the job."""

    EXPIRED = "expired"
    """The job is past its `expires_at`."""

    LEASE_LOST = "lease-lost"
    """The lease lapsed without a renewal, or another worker took the job."""

    SHUTDOWN = "shutdown"
    """The worker is stopping; the job is handed back."""


class Claim(Protocol):
    """What a context needs to know of the claim its job is held under."""

    @property
    def job(self) -> AsyncJob: ...

    @property
    def name(self) -> str: ...

    @property
    def cancel_reason(self) -> CancelReason | None: ...

    @property
    def deadline(self) -> float: ...

    def report(self, text: str, /) -> None: ...


class JobContext:
    """What a running handler sees of its job, and how it talks back."""

    __slots__ = ("_claim",)

    def __init__(self, claim: Claim) -> None:
        self._claim = claim

    @property
    def job(self) -> AsyncJob:
        """The job, as it was claimed."""
        return self._claim.job

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1. A number comes back after a hand-back."""
        return self._claim.job.attempts

    @property
    def claim(self) -> str:
        """8 characters that are new for each claim: put them into the names of temporary files."""
        return self._claim.name

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why the job is no longer to be run, or None while it is."""
        return self._claim.cancel_reason

    @property
    def is_cancelled(self) -> bool:
        """Whether the job is no longer to be run.

        The scope the handler runs in is cancelled at the same moment. This is for code that
        cannot be cancelled, such as a thread between two steps; it is safe to read from one.
        """
        return self._claim.cancel_reason is not None

    @property
    def lease_deadline(self) -> float:
        """When the handler is cancelled unless the lease is renewed, on `trio.current_time()`."""
        return self._claim.deadline

    def report(self, text: str, /) -> None:
        """Say how far the job is, in one short text for the client.

        Recorded with the next renewal, or with the result; the latest wins. NUL and lone
        surrogates are replaced, and a text beyond the worker's `progress_limit` is cut. Safe to
        call from a thread.

        Raises:
            TypeError: `text` is not a str.
        """
        if not isinstance(text, str):
            raise TypeError(f"progress is a text, not {type(text).__name__}")
        self._claim.report(text)


class JobHandler(ABC):
    """Runs the jobs of one kind. One instance serves all of them, several at a time."""

    kind: str = ""
    """The `kind` of the jobs this handler runs."""

    operation: Operation | None = None
    """The FHIR operation whose kick-off starts such a job; None where there is none."""

    @abstractmethod
    async def run(self, context: JobContext) -> JobOutput:
        """Run one job to its result.

        The body runs in a scope whose deadline is the job's lease. An `OperationOutcomeError`
        fails the job with its issues; any other error is logged and fails it with a neutral one.

        Cancellation: the lease was lost, the client cancelled, the job expired, or the worker is
        stopping (`context.cancel_reason`). Let `trio.Cancelled` through, after any cleaning up;
        the job's lease goes on being renewed where it is still held, until this has returned.
        """

    def check_parameters(self, parameters: Any, /) -> None:  # noqa: ANN401, B027  # JSON is any value
        """Judge the parameters of a kick-off, before anything is stored.

        Args:
            parameters: What `context.job.parameters` will be: a dict of what the client gave by
                name, or its Parameters resource; `$target` and `$handling` beside them.

        Raises:
            OperationOutcomeError: They are not to be accepted; the client gets its issues.
        """

    def open_result(self, job: AsyncJob, name: str, /) -> ResultFile | None:  # noqa: ARG002
        """Open the file that a completed job's result calls `name`; None if there is none.

        Called in a thread. `name` is what a client asked for, and may be any text.
        """
        return None

    async def expire(self, job: AsyncJob) -> None:  # noqa: B027
        """Remove whatever the job produced, before its row is deleted.

        Called for a job that has expired or was cancelled, also for one that never ran. It may be
        called again after an error or a crash, so it must be idempotent; never twice at once.
        After ten minutes it is cancelled and tried again later.
        """


def needs_clean_up(handler: JobHandler) -> bool:
    """Whether the handler's expired jobs leave anything but their rows."""
    if isinstance(handler, FunctionHandler):
        return handler.has_clean_up
    return getattr(handler.expire, "__func__", None) is not JobHandler.expire


_Run = Callable[[JobContext], Awaitable[JobOutput]]
_Expire = Callable[[AsyncJob], Awaitable[None]]


class FunctionHandler(JobHandler):
    """A handler made from an async function by `@job_handler`."""

    def __init__(self, kind: str, run: _Run, operation: Operation | None = None) -> None:
        self.kind = kind
        self.operation = operation
        self._run = run
        self._expire: _Expire | None = None
        self.__doc__ = run.__doc__

    async def run(self, context: JobContext) -> JobOutput:
        """Run the function."""
        return await self._run(context)

    @property
    def has_clean_up(self) -> bool:
        """Whether a function was given to `on_expire`."""
        return self._expire is not None

    def on_expire(self, function: _Expire) -> _Expire:
        """Decorate the function that removes what a job of this kind produced."""
        self._expire = function
        return function

    async def expire(self, job: AsyncJob) -> None:
        """Run the function given to `on_expire`, if any."""
        if self._expire is not None:
            await self._expire(job)


def job_handler(
    kind: str, *, operation: Operation | None = None
) -> Callable[[_Run], FunctionHandler]:
    """Make the decorated async function the handler of `kind`, started by `operation` if any."""

    def decorate(function: _Run) -> FunctionHandler:
        return FunctionHandler(kind, function, operation)

    return decorate


def handlers_by_kind(handlers: Iterable[JobHandler]) -> dict[str, JobHandler]:
    """The handlers by their kinds.

    Raises:
        ConfigError: Something is no handler, a handler has no kind, or two have the same.
    """
    if isinstance(handlers, JobHandler):
        raise ConfigError(f"handlers must be a list of handlers, not {type(handlers).__name__}")
    by_kind: dict[str, JobHandler] = {}
    for handler in handlers:
        if isinstance(handler, type) and issubclass(handler, JobHandler):
            raise ConfigError(
                f"{handler.__name__} is a class; register an instance of it: {handler.__name__}()"
            )
        if not isinstance(handler, JobHandler):
            raise ConfigError(f"{handler!r} is not a JobHandler")
        if not isinstance(handler.kind, str) or not handler.kind:
            raise ConfigError(f"{type(handler).__name__} has no kind: give it one, as text")
        if not is_text(handler.kind):
            raise ConfigError(f"the kind {handler.kind!r} cannot be stored")
        if handler.kind in by_kind:
            raise ConfigError(f"two handlers are registered for the kind {handler.kind!r}")
        by_kind[handler.kind] = handler
    return by_kind
