"""What a soak leaves to judge: the rows, each change of each row, the records, the journal, files.

A trigger keeps every change of `async_jobs` in a table of its own, in the transaction that made
it: what the database did, as against what the workers believe.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import attrs
import psycopg

from tools.soak_handlers import worker_name

_HISTORY: Final = """
CREATE TABLE soak_history (
  seq bigserial PRIMARY KEY,
  id text NOT NULL,
  at float8 NOT NULL DEFAULT extract(epoch from clock_timestamp()),
  tx float8 NOT NULL DEFAULT extract(epoch from now()),
  before jsonb,
  after jsonb
);
CREATE FUNCTION soak_state(j async_jobs) RETURNS jsonb LANGUAGE sql AS $$
  SELECT jsonb_build_object('status', j.status, 'kind', j.kind, 'token', j.locked_by,
    'lease', extract(epoch from j.lease_expires_at), 'attempts', j.attempts,
    'max_attempts', j.max_attempts, 'hand_backs', j.hand_backs, 'finished_by', j.finished_by,
    'expires', extract(epoch from j.expires_at))
$$;
CREATE FUNCTION soak_keep() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO soak_history (id, before, after) VALUES (
    CASE WHEN TG_OP = 'DELETE' THEN OLD.id ELSE NEW.id END,
    CASE WHEN TG_OP <> 'INSERT' THEN soak_state(OLD) END,
    CASE WHEN TG_OP <> 'DELETE' THEN soak_state(NEW) END);
  RETURN NULL;
END $$;
CREATE TRIGGER soak_keep AFTER INSERT OR UPDATE OR DELETE ON async_jobs
  FOR EACH ROW EXECUTE FUNCTION soak_keep();
"""

_ROWS: Final = """
SELECT id, kind, status::text, output, error, progress, finished_by, attempts, max_attempts,
       locked_by, extract(epoch from expires_at)::float8
FROM async_jobs
"""

LIVE: Final = ("accepted", "in-progress")


@attrs.frozen
class State:
    """A row at one moment; times are seconds since the epoch."""

    status: str
    kind: str
    token: str | None
    lease: float | None
    attempts: int
    max_attempts: int
    hand_backs: int
    finished_by: str | None
    expires: float

    @property
    def is_live(self) -> bool:
        """Whether it may still run."""
        return self.status in LIVE


@attrs.frozen
class Change:
    """One change of one row: `at` when it was made, `tx` what now() was; None is no row."""

    id: str
    at: float
    tx: float
    before: State | None
    after: State | None

    @property
    def takes(self) -> bool:
        """Whether a claim or a sweep took the row."""
        before, after = self.before, self.after
        return bool(before and after and after.token and after.token != before.token)

    @property
    def claims(self) -> bool:
        """Whether it was taken to be run."""
        return self.takes and self.after is not None and self.after.status == "in-progress"


@attrs.frozen
class Row:
    """A row that is left."""

    id: str
    kind: str
    status: str
    output: Any
    error: Any
    progress: str | None
    finished_by: str | None
    attempts: int
    max_attempts: int
    locked_by: str | None
    expires: float


@attrs.define
class Body:
    """One run of a handler's `run` or `expire`, as its records have it."""

    what: str
    job: str
    token: str
    worker: str
    starts: int = 0
    kind: str = ""
    attempt: int = 0
    started: float = 0.0
    cancelled: float | None = None
    ended: float | None = None
    how: str | None = None
    reason: str | None = None
    lease_end: float | None = None
    nonce: str | None = None
    reported: str | None = None

    @property
    def claim(self) -> str:
        """The name of the claim."""
        return self.token[-8:]


@attrs.define
class Life:
    """One worker process."""

    name: str
    spawned: float = 0.0
    exited: float | None = None
    code: int | None = None
    killed: float | None = None
    told: float | None = None
    stops: list[tuple[float, float]] = attrs.field(factory=list)


