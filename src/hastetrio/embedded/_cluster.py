"""One cluster on disk: making it, its log, its pid file, and where its socket goes."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs

from hastetrio.embedded._account import ServerAccount, give_to_owner_of, server_environment
from hastetrio.embedded._binaries import Binaries
from hastetrio.embedded._errors import EmbeddedUnavailable

_log = logging.getLogger("hastetrio.embedded")

SUPERUSER: Final = "hastetrio"
PORT: Final = 5432  # Only part of the socket's name: the server listens on no network.

# A socket's path may have 107 bytes (Linux) or 103 (macOS); "/.s.PGSQL.5432" takes 14 of them and
# PostgreSQL's lock file beside it 5 more.
_LONGEST_FOLDER: Final = 80

# Both the server's setting and libpq's `host` are lists, with commas and quoting rules.
_PLAIN_PATH: Final = re.compile(r"/[\w./+@:~ -]*")

_LOG_LIMIT: Final = 1 << 20
_LINE_LIMIT: Final = 300


@attrs.frozen
class RunningServer:
    """What a server says about itself in its pid file once it answers.

    Attributes:
        pid: The postmaster's.
        socket_folder: Where its socket is, libpq's `host`.
    """

    pid: int
    socket_folder: str


@attrs.frozen
class Cluster:
    """The files of one cluster, all in one folder that is named after the major version.

    Attributes:
        folder: That folder.
    """

    folder: Path

    @property
    def data(self) -> Path:
        """PostgreSQL's data directory."""
        return self.folder / "data"

    @property
    def log(self) -> Path:
        """What initdb, the keeper and the server write."""
        return self.folder / "server.log"

    @property
    def users_lock(self) -> Path:
        """Held shared by every user, exclusively by the keeper that stops the server."""
        return self.folder / "users.lock"

    @property
    def keeper_lock(self) -> Path:
        """Held by the keeper; holds its pid."""
        return self.folder / "keeper.lock"

    @property
    def server_lock(self) -> Path:
        """Held by whoever starts the server, and by each of its and initdb's processes."""
        return self.folder / "server.lock"

    def running(self) -> RunningServer | None:
        """The server that answers on this cluster's socket, if one does.

        The pid file alone proves nothing: after a SIGKILL it stays, and its pid may be a zombie's
        or by now somebody else's. A socket that nobody listens on any more refuses.
        """
        lines = self._pid_file_lines()
        if len(lines) < 8 or lines[7].strip() != "ready":
            return None
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                probe.connect(f"{lines[4]}/.s.PGSQL.{lines[3]}")
            except BlockingIOError:
                pass  # A full queue: somebody does listen.
            except OSError:
                return None
        return RunningServer(int(lines[0]), lines[4])

    def create(
        self,
        binaries: Binaries,
        account: ServerAccount,
        *,
        server_fd: int,
        sync: bool,
        deadline: float,
    ) -> None:
        """Run initdb, unless the cluster exists; interrupted at any point, it leaves none.

        Args:
            binaries: Whose initdb.
            account: Who will own it.
            server_fd: The held server lock, for initdb and its children to hold too.
            sync: Whether it must survive a power cut from the start.
            deadline: When to give up, on the monotonic clock.

        Raises:
            EmbeddedUnavailable: initdb failed, or what is there is no cluster of this major.
            OSError: The folder is not ours to write to.
        """
        if self.data.exists():
            self._check_existing(binaries)
            return
        others = sorted(p.parents[1].name for p in self.folder.parent.glob("pg*/data/PG_VERSION"))
        if others:
            _log.warning(
                "the embedded PostgreSQL found here is %s: making a new, empty cluster %s; "
                "the data in %s is left alone",
                binaries.version,
                self.folder,
                ", ".join(others),
            )
        unfinished = self.folder / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        if account.switch:
            os.chown(unfinished, account.uid, account.gid, follow_symlinks=False)
        command = [
            *(str(binaries.folder / "initdb"), "-D", str(unfinished), "-U", SUPERUSER),
            *("-A", "trust", "-E", "UTF8", "--locale=C", "--no-instructions"),
        ]
        start, log = self.open_log()
        try:
            result = subprocess.run(
                command if sync else [*command, "--no-sync"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=server_environment(),
                pass_fds=(server_fd,),
                start_new_session=True,  # Ctrl-C is for us to act on, not for initdb.
                timeout=max(0.1, deadline - time.monotonic()),
                check=False,
                **account.popen_options(),
            )
        except subprocess.TimeoutExpired:
            raise EmbeddedUnavailable(
                f"initdb did not finish in time in {self.folder}; its log is {self.log}"
            ) from None
        finally:
            os.close(log)
        if result.returncode != 0:
            raise EmbeddedUnavailable(
                f"initdb failed: {self.complaint(start)} (its log is {self.log})"
            )
        unfinished.rename(self.data)
        if sync:
            _sync_folder(self.folder)

    def drop_stale_pid_file(self) -> None:
        """Remove a pid file that would keep PostgreSQL from starting although nobody runs.

        To be called with the server lock held. PostgreSQL takes any live process with the recorded
        pid for a postmaster: a zombie nobody reaps, or a neighbour that got the number after a
        container was restarted. Only where /proc shows that it is no postmaster of this cluster
        (they run inside their data directory) is the file removed; elsewhere PostgreSQL decides.
        """
        try:
            pid = int(self._pid_file_lines()[0])
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state not in {"Z", "X"} and Path(f"/proc/{pid}/cwd").samefile(self.data):
                return
        except (OSError, ValueError, IndexError):
            return
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def socket_folder(self, account: ServerAccount) -> tuple[Path, bool]:
        """Where the socket goes, made if need be: the data directory, when its path permits.

        Returns:
            The folder, and whether it is a private one, to be removed when the server is gone.

        Raises:
            EmbeddedUnavailable: The private folder's name is taken by somebody else.
        """
        path = str(self.data)
        if len(os.fsencode(path)) <= _LONGEST_FOLDER and _PLAIN_PATH.fullmatch(path):
            return self.data, False
        name = f"hastetrio-{account.uid}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"
        places = [Path(tempfile.gettempdir()).absolute() / name, Path("/tmp") / name]  # noqa: S108
        folder = next(
            place
            for place in places
            if place == places[-1]
            or (
                len(os.fsencode(place)) <= _LONGEST_FOLDER
                and _PLAIN_PATH.fullmatch(str(place))
                and account.can_enter(place.parent)
            )
        )
        _claim_private_folder(folder, account)
        return folder, True

    def open_log(self) -> tuple[int, int]:
        """The log's size and a descriptor that appends to it; a long log is set aside first."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        if self.log.exists() and self.log.stat().st_size > _LOG_LIMIT:
            self.log.replace(self.log.with_name("server.log.old"))
        made = not self.log.exists()
        fd = os.open(self.log, flags, 0o600)
        if made:
            give_to_owner_of(self.folder, fd)
        return os.fstat(fd).st_size, fd

    def complaint(self, start: int) -> str:
        """The last line of the log from a position on that says what is wrong, or else the last."""
        with self.log.open("rb") as log:
            log.seek(start)
            text = log.read().decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if re.search(r"\b(FATAL|PANIC|ERROR|error):", line)]
        return (errors or lines or ["no word in the log"])[-1][:_LINE_LIMIT]

    def _check_existing(self, binaries: Binaries) -> None:
        try:
            found = (self.data / "PG_VERSION").read_text().strip()
        except FileNotFoundError:
            found = ""
        if found != str(binaries.major):
            what = f"a cluster of PostgreSQL {found}" if found else "no PostgreSQL cluster"
            raise EmbeddedUnavailable(
                f"{self.data} is {what}, and {binaries.major} is what runs here: "
                "move it away, or give another --data-dir"
            )

    def _pid_file_lines(self) -> Sequence[str]:
        try:
            return (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return ()


def _claim_private_folder(folder: Path, account: ServerAccount) -> None:
    try:
        folder.mkdir(mode=0o700)
        made = True
    except FileExistsError:
        made = False
    status = folder.lstat()
    ours = {account.uid, os.geteuid()}
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in ours or status.st_mode & 0o077:
        raise EmbeddedUnavailable(
            f"{folder}, where the embedded PostgreSQL's socket belongs, is not a private folder of "
            f"`{account.name}`: remove it, or give a --data-dir with a shorter path"
        )
    # Root's own may be left from a start that was killed at this line.
    if account.switch and (made or status.st_uid == os.geteuid()):
        os.chown(folder, account.uid, account.gid, follow_symlinks=False)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
