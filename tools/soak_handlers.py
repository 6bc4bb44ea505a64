"""The handlers of a soak: each body writes down when it began, when it was cancelled, how it left.

Run by worker processes that `tools/soak.py` starts. The records are lines of JSON in one file a
worker, each written by one call, so that a SIGKILL leaves whole lines. What the jobs are for are
the effects: files named by job, attempt and claim, removed by `expire`.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import threading
import time
from pathlib import Path
from typing import Any, Final

import trio

from hastetrio import AsyncJob, JobContext, JobHandler, JobOutput, OperationOutcomeError
from tools.soak_plan import KINDS

FOLDER: Final = "HASTETRIO_SOAK_FOLDER"
PARENT: Final = "HASTETRIO_SOAK_PARENT"

# Seconds between the two readings of two clocks that count as one moment.
_ONE_MOMENT: Final = 0.005


def worker_name(token: str) -> str:
    """The soak's name of the worker in a claim token: the host it was told to be."""
    return token.partition("-")[0]


class Records:
    """The records of this process.

    Args:
        folder: The soak's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.effects = folder / "effects"
        self._folder = folder / "records"
        self._files: dict[str, int] = {}

    def write(self, token: str, **fields: object) -> None:
        """Add one line to the file of the worker that made the token."""
        name = worker_name(token)
        if name not in self._files:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._folder.mkdir(exist_ok=True)
            self._files[name] = os.open(self._folder / f"{name}.jsonl", flags, 0o644)
        os.write(self._files[name], json.dumps(fields | {"token": token}).encode() + b"\n")


class Body:
    """One run of `run` or `expire`, from its first line to its last."""

    def __init__(
        self, records: Records, what: str, job: AsyncJob, context: JobContext | None
    ) -> None:
        self._records = records
        self._context = context
        self.job = job
        self._common = {"what": what, "job": job.id}
        self._cancelled = False
        self.facts: dict[str, Any] = {}
        self._write("start", kind=job.kind, attempt=job.attempts)

    def cancelled(self) -> None:
        """It has met its cancellation; the first time counts."""
        if not self._cancelled:
            self._cancelled = True
            self._write("cancelled", **self._lease())

    def ended(self, how: str) -> None:
        """It leaves now: returned, raised or cancelled."""
        self._write("end", how=how, **self._lease(), **self.facts)

    def _write(self, event: str, **fields: object) -> None:
        token = self.job.locked_by or ""
        self._records.write(token, event=event, at=time.time(), **self._common, **fields)

    def _lease(self) -> dict[str, object]:
        if self._context is None:
            return {}
        while True:
            # This process may be stopped between any two lines.
            before = time.time()
            left = self._context.lease_deadline - trio.current_time()
            if time.time() - before < _ONE_MOMENT:
                reason = self._context.cancel_reason
                return {"lease_end": before + left, "reason": reason and str(reason)}


class SoakHandler(JobHandler):
    """Jobs of one kind of the soak."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    @property
    def _records(self) -> Records:
        global _records
        if _records is None:
            _records = Records(Path(os.environ[FOLDER]))
        return _records

    async def run(self, context: JobContext) -> JobOutput:
        """Do what the kind does, leave an effect, and return what it holds."""
        body = Body(self._records, "run", context.job, context)
        try:
            await self._work(context, body)
            effect = self._leave_effect(context, body)
        except trio.Cancelled:
            body.cancelled()
            body.ended("cancelled")
            raise
        except BaseException:
            body.ended("raised")
            raise
        body.ended("returned")
        return JobOutput.json(effect)

    async def expire(self, job: AsyncJob) -> None:
        """Remove the effects of all attempts."""
        body = Body(self._records, "expire", job, None)
        try:
            await trio.sleep(0.02)
            shutil.rmtree(self._records.effects / job.id, ignore_errors=True)
        except trio.Cancelled:
            body.cancelled()
            body.ended("cancelled")
            raise
        body.ended("returned")

    async def _work(self, context: JobContext, body: Body) -> None:
        told = context.job.parameters
        if self.kind == "report":
            for step in range(1, told["steps"] + 1):
                await trio.sleep(told["seconds"])
                text = f"{step} of {told['steps']}, {context.claim}"
                context.report(text)
                body.facts["reported"] = text
            return
        try:
            await trio.sleep(told.get("seconds", 0))
        except trio.Cancelled:
            body.cancelled()
            with trio.CancelScope(shield=True):
                await trio.sleep(told.get("unwind", 0))
            if self.kind != "stubborn":
                raise
        if self.kind == "outcome":
            raise OperationOutcomeError("business-rule", f"refused by {context.claim}")
        if self.kind == "error":
            raise ValueError("one of the errors this soak raises")

    def _leave_effect(self, context: JobContext, body: Body) -> dict[str, Any]:
        folder = self._records.effects / context.job.id
        name = f"{context.attempt}-{context.claim}"
        effect = {
            "attempt": context.attempt,
            "claim": context.claim,
            "nonce": secrets.token_hex(8),
            "at": time.time(),
        }
        folder.mkdir(exist_ok=True)
        unfinished = folder / f"{name}.unfinished"
        unfinished.write_text(json.dumps(effect))
        unfinished.rename(folder / f"{name}.json")
        body.facts["nonce"] = effect["nonce"]
        return effect


def _leave_with_parent(parent: int) -> None:
    """End this process when the soak that started it was killed and cannot do it any more."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


_records: Records | None = None

HANDLERS: Final = tuple(SoakHandler(kind) for kind in KINDS)

if PARENT in os.environ:
    threading.Thread(
        target=_leave_with_parent, args=(int(os.environ[PARENT]),), daemon=True
    ).start()
