"""What a handler author writes: `JobHandler`, or a function with `@job_handler`."""

from __future__ import annotations

import inspect
import typing
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, overload

from hastetrio._context import JobContext
from hastetrio._errors import ConfigError
from hastetrio._model import DEFAULT_ATTEMPTS, AsyncJob, JobOutput
from hastetrio._operation import Operation, ResultFile
from hastetrio._retry import RetryLater, RetryPolicy, Snooze
from hastetrio._strict import is_structured
from hastetrio._typed import structure

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from attrs import AttrsInstance
    from typing_extensions import TypeVar

    P = TypeVar("P", default=Any)
else:
    from typing import TypeVar

    P = TypeVar("P")

HandlerOutput: TypeAlias = "JobOutput | AttrsInstance | DataclassInstance | RetryLater | Snooze"
"""What a handler may return: an output, an instance of an attrs class or dataclass (its JSON is the
output), or the wish to be run again."""


# What JSON is without any class.
_JSON: Final = (Any, dict, list, str, int, float, bool, object, type(None))


def _declared(cls: type) -> type | None:
    """X, of a class derived from `JobHandler[X]`, where JSON can be turned into it."""
    for base in vars(cls).get("__orig_bases__", ()):
        origin = typing.get_origin(base)
        if isinstance(origin, type) and issubclass(origin, JobHandler):
            return _class_of(typing.get_args(base)[0], f"class {cls.__name__}")
    return None


def _annotated(function: Callable[..., Any]) -> type | None:
    """X, of a function that takes `JobContext[X]`.

    Raises:
        ConfigError: What X is cannot be found out, or JSON cannot be turned into it.
    """
    whose = f"function {getattr(function, '__name__', function)}"
    for annotation in inspect.get_annotations(function).values():
        if isinstance(annotation, str):
            if "JobContext[" not in annotation:
                continue
            try:
                annotation = eval(annotation, getattr(function, "__globals__", {}))  # noqa: PLW2901, S307  # as inspect does
            except Exception:  # noqa: BLE001  # a name that only a type checker knows
                raise ConfigError(
                    f"{whose}: {annotation} cannot be resolved when the program runs: say "
                    "parameters=, and define the class where the handler is defined"
                ) from None
        origin: object = typing.get_origin(annotation)
        if origin is JobContext:
            return _class_of(typing.get_args(annotation)[0], whose)
    return None


def _known(function: Callable[..., Any]) -> type | None:
    """As `_annotated`, or None where that cannot be found out."""
    with suppress(ConfigError):
        return _annotated(function)
    return None


def _class_of(found: Any, whose: str) -> type | None:  # noqa: ANN401  # types of types
    """The class that JSON is to be turned into; None where the JSON itself is what is meant."""
    if is_structured(found):
        declared: type = found
        return declared
    if isinstance(found, (str, typing.ForwardRef)):
        raise ConfigError(
            f"{whose}: {found!r} cannot be resolved when the program runs: say parameters, and "
            "define the class before"
        )
    is_json = found in _JSON or typing.get_origin(found) is not None or typing.is_typeddict(found)
    if isinstance(found, type) and not is_json:
        raise ConfigError(
            f"{whose}: JSON cannot be turned into {found.__name__}: decorate that class with "
            "@attrs.frozen or @dataclass"
        )
    return None


class JobHandler(ABC, Generic[P]):
    """Runs the jobs of one kind. One instance serves all of them, several at a time.

    `class Transcribe(JobHandler[TranscribeParameters])` declares the class of its parameters, of
    attrs or a dataclass: jobs whose parameters do not fit it fail before `run`, and kick-offs are
    refused.
    """

    kind: str = ""
    """The `kind` of the jobs this handler runs."""

    operation: Operation | None = None
    """The FHIR operation whose kick-off starts such a job; None where there is none."""

    parameters: type[P] | None = None
    """The class of the parameters; found in `JobHandler[...]` where it is not said here."""

    retries: RetryPolicy | None = None
    """Which errors are tried again; None: an error fails the job."""

    timeout: float | None = None
    """Seconds one run may take; then it is cancelled, and the job fails with code `timeout`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401  # whatever bases take
        super().__init_subclass__(**kwargs)
        if "parameters" not in vars(cls) and (declared := _declared(cls)) is not None:
            cls.parameters = declared

    @abstractmethod
    async def run(self, context: JobContext[P]) -> HandlerOutput:
        """Run one job to its result.

        The body runs in a scope whose deadline is the job's lease. An `OperationOutcomeError`
        fails the job with its issues; any other error is logged and fails it with a neutral one,
        unless `retries` covers it. `RetryLater` and `Snooze`, returned or raised, have the job run
        again later.

        Cancellation: the lease was lost, the client cancelled, the job expired, or the worker is
        stopping (`context.cancel_reason`); or `timeout` has passed. Let `trio.Cancelled` through,
        after any cleaning up; the job's lease goes on being renewed where it is still held, until
        this has returned.
        """

    def check_parameters(self, parameters: Any, /) -> None:  # noqa: ANN401  # JSON is any value
        """Judge the parameters of a kick-off, before anything is stored.

        Called after they were found to fit the class of the parameters, where there is one.

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

    async def expire(self, job: AsyncJob) -> None:
        """Remove whatever the job produced, before its row is deleted.

        Called for a job that has expired or was cancelled, also for one that never ran. It may be
        called again after an error or a crash, so it must be idempotent; never twice at once.
        After ten minutes it is cancelled and tried again later.
        """


