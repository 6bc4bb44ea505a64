"""Starts programs that do not outlive their test, and reads what they say."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import attrs
import pytest

T = TypeVar("T")

# Seconds that no step takes; they end a test that would hang.
SOON: Final = 60.0

PATH: Final = "/w/t1/p1/api/v1/fhir/r4"


def surroundings(**more: str) -> dict[str, str]:
    """The environment of a program: without the developer's settings, and without a proxy."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HASTETRIO_")}
    plain = {"NO_PROXY": "*", "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "COLUMNS": "200"}
    return kept | plain | more


@contextmanager
def started(
    command: Sequence[str],
    *,
    folder: Path | None = None,
    environ: Mapping[str, str] | None = None,
    output: int | None = subprocess.PIPE,
) -> Iterator[subprocess.Popen[str]]:
    """A program and all it starts, while the block lasts; stderr goes where stdout goes."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env=surroundings() if environ is None else environ,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def ended(
    command: Sequence[str],
    *,
    folder: Path | None = None,
    environ: Mapping[str, str] | None = None,
    seconds: float = SOON,
) -> tuple[int, str]:
    """Run a program to its end: its exit code, and what it said.

    Raises:
        TimeoutExpired: It did not end in time; it was killed.
    """
    with started(command, folder=folder, environ=environ) as process:
        said, _ = process.communicate(timeout=seconds)
        return process.returncode, said


def until(look: Callable[[], T | None], what: str) -> T:
    """Look again and again, until there is something.

    Raises:
        AssertionError: It never was.
    """
    end = time.monotonic() + SOON
    while time.monotonic() < end:
        found = look()
        if found is not None:
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come")


@attrs.frozen
class Served:
    """A server process.

    Attributes:
        url: Where it listens.
        log: Its log's file.
    """

    url: str
    log: Path

    @property
    def base(self) -> str:
        """The base of a project's FHIR server."""
        return self.url + PATH


@contextmanager
def serving(
    folder: Path, *arguments: str, environ: Mapping[str, str] | None = None
) -> Iterator[Served]:
    """`hastetrio serve --worker` with these arguments; at the end it must stop in good order."""
    log = folder / "serve.log"
    command = [sys.executable, "-m", "hastetrio", "serve", "--worker", *arguments]
    package = Path(sys.modules["hastetrio"].__path__[0]).resolve().parent
    # The handlers of these tests are found as well.
    path = os.pathsep.join(map(str, (package, Path(__file__).parent)))
    environ = surroundings(PYTHONPATH=path, **(environ or {}))
    with (
        log.open("w") as file,
        started(command, folder=folder, environ=environ, output=file.fileno()) as process,
    ):
        served = Served(until(lambda: _address(process, log), "a listening server"), log)
        yield served
        process.send_signal(signal.SIGTERM)
        code = process.wait(SOON)
    said = log.read_text("utf-8")
    assert code == 0, said
    assert "Traceback" not in said


def _address(process: subprocess.Popen[str], log: Path) -> str | None:
    said = log.read_text("utf-8")
    if found := re.search(r"Listening on (http://\S+)", said):
        return found[1]
    if process.poll() is not None:
        pytest.fail(f"the server ended before it listened: {said}")
    return None
