"""Records results many at a time, as they come: what waits while one call is out goes next.

A result that is not recorded at the first attempt goes its own way (`Recorder`), in a task of its
own that asks until it is answered. So the rule costs a job no task, scope or wait of its own
(20 of 72 microseconds), and the exception loses nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import trio

from hastetrio._provider import JobFinish

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastetrio._config import AsyncJobWorkerConfig
    from hastetrio._held import HeldJob
    from hastetrio._model import JobResult
    from hastetrio._provider import AsyncJobProvider
    from hastetrio._record import Recorder

# Results in one call: a storage splits what is too much for one statement.
_MOST: Final = 1000


class Finishing:
    """The results of a worker's jobs that wait to be recorded.

    Args:
        provider: The storage.
        config: The worker's durations.
        recorder: Bounds each call, and ends it when waiting is given up.
        recorded: Called for each result that was recorded.
        alone: Records one result that was not, however long it takes.
        start: Starts a task in the nursery that waits for all jobs.
    """

    def __init__(
        self,
        provider: AsyncJobProvider,
        config: AsyncJobWorkerConfig,
        recorder: Recorder,
        *,
        recorded: Callable[[HeldJob, JobResult], None],
        alone: Callable[[HeldJob, JobResult], Awaitable[None]],
        start: Callable[..., None],
    ) -> None:
        self._provider = provider
        self._config = config
        self._recorder = recorder
        self._recorded = recorded
        self._alone = alone
        self._start: Callable[..., Any] = start
        self._waiting: deque[tuple[HeldJob, JobResult]] = deque()
        self._is_running = False

    def add(self, held: HeldJob, result: JobResult) -> None:
        """Record a result as soon as the call that is out now has been answered."""
        self._waiting.append((held, result))
        if not self._is_running:
            self._is_running = True
            self._start(self._run)

    @trio.lowlevel.enable_ki_protection
    async def _run(self) -> None:
        try:
            while self._waiting:
                count = min(len(self._waiting), _MOST)
                await self._record([self._waiting.popleft() for _ in range(count)])
        finally:
            self._is_running = False
            # Only an interrupt leaves any behind; each is still to be told.
            while self._waiting:
                self._start(self._alone, *self._waiting.popleft())

    async def _record(self, ended: Sequence[tuple[HeldJob, JobResult]]) -> None:
        finishes = []
        pending = []
        for held, result in ended:
            progress = held.pending_progress()
            pending.append(progress)
            finishes.append(
                JobFinish(
                    held.job.id,
                    held.lease,
                    result,
                    self._config.retention,
                    progress[0] if progress else None,
                )
            )
        answers = none = [False] * len(ended)
        try:
            answers = await self._recorder.once(
                lambda: self._provider.finish_jobs(finishes), [result for _, result in ended], none
            )
            if len(answers) != len(ended):
                # Whose answers they are cannot be told.
                answers = none
        finally:
            for (held, result), progress, recorded in zip(ended, pending, answers, strict=True):
                if recorded:
                    held.acknowledge(progress)
                    self._recorded(held, result)
                else:
                    self._start(self._alone, held, result)
