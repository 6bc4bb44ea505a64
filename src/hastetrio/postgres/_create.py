"""Queues jobs: checks and encodes what a kick-off gives, before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hastetrio._ids import generate_job_id
from hastetrio._sql import query
from hastetrio._storable import check_text, encode_json
from hastetrio.postgres._arrays import text_array
from hastetrio.postgres._rows import job_query, read_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastetrio._model import AsyncJob, CreateAsyncJob
    from hastetrio.postgres._connection import TrioConnection


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
        self._ids = [generate_job_id() for _ in jobs]
        self._parameters: dict[str, Any] = {
            "tenant": check_text(tenant, "tenant"),
            "project": check_text(project, "project"),
            "ids": text_array(self._ids),
            "kinds": text_array(job.kind for job in jobs),
            "requests": text_array(job.request for job in jobs),
            "parameters": text_array(
                encode_json(job.parameters, parameters_limit, "parameters") for job in jobs
            ),
            "claims": text_array(encode_json(job.claims, claims_limit, "claims") for job in jobs),
            "submitters": text_array(job.submitted_by for job in jobs),
            "retentions": [job.retention for job in jobs],
            "max_attempts": [job.max_attempts for job in jobs],
            "live_limit": live_limit,
        }

    async def insert(self, connection: TrioConnection) -> list[AsyncJob]:
        """Queue them, and return them in their order; none, if the limit would be exceeded.

        With a limit, call it in a transaction: the project's kick-offs then count one at a time.
        """
        if self._live_limit is not None:
            await connection.execute(query("lock_project"), self._parameters)
        cursor = await connection.execute(
            job_query("create_jobs"), self._parameters, prepare=self._prepared
        )
        created, _ = await read_jobs(cursor)
        by_id = {job.id: job for job in created}
        return [by_id[id] for id in self._ids if id in by_id]
