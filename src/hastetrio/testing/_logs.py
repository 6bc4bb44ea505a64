"""Collects what one run logs, without a change to what anybody else sees."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trio.abc import Clock

_LEVEL: Final = logging.INFO

_running: ContextVar[RunLogs | None] = ContextVar("hastetrio_run_logs", default=None)


class RunLogs(logging.Handler):
    """Keeps the records of one run: of its tasks, their threads, and threads begun meanwhile.

    Tasks and trio's threads carry the run in their context. Other threads do not, but one that was
    not there before is the run's: the worker's watchdog, or a library's.

    Args:
        clock: The run's clock; each record gets its seconds since now as `run_time`.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self._clock = clock
        self._start = clock.current_time()
        self._others = {thread.ident for thread in threading.enumerate()}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record if it is this run's."""
        run = _running.get()
        mine = run is self or (run is None and record.thread not in self._others)
        # That a worker of `run_job` starts and stops says nothing about the job.
        if mine and not str(record.__dict__.get("event")).startswith("worker."):
            record.__dict__["run_time"] = self._clock.current_time() - self._start
            self.records.append(record)


class _OpenRoot(logging.Filter):
    """Lets records from INFO on reach the root's handlers while anybody collects.

    By default a root logger drops what is below WARNING before any handler sees it. The handlers
    that are there already go on seeing what they saw before: a test's own assertions on what was
    logged depend on it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._users = 0
        self._level = logging.NOTSET
        self._guarded: list[logging.Handler] = []

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            root = logging.getLogger()
            if self._users == 1 and root.level > _LEVEL:
                self._level = root.level
                self._guarded = root.handlers[:]
                for handler in self._guarded:
                    handler.addFilter(self)
                root.setLevel(_LEVEL)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._level:
                logging.getLogger().setLevel(self._level)
                for handler in self._guarded:
                    handler.removeFilter(self)
                self._level, self._guarded = logging.NOTSET, []

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record would have come here with the root's own level."""
        logger = logging.getLogger(record.name)
        while logger.level == logging.NOTSET and logger.parent is not None:
            logger = logger.parent
        level = self._level if logger.parent is None else logger.level
        return record.levelno >= level


_open_root: Final = _OpenRoot()


@contextmanager
def collected(clock: Clock) -> Iterator[list[logging.LogRecord]]:
    """What is logged inside of the block, from INFO on, or from where a logger's own level says."""
    logs = RunLogs(clock)
    root = logging.getLogger()
    token = _running.set(logs)
    try:
        with _open_root:
            root.addHandler(logs)
            try:
                yield logs.records
            finally:
                root.removeHandler(logs)
    finally:
        _running.reset(token)


def log_lines(records: Sequence[logging.LogRecord]) -> str:
    """One line a record: seconds of the run, level, logger, message; tracebacks below theirs."""
    formatter = logging.Formatter("%(run_time)9.3f %(levelname)-7s %(name)s %(message)s")
    return "\n".join(formatter.format(record) for record in records)
