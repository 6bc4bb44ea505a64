"""The jobs of the benchmark: ones that sleep, and one whose result is too large for any buffer."""

from __future__ import annotations

import tempfile
from typing import Any

import trio

from hastetrio import AsyncJob, JobContext, JobHandler, JobOutput, ResultFile

# Bytes: several times what the system buffers for a client that does not read.
SIZE = 64 * 1024 * 1024


class Nap(JobHandler):
    """Runs until it is cancelled."""

    kind = "nap"

    async def run(self, context: JobContext) -> JobOutput:
        """Sleep; each renewal has a progress to write."""
        beats = 0
        while True:
            beats += 1
            context.report(f"{beats} s asleep")
            await trio.sleep(1)


class Large(JobHandler):
    """Completes at once, with a file."""

    kind = "large"

    async def run(self, context: JobContext) -> JobOutput:  # noqa: ARG002
        """Complete."""
        value: dict[str, Any] = {"file": "large"}
        await trio.lowlevel.checkpoint()
        return JobOutput.json(value)

    def open_result(self, job: AsyncJob, name: str, /) -> ResultFile | None:  # noqa: ARG002
        """The file, whatever it is called."""
        # Zeros that take no room.
        file = tempfile.TemporaryFile()  # noqa: SIM115  # whoever asked for it closes it
        file.truncate(SIZE)
        return ResultFile(file=file, size=SIZE, content_type="application/octet-stream")


HANDLERS = [Nap(), Large()]
