"""Runs a job of any provider to its end, for what needs a real database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from hastetrio._config import AsyncJobWorkerConfig
from hastetrio._handler import JobHandler
from hastetrio._nursery import serving_nursery
from hastetrio._worker import AsyncJobWorker
from hastetrio.testing._finished import story
from hastetrio.testing._logs import collected
from hastetrio.testing._seen import Seen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hastetrio._model import AsyncJob
    from hastetrio._provider import AsyncJobProvider
    from hastetrio.testing._finished import FinishedJob

# Seconds between looks at the job: soon enough for a short job, and few in virtual hours.
_FIRST_LOOK: Final = 0.02
_LAST_LOOK: Final = 1.0


async def run_stored_job(
    provider: AsyncJobProvider,
    handlers: JobHandler | Iterable[JobHandler],
    job: AsyncJob,
    *,
    config: AsyncJobWorkerConfig | None = None,
    timeout: float = 60.0,
) -> FinishedJob:
    """Run a worker over `provider` until `job` has ended, and return it as it ended.

    For handlers that need a real database, such as those with a transaction; others are tested
    faster with `run_job`. Other queued jobs of these kinds may be run too.

    Args:
        provider: Where the job is queued.
        handlers: The job's handler, or several.
        job: The job, as `create_job` returned it.
        config: The worker's durations and limits.
        timeout: Seconds the job may take.

    Returns:
        The job, completed or failed, with its output or error, its progress texts and the logs.

    Raises:
        LookupError: The job ended without a result: it was cancelled, or has expired.
        TimeoutError: It has not ended in time; the text says how it stands.

    Cancellation: the worker is stopped, and the job handed back.
    """
    config = config or AsyncJobWorkerConfig()
    seen = Seen(config.progress_limit)
    chosen = [handlers] if isinstance(handlers, JobHandler) else handlers
    worker = AsyncJobWorker(provider, chosen, config, middleware=[seen])
    with collected(trio.lowlevel.current_clock()) as records:
        async with serving_nursery() as nursery:
            await nursery.start(worker.run)
            with trio.move_on_after(timeout):
                await _end_of(provider, job)
        ended = await provider.read_job(job.tenant, job.project, job.id)
    if ended is None:
        raise LookupError("the job ended without a result: it was cancelled or expired")
    finished = seen.finished(ended, records)
    if ended.status.is_live:
        raise TimeoutError(f"the job has not ended in {timeout:g} s\n{story(finished)}")
    return finished


async def _end_of(provider: AsyncJobProvider, job: AsyncJob) -> None:
    pause = _FIRST_LOOK
    while True:
        current = await provider.read_job(job.tenant, job.project, job.id)
        if current is None or not current.status.is_live:
            return
        await trio.sleep(pause)
        pause = min(pause * 1.5, _LAST_LOOK)
