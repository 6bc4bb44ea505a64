"""What runs in a job's nursery: the handler, with only as much around it as it asks for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import trio

from hastetrio._middleware import run_within
from hastetrio._retry import RetryLater, Snooze
from hastetrio._typed import structure
from hastetrio._verdict import JobTimeout, outcome_of

if TYPE_CHECKING:
    from hastetrio._context import JobContext
    from hastetrio._handler import JobHandler
    from hastetrio._middleware import JobMiddleware

Body: TypeAlias = "Callable[[JobContext[Any]], Awaitable[object]]"


def body_of(handler: JobHandler, middleware: Sequence[JobMiddleware]) -> Body:
    """The body of a handler's jobs; its own `run` where it asks for nothing more."""
    body: Body = handler.run
    if handler.timeout is not None:
        body = partial(_timed, body, handler.timeout)
    if handler.parameters is not None:
        body = partial(_typed, body, handler.parameters)
    if middleware:
        body = partial(run_within, middleware, body, partial(outcome_of, handler))
    return body


async def _typed(body: Body, kind: type, context: JobContext[Any]) -> object:
    context.parameters = structure(kind, context.job.parameters)
    return await body(context)


async def _timed(body: Body, timeout: float, context: JobContext[Any]) -> object:
    try:
        with trio.CancelScope(relative_deadline=timeout) as scope:
            return await body(context)
    except (RetryLater, Snooze):
        # Said on purpose, and returned it would count too.
        raise
    except Exception as error:
        # Raised while it unwound; a lost lease leaves as a cancellation, and is nobody's timeout.
        if scope.cancel_called and context.cancel_reason is None:
            raise JobTimeout(timeout) from error
        raise
    raise JobTimeout(timeout)
