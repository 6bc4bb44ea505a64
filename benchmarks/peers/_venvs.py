"""The peers' virtual environments: one each, made once, kept in a cache folder."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.peers._children import end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.peers._systems import System

# Written last, so that an environment whose making was interrupted is made again.
_MARKER: Final = "benchmark.json"
_INSTALL_TIMEOUT: Final = 600.0
_NEWEST_MINOR: Final = 14
_ASK_VERSION: Final = "import sys; print(*sys.version_info[:2])"


class NotToBeHad(Exception):
    """A peer cannot be installed here; the text says why."""


def default_cache() -> Path:
    """Where the environments are kept when nobody says."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "hastetrio-bench"


def environment_of(
    system: System, cache: Path, pythons: Sequence[str], say: Callable[[str], None]
) -> Path:
    """The interpreter of the system's environment, which is made if it is not there.

    Args:
        system: The peer.
        cache: The folder of all environments.
        pythons: Further interpreters to try, before those found by themselves.
        say: Told when one is made, which takes up to a minute.

    Raises:
        NotToBeHad: There is no Python for it, or pip could not install it.
    """
    folder = cache / system.environment
    interpreter = folder / "bin" / "python"
    wanted = {"requirements": list(system.requirements), "python": list(system.python)}
    with _alone(cache):
        if interpreter.exists() and _marker(folder) == wanted:
            return interpreter
        say(f"{system.key}: installing {', '.join(system.requirements)}")
        shutil.rmtree(folder, ignore_errors=True)
        _make(folder, find_python(system.python, pythons), system.requirements)
        (folder / _MARKER).write_text(json.dumps(wanted), encoding="utf-8")
    return interpreter


def find_python(oldest: tuple[int, int], given: Sequence[str]) -> str:
    """An interpreter of at least that version, as close to our own as can be.

    Raises:
        NotToBeHad: There is none.
    """
    for candidate in [*given, sys.executable, *_others(oldest)]:
        found = _version(candidate)
        if found is not None and found >= oldest:
            return candidate
    raise NotToBeHad(
        f"it needs Python {oldest[0]}.{oldest[1]} or later, and none was found: name one with "
        "--python"
    )


def _others(oldest: tuple[int, int]) -> Iterator[str]:
    for minor in range(oldest[1], _NEWEST_MINOR + 1):
        name = f"python{oldest[0]}.{minor}"
        yield name
        # Tools that keep several Pythons put them side by side, one folder a version.
        yield from map(str, sorted(Path(sys.base_prefix).parent.glob(f"*/bin/{name}")))


def _version(python: str) -> tuple[int, int] | None:
    try:
        # A stand-in of a version manager exists for every Python, and fails for most.
        answer = subprocess.run(
            [python, "-c", _ASK_VERSION], capture_output=True, text=True, timeout=20, check=True
        )
        major, minor = map(int, answer.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return major, minor


def _make(folder: Path, python: str, requirements: Sequence[str]) -> None:
    _call([python, "-m", "venv", str(folder)])
    _call([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *requirements])


def _call(command: Sequence[str]) -> None:
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=_INSTALL_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise NotToBeHad(f"pip was not done after {_INSTALL_TIMEOUT:.0f} s") from None
        finally:
            end(process)
    if process.returncode:
        raise NotToBeHad(complaint(said) or f"{command[0]} ended with {process.returncode}")


def complaint(said: str) -> str:
    """The line of pip's (or any program's) words that says what went wrong."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(?i)error\b", line)]
    return (errors or lines or [""])[-1][:300]


def _marker(folder: Path) -> object:
    try:
        return json.loads((folder / _MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


@contextmanager
def _alone(cache: Path) -> Iterator[None]:
    """One process at a time makes environments in that folder."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
