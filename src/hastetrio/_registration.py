"""Sees at start that handlers are what they should be, and declare what can be."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Final

from hastetrio._errors import ConfigError
from hastetrio._handler import FunctionHandler, JobHandler
from hastetrio._model import check_duration
from hastetrio._operation import Operation
from hastetrio._retry import RetryPolicy
from hastetrio._storable import is_text
from hastetrio._typed import ParameterMismatch, check_class
from hastetrio._verdict import JobTimeout

# What a body that says so of itself cannot mean: it returns no output.
_NO_OUTPUTS: Final = {
    None: "None",
    dict: "dict",
    list: "list",
    str: "str",
    int: "int",
    bool: "bool",
}


def handlers_by_kind(handlers: Iterable[JobHandler]) -> dict[str, JobHandler]:
    """The handlers by their kinds.

    Raises:
        ConfigError: Something is no handler, a handler has no kind or declares what cannot be, or
            two have the same kind.
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
            raise ConfigError(f"{handler!r} is not a JobHandler{_instead_of(handler)}")
        if not isinstance(handler.kind, str) or not handler.kind:
            raise ConfigError(f"{type(handler).__name__} has no kind: give it one, as text")
        if not is_text(handler.kind):
            raise ConfigError(f"the kind {handler.kind!r} cannot be stored")
        if handler.kind in by_kind:
            raise ConfigError(f"two handlers are registered for the kind {handler.kind!r}")
        _check_declarations(handler)
        by_kind[handler.kind] = handler
    return by_kind


def _check_declarations(handler: JobHandler) -> None:
    whose = f"the handler of {handler.kind!r}"
    timeout, retries = handler.timeout, handler.retries
    if isinstance(handler, FunctionHandler):
        bodies = [(handler.function, "context"), (handler.clean_up, "job")]
    else:
        bodies = [(handler.run, "context"), (handler.expire, "job")]
    for body, argument in bodies:
        if body is not None:
            _check_body(body, argument, whose)
    if handler.operation is not None and not isinstance(handler.operation, Operation):
        raise ConfigError(f"{whose}: operation must be an Operation, not {handler.operation!r}")
    if timeout is not None:
        try:
            check_duration(timeout, "timeout")
        except ValueError as error:
            raise ConfigError(f"{whose}: {error}") from None
    if retries is not None:
        if not isinstance(retries, RetryPolicy):
            raise ConfigError(f"{whose}: retries must be a RetryPolicy, not {retries!r}")
        if ParameterMismatch in retries.on:
            raise ConfigError(
                f"{whose}: retries name ParameterMismatch, which is never tried again: parameters "
                "do not change"
            )
        if timeout is None and JobTimeout in retries.on:
            raise ConfigError(f"{whose}: retries name JobTimeout, but there is no timeout")
    if handler.parameters is not None:
        try:
            check_class(handler.parameters)
        except ConfigError as error:
            raise ConfigError(f"{whose}: {error}") from None


def _instead_of(found: object) -> str:
    if inspect.ismethod(found) and isinstance(found.__self__, JobHandler):
        return ": give the handler, not its method"
    if inspect.isfunction(found):
        return ': write @job_handler("kind") above the function'
    return ""


def _check_body(body: Callable[..., object], argument: str, whose: str) -> None:
    """See that a body can be awaited, and takes its one argument."""
    name = getattr(body, "__name__", "it")
    plain = inspect.unwrap(body)
    is_ordinary = inspect.isfunction(plain) or inspect.ismethod(plain)
    if is_ordinary and not inspect.iscoroutinefunction(plain):
        raise ConfigError(
            f"{whose}: {name} must be an async function that returns its output: write "
            f"async def {name}({argument})"
        )
    try:
        inspect.signature(body).bind(object())
    except TypeError:
        raise ConfigError(f"{whose}: {name} must take one argument, the {argument}") from None
    except ValueError:
        # A built-in function does not tell.
        return
    annotations = inspect.get_annotations(plain) if is_ordinary else {}
    found = annotations.get("return", inspect.Signature.empty)
    if argument == "context":
        for kind, word in _NO_OUTPUTS.items():
            if found is kind or found == word or str(found).startswith(f"{word}["):
                raise ConfigError(
                    f"{whose}: {name} says that it returns {word}: return a JobOutput, or an "
                    "instance of an attrs class or dataclass"
                )
