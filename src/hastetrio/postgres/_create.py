"""Queues jobs: checks and encodes what a kick-off gives, before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hastetrio._errors import ProviderUnavailable, UnstorableValue
from hastetrio._ids import generate_job_id
from hastetrio._sql import query
from hastetrio._storable import check_text, encode_json
from hastetrio.postgres._arrays import text_array
from hastetrio.postgres._rows import job_query, read_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastetrio._model import AsyncJob, CreateAsyncJob
    from hastetrio.postgres._connection import TrioConnection

# How often a unique key may be taken by another job that is then over, while one is being queued.
_ROUNDS: Final = 10


class Creation:
    """Jobs that are to be queued in one statement, under new ids.

    Args:
        tenant: The tenant they belong to.
        project: The project of that tenant.
        jobs: What to run, and as whom.
        live_limit: The most live jobs the project may have; None for any number.
        parameters_limit: The most bytes of JSON the parameters of a job may have.
        claims_limit: The most bytes of JSON the claims of a job may have.
        prepared: Whether the statement is prepared.

    Raises:
        UnstorableValue: A value cannot be stored, or exceeds its limit.
    """

    def __init__(
        self,
        tenant: str,
        project: str,
        jobs: Sequence[CreateAsyncJob],
        *,
        live_limit: int | None,
        parameters_limit: int,
        claims_limit: int,
        prepared: bool,
    ) -> None:
        self._prepared = prepared
        self._live_limit = live_limit
        self._project = {
            "tenant": check_text(tenant, "tenant"),
            "project": check_text(project, "project"),
        }
        self._ids = [generate_job_id() for _ in jobs]
        self._keys = [(job.kind, job.unique_key) for job in jobs]
        self._texts: dict[str, list[str | None]] = {
            "ids": [*self._ids],
            "kinds": [job.kind for job in jobs],
            "requests": [job.request for job in jobs],
            "parameters": [
                encode_json(job.parameters, parameters_limit, "parameters") for job in jobs
            ],
            "claims": [encode_json(job.claims, claims_limit, "claims") for job in jobs],
            "submitters": [job.submitted_by for job in jobs],
            "run_ats": [None if job.run_at is None else job.run_at.isoformat() for job in jobs],
            "unique_keys": [job.unique_key for job in jobs],
        }
        self._numbers: dict[str, list[float]] = {
            "retentions": [job.retention for job in jobs],
            "max_attempts": [job.max_attempts for job in jobs],
        }

    @property
    def needs_transaction(self) -> bool:
        """Whether it takes several statements that belong together."""
        return self._live_limit is not None or any(key for _, key in self._keys)

    async def insert(self, connection: TrioConnection) -> list[AsyncJob]:
        """Queue them, and return them in their order; none, if the limit would be exceeded.

        For one whose unique key a live job has, that job is returned.

        Raises:
            ProviderUnavailable: A unique key was taken and given up again and again meanwhile.
        """
        if self._live_limit is not None:
            # The project's kick-offs then count one at a time.
            await connection.execute(query("lock_project"), self._project)
        every = range(len(self._ids))
        jobs = {job.id: job for job in await self._queue(connection, every)}
        found = [jobs.get(id) for id in self._ids]
        for _ in range(_ROUNDS):
            missing = [place for place, job in enumerate(found) if job is None]
            keyed = [place for place in missing if self._keys[place][1] is not None]
            if not keyed:
                break
            await self._find(connection, keyed, found)
            left = [place for place in keyed if found[place] is None]
            if not left:
                continue
            # Whoever had the key is over, or over by now; or it is the limit alone.
            if not await self._free(connection, left) and await self._is_full(connection):
                break
            for job in await self._queue(connection, left):
                found[self._ids.index(job.id)] = job
        else:
            raise ProviderUnavailable("a unique key is taken and given up all the time: ask again")
        return [job for job in found if job is not None]

    async def _queue(self, connection: TrioConnection, places: Sequence[int]) -> list[AsyncJob]:
        """Insert the jobs of these places; those whose keys are free are returned."""
        parameters: dict[str, Any] = {**self._project, "live_limit": self._live_limit}
        for name, texts in self._texts.items():
            parameters[name] = text_array(texts[place] for place in places)
        for name, numbers in self._numbers.items():
            parameters[name] = [numbers[place] for place in places]
        parameters["places"] = list(places)
        cursor = await connection.execute(
            job_query("create_jobs"), parameters, prepare=self._prepared
        )
        created, _ = await read_jobs(cursor)
        return created

    async def _find(
        self, connection: TrioConnection, places: Sequence[int], found: list[AsyncJob | None]
    ) -> None:
        """Put the live jobs that have the keys of these places there."""
        cursor = await connection.execute(
            job_query("read_unique_jobs"), self._of_keys(places), prepare=self._prepared
        )
        jobs, unreadable = await read_jobs(cursor)
        if unreadable:
            raise UnstorableValue(
                f"job {unreadable[0]} has this unique key, and its row cannot be read: cancel it"
            )
        live = {(job.kind, job.unique_key): job for job in jobs}
        for place in places:
            found[place] = live.get(self._keys[place])

    async def _free(self, connection: TrioConnection, places: Sequence[int]) -> bool:
        cursor = await connection.execute(query("free_unique_keys"), self._of_keys(places))
        return cursor.rowcount > 0

    async def _is_full(self, connection: TrioConnection) -> bool:
        if self._live_limit is None:
            return False
        cursor = await connection.execute(query("count_live_jobs"), self._project)
        row = await cursor.fetchone()
        return row is not None and row[0] >= self._live_limit

    def _of_keys(self, places: Sequence[int]) -> dict[str, Any]:
        keys = list(dict.fromkeys(self._keys[place] for place in places))
        return {
            **self._project,
            "kinds": text_array(kind for kind, _ in keys),
            "unique_keys": text_array(key for _, key in keys),
        }
