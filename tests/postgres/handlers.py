"""Handlers for the worker processes of these tests; parameters say what each is to do."""

from __future__ import annotations

import os

import trio

from hastetrio import JobContext, JobOutput, job_handler


def answer(context: JobContext) -> JobOutput:
    """Says which process and which attempt this was."""
    return JobOutput.json({"by": os.getpid(), "attempt": context.attempt})


async def opened(context: JobContext) -> None:
    """Wait for the file, which the test makes in another process."""
    gate = trio.Path(context.job.parameters["gate"])
    while not await gate.exists():  # noqa: ASYNC110  # nothing of that process can set an event
        await trio.sleep(0.01)


@job_handler("at-once")
async def at_once(context: JobContext) -> JobOutput:
    """Returns at once."""
    await trio.lowlevel.checkpoint()
    return answer(context)


@job_handler("gated")
async def gated(context: JobContext) -> JobOutput:
    """Returns when the file named by its parameters appears; lets itself be cancelled."""
    await opened(context)
    return answer(context)


@job_handler("stubborn")
async def stubborn(context: JobContext) -> JobOutput:
    """As `gated`, but swallows its cancellation and returns a result all the same."""
    with trio.CancelScope(shield=True):
        await opened(context)
    return answer(context)


HANDLERS = (at_once, gated, stubborn)
