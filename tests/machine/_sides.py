"""A provider as the machine sees it: asked, looked into, and left alone while time passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Final, TypeVar
from unittest.mock import patch

import attrs
import psycopg
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from hastetrio._memory_rows import Row
from hastetrio._provider import AsyncJobProvider
from hastetrio._storable import decode_json
from hastetrio.memory import MemoryJobProvider
from hastetrio.postgres import PostgresJobProvider

from ._pump import Pump

Answer = TypeVar("Answer")

TENANT: Final = "acme"

# Durations end in 50, delays in 25 and passing times in 00, seconds: no moment ever comes within
# 25 s of another, and what real time adds on PostgreSQL (a second a history) decides nothing.
GRID: Final = 25.0

_JSON: Final = ("parameters", "claims", "output", "error", "state", "attempt_errors")
_TIMES: Final = (
    "lease_expires_at",
    "created_at",
    "updated_at",
    "started_at",
    "finished_at",
    "expires_at",
    "run_at",
)


def _on_grid(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds / GRID)


@attrs.frozen(kw_only=True)
class View:
    """A row as it is stored, its times as seconds from now."""

    id: str
    project: str
    kind: str
    status: str
    submitted_by: str
    progress: str | None
    output: Any
    output_content_type: str | None
    error: Any
    attempts: int
    max_attempts: int
    hand_backs: int
    locked_by: str | None
    finished_by: str | None
    retention: float | None
    unique_key: str | None
    state: Any
    attempt_errors: Any
    was_started: bool
    was_finished: bool
    lease_left: float | None = attrs.field(eq=_on_grid)
    expires_left: float = attrs.field(eq=_on_grid)
    due_left: float = attrs.field(eq=_on_grid)
    lapsed: bool
    expired: bool
    due: bool

    @property
    def stored(self) -> tuple[Any, ...]:
        """Everything that time alone does not change."""
        return _STORED(self)

    @property
    def is_live(self) -> bool:
        """Whether the row says that the job may still run."""
        return self.status in ("accepted", "in-progress")

    @property
    def is_free(self) -> bool:
        """Whether nobody holds the row."""
        return self.locked_by is None or self.lapsed


_BY_TIME: Final = {"lease_left", "expires_left", "due_left", "lapsed", "expired", "due"}
_COLUMNS: Final = [field.name for field in attrs.fields(View)]
_SHARED: Final = {"started_at", "finished_at"} | {*_COLUMNS} & {
    field.name for field in attrs.fields(Row)
}
_STORED: Final = attrgetter(*(name for name in _COLUMNS if name not in _BY_TIME))


class Side(ABC):
    """One provider under test.

    Attributes:
        name: What a difference between sides calls it.
        provider: What the rules ask.
    """

    name: str
    provider: AsyncJobProvider

    def __init__(self, pump: Pump) -> None:
        self._pump = pump

    def ask(self, call: Callable[[AsyncJobProvider], Awaitable[Answer]]) -> Answer:
        """The provider's answer to a call."""
        return self._pump.run(lambda: call(self.provider))

    @abstractmethod
    def clear(self) -> None:
        """Begin without rows."""

    @abstractmethod
    def insert(self, columns: dict[str, Any]) -> None:
        """Insert a row as a foreign program would; times are seconds from now."""

    @abstractmethod
    def views(self) -> list[View]:
        """All rows, oldest first."""

    @abstractmethod
    def moment(self, seconds: float) -> datetime:
        """The provider's time, so many seconds from now."""

    @abstractmethod
    def pass_time(self, seconds: float) -> None:
        """Let time pass for the rows; the pump's clock jumps by itself."""


