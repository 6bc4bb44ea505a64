"""How a worker process ends: signals to stops, and the end for a handler that will not leave."""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Final, Protocol

from hastetrio.cli._errors import FAILED

if TYPE_CHECKING:
    import trio

    from hastetrio._config import AsyncJobWorkerConfig
    from hastetrio._worker import AsyncJobWorker

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

# Time for the database to take the jobs back, after the last handler should have left; seconds.
# With the default drain and grace, 27 of the 30 seconds that Kubernetes gives a pod.
_HAND_BACK: Final = 2.0

_SIGNAL: Final = b"s"
_OVER: Final = b"o"

_logger = logging.getLogger("hastetrio.cli")


class Stoppable(Protocol):
    """What can be told to stop: first gently, the second time in a hurry."""

    def stop(self) -> None:
        """Stop, and return at once."""


class Stopper:
    """Stops a worker, or a server, on SIGINT and SIGTERM.

    The first signal drains, the second hurries, the third ends.

    A handler that ignores its cancellation, or that blocks the event loop, would keep the process
    alive for ever. So a thread watches the clock from the first signal on, and ends the process
    when the worker's time is over. Its jobs are taken over when their leases lapse.
    """

    def __init__(self, config: AsyncJobWorkerConfig) -> None:
        self._config = config
        self._worker: AsyncJobWorker | None = None
        self._parts: tuple[Stoppable, ...] = ()
        self._starting: trio.CancelScope | None = None
        self._wake_reader, self._wake_writer = os.pipe()
        # A full pipe must not block the signal handler that writes to it.
        os.set_blocking(self._wake_writer, False)

    def serve(self, worker: AsyncJobWorker | None, *others: Stoppable) -> None:
        """From now on a signal stops the others, and `worker` if there is one."""
        self._worker = worker
        self._parts = (*others, worker) if worker is not None else others

    @contextmanager
    def watching(self, starting: trio.CancelScope) -> Iterator[None]:
        """Watch the clock while the block lasts; entered after the signals are received.

        Args:
            starting: What a signal cancels while there is no worker yet.
        """
        self._starting = starting
        receivers = {number: signal.getsignal(number) for number in SIGNALS}

        def handle(number: int, frame: FrameType | None) -> None:
            # Async-signal-safe, and it works while a handler blocks the event loop.
            with suppress(BlockingIOError):
                os.write(self._wake_writer, _SIGNAL)
            receiver = receivers[signal.Signals(number)]
            if callable(receiver):
                receiver(number, frame)

        for number in SIGNALS:
            signal.signal(number, handle)
        watchdog = threading.Thread(target=self._watch, name="hastetrio-stop", daemon=True)
        watchdog.start()
        try:
            yield
        finally:
            for number, receiver in receivers.items():
                signal.signal(number, receiver)
            # Not a close: a process forked by a handler may hold the pipe open.
            os.set_blocking(self._wake_writer, True)
            os.write(self._wake_writer, _OVER)
            watchdog.join()
            os.close(self._wake_writer)
            os.close(self._wake_reader)

    async def obey(self, signals: AsyncIterator[int]) -> None:
        """Turn each signal into a stop.

        Cancellation: nothing is left behind.
        """
        count = 0
        async for number in signals:
            count += 1
            name = signal.Signals(number).name
            if not self._parts:
                _logger.info("%s while starting: leaving", name)
                if self._starting is not None:
                    self._starting.cancel()
                return
            if count == 1:
                _logger.info(
                    "%s: no more %s have %g s to finish, once more to hurry",
                    name,
                    "connections; requests under way"
                    if self._worker is None
                    else "claims; running jobs",
                    self._config.drain_timeout,
                )
            elif count == 2 and self._worker is None:
                _logger.info("%s again: requests under way are cut", name)
            elif count == 2:
                _logger.info("%s again: running jobs are cancelled and handed back", name)
            for part in self._parts:
                part.stop()

    def _watch(self) -> None:
        end: float | None = None
        count = 0
        while True:
            timeout = None if end is None else max(end - time.monotonic(), 0)
            ready, _, _ = select.select([self._wake_reader], [], [], timeout)
            if not ready:
                self._end()
            if os.read(self._wake_reader, 1) == _OVER:
                return
            count += 1
            now = time.monotonic()
            if count == 1:
                end = now + self._config.drain_timeout + self._config.cancel_grace + _HAND_BACK
            elif count == 2 and end is not None:
                end = min(end, now + self._config.cancel_grace + _HAND_BACK)
            else:
                end = now

    def _end(self) -> None:
        stuck = self._stuck()
        if stuck:
            _logger.error(
                "leaving without the handlers of %s, which did not leave when cancelled; "
                "their jobs are taken over when their leases lapse",
                ", ".join(stuck),
            )
        else:
            _logger.error(
                "leaving before the worker has ended: the database does not answer, or a handler "
                "blocks the event loop; its jobs are taken over when their leases lapse"
            )
        for handler in logging.getLogger().handlers + logging.getLogger("hastetrio").handlers:
            handler.flush()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(FAILED)

    def _stuck(self) -> tuple[str, ...]:
        if self._worker is None:
            return ()
        try:
            return self._worker.statistics().unwinding
        except RuntimeError:
            # The event loop changed the jobs meanwhile, so it is alive; the jobs go unnamed.
            return ()
