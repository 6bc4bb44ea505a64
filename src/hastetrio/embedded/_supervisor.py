"""One server for all the processes that want it: start it, share it, let go of it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from hastetrio.embedded import _keeper
from hastetrio.embedded._account import (
    ServerAccount,
    check_reach,
    choose_account,
    make_folder,
    server_environment,
)
from hastetrio.embedded._binaries import Binaries, find_binaries
from hastetrio.embedded._cluster import PORT, SUPERUSER, Cluster, RunningServer
from hastetrio.embedded._errors import EmbeddedUnavailable
from hastetrio.embedded._locks import LockFile, is_held, wait_until

_OPTION: Final = re.compile(r"[a-z_][a-z0-9_.]*\s*=.*", re.IGNORECASE | re.DOTALL)


def default_root() -> Path:
    """Where the data goes when nobody says: /var/lib/hastetrio for root, else the state folder.

    Raises:
        EmbeddedUnavailable: The user has no home folder.
    """
    if os.geteuid() == 0:
        return Path("/var/lib/hastetrio")
    state = os.environ.get("XDG_STATE_HOME", "")
    if Path(state).is_absolute():
        return Path(state) / "hastetrio"
    try:
        return Path.home() / ".local" / "state" / "hastetrio"
    except RuntimeError:
        raise EmbeddedUnavailable(
            "this user has no home folder to keep the embedded PostgreSQL's data in: "
            "give a --data-dir"
        ) from None


class EmbeddedPostgres:
    """This process's hold on an embedded server.

    Processes that name the same root share one server, started by the first and stopped when the
    last has let go or died. They need the same PostgreSQL major: the cluster is in
    ``root/pg<major>``, so that a later major never opens an older one's data. Threads may share
    one instance; several in one process are several users. A forked child is no user of its
    parent's server and may start() for itself.

    On macOS, where a dying keeper cannot take the server along, a server whose keeper was killed
    stays up until the next start, which replaces it.

    Args:
        root: Folder of the data; made, with those above it, when it is not there. A relative one
            counts from the current folder now. Default `default_root()`.
        options: Server settings such as "fsync=off". They count only for the process that starts
            the server: whoever finds one running shares it as it is.

    Raises:
        ValueError: An option is not of the form name=value.
        EmbeddedUnavailable: There is no default root, or no home that a "~" could stand for.
    """

    def __init__(self, root: Path | None = None, *, options: Sequence[str] = ()) -> None:
        for option in options:
            if not _OPTION.fullmatch(option):
                raise ValueError(f"a server option must look like name=value, not {option!r}")
        try:
            chosen = default_root() if root is None else Path(root).expanduser()
        except RuntimeError:
            raise EmbeddedUnavailable(f"{root} names a user without a home folder") from None
        # Not resolve(): the account of the server may take the way the caller named.
        self._root = Path(os.path.abspath(chosen))  # noqa: PTH100
        self._options = tuple(options)
        self._cluster: Cluster | None = None
        self._hold: LockFile | None = None
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @property
    def root(self) -> Path:
        """The absolute root folder."""
        return self._root

    @property
    def log(self) -> Path | None:
        """The server's log file; None before the first start."""
        return self._cluster.log if self._cluster else None

    def start(self, timeout: float = 30.0) -> str:
        """Hold a server that answers, starting it if need be.

        Blocks: under trio, call it in a thread. Repeating it is harmless, and revives a server
        that was killed.

        Args:
            timeout: How many seconds it may take; the very first start makes the cluster too.

        Returns:
            A libpq conninfo of the superuser and the database "postgres".

        Raises:
            EmbeddedUnavailable: There is no server to be had; this process then holds nothing.
        """
        deadline = time.monotonic() + timeout
        self._forget_parent()
        with self._lock:
            try:
                server = self._start(deadline)
            except BaseException as error:
                self._let_go()
                if isinstance(error, OSError):
                    raise EmbeddedUnavailable(self._about(error)) from error
                raise
        return f"host={_quoted(server.socket_folder)} port={PORT} user={SUPERUSER} dbname=postgres"

    def stop(self) -> None:
        """Let go of the server, which stops if this was the last user. Does not wait for that."""
        self._forget_parent()
        with self._lock:
            self._let_go()

    def wait_stopped(self, timeout: float = 30.0) -> bool:
        """Wait until the last process of the server this instance used, and its keeper, have gone.

        Args:
            timeout: How many seconds at most.

        Returns:
            False when they are still there, as they are while anybody uses the server.
        """
        cluster = self._cluster
        if cluster is None:
            return True
        return wait_until(
            lambda: not is_held(cluster.server_lock) and not is_held(cluster.keeper_lock),
            time.monotonic() + timeout,
        )

    def server_pid(self) -> int | None:
        """The postmaster's process id, if a server answers; for tests that break things."""
        server = self._cluster.running() if self._cluster else None
        return server.pid if server else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _start(self, deadline: float) -> RunningServer:
        make_folder(self._root)
        account = choose_account(self._root)
        check_reach(account, self._root)
        binaries = self._find_binaries(account)
        cluster = Cluster(self._root / f"pg{binaries.major}")
        make_folder(cluster.folder)
        owner = choose_account(self._root, cluster.data)
        if owner != account:
            account, binaries = owner, self._find_binaries(owner)
            cluster = Cluster(self._root / f"pg{binaries.major}")
        check_reach(account, cluster.folder)
        if self._cluster != cluster:
            self._let_go()
            self._cluster = cluster
        if self._hold is None:
            self._hold = LockFile(cluster.users_lock)
            # A keeper that is stopping the server keeps us waiting until it is done.
            if not wait_until(self._hold.try_shared, deadline):
                raise EmbeddedUnavailable(
                    f"the embedded PostgreSQL in {cluster.folder} has been stopping for too long; "
                    f"its log is {cluster.log}"
                )
        return _Starter(cluster, binaries, account, self._options).run(deadline)

    def _find_binaries(self, account: ServerAccount) -> Binaries:
        return find_binaries(account, copies=self._root / "binaries")

    def _let_go(self) -> None:
        if self._hold is not None:
            self._hold.release()
            self._hold = None

    def _forget_parent(self) -> None:
        """In a forked child: this hold was the parent's, and its lock is closed already."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._lock = threading.Lock()  # Some thread of the parent may have held the old one.
            self._hold = None

    def _about(self, error: OSError) -> str:
        where = error.filename if error.filename is not None else self._root
        return (
            f"cannot use {os.fsdecode(where)} for the embedded PostgreSQL: "
            f"{error.strerror or error}; give another --data-dir"
        )


class _Starter:
    """Brings about a server that answers; its caller is a user already.

    Several may be at it at once, in several processes: the server lock decides who makes the
    cluster and starts the keeper, and the others look on until the server answers.
    """

    def __init__(
        self,
        cluster: Cluster,
        binaries: Binaries,
        account: ServerAccount,
        options: Sequence[str],
    ) -> None:
        self._cluster = cluster
        self._binaries = binaries
        self._account = account
        self._options = options
        self._log_start: int | None = None  # Set once we have started a keeper.
        self._interrupted = False
        self._server: RunningServer | None = None

    def run(self, deadline: float) -> RunningServer:
        wait_until(lambda: self._attempt(deadline), deadline)
        if self._server is not None:
            return self._server
        said = "" if self._log_start is None else f": {self._cluster.complaint(self._log_start)}"
        raise EmbeddedUnavailable(
            f"the embedded PostgreSQL in {self._cluster.folder} was not ready in time{said} "
            f"(its log is {self._cluster.log})"
        )

    def _attempt(self, deadline: float) -> bool:
        if is_held(self._cluster.keeper_lock):
            self._server = self._cluster.running()
            return self._server is not None
        if self._log_start is not None:
            raise EmbeddedUnavailable(
                f"the embedded PostgreSQL did not start: "
                f"{self._cluster.complaint(self._log_start)} (its log is {self._cluster.log})"
            )
        server_lock = LockFile(self._cluster.server_lock)
        try:
            if server_lock.try_exclusive():
                self._launch(server_lock, deadline)
            else:
                self._interrupt_orphan()
        finally:
            server_lock.close()  # Not release(): the keeper and the server go on holding it.
        return False

    def _launch(self, server_lock: LockFile, deadline: float) -> None:
        """None of ours runs: make the cluster if it is not there, and hand it to a keeper."""
        cluster, account = self._cluster, self._account
        stranger = cluster.running()
        if stranger is not None:
            raise EmbeddedUnavailable(
                f"a PostgreSQL that somebody else started (process {stranger.pid}) runs in "
                f"{cluster.data}: stop it, or give another --data-dir"
            )
        cluster.create(
            self._binaries,
            account,
            server_fd=server_lock.fileno(),
            sync=not any(
                re.fullmatch(r"fsync\s*=\s*(off|false|no|0)", option) for option in self._options
            ),
            deadline=deadline,
        )
        cluster.drop_stale_pid_file()
        socket_folder, private = cluster.socket_folder(account)
        settings = [
            *self._options,
            # Last, because the last one wins: what this package relies on.
            "listen_addresses=",
            f"port={PORT}",
            f"unix_socket_directories={socket_folder}",
            "unix_socket_permissions=0777",
            "logging_collector=off",
        ]
        keeper_lock = LockFile(cluster.keeper_lock)
        try:
            if not keeper_lock.try_exclusive():
                return  # Somebody is just looking at it: the next attempt gets it.
            command = [
                *_keeper.command_for(
                    str(cluster.users_lock),
                    keeper_lock.fileno(),
                    server_lock.fileno(),
                    str(socket_folder) if private else "",
                    f"{account.uid}:{account.gid}" if account.switch else "",
                ),
                *(str(self._binaries.folder / "postgres"), "-D", str(cluster.data)),
                *(part for setting in settings for part in ("-c", setting)),
            ]
            self._log_start, log = cluster.open_log()
            try:
                # Returns at once: the process that is waited for only makes the keeper.
                subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env=server_environment(),
                    pass_fds=(keeper_lock.fileno(), server_lock.fileno()),
                    start_new_session=True,  # Ctrl-C of a terminal goes to its process group.
                    check=False,
                )
            finally:
                os.close(log)
        finally:
            keeper_lock.close()

    def _interrupt_orphan(self) -> None:
        """A server without a keeper: it is shutting down, or (not on Linux) has to be told to."""
        server = self._cluster.running()
        # Looked for again: somebody else may have started both since we saw no keeper.
        if server is None or self._interrupted or is_held(self._cluster.keeper_lock):
            return
        self._interrupted = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGINT)


def _quoted(value: str) -> str:
    if re.fullmatch(r"[\w./+@:~-]+", value):
        return value
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
