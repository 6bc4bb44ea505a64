"""The keeper: a process that owns the server and stops it when the last user has gone.

Run by file path, in isolated mode, so that it imports nothing of this package and stays small; it
is written for that and uses the standard library only. Its arguments are those that `command_for`
puts together. It inherits two descriptors, both holding exclusive locks: its own, which says that
somebody looks after the server, and the server's, which it passes on and which every process of
the server therefore holds.

On Linux a killed keeper takes the server along (the kernel is asked to interrupt the server when
its parent dies). Elsewhere the server stays up without a keeper, until the next start finds it so
and stops it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

_PR_SET_PDEATHSIG = 1

# A fast shutdown ends with a checkpoint and takes 20 to 80 ms here. One that hangs would hold up
# everybody who wants to start again, and the immediate shutdown after it loses nothing: the next
# start replays the log.
_FAST_SHUTDOWN_SECONDS = 60.0


def command_for(
    users_lock: str, keeper_fd: int, server_fd: int, socket_folder: str, identity: str
) -> list[str]:
    """The command line of a keeper, to which the server's own command line is added.

    Args:
        users_lock: The lock file of which every user holds a shared lock.
        keeper_fd: The inherited lock that says a keeper is there; its pid is written to the file.
        server_fd: The inherited lock that the server's processes hold.
        socket_folder: A folder to remove when the server is gone, or "".
        identity: "uid:gid" to run the server as, or "".
    """
    # -I and -S: neither the caller's environment nor its installed packages change the keeper,
    # and it starts in 15 ms.
    return [
        *(sys.executable, "-I", "-S", __file__),
        *(users_lock, str(keeper_fd), str(server_fd), socket_folder, identity),
    ]


def main(arguments: Sequence[str]) -> None:
    """Detach, start the server, and wait for its end or for that of its users."""
    users_lock, keeper_fd, server_fd, socket_folder, identity, *server = arguments
    # The starter waits for this process. Its child is init's to reap, not a zombie of the starter.
    if os.fork():
        os._exit(0)
    # The signals of a service manager that ends a whole group reach us too, while workers still
    # drain. No-op handlers, unlike ignoring, are not inherited by the server.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.ftruncate(int(keeper_fd), 0)
    os.pwrite(int(keeper_fd), f"{os.getpid()}\n".encode(), 0)
    users = os.open(users_lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        postmaster = _start(server, int(server_fd), identity)
    except OSError as error:
        os.write(2, f"FATAL:  cannot run {server[0]}: {error.strerror}\n".encode())
        _remove(socket_folder)
        os._exit(1)
    os.close(int(server_fd))
    gone = threading.Event()
    threading.Thread(target=_stop_when_unused, args=(users, postmaster, gone), daemon=True).start()
    postmaster.wait()
    gone.set()
    _remove(socket_folder)
    os._exit(0)


def _start(server: list[str], server_fd: int, identity: str) -> subprocess.Popen[bytes]:
    uid, _, gid = identity.partition(":")
    prctl = _find_prctl()
    keeper = os.getpid()

    def die_with_keeper() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
            if os.getppid() != keeper:  # It died before it could be watched.
                os._exit(1)

    # Forked by the main thread, which lives as long as the process: the kernel watches the thread.
    return subprocess.Popen(
        server,
        stdin=subprocess.DEVNULL,
        cwd="/",
        pass_fds=(server_fd,),
        preexec_fn=die_with_keeper,  # noqa: PLW1509 - there is one thread yet
        user=int(uid) if uid else None,
        group=int(gid) if gid else None,
        extra_groups=[] if uid else None,
    )


def _find_prctl() -> Callable[[int, int], object] | None:
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        prctl: Callable[[int, int], object] = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None
    return prctl


def _stop_when_unused(
    users: int, postmaster: subprocess.Popen[bytes], gone: threading.Event
) -> None:
    fcntl.flock(users, fcntl.LOCK_EX)
    # Held until this process ends: a new user waits, and then starts a server of its own.
    postmaster.send_signal(signal.SIGINT)
    if not gone.wait(_FAST_SHUTDOWN_SECONDS):
        postmaster.send_signal(signal.SIGQUIT)


def _remove(socket_folder: str) -> None:
    if not socket_folder:
        return
    with contextlib.suppress(OSError):
        for name in os.listdir(socket_folder):  # noqa: PTH208 - pathlib takes 8 ms to import
            if name.startswith(".s.PGSQL."):
                os.unlink(os.path.join(socket_folder, name))  # noqa: PTH108, PTH118
        os.rmdir(socket_folder)  # noqa: PTH106


if __name__ == "__main__":
    main(sys.argv[1:])
