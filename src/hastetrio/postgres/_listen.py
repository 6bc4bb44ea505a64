"""Wake-ups: LISTEN on a connection of its own, opened again for ever.

Notifications are hints. What they say is parsed defensively, and after each interruption the
watcher is told that it may have missed any number of them.
"""

from __future__ import annotations

import logging
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import psycopg
import trio

from hastetrio._errors import HastetrioError
from hastetrio._nursery import serving_nursery
from hastetrio._provider import JobCancelled, JobQueued, WatchEvent, WatchRestored
from hastetrio.postgres._unit import one_line, open_session, unit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection

    from hastetrio.postgres._connection import TrioConnection

_log = logging.getLogger("hastetrio.postgres")

_QUEUED: Final = "async_jobs_queued"
_CANCELLED: Final = "async_jobs_cancelled"

# A half-open socket shows nothing: ask now and then whether somebody is there. Two statements a
# minute, so that an idle worker stays below 70.
_PROBE_INTERVAL: Final = 30.0

# Seconds before connecting again, from the first attempt to the tenth and all later ones.
_FIRST_DELAY: Final = 0.1
_LONGEST_DELAY: Final = 5.0


@asynccontextmanager
async def watch(
    dsn: str, kinds: Collection[str], *, budget: float
) -> AsyncGenerator[trio.MemoryReceiveChannel[WatchEvent]]:
    """Notifications while the block lasts; see `AsyncJobProvider.watch`.

    Cancellation: the connection is closed.
    """
    send, receive = trio.open_memory_channel[WatchEvent](100)
    async with send, receive, serving_nursery() as nursery:
        nursery.start_soon(_listen_for_ever, dsn, frozenset(kinds), budget, send)
        yield receive


@trio.lowlevel.enable_ki_protection
async def _listen_for_ever(
    dsn: str,
    kinds: frozenset[str],
    budget: float,
    events: trio.MemorySendChannel[WatchEvent],
) -> None:
    failures = 0
    while True:
        connection: TrioConnection | None = None
        try:
            connection = await open_session(dsn, budget)
            failures = 0
            await _listen(connection, kinds, budget, events)
        except (HastetrioError, psycopg.Error, OSError, trio.ClosedResourceError) as error:
            failures += 1
            _log.warning("Notifications are interrupted, will retry: %s", one_line(error))
        finally:
            if connection is not None:
                connection.discard()
        delay = min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** min(failures, 10))
        await trio.sleep(random.uniform(delay / 2, delay))  # noqa: S311


async def _listen(
    connection: TrioConnection,
    kinds: frozenset[str],
    budget: float,
    events: trio.MemorySendChannel[WatchEvent],
) -> None:
    # A dict, since it keeps their order: a burst for one kind is one event.
    found: dict[WatchEvent, None] = {}

    def collect(notification: psycopg.Notify) -> None:
        event = _event(notification.channel, notification.payload, kinds)
        if event is not None:
            found[event] = None

    connection.add_notify_handler(collect)
    async with unit(connection, budget):
        await connection.execute(f"LISTEN {_QUEUED}")
        await connection.execute(f"LISTEN {_CANCELLED}")
    await events.send(WatchRestored())
    while True:
        while found:
            event = next(iter(found))
            del found[event]
            await events.send(event)
        with trio.move_on_after(_PROBE_INTERVAL) as waiting:
            await trio.lowlevel.wait_readable(connection.pgconn.socket)
        if waiting.cancelled_caught:
            async with unit(connection, budget):
                await connection.execute("SELECT 1")
            continue
        connection.pgconn.consume_input()
        while (notification := connection.pgconn.notifies()) is not None:
            collect(
                psycopg.Notify(
                    notification.relname.decode("utf-8", "replace"),
                    notification.extra.decode("utf-8", "replace"),
                    notification.be_pid,
                )
            )


def _event(channel: str, payload: str, kinds: frozenset[str]) -> WatchEvent | None:
    if channel == _QUEUED and payload in kinds:
        return JobQueued(payload)
    if channel == _CANCELLED and payload:
        return JobCancelled(payload)
    return None
