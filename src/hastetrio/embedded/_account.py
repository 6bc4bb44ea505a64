"""As whom the server runs, and what that account can reach.

PostgreSQL refuses to run as root. An ordinary user's server runs as that user; root's runs as the
owner of what is there already, else as `postgres`, else as `nobody`. Nothing that was there before
is ever given another owner or mode; what root makes inside somebody's folder belongs to the owner
of that folder, so that the owner can go on without root.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path
from typing import Any, Final

import attrs

from hastetrio.embedded._errors import EmbeddedUnavailable

_ACCOUNTS_FOR_ROOT: Final = ("postgres", "nobody")

_PROBE_TIMEOUT: Final = 20.0

# What a server needs of our environment. Everything else stays behind: PGPORT, PGOPTIONS and the
# like are defaults of its settings, a locale would translate the words this package looks for,
# with NOTIFY_SOCKET a server built for systemd would report in our name, and a root process's
# secrets are none of the server account's business.
_PASSED_ON: Final = ("PATH", "TZ", "TZDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


@attrs.frozen
class ServerAccount:
    """The account of the server's processes.

    Attributes:
        name: Its name, for messages.
        uid: Its user id.
        gid: Its group id.
        switch: Whether child processes have to change to it, because we are root.
    """

    name: str
    uid: int
    gid: int
    switch: bool

    def popen_options(self) -> dict[str, Any]:
        """Arguments of `subprocess` that make a child run as this account."""
        if not self.switch:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def can_enter(self, folder: Path) -> bool:
        """Whether this account can change into a folder."""
        if not self.switch:
            return os.access(folder, os.X_OK)
        # Asked of the kernel rather than worked out from mode bits, which know nothing of access
        # lists and security modules. `cwd=` would not do: it is applied before the change of user.
        try:
            answer = subprocess.run(
                ["/bin/sh", "-c", 'cd -- "$1"', "sh", str(folder)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                cwd="/",
                env=server_environment(),
                timeout=_PROBE_TIMEOUT,
                check=False,
                **self.popen_options(),
            )
        except subprocess.TimeoutExpired:  # A network folder that hangs is no place for data.
            return False
        return answer.returncode == 0


def choose_account(root: Path | None = None, data: Path | None = None) -> ServerAccount:
    """As whom to run the server; for an ordinary user, always as that user.

    Args:
        root: The root folder. If somebody owns it, that one's server runs there.
        data: The data directory. If it exists, its owner keeps it, whoever that is.

    Raises:
        EmbeddedUnavailable: We are root and there is no account to run a server as.
    """
    uid = os.geteuid()
    if uid != 0:
        return ServerAccount(_name_of(uid), uid, os.getegid(), switch=False)
    if data is not None and data.exists() and (status := data.stat()).st_uid != 0:
        return ServerAccount(_name_of(status.st_uid), status.st_uid, status.st_gid, switch=True)
    # Only accounts with a passwd entry: initdb refuses to work for others.
    owner = root.stat().st_uid if root is not None and root.exists() else 0
    candidates = [_entry_of_uid(owner) if owner else None]
    candidates += [_entry_of_name(name) for name in _ACCOUNTS_FOR_ROOT]
    for entry in candidates:
        if entry is not None:
            return ServerAccount(entry.pw_name, entry.pw_uid, entry.pw_gid, switch=True)
    raise EmbeddedUnavailable(
        "PostgreSQL refuses to run as root, and there is no account `postgres` or `nobody` to run "
        "it as: run this as an ordinary user, or give --database-url"
    )


def server_environment() -> dict[str, str]:
    """The environment of the server and of everything that runs as its account."""
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return passed_on | {"LC_ALL": "C"}


def check_reach(account: ServerAccount, folder: Path) -> None:
    """Make sure the server can get to a folder.

    Raises:
        EmbeddedUnavailable: It cannot; the line names the folder that is in the way.
    """
    if account.can_enter(folder):
        return
    steps = [*reversed(folder.parents), folder]
    barrier = next((step for step in steps if not account.can_enter(step)), folder)
    raise EmbeddedUnavailable(
        f"the embedded PostgreSQL runs as `{account.name}`, which may not enter {barrier}: "
        "give a --data-dir that it can reach"
    )


def make_folder(folder: Path) -> None:
    """Make a folder and the missing ones above it; leave those that exist as they are.

    Raises:
        OSError: One of them cannot be made.
    """
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return
    if os.geteuid() == 0:
        # The server's account has to pass through, whatever root's umask says.
        folder.chmod(0o755)
        give_to_owner_of(folder.parent, folder)


def give_to_owner_of(folder: Path, made: Path | int) -> None:
    """Give something root has just made to the owner of the folder it was made in."""
    if os.geteuid() != 0:
        return
    status = folder.stat()
    if isinstance(made, int):
        os.fchown(made, status.st_uid, status.st_gid)
    else:
        os.chown(made, status.st_uid, status.st_gid, follow_symlinks=False)


def _name_of(uid: int) -> str:
    entry = _entry_of_uid(uid)
    return entry.pw_name if entry else str(uid)


def _entry_of_uid(uid: int) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        return None


def _entry_of_name(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None
