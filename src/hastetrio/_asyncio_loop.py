"""One asyncio loop for one call, on trio: opened, used and closed in the caller's scope."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Where asyncio says such things, and people look for them.
_logger = logging.getLogger("asyncio")


@attrs.define
class _Ending:
    """How the call ended: none of the three is set when it was cancelled.

    Attributes:
        value: What it returned.
        error: What it raised.
        exit: The SystemExit or KeyboardInterrupt that some asyncio code raised, if any did.
    """

    value: list[Any] = attrs.field(factory=list)
    error: BaseException | None = None
    exit: BaseException | None = None


async def call_on_loop(function: Callable[[*Ts], Awaitable[T]], args: tuple[*Ts]) -> T:
    """Run `function(*args)` to its end on an asyncio loop of its own.

    Cancellation: arrives in the function as one asyncio.CancelledError. This returns when the
    function and every asyncio task that it left behind have ended.
    """
    import trio_asyncio  # type: ignore[import-not-found, import-untyped, unused-ignore]

    ending = _Ending()
    # Otherwise the function would be started, and cancelled at its first await.
    await trio.lowlevel.checkpoint_if_cancelled()
    try:
        async with trio_asyncio.open_loop() as loop:
            # As asyncio itself does it. trio-asyncio would end the loop, also for an error that is
            # reported when the garbage collector finds a task nobody awaited.
            loop.set_exception_handler(_log)
            with trio.CancelScope() as scope:
                _contain_exits(loop, scope, ending)
                try:
                    ending.value.append(await loop.run_aio_coroutine(_call(function, args)))
                except trio.Cancelled:
                    raise
                except BaseException as error:  # noqa: BLE001  # raised again below
                    # Out of `open_loop` it would come in two groups.
                    ending.error = error
    except BaseExceptionGroup as group:
        _settle(ending, group)
    value: T = _unwrap(ending)
    return value


async def _call(function: Callable[..., object], args: tuple[Any, ...]) -> Any:  # noqa: ANN401
    awaitable = function(*args)
    if not inspect.isawaitable(awaitable):
        name = getattr(function, "__qualname__", None) or repr(function)
        if inspect.isasyncgen(awaitable):
            advice = "it is an async generator: iterate over it in an async function"
        else:
            advice = "run it with context.run_sync"
        raise TypeError(
            f"run_asyncio runs an async function, and {name} is none: it returned "
            f"{type(awaitable).__name__}, which cannot be awaited; {advice}"
        )
    return await awaitable


def _contain_exits(loop: Any, scope: trio.CancelScope, ending: _Ending) -> None:  # noqa: ANN401
    """Let no SystemExit or KeyboardInterrupt end `loop` under the tasks that need it.

    asyncio raises these two out of its loop when a task raises them. trio-asyncio's loop is then
    gone, and the call that waits for its task waits for ever, cancelled or not. So the call is
    cancelled instead, and raises what was caught when it has unwound, as `asyncio.run` does.

    Ctrl-C is left to trio's main task, for the same reason.
    """
    from trio_asyncio._base import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        TrioAsyncioExit,
    )

    step = loop._main_loop_one  # noqa: SLF001  # there is no public place between loop and callback

    @trio.lowlevel.enable_ki_protection
    async def contained(*args: bool, **options: bool) -> None:
        try:
            await step(*args, **options)
        except TrioAsyncioExit:
            raise  # how trio-asyncio stops its loop
        except (SystemExit, KeyboardInterrupt) as error:
            ending.exit = error if ending.exit is None else ending.exit
            scope.cancel("asyncio code raised SystemExit or KeyboardInterrupt")

    loop._main_loop_one = contained  # noqa: SLF001
    # The step that is waiting now is the uncontained one: it gets a callback that does nothing.
    loop.call_soon(int)


def _settle(ending: _Ending, group: BaseExceptionGroup[BaseException]) -> None:
    """Decide about what `open_loop` raised beside how the call ended."""
    cancelled, others = group.split(trio.Cancelled)
    for error in leaves(others):
        if isinstance(error, Exception):
            # Of a task that the function had left behind; `asyncio.run` logs it too.
            _logger.error("a task that was left behind raised", exc_info=error)
        elif ending.exit is None:
            # Ctrl-C that struck between trio's tasks.
            ending.exit = error
    # Where the call has ended, that goes first: the scope stays cancelled, and the next checkpoint
    # says so.
    if not ending.value and ending.error is None and ending.exit is None:
        raise group if cancelled is None else leaves(cancelled)[0]


def _log(loop: Any, context: dict[str, Any]) -> None:  # noqa: ANN401
    asyncio.BaseEventLoop.default_exception_handler(loop, context)


def _unwrap(ending: _Ending) -> Any:  # noqa: ANN401
    # Not `or`: an error may define whether it is true.
    error = ending.error if ending.exit is None else ending.exit
    if error is None:
        return ending.value[0]
    try:
        raise error
    finally:
        # The traceback holds this frame: without a cycle the error goes when it is dropped.
        del error, ending


def leaves(error: BaseException | None) -> list[BaseException]:
    """The errors in `error` that are no groups."""
    if error is None:
        return []
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in leaves(part)]
    return [error]
