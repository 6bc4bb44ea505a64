"""Running the command line in this process, away from the developer's settings."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hastetrio.cli._app import app

from .harness import Run, Start


@pytest.fixture(autouse=True)
def clean_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings of the developer's, and logging as it was before the command set it up."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("HASTETRIO_"):
            monkeypatch.delenv(name)
    path = list(sys.path)
    loggers = [logging.getLogger(name) for name in (None, "hastetrio")]
    kept = [(one, list(one.handlers), one.level, one.propagate) for one in loggers]
    yield
    for logger, handlers, level, propagate in kept:
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate
    sys.path[:] = path


@pytest.fixture
def run() -> Run:
    """Run the command line with these arguments, in this process."""

    def call(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), input=stdin)

    return call


@pytest.fixture
def start() -> Iterator[Start]:
    """Start the command line as a process of its own, which does not outlive the test."""
    started: list[subprocess.Popen[str]] = []

    def call(
        *arguments: str, stdout: int = subprocess.PIPE, **environ: str
    ) -> subprocess.Popen[str]:
        # The same package, also where it is found by a path relative to the folder left above.
        package = Path(sys.modules["hastetrio"].__path__[0]).resolve().parent
        path = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))
        process = subprocess.Popen(
            [sys.executable, "-m", "hastetrio", *arguments],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, **environ},
        )
        started.append(process)
        return process

    yield call
    for process in started:
        if process.returncode is None:
            process.kill()
            process.communicate()
