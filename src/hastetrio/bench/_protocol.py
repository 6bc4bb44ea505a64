"""What the benchmark and its worker process say to each other: JSON, one document a line.

The benchmark sends an `Order`, then "look" as often as it likes, then "stop" or the end of the
stream. The worker answers with the events "started", "running" when as many jobs run as the order
says, and "look" with a `Look`.
"""

from __future__ import annotations

import attrs
import trio


@attrs.frozen(kw_only=True)
class Order:
    """What the worker process is to do.

    Args:
        dsn: Its database.
        kind: The kind of its jobs, which sleep until the worker stops.
        slots: How many of them it runs at once.
        lease: Seconds a lease lasts.
        log_level: The least level it logs.
        prepared_statements: As for `PostgresJobProvider.open`.
    """

    dsn: str = attrs.field(repr=False)
    kind: str
    slots: int
    lease: float
    log_level: str
    prepared_statements: bool


@attrs.frozen(kw_only=True)
class Look:
    """How the worker process stands.

    Attributes:
        time: Its clock, seconds.
        cpu: Seconds of CPU it has used.
        memory: Bytes of memory it has; see `memory_is`.
        memory_is: What `memory` counts.
        running: How many jobs run.
        lost: How many jobs were cancelled though nobody asked for it: their lease was lost.
        renewals: How many renewals were answered.
        renewals_failed: How many were not.
    """

    time: float
    cpu: float
    memory: int
    memory_is: str
    running: int
    lost: int
    renewals: int
    renewals_failed: int


class LineReader:
    """Reads a stream line by line."""

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._stream = stream
        self._rest = b""

    async def read(self) -> bytes | None:
        """The next line without its end; None when the stream has ended.

        Cancellation: nothing is lost.
        """
        while b"\n" not in self._rest:
            chunk = await self._stream.receive_some()
            if not chunk:
                return None
            self._rest += bytes(chunk)
        line, _, self._rest = self._rest.partition(b"\n")
        return line