def needs_clean_up(handler: JobHandler) -> bool:
    """Whether the handler's expired jobs leave anything but their rows."""
    if isinstance(handler, FunctionHandler):
        return handler.clean_up is not None
    return getattr(handler.expire, "__func__", None) is not JobHandler.expire


_Run: TypeAlias = Callable[[JobContext[P]], Awaitable[HandlerOutput]]
_Expire: TypeAlias = Callable[[AsyncJob], Awaitable[None]]


class FunctionHandler(JobHandler[P]):
    """A handler made from an async function by `@job_handler`."""

    def __init__(
        self,
        kind: str,
        run: _Run[P],
        *,
        operation: Operation | None = None,
        parameters: type[P] | None = None,
        retries: RetryPolicy | None = None,
        timeout: float | None = None,
    ) -> None:
        self.kind = kind
        self.operation = operation
        self.parameters = parameters
        self.retries = retries
        self.timeout = timeout
        self._run = run
        self._expire: _Expire | None = None
        self.__doc__ = run.__doc__

    async def run(self, context: JobContext[P]) -> HandlerOutput:
        """Run the function."""
        return await self._run(context)

    @property
    def function(self) -> Callable[..., object]:
        """The function that runs a job."""
        return self._run

    @property
    def clean_up(self) -> Callable[..., object] | None:
        """The function given to `on_expire`, if any."""
        return self._expire

    def on_expire(self, function: _Expire) -> _Expire:
        """Decorate the function that removes what a job of this kind produced."""
        self._expire = function
        return function

    async def expire(self, job: AsyncJob) -> None:
        """Run the function given to `on_expire`, if any."""
        if self._expire is not None:
            await self._expire(job)


@overload
def job_handler(
    kind: str,
    *,
    parameters: type[P],
    operation: Operation | None = None,
    retries: RetryPolicy | None = None,
    timeout: float | None = None,
) -> Callable[[_Run[P]], FunctionHandler[P]]: ...


@overload
def job_handler(
    kind: str,
    *,
    operation: Operation | None = None,
    retries: RetryPolicy | None = None,
    timeout: float | None = None,
) -> Callable[[_Run[Any]], FunctionHandler[Any]]: ...


def job_handler(
    kind: str,
    *,
    parameters: type[Any] | None = None,
    operation: Operation | None = None,
    retries: RetryPolicy | None = None,
    timeout: float | None = None,
) -> Callable[[_Run[Any]], FunctionHandler[Any]]:
    """Make the decorated async function the handler of `kind`.

    Args:
        kind: The kind of the jobs it runs.
        parameters: The class of the parameters, of attrs or a dataclass. Where the function's
            argument is annotated `JobContext[X]`, X is taken.
        operation: The FHIR operation whose kick-off starts such a job.
        retries: Which errors are tried again.
        timeout: Seconds one run may take.

    Raises:
        ConfigError: The annotation names another class than `parameters`, or the kind is missing.
    """
    if callable(kind):
        raise ConfigError('a handler needs a kind: write @job_handler("kind") above the function')

    def decorate(function: _Run[Any]) -> FunctionHandler[Any]:
        # What is said outright needs no annotation that can be resolved.
        declared = _annotated(function) if parameters is None else _known(function)
        if None not in (parameters, declared) and parameters is not declared:
            raise ConfigError(
                f"the handler of {kind!r} takes JobContext[{getattr(declared, '__name__', '')}], "
                f"and its parameters are {getattr(parameters, '__name__', parameters)!r}: name one"
            )
        return FunctionHandler(
            kind,
            function,
            operation=operation,
            parameters=parameters or declared,
            retries=retries,
            timeout=timeout,
        )

    return decorate


def judge_parameters(handler: JobHandler, parameters: Any) -> None:  # noqa: ANN401  # JSON
    """Judge the parameters of a kick-off: by the class of the handler, then by its own rules.

    Raises:
        OperationOutcomeError: They are not to be accepted.
    """
    if handler.parameters is not None:
        structure(handler.parameters, parameters)
    handler.check_parameters(parameters)


def attempts_of(handler: JobHandler | None) -> int:
    """How often a new job of this handler may be started, unless its creator says."""
    if handler is None or handler.retries is None:
        return DEFAULT_ATTEMPTS
    return handler.retries.attempts
