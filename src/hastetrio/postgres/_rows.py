"""Turns result rows into jobs, one by one: a row that cannot be read fails alone."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import attrs

from hastetrio._model import AsyncJob, AsyncJobStatus
from hastetrio._sql import query

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from psycopg import AsyncCursor

    from hastetrio.postgres._connection import TrioConnection

_log = logging.getLogger("hastetrio.postgres")

COLUMNS: Final = tuple(field.name for field in attrs.fields(AsyncJob))

# A frozen class is filled through its slots: its constructor takes 3.8 microseconds for so many
# fields, these 2.
_new: Final = object.__new__
_PUTS: Final = tuple(getattr(AsyncJob, column).__set__ for column in COLUMNS)
_put_status: Final = AsyncJob.status.__set__  # type: ignore[attr-defined]  # a slot's descriptor

_STATUSES: Final = {status.value: status for status in AsyncJobStatus}


def job_query(name: str) -> str:
    """A statement whose `{job}` stands for a job's columns, in the order of `AsyncJob`."""
    return query(name).replace("{job}", ", ".join(f"j.{column}" for column in COLUMNS))


def job_of(row: Sequence[Any]) -> AsyncJob:
    """The job a row holds."""
    job = _new(AsyncJob)
    for put, value in zip(_PUTS, row, strict=True):
        put(job, value)
    _put_status(job, _STATUSES[job.status])
    return job


async def read_jobs(cursor: AsyncCursor[tuple[Any, ...]]) -> tuple[list[AsyncJob], list[str]]:
    """The jobs a statement returned, and the ids of the rows that cannot be read.

    PostgreSQL stores values that Python cannot load, such as a time of 'infinity'.
    """
    try:
        return [job_of(row) for row in await cursor.fetchall()], []
    except Exception:  # noqa: BLE001  # which row it was, and why, is found out below
        await cursor.scroll(0, mode="absolute")
    jobs: list[AsyncJob] = []
    unreadable: list[str] = []
    for position in range(cursor.rowcount):
        await cursor.scroll(position, mode="absolute")
        try:
            row = await cursor.fetchone()
            if row is not None:
                jobs.append(job_of(row))
        except Exception as error:  # noqa: BLE001  # any error means this one row cannot be read
            raw = cursor.pgresult.get_value(position, 0) if cursor.pgresult else None
            id = (raw or b"").decode("utf-8", "replace")
            unreadable.append(id)
            _log.warning("Job %s cannot be read: %s", id, error, extra={"job": id})
    return jobs, unreadable


async def read_visible_jobs(
    connection: TrioConnection, name: str, parameters: Mapping[str, Any], *, prepare: bool
) -> list[AsyncJob]:
    """The jobs a statement returns, newest first, for somebody who looks.

    A row that cannot be read stays visible: without its parameters, claims and output, and with
    its times inside the years that Python knows.
    """
    cursor = await connection.execute(job_query(name), parameters, prepare=prepare)
    jobs, unreadable = await read_jobs(cursor)
    if unreadable:
        cursor = await connection.execute(query("read_legible_jobs"), {"ids": unreadable})
        legible, _ = await read_jobs(cursor)
        jobs += legible
        jobs.sort(key=lambda job: (job.created_at, job.id), reverse=True)
    return jobs
