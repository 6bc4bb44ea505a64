"""What a soak acts on: one embedded server, and worker processes in numbered slots."""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psycopg
import trio

from hastetrio.embedded import EmbeddedPostgres
from tools.soak_evidence import Journal, install_history
from tools.soak_handlers import FOLDER, PARENT
from tools.soak_plan import CANCEL_GRACE, DRAIN_TIMEOUT

_ROOT: Final = Path(__file__).parents[1]

# Nothing need survive a power cut. Not synchronous_commit=off: an immediate stop then loses what
# was committed in its last moments, and nobody promises to survive that.
_SERVER_OPTIONS: Final = (
    "fsync=off",
    "full_page_writes=off",
    "shared_buffers=64MB",
    "jit=off",
    "max_connections=100",
)

# What the command line adds to drain and grace before it leaves stuck handlers behind, and as
# much again for a busy machine.
_END_TIMEOUT: Final = DRAIN_TIMEOUT + CANCEL_GRACE + 2 + 15
_STOP_SERVER_TIMEOUT: Final = 60.0


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


class Server:
    """The embedded server.

    Args:
        folder: The soak's folder.
        journal: Where its outages are noted.
    """

    def __init__(self, folder: Path, journal: Journal) -> None:
        self._server = EmbeddedPostgres(folder / "server", options=_SERVER_OPTIONS)
        self._journal = journal
        self.url = ""

    async def start(self) -> None:
        """Start it, or start it again."""
        self.url = await trio.to_thread.run_sync(self._server.start, 60.0)

    async def prepare(self) -> None:
        """Make the tables, and keep their history."""
        from hastetrio.postgres import PostgresJobProvider

        async with PostgresJobProvider.open(self.url) as provider:
            await provider.migrate()
        await trio.to_thread.run_sync(install_history, self.url)

    async def restart(self, kind: str, down: float) -> bool:
        """Stop it, fast or immediately, and start it after `down` seconds; False if it was away."""
        pid = self._server.server_pid()
        if pid is None:
            return False
        began = time.time()
        os.kill(pid, signal.SIGINT if kind == "restart-fast" else signal.SIGQUIT)
        await trio.to_thread.run_sync(self._server.wait_stopped, _STOP_SERVER_TIMEOUT)
        await trio.sleep(down)
        await self.start()
        self._journal.write("outage", what=kind, began=began)
        return True

    async def break_backends(self, kind: str, share: float, seconds: float) -> bool:
        """End some connections, stop them for a while, or kill one; False if there was none.

        A killed one makes the server end all the others too, and recover.
        """
        began = time.time()
        try:
            pids = await trio.to_thread.run_sync(self._end_backends, kind, share)
        except psycopg.OperationalError:
            return False
        if kind == "stall":
            # What is under way there is done later, when its worker has given up on it.
            try:
                _send(pids, signal.SIGSTOP)
                await trio.sleep(seconds)
            finally:
                _send(pids, signal.SIGCONT)
        if pids:
            self._journal.write("outage", what=kind, began=began)
        return bool(pids)

    def _end_backends(self, kind: str, share: float) -> list[int]:
        """End or kill connections, if that is the fault; returns which were chosen for it."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            found = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
                "AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
            pids = [pid for (pid,) in found]
            chosen = random.sample(pids, math.ceil(len(pids) * share))
            if kind == "crash":
                chosen = chosen[:1]
                _send(chosen, signal.SIGKILL)
            elif kind == "terminate":
                for pid in chosen:
                    connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
            return chosen

    async def fetch(self, statements: str) -> list[tuple[Any, ...]]:
        """What the last of some statements answers, asked on a connection of its own."""

        def ask() -> list[tuple[Any, ...]]:
            with psycopg.connect(self.url, autocommit=True) as connection:
                cursor = connection.execute(statements.encode())
                while cursor.nextset():
                    pass
                return cursor.fetchall() if cursor.description else []

        return await trio.to_thread.run_sync(ask)

    def stop(self) -> bool:
        """Let go of it; says whether every process of it has gone."""
        self._server.stop()
        return self._server.wait_stopped(_STOP_SERVER_TIMEOUT)


class Slot:
    """A worker process, replaced when it ends, each under a name of its own.

    Args:
        number: The slot.
        folder: The soak's folder.
        journal: Where it is noted what was done to it.
        url: The database.
        lease: The lease duration, seconds.
    """

    def __init__(self, number: int, folder: Path, journal: Journal, url: str, lease: float) -> None:
        self._number = number
        self._folder = folder
        self._journal = journal
        self._url = url
        self._lease = lease
        self._generation = 0
        self._process: trio.Process | None = None
        self._name = ""
        self._away = 0.0
        self._ending = trio.Event()

    async def run(self) -> None:
        """Keep a worker running until `end`.

        Cancellation: the worker is killed.
        """
        while not self._ending.is_set():
            await self._start()
            process = self._process
            assert process is not None  # noqa: S101  # just started
            if self._ending.is_set():
                self.term()
            try:
                code = await process.wait()
            except trio.Cancelled:
                process.send_signal(signal.SIGKILL)
                with trio.CancelScope(shield=True):
                    await process.wait()
                raise
            self._process = None
            self._journal.write("exit", worker=self._name, code=code)
            # One that cannot reach the database leaves at once; it is not started in a circle.
            await trio.sleep(max(self._away, 0.3))
            self._away = 0.0

    async def _start(self) -> None:
        self._generation += 1
        self._name = f"s{self._number}n{self._generation}"
        settings = {
            "database-url": self._url,
            "handlers": "tools.soak_handlers:HANDLERS",
            "lease-duration": self._lease,
            "poll-interval": 0.5,
            "maintenance-interval": 1,
            "max-concurrent-jobs": 16,
            "drain-timeout": DRAIN_TIMEOUT,
            "cancel-grace": CANCEL_GRACE,
            "log-format": "json",
        }
        options = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
        environment = os.environ | {
            "HOSTNAME": self._name,  # The worker's id, and with it its tokens, begin with it.
            FOLDER: str(self._folder),
            PARENT: str(os.getpid()),
        }
        (self._folder / "logs").mkdir(exist_ok=True)
        with (self._folder / "logs" / f"{self._name}.log").open("ab") as log:
            # A group of its own: Ctrl-C is for the soak, which ends its workers itself.
            self._process = await trio.lowlevel.open_process(
                [sys.executable, "-m", "hastetrio", "worker", *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=_ROOT,
                env=environment,
                process_group=0,
            )
        self._journal.write("spawn", worker=self._name, pid=self._process.pid)

    def kill(self, away: float = 0.0) -> bool:
        """SIGKILL; False if there is none now. The next one comes after `away` seconds."""
        self._away = away
        return self._signal(signal.SIGKILL, "kill")

    def term(self, away: float = 0.0) -> bool:
        """SIGTERM, as above."""
        self._away = away
        return self._signal(signal.SIGTERM, "term")

    async def stop(self, seconds: float, *, then_kill: bool) -> bool:
        """SIGSTOP, and after `seconds` SIGCONT or SIGKILL; False if there is none now."""
        if not self._signal(signal.SIGSTOP, "stop"):
            return False
        try:
            await trio.sleep(seconds)
        finally:
            if then_kill:
                self.kill()
            else:
                self._signal(signal.SIGCONT, "continue")
        return True

    def _signal(self, number: signal.Signals, event: str) -> bool:
        process = self._process
        if process is None or process.returncode is not None:
            return False
        # Noted before it is so for what explains something, after it for what ends that.
        if number != signal.SIGCONT:
            self._journal.write(event, worker=self._name)
        process.send_signal(number)
        if number == signal.SIGCONT:
            self._journal.write(event, worker=self._name)
        return True

    async def end(self) -> bool:
        """End the worker, and start no other; False if it had to be killed."""
        self._ending.set()
        if not self.term():
            return True
        process = self._process
        assert process is not None  # noqa: S101  # it was sent a signal
        with trio.move_on_after(_END_TIMEOUT):
            await process.wait()
            return True
        self.kill()
        return False
