"""Several processes, one server: it is there while anybody uses it, and not longer."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from hastetrio.embedded import EmbeddedPostgres, EmbeddedUnavailable

if TYPE_CHECKING:
    from tests.embedded.conftest import StartUser

QUICK = ("fsync=off", "shared_buffers=16MB")


def ask(conninfo: str, question: str) -> object:
    """The one value a query answers."""
    with psycopg.connect(conninfo) as connection:
        row = connection.execute(question.encode()).fetchone()
    assert row is not None
    return row[0]


def keeper_pid(server: EmbeddedPostgres) -> int:
    """The process that owns the server."""
    assert server.log is not None
    return int(server.log.with_name("keeper.lock").read_text())


def test_a_server_keeps_data_safe_and_listens_on_no_network(folder: Path) -> None:
    """What people store must survive a power cut, and nobody from outside may reach it."""
    server = EmbeddedPostgres(folder)
    with server:
        conninfo = server.start()
        major = int(str(ask(conninfo, "SHOW server_version_num"))) // 10_000
        assert ask(conninfo, "SHOW fsync") == "on"
        assert ask(conninfo, "SHOW listen_addresses") == ""
        assert ask(conninfo, "SELECT current_user") == "hastetrio"
        assert ask(conninfo, "SHOW data_directory") == str(folder / f"pg{major}" / "data")
    assert server.wait_stopped()


def test_processes_that_start_at_once_share_one_server(folder: Path, start_user: StartUser) -> None:
    """Four starters of a root where nothing is yet make one cluster and one server."""
    users = [start_user(folder) for _ in range(4)]
    assert len({user.report["server"] for user in users}) == 1
    assert [user.end() for user in users] == [0, 0, 0, 0]


def test_the_options_of_the_first_starter_win(root: Path) -> None:
    """Whoever joins a running server takes it as it is."""
    first = EmbeddedPostgres(root, options=[*QUICK, "work_mem=5MB"])
    second = EmbeddedPostgres(root, options=[*QUICK, "work_mem=6MB"])
    with first, second:
        assert ask(second.start(), "SHOW work_mem") == "5MB"
    assert second.wait_stopped()
    with second:
        assert ask(second.start(), "SHOW work_mem") == "6MB"
    assert second.wait_stopped()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_server_outlives_every_user_but_the_last(
    root: Path, start_user: StartUser, number: signal.Signals
) -> None:
    """However users die, the server stays for the others and goes with the last one."""
    watcher = EmbeddedPostgres(root, options=QUICK)
    with watcher:
        server = watcher.server_pid()
    users = [start_user(root) for _ in range(3)]
    servers = {user.report["server"] for user in users}
    assert len(servers) == 1
    for user in users[:-1]:
        user.end(number)
    assert not watcher.wait_stopped(timeout=0)
    assert ask(users[-1].report["conninfo"], "SELECT 1") == 1
    users[-1].end(number)
    assert watcher.wait_stopped()
    assert server is not None


def test_starting_and_stopping_at_random_never_yields_a_dead_server(root: Path) -> None:
    """Users that come while the keeper stops the server wait, and get one that answers."""
    failures: list[Exception] = []

    def come_and_go() -> None:
        try:
            for _ in range(6):
                with EmbeddedPostgres(root, options=QUICK) as server:
                    assert ask(server.start(), "SELECT 1") == 1
        except (EmbeddedUnavailable, psycopg.Error, AssertionError) as error:
            failures.append(error)

    threads = [threading.Thread(target=come_and_go) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_one_instance_may_start_and_stop_repeatedly(root: Path) -> None:
    """A second start is the same hold, and a second stop is nothing."""
    server = EmbeddedPostgres(root, options=QUICK)
    assert server.start() == server.start()
    server.stop()
    server.stop()
    assert server.wait_stopped()


def test_ctrl_c_of_a_terminal_does_not_reach_the_server(root: Path, start_user: StartUser) -> None:
    """Workers still need their database while they drain after a Ctrl-C."""
    with EmbeddedPostgres(root, options=QUICK) as watcher:
        watcher.stop()
        assert watcher.wait_stopped()
        user = start_user(root)
        assert "error" not in user.report
        watcher.start()
        groups = {os.getpgid(keeper_pid(watcher)), os.getpgid(user.report["server"])}
        assert os.getpgid(user.process.pid) not in groups
        os.killpg(user.process.pid, signal.SIGINT)
        user.end()
        assert ask(watcher.start(), "SELECT 1") == 1
        assert watcher.server_pid() == user.report["server"]
    assert watcher.wait_stopped()


def test_a_terminated_keeper_stays_with_its_server(root: Path) -> None:
    """A service manager that ends the whole group must not end the database of its workers."""
    with EmbeddedPostgres(root, options=QUICK) as server:
        pid = server.server_pid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(keeper_pid(server), number)
        assert ask(server.start(), "SELECT 1") == 1
        assert server.server_pid() == pid
        os.kill(keeper_pid(server), 0)
    assert server.wait_stopped()


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_a_child_of_a_user_is_no_user(root: Path, start_user: StartUser, how: str) -> None:
    """A process that a user left behind does not keep the server up for ever."""
    watcher = EmbeddedPostgres(root, options=QUICK)
    user = start_user(root, child=how)
    os.kill(user.report["child"], 0)
    with watcher:
        assert watcher.server_pid() == user.report["server"]
    user.end(signal.SIGKILL)
    assert watcher.wait_stopped()


def test_the_keeper_inherits_nothing_of_its_starter(root: Path) -> None:
    """A pipe or socket of the worker must close when the worker closes it."""
    watch, held = os.pipe()
    os.set_inheritable(held, True)
    try:
        with EmbeddedPostgres(root, options=QUICK) as server:
            os.close(held)
            assert select.select([watch], [], [], 10)[0]
            assert os.read(watch, 1) == b""
        assert server.wait_stopped()
    finally:
        os.close(watch)


def test_a_forked_child_shares_no_hold_with_its_parent(
    root: Path, child_environment: dict[str, str]
) -> None:
    """An inherited instance gives up nothing of the parent's, and start() makes it a user."""
    code = """if True:
        import os, sys
        from pathlib import Path
        from hastetrio.embedded import EmbeddedPostgres
        from hastetrio.embedded._locks import LockFile
        server = EmbeddedPostgres(Path(sys.argv[1]), options=sys.argv[2:])
        server.start()
        before = server.server_pid()
        def is_used():  # Held shared; not by nobody, nor by a keeper that stops the server.
            lock = LockFile(server.log.with_name("users.lock"))
            used = not lock.try_exclusive() and lock.try_shared()
            lock.close()
            return used
        started, says_started = os.pipe()
        stopped, says_stopped = os.pipe()
        child = os.fork()
        if child == 0:
            server.start()
            os.write(says_started, b"x")
            os.read(stopped, 1)
            os._exit(0 if is_used() and server.server_pid() == before else 1)
        os.read(started, 1)
        other = os.fork()
        if other == 0:
            server.stop()
            os._exit(0 if is_used() else 1)
        assert os.waitpid(other, 0)[1] == 0, "the parent's hold was given up"
        server.stop()
        os.write(says_stopped, b"x")
        assert os.waitpid(child, 0)[1] == 0, "the child held nothing"
        assert server.wait_stopped()
    """
    result = subprocess.run(
        [sys.executable, "-c", code, str(root), *QUICK],
        env=child_environment,
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stderr) == (0, "")
