"""Runs an event loop of its own wherever it is called from."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

import attrs
import sniffio
import trio

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


@attrs.define
class _Outcome:
    value: object = None
    error: BaseException | None = None


def outside_of_loops(call: Callable[[], T]) -> T:
    """Call a function that runs a loop: in a thread, where the caller belongs to a loop itself.

    The caller's loop stands still meanwhile. Whatever `call` raises is raised here.
    """
    if not _in_loop():
        return call()
    outcome = _Outcome()

    def run() -> None:
        try:
            outcome.value = call()
        except BaseException as error:  # noqa: BLE001  # it is raised again by the caller
            outcome.error = error

    thread = threading.Thread(target=run, name="hastetrio run_job")
    thread.start()
    thread.join()
    if outcome.error is not None:
        raise outcome.error
    return outcome.value  # type: ignore[return-value]  # what `call` returned


def _in_loop() -> bool:
    # sniffio knows of tasks; what drives a guest run is in trio too, and in none of its tasks.
    if trio.lowlevel.in_trio_run():
        return True
    try:
        sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        return False
    return True
