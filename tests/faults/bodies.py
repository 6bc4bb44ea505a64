"""Handlers for workers in the tests' own process: gated, and remembering what happened to them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs
import trio
from tests.postgres.harness import KIND, until

from hastetrio import AsyncJobWorkerConfig, CancelReason, JobContext, JobHandler, JobOutput

LONG = AsyncJobWorkerConfig(lease_duration=60, poll_interval=0.2, cancel_grace=0.5)
"""Leases outlive every outage of these tests."""

SHORT = AsyncJobWorkerConfig(lease_duration=1.2, poll_interval=0.2, cancel_grace=0.5)
"""Leases lapse within a test: renewals every 0.4 s, the deadline at 1.0 s."""


@attrs.frozen
class Run:
    """One run of a body that has left: its job, attempt, and why it was to leave, if it was."""

    id: str
    attempt: int
    reason: CancelReason | None


class Gated(JobHandler):
    """Runs until its gate is opened (once for all jobs) or it is cancelled.

    Attributes:
        gate: What the bodies wait for.
        running: The jobs whose bodies are inside now.
        ended: The runs that have left, in their order.
    """

    def __init__(self, kind: str = KIND, on_start: Callable[[str], None] | None = None) -> None:
        self.kind = kind
        self.gate = trio.Event()
        self.running: list[str] = []
        self.ended: list[Run] = []
        self._on_start = on_start

    async def run(self, context: JobContext) -> JobOutput:
        """Wait."""
        id = context.job.id
        if self._on_start is not None:
            self._on_start(id)
        self.running.append(id)
        try:
            await self.gate.wait()
            return JobOutput.json(context.claim)
        finally:
            self.running.remove(id)
            self.ended.append(Run(id, context.attempt, context.cancel_reason))


class Lines(logging.Handler):
    """The package's log, by event."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record."""
        self.records.append(record)

    def texts(self, event: str, job: str | None = None) -> list[str]:
        """The texts of one event's lines (about one job)."""
        return [
            record.getMessage()
            for record in self.records
            if getattr(record, "event", None) == event
            and (job is None or record.__dict__["fields"].get("job") == job)
        ]

    async def wait(self, event: str, text: str = "", job: str | None = None) -> None:
        """Wait for a line of this event that has this text (about one job)."""
        await until(lambda: any(text in found for found in self.texts(event, job)), 30)


@contextmanager
def logged() -> Iterator[Lines]:
    """Collect the package's log while the block lasts."""
    logger = logging.getLogger("hastetrio")
    lines, level = Lines(), logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)
