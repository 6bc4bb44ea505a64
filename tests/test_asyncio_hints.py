"""What a handler's error is looked at for, before anything else is made of it."""

from __future__ import annotations

import pytest

from hastetrio._asyncio_hints import add_asyncio_hint


class Unprintable:
    """What an error was made of, and cannot say."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("kind", [TypeError, RuntimeError, AttributeError])
def test_an_error_that_cannot_be_described_is_left_as_it_is(kind: type[Exception]) -> None:
    """An error of the look itself would cross the job's nursery, and end the worker."""
    error = kind(Unprintable())
    add_asyncio_hint(ExceptionGroup("several", [error]))
    assert not hasattr(error, "__notes__")


def test_the_face_of_asyncio_code_under_trio_gets_a_note() -> None:
    """Without the bridge, and without trio-asyncio: what trio says of a future it was handed."""
    error = TypeError("trio.run received unrecognized yield message <Future pending>. Are you...")
    add_asyncio_hint(ExceptionGroup("several", [error]))
    add_asyncio_hint(error)
    (note,) = error.__notes__
    assert "hastetrio.asyncio_bridge.run_asyncio(function, argument)" in note
