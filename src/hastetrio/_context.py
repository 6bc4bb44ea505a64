"""What a running handler sees of its job, and what it may ask for: `JobContext`, `CancelReason`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVarTuple, Unpack

from hastetrio._errors import LeaseLost

if TYPE_CHECKING:
    # The checker's own: bare `JobContext` is `JobContext[Any]` to it, and nothing is imported.
    from typing_extensions import TypeVar

    from hastetrio._model import AsyncJob, JobOutput
    from hastetrio.postgres import TrioConnection

    P = TypeVar("P", default=Any)
else:
    from typing import TypeVar

    P = TypeVar("P")

Arguments = TypeVarTuple("Arguments")
T = TypeVar("T")


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

    @property
    def state(self) -> Any: ...  # noqa: ANN401  # JSON is any value

    @property
    def is_settled(self) -> bool: ...

    def report(self, text: str, /) -> None: ...


class Desk(Protocol):
    """Where a context takes what needs the storage, or a thread."""

    async def confirm(self, held: Any) -> None: ...  # noqa: ANN401  # the desk knows what it is

    async def save_state(self, held: Any, state: object) -> None: ...  # noqa: ANN401

    def transaction(self, held: Any) -> AbstractAsyncContextManager[Any]: ...  # noqa: ANN401

    async def finish(self, held: Any, connection: object, output: object) -> JobOutput: ...  # noqa: ANN401

    async def run_sync(self, function: Callable[..., Any], *args: object) -> Any: ...  # noqa: ANN401


class JobContext(Generic[P]):
    """What a running handler sees of its job, and how it talks back.

    `P` is the class its handler declares for the parameters.
    """

    __slots__ = ("_claim", "_desk", "_held", "_parameters")

    def __init__(self, claim: Claim, desk: Desk) -> None:
        self._claim = claim
        self._held = claim
        self._desk = desk
        self._parameters: Any = None

    @property
    def job(self) -> AsyncJob:
        """The job, as it was claimed."""
        return self._claim.job

    @property
    def parameters(self) -> P:
        """The job's parameters: of the class that the handler declares, else the JSON itself."""
        found: P = self._claim.job.parameters if self._parameters is None else self._parameters
        return found

    @parameters.setter
    def parameters(self, parameters: P) -> None:
        self._parameters = parameters

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1. A number comes back after a hand-back or a snooze."""
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

    @property
    def state(self) -> Any:  # noqa: ANN401  # JSON is any value
        """What an attempt of this job saved last; None if none did."""
        return self._claim.state

    @property
    def is_finished(self) -> bool:
        """Whether `finish` recorded the job's result, and its transaction is committed."""
        return self._claim.is_settled

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

    def check_lease(self) -> None:
        """See that the job is still to be run, by this process's clock.

        Costs nothing, and may be called from a thread. Only the database knows for sure: see
        `confirm_lease`.

        Raises:
            LeaseLost: It is not.
        """
        reason = self._claim.cancel_reason
        if reason is not None:
            raise LeaseLost(f"the job is no longer to be run here: {reason}")

    async def confirm_lease(self) -> None:
        """Ask the database whether the job is still this claim's, and renew its lease.

        Before a side effect that must not come twice. It asks until it is answered.

        Raises:
            LeaseLost: It is not; the handler's scope is cancelled too.

        Cancellation: a renewal under way may still be applied.
        """
        await self._desk.confirm(self._held)

    async def save_state(self, state: object) -> None:
        """Keep a small state with the job, for its next attempt; the latest wins.

        It is gone once a result is recorded. A job that was cancelled, has expired, or was
        abandoned by its worker keeps it, for the handler's `expire`. It asks until it is answered.

        Args:
            state: Any JSON, of at most 64 KiB; None for no state.

        Raises:
            LeaseLost: The job is no longer this claim's; nothing was saved.
            UnstorableValue: The state is not JSON that can be stored, or exceeds the limit.

        Cancellation: it may still be saved.
        """
        await self._desk.save_state(self._held, state)

    def transaction(self) -> AbstractAsyncContextManager[TrioConnection]:
        """A database connection of this handler's own, in an open transaction.

        `async with context.transaction() as connection:`. What is written is committed when the
        block ends, if the job is still this claim's; with `finish` the job's result comes in the
        same transaction: both, or neither. A lost lease, a cancel and an error roll back.

        The connection is psycopg's asynchronous one, driven by trio. Neither commit nor roll back
        on it; `async with connection.transaction()` makes savepoints. Opening one waits for a free
        connection, and for a database that is away, as long as the lease lasts.

        Raises:
            LeaseLost: At the end: the job is no longer this claim's, nothing was done.
            ProviderUnavailable: Without a `finish`: the commit was not answered, and may have been
                applied.
            UnsupportedFeature: The storage has no transactions, such as `MemoryJobProvider`.

        Cancellation: before the commit everything is rolled back; the commit is waited for.
        """
        return self._desk.transaction(self._held)

    async def finish(self, connection: object, output: object) -> JobOutput:
        """Record the job's result in a transaction of `context.transaction()`.

        Call it last in the block: from here to the commit the job's row is locked, and its lease
        cannot be renewed. After the commit the job is completed: its lease is renewed no more, and
        that it is no longer this worker's cancels nothing. What the handler does or returns then
        changes nothing; let it return what this returns.

        Args:
            connection: The one that `context.transaction()` gave.
            output: What the handler would return.

        Returns:
            The output, as it is stored.

        Raises:
            LeaseLost: The job is no longer this claim's; leave the block, and nothing was done.
            UnstorableValue: The output cannot be stored.
            RuntimeError: The connection is another, or a result was given before.
        """
        return await self._desk.finish(self._held, connection, output)

    async def run_sync(self, function: Callable[[Unpack[Arguments]], T], *args: *Arguments) -> T:
        """Call `function` in a thread, and wait for it whatever happens.

        The worker's threads for handlers are `thread_limit`, apart from trio's own. A thread cannot
        be killed: call `trio.from_thread.check_cancelled()` in it from time to time, which raises
        once the job is no longer to be run. For work that cannot do so, use `trio.run_process`.

        Cancellation: waits for the function, so that no thread of the job outlives it; one that
        goes on is logged as late.
        """
        result: T = await self._desk.run_sync(function, *args)
        return result
