"""Printing: alignment, control characters, times, and JSON that every reader takes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest

from hastetrio._model import AsyncJobStatus
from hastetrio.cli import _format


def test_a_table_is_aligned_and_empty_cells_show(capsys: pytest.CaptureFixture[str]) -> None:
    """Text stands to the left, numbers to the right, wide characters take two columns."""
    _format.echo_table(("NAME", "N", "LAST"), [("a", 5, None), ("\u65e5\u672c\u8a9e", 12, "x")])
    assert capsys.readouterr().out == "NAME     N  LAST\na        5  -\n\u65e5\u672c\u8a9e  12  x\n"


def test_a_line_is_cut_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A long progress text must not break the table into two lines a row."""
    _format.echo_table(("A", "B"), [("x", "y" * 50)], width=10)
    assert capsys.readouterr().out.splitlines()[1] == "x  yyyyyy\u2026"


def test_control_characters_do_not_reach_the_terminal() -> None:
    """Progress comes from other programs; an escape sequence in it could rewrite the screen."""
    assert _format.one_line("a\x1b[2Jb\nc\x9bd\u202ee\u2028f") == "a [2Jb c d e f"
    assert "\x1b" not in _format.cell("a\x1bb")
    assert "\x9b" not in _format.pretty({"a\x9b": "\x1b"})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (1.25, "1.2 s"),
        (59.7, "1 min"),
        (3725, "1 h 2 min"),
        (3600, "1 h"),
        (200_000, "2 d 7 h"),
        (-3, "-3.0 s"),
        (float("nan"), "-"),
        (float("inf"), "-"),
    ],
)
def test_durations_for_a_person(seconds: float, text: str) -> None:
    """Two units are enough to judge by."""
    assert _format.duration(seconds) == text


def test_times_are_iso() -> None:
    """Sortable, unambiguous, and with the offset."""
    time = datetime(2026, 1, 2, 3, 4, 5, 678, UTC)
    assert _format.iso(time) == "2026-01-02T03:04:05Z"
    assert _format.iso(time.astimezone(timezone(timedelta(hours=1)))) == "2026-01-02T04:04:05+01:00"


def test_json_is_strict(capsys: pytest.CaptureFixture[str]) -> None:
    """NaN is no JSON; enums and times appear as their text."""
    value = {
        "a": float("nan"),
        "b": [float("inf"), 1.5],
        "c": AsyncJobStatus.FAILED,
        "d": datetime(2026, 1, 2, tzinfo=UTC),
        "e": ("x", None, True),
    }
    _format.echo_json(value)
    read = json.loads(capsys.readouterr().out, parse_constant=lambda _: pytest.fail("no JSON"))
    assert read == {
        "a": None,
        "b": [None, 1.5],
        "c": "failed",
        "d": "2026-01-02T00:00:00+00:00",
        "e": ["x", None, True],
    }
    _format.echo_json_line(value)
    assert capsys.readouterr().out.count("\n") == 1


def test_a_long_value_is_cut_with_a_word_on_it() -> None:
    """A result of 16 MiB must not scroll everything else away."""
    text = _format.pretty(["x" * 100], limit=50)
    assert len(text.splitlines()[1]) < 60
    assert "--json" in text
    assert "--json" not in _format.pretty(["x" * 10], limit=50)
