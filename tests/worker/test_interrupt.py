"""Ctrl-C for those who run a worker in a program of their own, without signal handlers."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

PROGRAM: Final = """
import os, signal, sys, trio
from hastetrio import AsyncJobStatus, AsyncJobWorker, CreateAsyncJob, JobOutput, job_handler
from hastetrio.memory import MemoryJobProvider

where = sys.argv[1]

@job_handler("long")
async def long(context):
    if where == "handler":
        os.kill(os.getpid(), signal.SIGINT)
    await trio.sleep_forever()

async def interrupt_when_idle(storage):
    # Whatever task runs at that moment: here none, so that it meets the one that waits in run().
    while True:
        (job,) = await storage.list_jobs("t", "p")
        if job.status is AsyncJobStatus.IN_PROGRESS and where == "idle":
            os.kill(os.getpid(), signal.SIGINT)
            return
        await trio.sleep(0.01)

async def main():
    storage = MemoryJobProvider()
    await storage.create_job("t", "p", CreateAsyncJob(kind="long", claims={"sub": "s"}))
    worker = AsyncJobWorker(storage, [long])
    try:
        if where == "idle":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.lowlevel.enable_ki_protection(interrupt_when_idle), storage)
                await worker.run()
        else:
            await worker.run()
    finally:
        with trio.CancelScope(shield=True):
            (job,) = await storage.list_jobs("t", "p")
        print(job.status, job.attempts, job.locked_by, worker.statistics().free)

try:
    trio.run(main)
except* KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("where", ["handler", "idle"])
def test_an_interrupted_worker_hands_its_jobs_back(where: str) -> None:
    """Ctrl-C leaves run() as KeyboardInterrupt, and no job waits for its lease."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, where], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == ["accepted 0 None 4", "interrupted"], done.stderr
