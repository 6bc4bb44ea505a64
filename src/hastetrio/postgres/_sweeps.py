"""The statements of the sweeps: what was abandoned, what has expired, what nobody cleans up."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import trio

from hastetrio._model import DAY, AsyncJob, JobLease
from hastetrio._outcome import OUTCOME_LIMIT
from hastetrio._sql import query
from hastetrio._storable import encode_json
from hastetrio.postgres._arrays import text_array

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from hastetrio.postgres._unit import Lane

# The part of a lease that taking expired rows may use up, rows that cannot be read included.
_SHARE_OF_LEASE: Final = 1 / 4


class Sweeps:
    """The calls of a worker's sweeps.

    Args:
        lane: The connection they share with claims.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    async def fail_abandoned(self, outcome: Mapping[str, Any], retention: float, limit: int) -> int:
        """Fail abandoned jobs; see `AsyncJobProvider.fail_abandoned_jobs`."""
        text = encode_json(outcome, OUTCOME_LIMIT, "the outcome")
        return len(
            await self._fetch("fail_abandoned_jobs", outcome=text, retention=retention, limit=limit)
        )

    async def claim_expired(
        self, kinds: Collection[str], lease: JobLease, limit: int
    ) -> list[AsyncJob]:
        """Take expired jobs; see `AsyncJobProvider.claim_expired_jobs`.

        A row that cannot be read is put aside for a day.
        """
        end = trio.current_time() + lease.duration * _SHARE_OF_LEASE
        jobs: list[AsyncJob] = []
        while True:
            parameters = {
                "kinds": list(kinds),
                "limit": limit - len(jobs),
                "token": lease.token,
                "lease": lease.duration,
            }
            found, unreadable = await self._lane.fetch_jobs("claim_expired_jobs", parameters)
            jobs += found
            if not unreadable:
                return jobs
            count = len(unreadable)
            await self._fetch(
                "renew_leases",
                ids=text_array(unreadable),
                tokens=text_array([lease.token] * count),
                durations=[DAY] * count,
                progress=text_array([None] * count),
            )
            if len(jobs) == limit or trio.current_time() > end:
                return jobs

    async def discard_expired(self, kinds: Collection[str], limit: int) -> int:
        """Delete expired jobs; see `AsyncJobProvider.discard_expired_jobs`."""
        rows = await self._fetch("discard_expired_jobs", kinds=list(kinds), limit=limit)
        return int(rows[0][0])

    async def delete_orphans(self, limit: int) -> dict[str, int]:
        """Delete jobs of kinds nobody registers; see `AsyncJobProvider.delete_orphans`."""
        return dict(Counter(kind for (kind,) in await self._fetch("delete_orphans", limit=limit)))

    async def _fetch(self, name: str, **parameters: Any) -> list[tuple[Any, ...]]:  # noqa: ANN401
        return await self._lane.fetch(query(name), parameters)
