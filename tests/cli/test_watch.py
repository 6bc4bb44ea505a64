"""The live line and its patience, on the memory provider in virtual time."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import trio
import trio.testing

from hastetrio._errors import ProviderUnavailable
from hastetrio._model import AsyncJob, CreateAsyncJob
from hastetrio._settings import Settings
from hastetrio.cli._watch import Lines, LiveLine, display_for, follow
from hastetrio.memory import MemoryJobProvider

NEW = CreateAsyncJob(kind="k", claims={"sub": "me"})


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """It is."""
        return True


class Moody(MemoryJobProvider):
    """A provider that answers only while `answers` says so."""

    answers: Callable[[], bool] = staticmethod(lambda: True)

    async def read_job(
        self, tenant: str, project: str, id: str, *, submitted_by: str | None = None
    ) -> AsyncJob | None:
        """The job, or no answer."""
        if not self.answers():
            raise ProviderUnavailable("away")
        return await super().read_job(tenant, project, id, submitted_by=submitted_by)


def test_a_terminal_gets_one_line_and_a_pipe_many() -> None:
    """Escape sequences belong on a terminal only."""
    assert isinstance(display_for(Terminal(), as_json=False), LiveLine)
    assert isinstance(display_for(io.StringIO(), as_json=False), Lines)


async def test_the_live_line_is_written_over_and_ended(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each state replaces the one before, within the terminal's width."""
    monkeypatch.setenv("COLUMNS", "20")
    provider = MemoryJobProvider()
    job = await provider.create_job("system", "system", NEW)
    stream = Terminal()

    async def cancel() -> None:
        await trio.sleep(5)
        await provider.cancel_job("system", "system", job.id)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel)
        assert await follow(provider, Settings(), job.id, LiveLine(stream)) is None
    assert stream.getvalue() == "\raccepted, attempt \u2026\x1b[K\n"


async def test_an_outage_is_waited_out(autojump_clock: trio.testing.MockClock) -> None:
    """Twenty seconds without a database do not end a watch; a minute does."""
    provider = Moody()
    job = await provider.create_job("system", "system", NEW)
    start = trio.current_time()
    provider.answers = lambda: not start + 5 < trio.current_time() < start + 25
    with trio.move_on_after(60) as scope:
        await follow(provider, Settings(), job.id, Lines(io.StringIO()))
    assert scope.cancelled_caught
    start = trio.current_time()
    provider.answers = lambda: trio.current_time() < start + 5
    with pytest.raises(ProviderUnavailable):
        await follow(provider, Settings(), job.id, Lines(io.StringIO()))
    assert 30 < trio.current_time() - start < 60


async def test_the_first_question_has_no_patience(autojump_clock: trio.testing.MockClock) -> None:
    """A database that was never there is said at once."""
    provider = Moody()
    provider.answers = lambda: False
    start = trio.current_time()
    with pytest.raises(ProviderUnavailable):
        await follow(provider, Settings(), "i", Lines(io.StringIO()))
    assert trio.current_time() == start
