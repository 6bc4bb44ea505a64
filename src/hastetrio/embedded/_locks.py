"""File locks that the kernel takes back from the dead, and the one place that polls.

A lock belongs to the open file, not to the process: whoever inherited the descriptor holds it too.
That is used on purpose for the server (its lock is free only when the last of its processes is
gone), and prevented for everything else: descriptors are closed on exec, and in forked children.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hastetrio.embedded._account import give_to_owner_of

# Neither a file lock with a deadline nor a starting postmaster offers an event to wait for. A warm
# start takes 70 to 200 ms, so 10 ms adds little to it and costs a waiting process almost nothing.
_LOOK_EVERY: Final = 0.01

_open_locks: set[LockFile] = set()


def wait_until(condition: Callable[[], bool], deadline: float) -> bool:
    """Ask until the answer is yes.

    Args:
        condition: What to ask; asked at least once.
        deadline: When to give up, on `time.monotonic()`'s clock.

    Returns:
        False when the deadline passed first.
    """
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_EVERY)
    return True


class LockFile:
    """One open file description of a lock file, made when it is not there.

    Two of these on one path are two holders, also within one process.

    Args:
        path: The lock file. Its folder must exist.

    Raises:
        OSError: The file cannot be opened or made.
    """

    def __init__(self, path: Path) -> None:
        self._fd: int | None = _open(path)
        _open_locks.add(self)

    def fileno(self) -> int:
        """The descriptor, to hand to a child process on purpose."""
        if self._fd is None:
            raise ValueError("this lock file is closed")
        return self._fd

    def try_shared(self) -> bool:
        """Take the shared lock if nobody holds the exclusive one."""
        return self._try(fcntl.LOCK_SH)

    def try_exclusive(self) -> bool:
        """Take the exclusive lock if nobody holds any."""
        return self._try(fcntl.LOCK_EX)

    def release(self) -> None:
        """Give the lock up, also for whoever inherited the descriptor, and close it."""
        if self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        self.close()

    def close(self) -> None:
        """Close this descriptor; a process that was handed it keeps the lock."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        _open_locks.discard(self)

    def _try(self, how: int) -> bool:
        try:
            fcntl.flock(self.fileno(), how | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
                return False
            raise
        return True


def is_held(path: Path) -> bool:
    """Whether somebody holds the exclusive lock of this file.

    Looking takes the shared lock for an instant, so whoever wants the exclusive one must try again.
    """
    try:
        lock = LockFile(path)
    except FileNotFoundError:  # Its folder has been deleted.
        return False
    try:
        return not lock.try_shared()
    finally:
        lock.release()


def _open(path: Path) -> int:
    # O_NOFOLLOW: root may be working in somebody else's folder, where a link could point anywhere.
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return os.open(path, flags)
    give_to_owner_of(path.parent, fd)
    return fd


def _close_in_child() -> None:
    for lock in list(_open_locks):
        lock.close()


# Close-on-exec says nothing about a fork without exec (multiprocessing): such a child would go on
# counting as a user after its parent was gone.
os.register_at_fork(after_in_child=_close_in_child)
