"""Handlers for the worker processes of these tests; parameters and files say what each does."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import trio

from hastetrio import AsyncJob, JobContext, JobHandler, JobOutput, job_handler


def _die_with_the_test() -> None:
    # Not through sys.stdin: a thread that waits inside of it spoils the interpreter's exit.
    while os.read(0, 1):
        pass
    os._exit(1)


threading.Thread(target=_die_with_the_test, daemon=True).start()


def answer(context: JobContext) -> JobOutput:
    """Says which process this was."""
    return JobOutput.json({"by": os.getpid()})


def gate_of(job: AsyncJob) -> Path:
    """The file that this job waits for, which the test makes."""
    return Path(job.parameters["gate"])


async def opened(job: AsyncJob) -> None:
    """Wait for the job's gate."""
    gate = trio.Path(gate_of(job))
    while not await gate.exists():  # noqa: ASYNC110  # nothing of that process can set an event
        await trio.sleep(0.01)


@job_handler("gated")
async def gated(context: JobContext) -> JobOutput:
    """Returns when its gate is there."""
    await opened(context.job)
    return answer(context)


@job_handler("last-words")
async def last_words(context: JobContext) -> JobOutput:
    """Takes its cancellation as the sign to come to an end, and returns what it has."""
    with trio.CancelScope(shield=True):
        while not context.is_cancelled:  # noqa: ASYNC110  # it is a flag
            await trio.sleep(0.01)
    return answer(context)


@job_handler("stuck")
async def stuck(context: JobContext) -> JobOutput:
    """Leaves when its gate is there, and no sooner."""
    with trio.CancelScope(shield=True):
        await opened(context.job)
    return answer(context)


@job_handler("sleeps")
async def sleeps(context: JobContext) -> JobOutput:
    """Blocks the event loop, asleep."""
    while not gate_of(context.job).exists():
        time.sleep(0.02)  # noqa: ASYNC251  # what must not be done
    return answer(context)


@job_handler("computes")
async def computes(context: JobContext) -> JobOutput:
    """Blocks the event loop, busy."""
    while not gate_of(context.job).exists():
        pass
    return answer(context)


@job_handler("short")
async def short(context: JobContext) -> JobOutput:
    """Takes a few milliseconds."""
    await trio.sleep(0.005)
    return answer(context)


class Remover(JobHandler):
    """Its clean-up notes when it begins and ends, and waits for its gate in between."""

    kind = "remover"

    async def run(self, context: JobContext) -> JobOutput:
        """Nothing that would have to be removed."""
        return answer(context)

    async def expire(self, job: AsyncJob) -> None:
        """Note the beginning, wait, note the end."""
        log = trio.Path(job.parameters["log"])
        async with await log.open("a") as file:
            await file.write(f"begin {os.getpid()}\n")
        await opened(job)
        async with await log.open("a") as file:
            await file.write(f"end {os.getpid()}\n")


everything = [gated, last_words, stuck, sleeps, computes, short, Remover()]
