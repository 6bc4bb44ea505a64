"""Where the files of one job lie, and how they get there: written aside, then renamed.

Three kinds of directory inside the output directory belong to a job, and nothing else does:

- `<name>`: the finished export;
- `.<name>.<claim>.tmp`: what the attempt under that claim is writing;
- `.<name>.<random>.old`: what is being deleted; `.<name>.<claim>.old`: what a later attempt takes
  files over from, before it is deleted.

Why no attempt can spoil another's export: a directory is *renamed* to `.old` before it is deleted.
An attempt whose lease lapsed may still write for a moment (its machine was paused, say). Once its
successor, or `expire`, has renamed its temporary directory, its next file cannot be created and
its final rename finds nothing: what it does late leaves no trace.

That holds for files that are taken over, too (`adopt`). A late attempt may hold a file open for
writing while its directory is renamed, or stand between finding the directory and making a file in
it; neither goes by the name any more. So the successor has a directory of its own, and what the
late attempt may still have open, the last file of each type, is *copied* into it, up to the size
that was saved. The files before the last are full: an attempt that has saved a state never opens
them again. They are linked, which costs nothing however large they are.
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, Final

logger = logging.getLogger("hastetrio.bulk")

# Lower case only: "A" and "a" are one name on a file system that ignores case (macOS).
_PLAIN_ID: Final = re.compile(r"[a-z0-9-][a-z0-9.-]{0,63}")
_PLAIN_CLAIM: Final = re.compile(r"[a-z0-9]{1,32}")

# What opening says of something that is not there, or no file: nothing of that name, or something
# else in a directory's place; a link that is not followed; a socket.
_NO_FILE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})

# Some milliseconds of copying, between two looks at whether to go on.
_COPY_CHUNK: Final = 1024 * 1024


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
        self._clear()
        temporary = self.temporary(claim)
        temporary.mkdir()
        return temporary

    def adopt(
        self, earlier: str, claim: str, *, full: Mapping[str, int], last: Mapping[str, int]
    ) -> Path:
        """Make a temporary directory with files of an earlier attempt, and stop that attempt.

        Only the holder of the job's lease may call this. What the files were taken from stays
        until `forget`, so that an attempt that ends before then has taken nothing away.

        Args:
            earlier: The claim of the earlier attempt.
            claim: This attempt's.
            full: The files that are written no more, with their sizes.
            last: Those that are added to, with the sizes they had when the state was saved.

        Raises:
            OSError: A file is not there or not of that size, or cannot be taken. What was taken is
                for `begin` to delete.
        """
        source = self._adopted(earlier)
        # Where it is not there, an attempt between that one and this renamed it.
        with contextlib.suppress(FileNotFoundError):
            self.temporary(earlier).rename(source)
        if not self._is_directory(source):
            raise FileNotFoundError("the files of the earlier attempt are gone")
        self._clear(source)
        temporary = self.temporary(claim)
        temporary.mkdir()
        for name, size in full.items():
            self._check()
            self._link(source / name, temporary / name, size)
        for name, size in last.items():
            self._check()
            self._copy(source / name, temporary / name, size)
        return temporary

    def forget(self, earlier: str) -> None:
        """Delete what files were taken from.

        Raises:
            OSError: It cannot be deleted.
        """
        self._remove(self._adopted(earlier))

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

    def _adopted(self, earlier: str) -> Path:
        return self.temporary(earlier).with_suffix(".old")

    def _link(self, source: Path, target: Path, size: int) -> None:
        status = source.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            raise OSError(f"{source.name} is not the file of {size:,} bytes that it was")
        try:
            target.hardlink_to(source)
        except FileNotFoundError:
            raise
        except OSError:
            # Not every file system has hard links.
            self._copy(source, target, size)

    def _copy(self, source: Path, target: Path, size: int) -> None:
        """Copy the first `size` bytes of a file, and have the disk hold them."""
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb", buffering=0) as reader, target.open("xb") as writer:
            left = size
            while left:
                self._check()
                data = reader.read(min(left, _COPY_CHUNK))
                if not data:
                    raise OSError(f"{source.name} is {left:,} bytes shorter than it was")
                writer.write(data)
                left -= len(data)
            writer.flush()
            os.fsync(writer.fileno())

    def _clear(self, kept: Path | None = None) -> None:
        """Delete what earlier attempts left in their temporary directories."""
        try:
            self._remove_leftovers(kept)
        except OSError:
            # It costs disk space until the job expires, no more.
            logger.warning("files of an earlier attempt could not be deleted", exc_info=True)

    def _remove_leftovers(self, kept: Path | None = None) -> None:
        try:
            entries = [
                entry
                for entry in self._output.iterdir()
                if self._ours.fullmatch(entry.name) and entry != kept
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
