"""A worker in a process of its own, so that its CPU and memory are nobody else's."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from hastetrio.bench._plan import STALLED, BenchError
from hastetrio.bench._protocol import LineReader, Look, Order

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class WorkerProcess:
    """A running worker process; made by `worker_process`."""

    def __init__(self, process: trio.Process) -> None:
        assert process.stdin is not None  # noqa: S101  # pipes were asked for
        assert process.stdout is not None  # noqa: S101
        self._process = process
        self._orders = process.stdin
        self._events = LineReader(process.stdout)

    async def send(self, line: str) -> None:
        """Send one line; where nobody reads it any more, `watch` tells why."""
        with suppress(trio.BrokenResourceError):
            await self._orders.send_all(line.encode() + b"\n")

    async def expect(self, event: str, patience: float = STALLED) -> dict[str, Any]:
        """Wait for the next event, which is to be `event`; returns what came with it.

        Raises:
            BenchError: It did not come within `patience` seconds.
        """
        with trio.move_on_after(patience):
            line = await self._events.read()
            if line is None:
                # The process has ended, or is about to: `watch` tells.
                await trio.sleep_forever()
            said: dict[str, Any] = json.loads(line)
            if (name := said.pop("event")) != event:
                raise BenchError(f'the worker process said "{name}", and not "{event}"')
            return said
        raise BenchError(f'the worker process did not say "{event}" within {patience:g} s')

    async def look(self) -> Look:
        """How it stands now."""
        await self.send("look")
        return Look(**await self.expect("look"))

    async def watch(self) -> None:
        """Wait for the process to end.

        Raises:
            BenchError: It ended though nobody had told it to.
        """
        code = await self._process.wait()
        raise BenchError(f"the worker process ended by itself, with exit code {code}")

    async def stop(self) -> None:
        """Let it hand back its jobs and leave; it is killed if that takes too long."""
        await self.send("stop")
        with trio.move_on_after(STALLED):
            await self._process.wait()


_COMMAND: Final = (sys.executable, "-m", "hastetrio.bench._child")


@asynccontextmanager
async def worker_process(order: Order) -> AsyncGenerator[WorkerProcess]:
    """A worker process that listens for jobs, while the block lasts.

    Raises:
        BenchError: It did not start, or ended by itself, which ends the block.

    Cancellation: it is killed.
    """
    process = await trio.lowlevel.open_process(
        _COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Ctrl-C of a terminal is for the benchmark, which ends this process in its own way.
        start_new_session=True,
    )
    try:
        worker = WorkerProcess(process)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.watch)
            # The order goes this way because it may hold a password, which arguments would show.
            await worker.send(json.dumps(attrs.asdict(order)))
            await worker.expect("started")
            yield worker
            nursery.cancel_scope.cancel()
        await worker.stop()
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    await pipe.aclose()
