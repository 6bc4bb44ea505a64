"""Where the commands connect to, and what they may change there."""

from __future__ import annotations

from pathlib import Path

import pytest

from hastetrio import embedded
from hastetrio._settings import Settings
from hastetrio.cli._connect import database_name
from hastetrio.embedded import EmbeddedUnavailable

from .harness import Run, only_line


class Server:
    """Stands for the embedded server; its database is one of the test server's."""

    url = ""
    roots: list[Path | None] = []  # noqa: RUF012  # new for each test
    running = 0

    def __init__(self, root: Path | None = None) -> None:
        self.roots.append(root)

    def start(self) -> str:
        """The server's database."""
        Server.running += 1
        return self.url

    def stop(self) -> None:
        """One user less."""
        Server.running -= 1


@pytest.fixture
def server(empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> type[Server]:
    """The embedded server's stand-in, with an empty database."""
    monkeypatch.setattr(embedded, "EmbeddedPostgres", Server)
    monkeypatch.setattr(Server, "url", empty_database_url)
    monkeypatch.setattr(Server, "roots", [])
    return Server


def test_the_embedded_database_is_migrated_on_use(run: Run, server: type[Server]) -> None:
    """A private database is ours; it needs no command of its own before the first job."""
    assert run("--embedded", "jobs", "submit", "k").exit_code == 0
    result = run("--data-dir", "/srv/pg", "jobs", "list")
    assert result.exit_code == 0
    assert " k " in result.stdout
    assert server.roots == [None, Path("/srv/pg")]


def test_the_embedded_server_is_let_go_of(run: Run, server: type[Server]) -> None:
    """Also after an error: the last one to leave stops it."""
    assert run("--embedded", "jobs", "show", "nothing").exit_code == 1
    assert run("--embedded", "status").exit_code == 0
    assert server.running == 0


def test_migrate_does_not_migrate_before_it_checks(run: Run, server: type[Server]) -> None:
    """`--check` asks about the embedded database too, and changes nothing."""
    assert run("--embedded", "migrate", "--check").exit_code == 1
    assert run("--embedded", "migrate").exit_code == 0
    assert run("--embedded", "migrate", "--check").exit_code == 0


def test_no_embedded_server_is_one_line(
    run: Run, server: type[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own words, without a traceback."""

    def refuse(_: Server) -> str:
        raise EmbeddedUnavailable("no PostgreSQL programs were found")

    monkeypatch.setattr(Server, "start", refuse)
    result = run("--embedded", "status")
    assert result.exit_code == 1
    assert "no PostgreSQL programs" in only_line(result.stderr)


def test_a_database_is_named_without_its_password() -> None:
    """For the log."""
    url = "postgresql://u:hunter2@db:5433/jobs"
    assert "hunter2" not in database_name(Settings(database_url=url))
    assert "5433" in database_name(Settings(database_url=url))
    assert "/srv/pg" in database_name(Settings(embedded=True, data_dir=Path("/srv/pg")))
