"""Folders that the server's account can reach, and users that can be killed."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

import hastetrio
from hastetrio.embedded import EmbeddedPostgres
from hastetrio.embedded._locks import is_held, wait_until

QUICK: Final = (
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "shared_buffers=16MB",
    "jit=off",
)
_SCRIPT: Final = Path(__file__).with_name("user_process.py")


def _environment() -> dict[str, str]:
    # Also for an interpreter outside of our virtual environment.
    places = [Path(hastetrio.__file__).parents[1], Path(attrs.__file__).parents[1]]
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places))}


@attrs.frozen
class OtherAccount:
    """An ordinary account that root can be, with an interpreter that it can run."""

    uid: int
    gid: int
    python: str

    def popen_options(self) -> dict[str, Any]:
        """Arguments that make a process of it."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


@pytest.fixture
def child_environment() -> dict[str, str]:
    """The environment in which a new interpreter finds this package."""
    return _environment()


@pytest.fixture(scope="session")
def nobody() -> OtherAccount:
    """The account `nobody`; skips where there is no way to be it."""
    if os.geteuid() != 0:
        pytest.skip("only root can change accounts")
    entry = pwd.getpwnam("nobody")
    # Root's interpreter may lie in root's home; then the system's, if it fits our packages.
    for python in (sys.executable, shutil.which("python3", path=os.defpath)):
        other = OtherAccount(entry.pw_uid, entry.pw_gid, python or "")
        with contextlib.suppress(OSError):
            answer = subprocess.run(
                [other.python, "-c", "import hastetrio.embedded"],
                capture_output=True,
                cwd="/",
                env=_environment(),
                **other.popen_options(),
            )
            if answer.returncode == 0:
                return other
    pytest.skip("`nobody` cannot run this package")


class Prepare:
    """Copies a cluster that was made before to another root."""

    def __init__(self, pristine: Path) -> None:
        self._pristine = pristine

    def __call__(self, root: Path, *, owner: OtherAccount | None = None) -> Path:
        """Make the root and its cluster; an owner gets the cluster, else it is the server's."""
        cluster = root / self._pristine.name
        cluster.mkdir(parents=True)
        # `cp`, because shutil copies no owners.
        subprocess.run(["cp", "-Rp", self._pristine / "data", cluster / "data"], check=True)
        if owner is not None:
            for path in [cluster / "data", *(cluster / "data").rglob("*")]:
                os.chown(path, owner.uid, owner.gid)
        return root


class Movable:
    """A root whose cluster was made before, to be moved to wherever a test wants one."""

    def __init__(self, home: Path) -> None:
        self.home = self.place = home

    def __call__(self, root: Path) -> Path:
        """Move it there; no server may be running in it."""
        root.parent.mkdir(parents=True, exist_ok=True)
        self.place = self.place.rename(root)
        return root


class UserProcess:
    """One process that uses the server of a root."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._report: dict[str, Any] | None = None

    @property
    def report(self) -> dict[str, Any]:
        """What it said when its start was over; waits for that."""
        if self._report is None:
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            assert line, f"the user died with {self.process.wait()}"
            self._report = json.loads(line)
        return self._report

    def end(self, number: int | None = None) -> int:
        """End it, by a signal or by letting it finish; returns its exit code."""
        if number is not None and self.process.poll() is None:
            os.kill(self.process.pid, number)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait()


class StartUser:
    """Starts users of a root; ends what a test left of them."""

    def __init__(self) -> None:
        self.users: list[UserProcess] = []

    def __call__(
        self, root: Path, *, child: str = "", other: OtherAccount | None = None
    ) -> UserProcess:
        """Start one, in a process group of its own; does not wait for its server."""
        identity = {} if other is None else other.popen_options()
        process = subprocess.Popen(
            [other.python if other else sys.executable, str(_SCRIPT), str(root), child, *QUICK],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env=_environment(),
            start_new_session=True,
            **identity,
        )
        self.users.append(UserProcess(process))
        return self.users[-1]

    def clean_up(self) -> None:
        """End every user and whatever it left running."""
        for user in self.users:
            if user.process.poll() is None:
                user.end(signal.SIGKILL)
            child = (user._report or {}).get("child")
            if child is not None:
                os.kill(child, signal.SIGKILL)


def _make_folder() -> Path:
    # Not tmp_path: pytest's own folder is closed to the account that runs root's server.
    folder = Path(tempfile.mkdtemp(prefix="hastetrio-test-", dir="/tmp"))
    folder.chmod(0o755)
    return folder


def _is_free(lock: Path) -> bool:
    return not is_held(lock)


def _remove_folder(folder: Path) -> None:
    """Remove a test's folder, and fail the test if any server outlived its users."""
    locks = [*folder.rglob("server.lock"), *folder.rglob("keeper.lock")]
    deadline = time.monotonic() + 30
    left = [lock for lock in locks if not wait_until(partial(_is_free, lock), deadline)]
    shutil.rmtree(folder)
    assert not left, f"a server was left behind: {left}"


@pytest.fixture
def start_user(folder: Path, root: Path) -> Iterator[StartUser]:
    """Start users in processes of their own; they end before the folders go."""
    start = StartUser()
    yield start
    start.clean_up()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for one test, which the server's account can reach."""
    made = _make_folder()
    yield made
    _remove_folder(made)


@pytest.fixture(scope="session")
def pristine() -> Iterator[Path]:
    """The folder of a new cluster, made once: initdb is most of what a fresh start costs."""
    made = _make_folder()
    server = EmbeddedPostgres(made, options=QUICK)
    with server:
        assert server.log is not None
    assert server.wait_stopped()
    yield server.log.parent
    _remove_folder(made)


@pytest.fixture(scope="session")
def prepare(pristine: Path) -> Prepare:
    """Put a cluster where a test wants one."""
    return Prepare(pristine)


@pytest.fixture(scope="session")
def root(prepare: Prepare) -> Iterator[Path]:
    """A root for many tests; each leaves it without a server."""
    made = _make_folder()
    yield prepare(made)
    _remove_folder(made)


@pytest.fixture
def move_root(root: Path) -> Iterator[Movable]:
    """Move the root of many tests, for one of them; quicker than making another."""
    movable = Movable(root)
    yield movable
    movable(root)
