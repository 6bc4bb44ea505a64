"""Ends what the benchmark started, with everything that this started in turn."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a child and all of its session, and wait for the child.

    Children are started in sessions of their own: Ctrl-C goes to this process alone, which then
    ends them here, also those that pip and the like start themselves.
    """
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
