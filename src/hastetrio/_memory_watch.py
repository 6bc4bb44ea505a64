"""Notifications within one process: every watcher hears them, and none holds up who sends them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Final

import trio

from hastetrio._provider import JobCancelled, JobQueued, WatchEvent, WatchRestored

# Events a watcher may be behind. A worker takes them at once; what is still unread after this many
# is better answered by one look at the queue than one by one.
_BACKLOG: Final = 100


class _Watcher:
    """One watcher: the kinds it asked for, and the channel it reads."""

    def __init__(self, kinds: Collection[str], channel: trio.MemorySendChannel[WatchEvent]) -> None:
        self._kinds = frozenset(kinds)
        self._channel = channel
        self._last: WatchEvent | None = None

    def wants(self, event: WatchEvent) -> bool:
        return not isinstance(event, JobQueued) or event.kind in self._kinds

    def send(self, event: WatchEvent) -> None:
        """Send the event, unless what is still unread says as much.

        The last place is kept for `WatchRestored`. While it stands unread at the end, nothing
        more needs to be said: whoever reads it looks for everything it may have missed.
        """
        unread = self._channel.statistics().current_buffer_used
        if unread and self._last == event:
            return
        if unread > _BACKLOG:
            return
        if unread == _BACKLOG:
            event = WatchRestored()
        try:
            self._channel.send_nowait(event)
        except trio.BrokenResourceError:
            return  # the watcher closed its end and is about to leave its block
        self._last = event


class Watchers:
    """Everybody who watches one provider."""

    def __init__(self) -> None:
        self._watchers: set[_Watcher] = set()

    def queued(self, kind: str) -> None:
        """Tell that a job of the kind became claimable."""
        self._tell(JobQueued(kind))

    def cancelled(self, id: str) -> None:
        """Tell that a running job was cancelled."""
        self._tell(JobCancelled(id))

    @asynccontextmanager
    async def watch(
        self, kinds: Collection[str]
    ) -> AsyncIterator[trio.MemoryReceiveChannel[WatchEvent]]:
        """A channel of events while the block lasts; `WatchRestored` is the first."""
        await trio.lowlevel.checkpoint()
        send, receive = trio.open_memory_channel[WatchEvent](_BACKLOG + 1)
        watcher = _Watcher(kinds, send)
        watcher.send(WatchRestored())
        self._watchers.add(watcher)
        try:
            # The sending end is closed first: a task that still reads sees the end, no error.
            with receive, send:
                yield receive
        finally:
            self._watchers.discard(watcher)

    def _tell(self, event: WatchEvent) -> None:
        for watcher in self._watchers:
            if watcher.wants(event):
                watcher.send(event)
