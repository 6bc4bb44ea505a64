"""A server of our own, which these tests may stop, crash and start again."""

from __future__ import annotations

import os
import signal

import trio
from tests.postgres.harness import run

from hastetrio.embedded import EmbeddedPostgres

FAST = signal.SIGINT
IMMEDIATE = signal.SIGQUIT


class Server:
    """The server, and what can be done to it.

    Attributes:
        url: Where it is, also after a restart.
    """

    def __init__(self, embedded: EmbeddedPostgres) -> None:
        self._embedded = embedded
        self.url = embedded.start()

    def start(self) -> None:
        """Start it, unless it runs."""
        assert self._embedded.start() == self.url

    async def stop(self, how: signal.Signals) -> None:
        """Stop it, in the way the postmaster understands this signal, and wait for its end."""
        pid = self._embedded.server_pid()
        assert pid is not None
        os.kill(pid, how)
        stopped = await trio.to_thread.run_sync(self._embedded.wait_stopped)
        assert stopped

    async def restart(self) -> None:
        """Start it again after a stop."""
        await trio.to_thread.run_sync(self.start)

    def read_only(self, on: bool) -> None:
        """Every session, also those that are open, may only read; or may write again."""
        run(
            f"{self.url} options='-c default_transaction_read_only=off'",
            f"ALTER SYSTEM SET default_transaction_read_only = {on}",
        )
        run(self.url, "SELECT pg_reload_conf()")
