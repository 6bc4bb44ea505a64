"""Keeps what handlers report while a test runs a job."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from hastetrio._storable import clean_text
from hastetrio.testing._finished import FinishedJob

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterator, Sequence

    from hastetrio._middleware import JobRun
    from hastetrio._model import AsyncJob


class Seen:
    """A middleware that counts the runs, and keeps every progress text.

    Args:
        limit: Characters after which a text is cut, as the worker cuts it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._texts: dict[str, list[str]] = {}
        self.runs = 0

    @contextmanager
    def __call__(self, run: JobRun) -> Iterator[None]:
        """Listen to the reports of one run."""
        self.runs += 1
        context = run.context
        texts = self._texts.setdefault(run.job.id, [])
        context._claim = _Overheard(context._claim, texts, self._limit)  # noqa: SLF001
        yield

    def finished(self, job: AsyncJob, records: Sequence[logging.LogRecord]) -> FinishedJob:
        """The job as it ended, with what was seen of its runs."""
        return FinishedJob(
            **attrs.asdict(job, recurse=False),
            progress_texts=tuple(self._texts.get(job.id, ())),
            logs=tuple(records),
        )


class _Overheard:
    """A claim whose reports are kept; in all else the claim itself."""

    def __init__(self, claim: Any, texts: list[str], limit: int) -> None:  # noqa: ANN401
        self._claim = claim
        self._texts = texts
        self._limit = limit

    def report(self, text: str, /) -> None:
        self._texts.append(clean_text(text, self._limit))
        self._claim.report(text)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._claim, name)
