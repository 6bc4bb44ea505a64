"""Medians with their spread, plain tables, and what the machine is."""

from __future__ import annotations

import os
import platform
import statistics
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import psycopg

if TYPE_CHECKING:
    from collections.abc import Sequence


@attrs.frozen
class Spread:
    """A median with the first and the last tenth of what it is the median of."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of some values, of which there is one at least."""
        ordered = sorted(values)
        tenth = (len(ordered) - 1) // 10
        return cls(statistics.median(ordered), ordered[tenth], ordered[-1 - tenth])

    def text(self, digits: int = 2) -> str:
        """For a table: the median, then from where to where."""
        median, low, high = (f"{value:,.{digits}f}" for value in (self.median, self.low, self.high))
        return f"{median} ({low}..{high})"


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], *notes: str) -> str:
    """A titled table with numbers to the right, and notes below."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = [
        "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]
    return "\n".join((title, *(f"  {line}" for line in lines), *notes))


def machine(server_url: str) -> dict[str, str]:
    """What it runs on: processor, system, versions."""
    with psycopg.connect(server_url) as connection:
        row = connection.execute("SHOW server_version").fetchone()
    assert row is not None  # noqa: S101
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores, shared with the server",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "PostgreSQL": str(row[0]),
        "Python": platform.python_version(),
        **{name: version(name) for name in ("hastetrio", "trio", "psycopg")},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