@attrs.define
class Evidence:
    """Everything that is known about a soak."""

    lease: float
    rows: dict[str, Row] = attrs.field(factory=dict)
    changes: dict[str, list[Change]] = attrs.field(factory=dict)
    bodies: dict[tuple[str, str, str], Body] = attrs.field(factory=dict)
    lives: dict[str, Life] = attrs.field(factory=dict)
    created: set[str] = attrs.field(factory=set)
    asked: set[str] = attrs.field(factory=set)
    cancelled: set[str] = attrs.field(factory=set)
    outages: list[tuple[float, float]] = attrs.field(factory=list)
    files: dict[str, dict[str, str]] = attrs.field(factory=dict)
    counts: dict[str, int] = attrs.field(factory=lambda: defaultdict(int))

    def jobs(self) -> list[str]:
        """Every job there ever was."""
        return sorted(self.changes)

    def body(self, job: str, token: str | None, what: str = "run") -> Body | None:
        """The body of one claim."""
        return self.bodies.get((what, job, token or ""))


class Journal:
    """What the soak did, in a file of lines of JSON.

    Args:
        folder: The soak's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "journal.jsonl"

    def write(self, event: str, **fields: object) -> None:
        """Add one event, as of now unless `at` is given."""
        line = json.dumps({"event": event, "at": time.time()} | fields)
        with self._path.open("a") as file:
            file.write(line + "\n")


def install_history(url: str) -> None:
    """Keep every change of `async_jobs` from now on."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_HISTORY.encode())


def load(url: str, folder: Path, lease: float) -> Evidence:
    """Everything there is. Nothing may be running that changes it meanwhile."""
    evidence = Evidence(lease)
    _load_database(evidence, url)
    _load_journal(evidence, folder / "journal.jsonl")
    for path in sorted((folder / "records").glob("*.jsonl")):
        _load_records(evidence, path)
    for path in sorted((folder / "effects").glob("*")):
        evidence.files[path.name] = {file.name: file.read_text() for file in path.iterdir()}
    return evidence


def _load_database(evidence: Evidence, url: str) -> None:
    with psycopg.connect(url) as connection:
        for values in connection.execute(_ROWS.encode()):
            row = Row(*values)
            evidence.rows[row.id] = row
        changes = connection.execute(
            "SELECT id, at, tx, before, after FROM soak_history ORDER BY seq"
        )
        for id, at, tx, before, after in changes:
            change = Change(
                id, at, tx, State(**before) if before else None, State(**after) if after else None
            )
            evidence.changes.setdefault(id, []).append(change)


def _load_journal(evidence: Evidence, path: Path) -> None:
    lives = evidence.lives
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        event, at = entry["event"], entry["at"]
        evidence.counts[event] += 1
        life = (
            lives.setdefault(entry["worker"], Life(entry["worker"])) if "worker" in entry else None
        )
        match event:
            case "created":
                evidence.created.update(entry["jobs"])
            case "asked":
                evidence.asked.add(entry["job"])
            case "cancelled":
                evidence.cancelled.add(entry["job"])
            case "outage":
                evidence.outages.append((entry["began"], at))
                evidence.counts[entry["what"]] += 1
        if life is None:
            continue
        match event:
            case "spawn":
                life.spawned = at
            case "kill":
                life.killed = at
            case "term":
                life.told = life.told or at
            case "stop":
                life.stops.append((at, float("inf")))
            case "continue":
                life.stops[-1] = (life.stops[-1][0], at)
            case "exit":
                life.exited, life.code = at, entry["code"]


def _load_records(evidence: Evidence, path: Path) -> None:
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        key = (entry["what"], entry["job"], entry["token"])
        body = evidence.bodies.get(key)
        if body is None:
            body = evidence.bodies[key] = Body(*key, worker_name(entry["token"]))
        match entry["event"]:
            case "start":
                body.starts += 1
                body.kind, body.attempt = entry["kind"], entry["attempt"]
                body.started = entry["at"]
            case "cancelled":
                body.cancelled = entry["at"]
            case "end":
                body.ended, body.how = entry["at"], entry["how"]
        for name in ("reason", "lease_end", "nonce", "reported"):
            if entry.get(name) is not None:
                setattr(body, name, entry[name])
