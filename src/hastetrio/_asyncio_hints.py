"""What to tell a handler author whose asyncio code was awaited without the bridge.

Knows no trio-asyncio: the core may use it where that is not installed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

_HINT: Final = (
    "This was asyncio code awaited by trio: "
    "run it with hastetrio.asyncio_bridge.run_asyncio(function, argument)."
)

_UNKNOWN_YIELD: Final = "trio.run received unrecognized yield message"
_NO_LOOP: Final = "no running event loop"

# Where trio-asyncio is imported, `asyncio.get_event_loop()` is None under plain trio. These are
# methods of a loop that nothing else is likely to have.
_METHODS: Final = frozenset(
    {
        "call_at",
        "call_later",
        "call_soon",
        "create_future",
        "create_task",
        "get_debug",
        "run_aio_coroutine",
        "run_in_executor",
    }
)


def add_asyncio_hint(error: BaseException) -> None:
    """Add a note to each error in `error` that comes from asyncio code under plain trio.

    The note is printed below the error, wherever its traceback is.
    """
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            add_asyncio_hint(part)
        return
    # An error of a handler's describes itself with the handler's code, which may raise.
    with suppress(Exception):
        if _is_asyncio_without_a_loop(error) and _HINT not in getattr(error, "__notes__", ()):
            error.add_note(_HINT)


def _is_asyncio_without_a_loop(error: BaseException) -> bool:
    if isinstance(error, TypeError):
        return str(error).startswith(_UNKNOWN_YIELD)
    if isinstance(error, RuntimeError):
        return str(error) == _NO_LOOP
    return isinstance(error, AttributeError) and error.obj is None and error.name in _METHODS
