"""asyncio libraries in handlers: one call, in the job's scope, through trio-asyncio.

Needs the extra `asyncio`. Importing this module patches `asyncio` for the whole process, so nothing
else in this package imports it, and an entry point imports it first: see docs/asyncio.md.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Final, TypeVar, TypeVarTuple

import sniffio

from hastetrio._asyncio_imports import holds_a_copy, load_trio_asyncio
from hastetrio._asyncio_loop import call_on_loop, leaves
from hastetrio._errors import HastetrioError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import FrameType

load_trio_asyncio()

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_NO_LOOP: Final = "no running event loop"
_BAD_YIELD: Final = "Task got bad yield: "


class AsyncioBridgeError(HastetrioError):
    """`run_asyncio` was called where it cannot work, or by what it ran; the text says what to do.

    `__cause__` is the error that a library raised, if one did.
    """


async def run_asyncio(function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
    """Run `await function(*args)` as asyncio code, inside of the handler's scope.

    The call has an asyncio loop of its own, so that nothing it starts outlives it: when it returns
    or raises, the asyncio tasks that were left behind have been cancelled and have ended, and the
    loop is closed. Context variables are those of the caller. Do all that belongs together in one
    call; a session or a connection cannot be carried from one call to the next.

    No trio code may be awaited inside, the methods of `JobContext` included, except through
    `trio_asyncio.trio_as_aio`.

    Args:
        function: An async function of asyncio code, not a coroutine: `run_asyncio(fetch, url)`.
        args: Its arguments. For those with a keyword use `functools.partial`.

    Returns:
        What the function returned.

    Raises:
        BaseException: What the function raised, as it raised it. SystemExit and KeyboardInterrupt
            also when a task of its own raised them.
        TypeError: `function` is no async function.
        AsyncioBridgeError: The caller is not in trio, or the function awaited trio code or used a
            library that was imported too early.

    Cancellation: the function gets one asyncio.CancelledError. The call ends when the function has
    unwound, and its threads have returned. asyncio does not repeat a cancellation: a function that
    swallows it goes on, and what it returns is returned.
    """
    _check_function(function)
    _check_caller()
    try:
        return await call_on_loop(function, args)
    except Exception as error:
        if translation := _translation(error):
            raise AsyncioBridgeError(translation) from error
        raise


def _check_function(function: object) -> None:
    if inspect.isawaitable(function):
        name = getattr(function, "__qualname__", None) or type(function).__name__
        if inspect.iscoroutine(function):
            # Nobody will await it, and Python would warn about that too.
            function.close()
        raise TypeError(
            "run_asyncio calls the function itself: write run_asyncio(function, argument), not "
            f"run_asyncio(function(argument)); it was given an awaitable, {name}"
        )
    if not callable(function):
        raise TypeError(
            f"run_asyncio takes an async function and its arguments, not {type(function).__name__}"
        )


def _check_caller() -> None:
    try:
        library = sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        library = "none"
    if library == "asyncio":
        # A second loop, opened under a callback of the first, makes trio itself fail.
        raise AsyncioBridgeError(
            "run_asyncio was called from asyncio code: await the function itself there"
        )
    if library != "trio":
        raise AsyncioBridgeError(
            "run_asyncio works inside of trio only: await it in a handler, "
            "or call asyncio.run where there is no trio"
        )


def _translation(error: BaseException) -> str | None:
    """What to do about an error that says only what happened, if it is one of those."""
    for leaf in _chain(error):
        if not isinstance(leaf, RuntimeError):
            continue
        text = str(leaf)
        if text == _NO_LOOP and (frame := _innermost(leaf)) and holds_a_copy(frame.f_globals):
            return (
                f"{frame.f_globals.get('__name__')} finds no asyncio loop, because it was imported "
                "before hastetrio.asyncio_bridge: import that first in the entry point"
            )
        if text.startswith(_BAD_YIELD):
            return (
                "trio code was awaited inside of run_asyncio: await it before or after, "
                "or call it with trio_asyncio.trio_as_aio(function)(argument)"
            )
    return None


def _chain(error: BaseException) -> list[BaseException]:
    """The errors in `error` that are no groups, and what each was raised from."""
    found: list[BaseException] = []
    todo = leaves(error)
    while todo:
        leaf = todo.pop()
        # By identity: an error may define `==`.
        if any(leaf is other for other in found):
            continue
        found.append(leaf)
        todo += leaves(leaf.__context__ if leaf.__cause__ is None else leaf.__cause__)
    return found


def _innermost(error: BaseException) -> FrameType | None:
    frame = None
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        traceback = traceback.tb_next
    return frame