class MemorySide(Side):
    """`MemoryJobProvider`, on the pump's clock."""

    name = "memory"

    def __init__(self, pump: Pump) -> None:
        super().__init__(pump)
        self.clear()

    def clear(self) -> None:
        self._memory = MemoryJobProvider()
        self.provider = self._memory

    def insert(self, columns: dict[str, Any]) -> None:
        async def insert() -> None:
            now = self._memory._now()
            times = {
                name: now + timedelta(seconds=columns[name]) for name in _TIMES if name in columns
            }
            self._memory.insert_row(**columns | times)

        self._pump.run(insert)

    def views(self) -> list[View]:
        async def views() -> list[View]:
            now = self._memory._now()
            rows = sorted(self._memory._table.rows.values(), key=lambda row: row.age)
            return [
                _view(
                    {name: getattr(row, name) for name in _SHARED}
                    | {"status": row.status.value}
                    | {name: _decoded(getattr(row, name)) for name in _JSON}
                    | {
                        "lease_left": row.lease_expires_at
                        and (row.lease_expires_at - now).total_seconds(),
                        "expires_left": (row.expires_at - now).total_seconds(),
                        "due_left": (row.run_at - now).total_seconds(),
                        "due": row.run_at <= now,
                        "lapsed": row.is_lapsed(now),
                        "expired": row.is_expired(now),
                    }
                )
                for row in rows
            ]

        return self._pump.run(views)

    def moment(self, seconds: float) -> datetime:
        async def now() -> datetime:
            return self._memory._now()

        return self._pump.run(now) + timedelta(seconds=seconds)

    def pass_time(self, seconds: float) -> None:
        """Its time is the pump's."""


class PostgresSide(Side):
    """`PostgresJobProvider` on a database of its own; time passes by moving all times back."""

    name = "postgres"

    _ROWS: Final = """
        SELECT *, status::text AS status, extract(epoch FROM retention)::float8 AS retention,
               extract(epoch FROM lease_expires_at - now())::float8 AS lease_left,
               extract(epoch FROM expires_at - now())::float8 AS expires_left,
               extract(epoch FROM run_at - now())::float8 AS due_left, run_at <= now() AS due,
               coalesce(lease_expires_at < now(), false) AS lapsed, expires_at <= now() AS expired
        FROM async_jobs ORDER BY created_at, id"""

    def __init__(self, pump: Pump, connection: psycopg.Connection[Any], url: str) -> None:
        super().__init__(pump)
        self._connection = connection
        self.provider = pump.enter(PostgresJobProvider.open(url))
        self._shift = sql.SQL("UPDATE async_jobs SET {}").format(
            sql.SQL(", ").join(
                sql.SQL("{0} = {0} - %(passed)s").format(sql.Identifier(time)) for time in _TIMES
            )
        )

    def clear(self) -> None:
        self._connection.execute("DELETE FROM async_jobs")

    def insert(self, columns: dict[str, Any]) -> None:
        values = {
            name: Jsonb(value) if name in _JSON and value is not None else value
            for name, value in columns.items()
        }
        places = [
            sql.SQL("now() + make_interval(secs => {})" if name in _TIMES else "{}").format(
                sql.Placeholder(name)
            )
            for name in columns
        ]
        statement = sql.SQL("INSERT INTO async_jobs ({}) VALUES ({})").format(
            sql.SQL(", ").join(map(sql.Identifier, columns)), sql.SQL(", ").join(places)
        )
        self._connection.execute(statement, values)

    def views(self) -> list[View]:
        with self._connection.cursor(row_factory=dict_row) as cursor:
            return [_view(row) for row in cursor.execute(self._ROWS.encode())]

    def moment(self, seconds: float) -> datetime:
        row = self._connection.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        now: datetime = row[0]
        return now + timedelta(seconds=seconds)

    def pass_time(self, seconds: float) -> None:
        self._connection.execute(self._shift, {"passed": timedelta(seconds=seconds)})


@contextmanager
def given_ids(ids: Sequence[str]) -> Iterator[None]:
    """The jobs created inside the block get these ids, on whichever provider."""
    source = iter(ids)

    def next_id() -> str:
        return next(source)

    with (
        patch("hastetrio._memory_clients.generate_job_id", next_id),
        patch("hastetrio.postgres._create.generate_job_id", next_id),
        patch("hastetrio.postgres._clients.generate_job_id", next_id),
    ):
        yield


def without_times(history: object) -> object:
    """A history of attempts, without when each of them was."""
    if not isinstance(history, list):
        return history
    return [
        {name: value for name, value in entry.items() if name != "at"}
        if isinstance(entry, dict)
        else entry
        for entry in history
    ]


def _view(row: dict[str, Any]) -> View:
    row["attempt_errors"] = without_times(row["attempt_errors"])
    return View(
        was_started=row["started_at"] is not None,
        was_finished=row["finished_at"] is not None,
        **{name: row[name] for name in _COLUMNS if name in row},
    )


def _decoded(text: str | None) -> Any:  # noqa: ANN401  # JSON is any value
    return None if text is None else decode_json(text)
