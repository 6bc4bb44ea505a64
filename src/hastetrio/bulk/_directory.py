"""Where the files of one job lie, and how they get there: written aside, then renamed.

Three kinds of directory inside the output directory belong to a job, and nothing else does:

- `<name>`: the finished export;
- `.<name>.<claim>.tmp`: what the attempt under that claim is writing;
- `.<name>.<random>.old`: what is being deleted.

Why no attempt can spoil another's export: a directory is *renamed* to `.old` before it is deleted.
An attempt whose lease lapsed may still write for a moment (its machine was paused, say). Once its
successor, or `expire`, has renamed its temporary directory, its next file cannot be created and
its final rename finds nothing: what it does late leaves no trace.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

logger = logging.getLogger("hastetrio.bulk")

# Lower case only: "A" and "a" are one name on a file system that ignores case (macOS).
_PLAIN_ID: Final = re.compile(r"[a-z0-9-][a-z0-9.-]{0,63}")
_PLAIN_CLAIM: Final = re.compile(r"[a-z0-9]{1,32}")

# What opening says of something that is not there, or no file: nothing of that name, or something
# else in a directory's place; a link that is not followed; a socket.
_NO_FILE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})


def directory_name(job_id: str) -> str:
    """The name of the directory that holds a job's files.

    An id of up to 64 lower-case letters, digits, `-` and `.` that does not begin with `.` is its
    own name. Any other becomes `_` and its SHA-256 in hex: 65 characters, safe on every file
    system, and never the name of a plain id, because those hold no `_`.
    """
    if _PLAIN_ID.fullmatch(job_id):
        return job_id
    return "_" + hashlib.sha256(job_id.encode("utf-8", "surrogatepass")).hexdigest()


def open_file(output: Path, job_id: str, name: str) -> BinaryIO | None:
    """Open a file of a job's finished export; None if there is none.

    Only a regular file that lies in the job's own directory is opened, whatever somebody put
    there: no link is followed, neither in the directory's place nor in the file's, and nothing
    waits for a pipe's other end. `output` itself may be a link.

    Args:
        output: The directory that holds the exports of all jobs.
        job_id: Any text.
        name: A file's name, without a slash.

    Raises:
        OSError: There may be one, but it cannot be opened.
    """
    with contextlib.ExitStack() as stack:

        def opened(path: str | Path, flags: int, parent: int | None = None) -> int:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags, dir_fd=parent)
            stack.callback(os.close, descriptor)
            return descriptor

        try:
            exports = opened(output, os.O_DIRECTORY)
            own = opened(directory_name(job_id), os.O_DIRECTORY | os.O_NOFOLLOW, exports)
            file = opened(name, os.O_NOFOLLOW | os.O_NONBLOCK, own)
        except OSError as error:
            if error.errno in _NO_FILE:
                return None
            raise
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        # A duplicate, for the caller to close: the stack closes what was opened here.
        return os.fdopen(os.dup(file), "rb")


class JobDirectory:
    """The directories of one job. Its methods block: call them in a thread.

    Args:
        output: The directory that holds the exports of all jobs.
        job_id: Any text.
        check: Called between two files while deleting; it raises to stop.
    """

    def __init__(self, output: Path, job_id: str, check: Callable[[], None]) -> None:
        name = directory_name(job_id)
        self._output = output
        self._check = check
        self._prefix = f".{name}."
        # No claim holds a dot: job "a" does not take ".a.b.<claim>.tmp", of job "a.b", for its own.
        self._ours = re.compile(re.escape(self._prefix) + r"[a-z0-9]+\.(?:tmp|old)")
        self.final = output / name

    def temporary(self, claim: str) -> Path:
        """The directory the attempt under `claim` writes into."""
        if not _PLAIN_CLAIM.fullmatch(claim):
            claim = hashlib.sha256(claim.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return self._output / f"{self._prefix}{claim}.tmp"

    def begin(self, claim: str) -> Path:
        """Make a new, empty temporary directory, and delete what earlier attempts left in theirs.

        Only the holder of the job's lease may call this: it stops every other attempt of the job.

        Raises:
            OSError: The output directory cannot be written.
        """
        self._output.mkdir(parents=True, exist_ok=True)
        try:
            self._remove_leftovers()
        except OSError:
            # It costs disk space until the job expires, no more.
            logger.warning("files of an earlier attempt could not be deleted", exc_info=True)
        temporary = self.temporary(claim)
        temporary.mkdir()
        return temporary

    def publish(self, claim: str) -> None:
        """Give the temporary directory its final name.

        A finished export of an earlier attempt, whose result was lost, is replaced: renamed away,
        put back if this attempt's own directory is gone, else deleted.

        Raises:
            OSError: The directory was taken away by a later attempt, or cannot be renamed.
        """
        temporary = self.temporary(claim)
        replaced = None
        if self._is_directory(self.final):
            replaced = self._aside()
            self.final.rename(replaced)
        try:
            temporary.rename(self.final)
        except BaseException:
            if replaced is not None:
                replaced.rename(self.final)
            raise
        if replaced is not None:
            try:
                self._delete(replaced)
            except OSError:
                logger.warning("a replaced export could not be deleted", exc_info=True)

    def discard(self, claim: str) -> None:
        """Delete the temporary directory of `claim`, if there is one.

        Raises:
            OSError: It cannot be deleted.
        """
        self._remove(self.temporary(claim))

    def remove(self) -> None:
        """Delete everything of the job. Doing it again, or for a job without files, is fine.

        Raises:
            OSError: Something cannot be deleted.
        """
        # Temporary directories first: until theirs is gone, a late attempt could still publish.
        self._remove_leftovers()
        self._remove(self.final)

    def _remove_leftovers(self) -> None:
        try:
            entries = [
                entry for entry in self._output.iterdir() if self._ours.fullmatch(entry.name)
            ]
        except FileNotFoundError:
            return
        for entry in entries:
            self._remove(entry)

    def _remove(self, path: Path) -> None:
        if not self._is_directory(path):
            if path.is_symlink() or path.exists():
                # This handler makes real directories only; whoever put this here still needs it.
                logger.warning("left in place, because it is not a directory: %s", path)
            return
        if path != self.final and path.suffix == ".old":
            self._delete(path)
            return
        aside = self._aside()
        try:
            path.rename(aside)
        except FileNotFoundError:
            return
        self._delete(aside)

    def _delete(self, directory: Path) -> None:
        """Delete a directory no attempt uses any more, file by file, following no link."""
        # A late attempt may be deleting the same directory: what it took is gone all the same.
        with contextlib.suppress(FileNotFoundError):
            for entry in directory.iterdir():
                self._check()
                if self._is_directory(entry):
                    shutil.rmtree(entry)
                else:
                    entry.unlink(missing_ok=True)
            directory.rmdir()

    def _aside(self) -> Path:
        return self._output / f"{self._prefix}{secrets.token_hex(8)}.old"

    @staticmethod
    def _is_directory(path: Path) -> bool:
        return path.is_dir() and not path.is_symlink()
