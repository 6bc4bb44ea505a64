"""Counts results at the table itself: what was recorded, not what anybody says was recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .harness import run

_START = """
CREATE TABLE results (id text, finished_by text);
CREATE FUNCTION note_result() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO results VALUES (NEW.id, NEW.finished_by); RETURN NULL; END $$;
CREATE TRIGGER note_result AFTER UPDATE ON async_jobs FOR EACH ROW
  WHEN (NEW.output IS DISTINCT FROM OLD.output OR NEW.error IS DISTINCT FROM OLD.error)
  EXECUTE FUNCTION note_result();
"""
_END = "DROP TRIGGER note_result ON async_jobs; DROP FUNCTION note_result; DROP TABLE results"


class Audit:
    """The results recorded since the beginning of the block."""

    def __init__(self, url: str) -> None:
        self._url = url

    def recorded(self, id: str) -> list[str]:
        """The token of each result that was recorded for this job, in order."""
        return [
            by for (by,) in run(self._url, "SELECT finished_by FROM results WHERE id = %s", [id])
        ]


@contextmanager
def audited(url: str) -> Iterator[Audit]:
    """Count results while the block lasts."""
    run(url, _START)
    try:
        yield Audit(url)
    finally:
        run(url, _END)
