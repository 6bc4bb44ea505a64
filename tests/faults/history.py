"""Every change of a row, written down by the database, and the laws that no history may break."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from psycopg.conninfo import make_conninfo
from tests.postgres.harness import run

# `began` is the now() that the statement itself went by.
_INSTALL: Final = """
CREATE TABLE history (
  number bigint GENERATED ALWAYS AS IDENTITY,
  began timestamptz DEFAULT now(), at timestamptz DEFAULT clock_timestamp(), id text,
  was_status text, status text, was_by text, by text, was_lease timestamptz, lease timestamptz,
  was_finished_by text, finished_by text);
CREATE FUNCTION note_history() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO history (id, was_status, status, was_by, by, was_lease, lease, was_finished_by,
                       finished_by)
  VALUES (coalesce(NEW.id, OLD.id), OLD.status, NEW.status, OLD.locked_by, NEW.locked_by,
          OLD.lease_expires_at, NEW.lease_expires_at, OLD.finished_by, NEW.finished_by);
  RETURN NULL; END $$;
CREATE TRIGGER note_history AFTER INSERT OR UPDATE OR DELETE ON async_jobs FOR EACH ROW
  EXECUTE FUNCTION note_history();
GRANT SELECT, INSERT ON history TO PUBLIC;
"""

# What must not be, by the law it breaks.
_LAWS: Final = {
    "taken inside somebody's lease": "by <> was_by AND was_lease >= began",
    "a lease that shrank": "by = was_by AND lease < was_lease",
    "a result for a job that was not running, or over another result":
        "status IN ('completed', 'failed') AND was_status <> 'in-progress'"
        " AND (status, finished_by) IS DISTINCT FROM (was_status, was_finished_by)",
    "back to life":
        "was_status IN ('completed', 'failed', 'cancelled')"
        " AND status IN ('accepted', 'in-progress')",
}  # fmt: skip


def install(url: str) -> None:
    """Write down, from now on, what happens to the rows of this database."""
    run(url, _INSTALL)


def tamper(url: str, statement: str, values: Any = None) -> list[tuple[Any, ...]]:  # noqa: ANN401
    """Change rows by hand, without a trace in their history and without a notification."""
    return run(make_conninfo(url, options="-c session_replication_role=replica"), statement, values)


class History:
    """What happened to the rows of a database since the beginning of the test."""

    def __init__(self, url: str) -> None:
        self._url = url

    def results(self, id: str) -> list[str | None]:
        """The token of each result that was recorded for this job (None: by a sweep)."""
        rows = run(
            self._url,
            "SELECT finished_by FROM history WHERE id = %s AND was_status = 'in-progress'"
            " AND status IN ('completed', 'failed') ORDER BY number",
            [id],
        )
        return [by for (by,) in rows]

    def claims(self, id: str) -> list[tuple[str, datetime]]:
        """The token of each claim of this job, and when the database granted it."""
        rows = run(
            self._url,
            "SELECT by, at FROM history WHERE id = %s AND by IS DISTINCT FROM was_by"
            " AND status = 'in-progress' ORDER BY number",
            [id],
        )
        return [(by, at) for by, at in rows]

    def ran_once(self, ids: Sequence[str]) -> bool:
        """Whether each of these has one result, and the attempts of its one run."""
        rows = run(
            self._url,
            "SELECT j.attempts, (SELECT count(*) FROM history h WHERE h.id = j.id"
            " AND h.was_status = 'in-progress' AND h.status = 'completed')"
            " FROM async_jobs j WHERE j.id = ANY(%s) AND j.status = 'completed'",
            [list(ids)],
        )
        return rows == [(1, 1)] * len(ids)

    def broken_laws(self) -> dict[str, list[tuple[Any, ...]]]:
        """Rows of the history that must not be, by the law they break."""
        return {
            law: rows
            for law, condition in _LAWS.items()
            if (rows := run(self._url, f"SELECT * FROM history WHERE {condition}"))  # noqa: S608
        }
