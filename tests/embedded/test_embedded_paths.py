"""Where the data and the socket go, whatever the paths look like."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from hastetrio.embedded import EmbeddedPostgres, EmbeddedUnavailable, default_root
from hastetrio.embedded._account import choose_account
from hastetrio.embedded._supervisor import _quoted

if TYPE_CHECKING:
    from tests.embedded.conftest import Movable

QUICK = ("fsync=off", "shared_buffers=16MB")


def socket_folder(conninfo: str) -> Path:
    """Where a conninfo says the socket is."""
    return Path(str(conninfo_to_dict(conninfo)["host"]))


def check_answers(conninfo: str) -> None:
    """Make sure the conninfo is understood and the server there answers."""
    with psycopg.connect(conninfo) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.fixture
def temporary(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of this test's own."""
    made = folder / "temporary"
    made.mkdir()
    made.chmod(0o1777)
    monkeypatch.setattr("tempfile.tempdir", str(made))
    return made


def test_a_long_path_gets_a_private_socket_folder(
    folder: Path, temporary: Path, move_root: Movable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket's path is limited to about 100 bytes; its stand-in is closed, and goes at stop."""
    server = EmbeddedPostgres(move_root(folder / ("long" * 25)), options=QUICK)
    conninfo = server.start()
    check_answers(conninfo)
    sockets = socket_folder(conninfo)
    assert sockets.parent == temporary
    assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    assert sockets.stat().st_uid == choose_account().uid
    # A process with another temporary folder finds the same socket.
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    with EmbeddedPostgres(server.root, options=QUICK) as second:
        assert second.start() == conninfo
    server.stop()
    assert server.wait_stopped()
    assert not sockets.exists()


def test_a_temporary_folder_that_is_too_long_itself_is_not_used(
    folder: Path, move_root: Movable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some systems' temporary folders leave no room for a socket either."""
    temporary = folder / ("temp" * 20)
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    server = EmbeddedPostgres(move_root(folder / ("long" * 25)), options=QUICK)
    conninfo = server.start()
    check_answers(conninfo)
    server.stop()
    assert server.wait_stopped()
    assert not socket_folder(conninfo).exists()


def test_a_socket_folder_that_is_not_ours_alone_is_refused(
    folder: Path, temporary: Path, move_root: Movable
) -> None:
    """In a temporary folder anybody may take a name first: such a thing is not used or changed."""
    server = EmbeddedPostgres(move_root(folder / ("long" * 25)), options=QUICK)
    sockets = socket_folder(server.start())
    server.stop()
    assert server.wait_stopped()
    aside = temporary / "aside"
    aside.mkdir(mode=0o700)

    def refused() -> None:
        before = (sockets.lstat(), aside.stat())
        with pytest.raises(
            EmbeddedUnavailable, match=rf"^{sockets}, where .* not a private folder"
        ):
            server.start()
        after = (sockets.lstat(), aside.stat())
        assert [(s.st_uid, s.st_mode) for s in after] == [(s.st_uid, s.st_mode) for s in before]

    sockets.symlink_to(aside)
    refused()
    sockets.unlink()
    sockets.touch(mode=0o600)
    refused()
    sockets.unlink()
    sockets.mkdir()
    sockets.chmod(0o770)
    refused()
    # But one that is ours, such as a killed start leaves, is used again and then removed.
    sockets.chmod(0o700)
    check_answers(server.start())
    server.stop()
    assert server.wait_stopped()
    assert not sockets.exists()


def test_unusual_characters_in_the_path_are_no_obstacle(
    folder: Path, temporary: Path, move_root: Movable
) -> None:
    """Commas and quotes mean something in lists of folders; people's folders have them anyway."""
    for name in ("a b, c", 'it\'s a "back\\slash" ünï'):
        with EmbeddedPostgres(move_root(folder / name), options=QUICK) as server:
            check_answers(server.start())
        assert server.wait_stopped()
    server = EmbeddedPostgres(move_root(folder / "two words"), options=QUICK)
    conninfo = server.start()
    check_answers(conninfo)
    assert socket_folder(conninfo).is_relative_to(server.root)
    server.stop()
    assert server.wait_stopped()


@pytest.mark.parametrize("path", ["/plain", "/two words", "/it's", "/back\\slash", "/'\\"])
def test_paths_are_quoted_as_libpq_wants_it(path: str) -> None:
    """What is handed out as a conninfo is read back as the same folder."""
    assert conninfo_to_dict(f"host={_quoted(path)} port=1") == {"host": path, "port": "1"}


def test_a_relative_root_is_meant_from_where_it_was_named(
    folder: Path, move_root: Movable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--data-dir ./jobs` works, and a later chdir moves nothing."""
    monkeypatch.chdir(folder)
    server = EmbeddedPostgres(Path("some/jobs"), options=QUICK)
    monkeypatch.chdir("/")
    move_root(folder / "some" / "jobs")
    assert server.root == folder / "some" / "jobs"
    conninfo = server.start()
    check_answers(conninfo)
    assert socket_folder(conninfo).is_relative_to(folder / "some" / "jobs")
    server.stop()
    assert server.wait_stopped()


def test_postgresql_variables_of_the_caller_change_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PGPORT would move the socket, PGOPTIONS would change the server."""
    monkeypatch.setenv("PGPORT", "6543")
    monkeypatch.setenv("PGDATA", "/nowhere")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    server = EmbeddedPostgres(root, options=QUICK)
    check_answers(server.start())
    server.stop()
    assert server.wait_stopped()


def test_the_callers_secrets_do_not_reach_the_server(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's account can read its own environment: no worker's passwords belong there."""
    monkeypatch.setenv("HASTETRIO_DATABASE_URL", "postgresql://user:secret@host/database")
    with EmbeddedPostgres(root, options=QUICK) as server:
        environment = Path(f"/proc/{server.server_pid()}/environ")
        if not environment.exists():
            pytest.skip("needs /proc")
        assert b"secret" not in environment.read_bytes()
    assert server.wait_stopped()


def test_the_default_root_is_the_state_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each kind of user keeps such data; a relative XDG_STATE_HOME does not count."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_root() == Path("/var/lib/hastetrio")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_root() == Path("/state/hastetrio")
    for value in ("relative", ""):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        assert default_root() == Path("/home/somebody/.local/state/hastetrio")
