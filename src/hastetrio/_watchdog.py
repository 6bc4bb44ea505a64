"""Names the code that blocks the event loop, while it still blocks.

A blocked loop renews no lease, runs no other handler and answers no cancel. Nothing inside the
loop can say so, so a thread looks from outside.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from hastetrio._held import HeldJob
from hastetrio._log import LOOP_BLOCKED, log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

# A handler that computes for a moment is no news; one that takes a sixth of a lease is, at the
# latest after a second.
_LONGEST_STEP: Final = 1.0

_LIBRARIES: Final = tuple(str(Path(module.__file__ or "").parent) for module in (trio, threading))


class _Busy(trio.abc.Instrument):
    """Since when the loop has been running tasks; None while it waits."""

    def __init__(self) -> None:
        self.since: float | None = None

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002  # trio's signature
        self.since = time.monotonic()

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002  # trio's signature
        self.since = None


@contextmanager
def watching_the_loop(call_budget: float) -> Iterator[None]:
    """Warn of each stall of the current trio loop while the block lasts, once a stall.

    Args:
        call_budget: The longest one database call may take, seconds; a longer stall is warned of
            at the latest after a second.
    """
    busy = _Busy()
    ended = threading.Event()
    loop = threading.get_ident()
    limit = min(call_budget, _LONGEST_STEP)
    thread = threading.Thread(
        target=_watch, args=(busy, ended, loop, limit), name="hastetrio-watchdog", daemon=True
    )
    trio.lowlevel.add_instrument(busy)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        trio.lowlevel.remove_instrument(busy)
        thread.join()


def _watch(busy: _Busy, ended: threading.Event, loop: int, limit: float) -> None:
    told: float | None = None
    while not ended.wait(limit / 2):
        since = busy.since
        if since is None or since == told:
            continue
        elapsed = time.monotonic() - since
        frame = sys._current_frames().get(loop)  # noqa: SLF001  # the only way to see it
        if elapsed >= limit and frame is not None:
            told = since
            job = _job_of(frame)
            log(LOOP_BLOCKED, elapsed=elapsed, where=_place_of(frame), job=job or "no job known")


def _place_of(frame: FrameType) -> str:
    """File, line and function of the innermost frame that is no library's the loop runs in."""
    inner: FrameType | None = frame
    while inner is not None:
        if not inner.f_code.co_filename.startswith(_LIBRARIES):
            frame = inner
            break
        inner = inner.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"


def _job_of(frame: FrameType | None) -> str | None:
    """The job whose body this is, where the body itself blocks and not a task it started."""
    while frame is not None:
        held = frame.f_locals.get("held")
        if isinstance(held, HeldJob):
            return held.job.id
        frame = frame.f_back
    return None
