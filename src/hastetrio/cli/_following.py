"""One job from a command's side: that it is there, following it to its end, what its end means."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from hastetrio._model import AsyncJob, AsyncJobStatus
from hastetrio._outcome import diagnostics_of
from hastetrio.cli._errors import FAILED, CommandFailed
from hastetrio.cli._format import one_line
from hastetrio.cli._watch import Display, follow

if TYPE_CHECKING:
    from hastetrio._settings import Settings
    from hastetrio.postgres import PostgresJobProvider


async def follow_to_end(
    provider: PostgresJobProvider, settings: Settings, id: str, display: Display
) -> AsyncJob:
    job = await follow(provider, settings, id, display)
    if job is None:
        raise CommandFailed(f"job {id!r} is gone: it was cancelled, or has expired")
    return job


def verdict(job: AsyncJob, *, quiet: bool) -> int:
    """The exit code for a job that is over; says why it failed, unless `quiet`."""
    if job.status is AsyncJobStatus.COMPLETED:
        return 0
    if not quiet:
        raise CommandFailed(f"job {job.id!r} ended {job.status.value}{_reason(job)}")
    return FAILED


def _reason(job: AsyncJob) -> str:
    texts = diagnostics_of(job.error)
    return ": " + one_line("; ".join(texts)) if texts else ""


def there(settings: Settings, id: str, job: AsyncJob | None) -> AsyncJob:
    if job is None:
        _missing(settings, id)
    return job


def _missing(settings: Settings, id: str) -> NoReturn:
    raise CommandFailed(
        f"no job {id!r} in project {settings.project!r} of tenant {settings.tenant!r}: "
        "it never was there, was cancelled, or has expired"
    )
