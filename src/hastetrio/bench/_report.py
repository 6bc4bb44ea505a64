"""What a run says: the figures, and what a reader must know to compare them."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, Literal

import attrs
import psycopg
from psycopg import sql

from hastetrio.bench._room import session

if TYPE_CHECKING:
    from hastetrio.bench._figures import Section
    from hastetrio.bench._plan import Plan
    from hastetrio.bench._room import Room

# The settings of a server that decide what a commit costs, and one that decides about the rest.
_SETTINGS: Final = (
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "shared_buffers",
)


@attrs.frozen(kw_only=True)
class Versions:
    """What ran."""

    hastetrio: str
    python: str
    trio: str
    psycopg: str
    psycopg_implementation: str
    libpq: int


@attrs.frozen(kw_only=True)
class Machine:
    """Where it ran: the cores this process may use, and the load before the first section."""

    system: str
    architecture: str
    cores: int
    load: float


@attrs.frozen(kw_only=True)
class Server:
    """What it ran against.

    Attributes:
        kind: Whether it was thrown away, embedded and kept, or given.
        room: Whether the benchmark had a database or a schema of its own.
        is_local: Whether it is reached by a Unix socket.
        is_encrypted: Whether the connections are.
        settings: Some of its settings, as it shows them.
    """

    kind: Literal["throw-away", "embedded", "given"]
    room: Literal["database", "schema"]
    is_local: bool
    is_encrypted: bool
    settings: Mapping[str, str]


@attrs.frozen(kw_only=True)
class Report:
    """A whole run; `sections` are by name, in their order."""

    versions: Versions
    machine: Machine
    server: Server
    log_level: str
    sections: Mapping[str, Section]

    def headline(self) -> list[str]:
        """What a reader must know, in a few lines."""
        of, at, on = self.versions, self.machine, self.server
        settings = ", ".join(f"{name} {on.settings[name]}" for name in _SETTINGS[1:])
        way = ("Unix socket" if on.is_local else "TCP") + (", encrypted" if on.is_encrypted else "")
        program = f"hastetrio {of.hastetrio}, Python {of.python}, trio {of.trio}"
        driver = f"psycopg {of.psycopg} ({of.psycopg_implementation}, libpq {of.libpq})"
        machine = f"{at.system} {at.architecture}, {at.cores} cores, load {at.load:.2f} before"
        return [
            f"{program}, {driver}",
            f"PostgreSQL {on.settings['server_version']} ({on.kind}), {settings}",
            f"{machine}; {way}; a {on.room} of its own; log level {self.log_level.upper()}",
        ]


def read_versions() -> Versions:
    """The versions of what runs."""
    return Versions(
        hastetrio=version("hastetrio"),
        python=platform.python_version(),
        trio=version("trio"),
        psycopg=version("psycopg"),
        psycopg_implementation=psycopg.pq.__impl__,
        libpq=psycopg.pq.version(),
    )


def read_machine() -> Machine:
    """The machine, now."""
    affinity = getattr(os, "sched_getaffinity", None)
    return Machine(
        system=platform.system(),
        architecture=platform.machine(),
        cores=len(affinity(0)) if affinity else os.cpu_count() or 1,
        load=os.getloadavg()[0],
    )


async def read_server(room: Room, plan: Plan) -> Server:
    """The server, as a session of the benchmark sees it.

    Raises:
        ProviderUnavailable: It cannot be reached.
    """
    settings: dict[str, str] = {}
    async with session(room.dsn) as connection:
        for name in _SETTINGS:
            cursor = await connection.execute(sql.SQL("SHOW {}").format(sql.Identifier(name)))
            [(settings[name],)] = await cursor.fetchall()
        encrypted = bool(connection.pgconn.ssl_in_use)
        local = connection.info.host.startswith(("/", "@"))
    if plan.database_url is not None:
        kind: Literal["throw-away", "embedded", "given"] = "given"
    else:
        kind = "throw-away" if plan.data_dir is None else "embedded"
    return Server(
        kind=kind,
        room=room.kind,
        is_local=local,
        is_encrypted=encrypted,
        settings=settings,
    )
