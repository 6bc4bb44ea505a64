"""Reaches into a running worker, where no provider can."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hastetrio._worker import AsyncJobWorker


def silence_renewals(worker: AsyncJobWorker, *, job: str | None = None) -> None:
    """End the renewals of a worker quietly: no error, no log line, no answer believed.

    What is left is the deadline: the handler is cancelled when the lease could lapse, and the job
    is handed back. `FaultyProvider.kill_renewals` is the loud way.

    Args:
        worker: The worker, running or not.
        job: The job whose renewals end; all of them by default.
    """
    worker._renewals.silence(job)  # noqa: SLF001  # the hook is for tests only
