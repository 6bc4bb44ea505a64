"""A violent end of the server, its keeper or its starter, and how the next start copes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from hastetrio.embedded import EmbeddedPostgres, EmbeddedUnavailable, _keeper, find_binaries
from hastetrio.embedded._account import choose_account
from hastetrio.embedded._locks import is_held, wait_until

if TYPE_CHECKING:
    from tests.embedded.conftest import StartUser

QUICK = ("fsync=off", "shared_buffers=16MB")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and prctl")


def kill_postmaster(server: EmbeddedPostgres) -> int:
    """SIGKILL the postmaster and wait until every process of the server has gone."""
    pid = server.server_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert server.wait_stopped()
    return pid


def cluster_of(server: EmbeddedPostgres) -> Path:
    """The folder of the server's major."""
    assert server.log is not None
    return server.log.parent


def record_pid(server: EmbeddedPostgres, pid: int) -> None:
    """Make the pid file of a killed server name another process."""
    file = cluster_of(server) / "data" / "postmaster.pid"
    lines = file.read_text().splitlines(keepends=True)
    with file.open("w") as rewritten:
        rewritten.writelines([f"{pid}\n", *lines[1:]])


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the server's account that is no server; ends when its input does."""
    with subprocess.Popen(
        ["/bin/cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        cwd="/",
        **choose_account().popen_options(),
    ) as process:
        yield process


def test_a_killed_server_is_revived_with_its_data(root: Path) -> None:
    """The same instance, still holding, gets a new server that recovered what was committed."""
    with EmbeddedPostgres(root, options=QUICK) as server:
        with psycopg.connect(server.start()) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS value")
        killed = kill_postmaster(server)
        with psycopg.connect(server.start()) as connection:
            assert connection.execute("SELECT value FROM kept").fetchone() == (7,)
            connection.execute("DROP TABLE kept")
        assert server.server_pid() != killed
    assert server.wait_stopped()


def test_the_hold_still_counts_after_a_revival(root: Path, start_user: StartUser) -> None:
    """A user from before the crash is one after it too: the server stays for it alone."""
    first = EmbeddedPostgres(root, options=QUICK)
    with first:
        kill_postmaster(first)
        second = start_user(root)
        assert second.report["server"] == first.server_pid()
        second.end(signal.SIGKILL)
        assert not first.wait_stopped(timeout=0)
    assert first.wait_stopped()


@linux_only
def test_a_zombie_in_the_pid_file_is_no_server(
    root: Path, bystander: subprocess.Popen[bytes]
) -> None:
    """Where nobody reaps a killed postmaster its pid stays taken; a start must not believe it."""
    assert bystander.stdin is not None
    bystander.stdin.close()
    os.waitid(os.P_PID, bystander.pid, os.WEXITED | os.WNOWAIT)
    with EmbeddedPostgres(root, options=QUICK) as server:
        kill_postmaster(server)
        record_pid(server, bystander.pid)
        server.start()
        assert server.server_pid() not in {None, bystander.pid}
    assert server.wait_stopped()


@linux_only
def test_a_pid_that_somebody_else_got_is_no_server(
    root: Path, bystander: subprocess.Popen[bytes]
) -> None:
    """After a container's restart the recorded pid is often a neighbour's, which is left alone."""
    with EmbeddedPostgres(root, options=QUICK) as server:
        kill_postmaster(server)
        record_pid(server, bystander.pid)
        server.start()
        assert server.server_pid() not in {None, bystander.pid}
    assert server.wait_stopped()
    assert bystander.poll() is None


def test_a_server_that_somebody_else_runs_there_is_left_alone(root: Path) -> None:
    """A postmaster started by hand on our cluster is real: refuse, and keep its pid file."""
    with EmbeddedPostgres(root, options=QUICK) as server:
        cluster = cluster_of(server)
    assert server.wait_stopped()
    account = choose_account(root, cluster / "data")
    with subprocess.Popen(
        [
            *(find_binaries(account).folder / "postgres", "-D", cluster / "data"),
            *("-c", "listen_addresses=", "-c", f"unix_socket_directories={cluster / 'data'}"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        **account.popen_options(),
    ) as by_hand:
        try:
            assert by_hand.stderr is not None
            assert any(b"ready to accept connections" in line for line in by_hand.stderr)
            with pytest.raises(EmbeddedUnavailable, match=rf"\(process {by_hand.pid}\) runs in"):
                server.start()
            assert (cluster / "data" / "postmaster.pid").exists()
            assert by_hand.poll() is None
        finally:
            by_hand.send_signal(signal.SIGINT)


@linux_only
def test_the_server_goes_with_a_killed_keeper(root: Path) -> None:
    """A server that nobody would ever stop is worse than none; the next start makes a new one."""
    with EmbeddedPostgres(root, options=QUICK) as server:
        orphan = server.server_pid()
        os.kill(int((cluster_of(server) / "keeper.lock").read_text()), signal.SIGKILL)
        assert server.wait_stopped()
        server.start()
        assert server.server_pid() not in {None, orphan}
    assert server.wait_stopped()


def test_a_server_without_keeper_is_replaced(
    root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system cannot bind the server to its keeper, the next start stops the orphan."""
    source = Path(_keeper.__file__).read_text()
    elsewhere = folder / "keeper.py"
    elsewhere.write_text(source.replace('sys.platform != "linux"', "True"))
    assert elsewhere.read_text() != source
    monkeypatch.setattr(_keeper, "__file__", str(elsewhere))
    with EmbeddedPostgres(root, options=QUICK) as server:
        orphan = server.server_pid()
        lock = cluster_of(server) / "keeper.lock"
        os.kill(int(lock.read_text()), signal.SIGKILL)
        assert wait_until(lambda: not is_held(lock), time.monotonic() + 10)
        assert server.server_pid() == orphan
        server.start()
        assert server.server_pid() not in {None, orphan}
        assert is_held(lock)
    assert server.wait_stopped()


def test_a_starter_killed_while_it_makes_the_cluster_leaves_no_half_of_one(
    folder: Path, start_user: StartUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an interrupted initdb wrote is thrown away, once its last process has ended."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "postgres").symlink_to(find_binaries().folder / "postgres")
    news = folder / "news"
    os.mkfifo(news)
    news.chmod(0o666)
    # Says its pid once half a cluster is there, and then waits for a word that never comes.
    (programs / "initdb").write_text(
        f'#!/bin/sh\nmkdir "$2/base"; echo half > "$2/base/file"; echo $$ > {news}; cat {news}\n'
    )
    (programs / "initdb").chmod(0o755)
    root = folder / "root"
    with monkeypatch.context() as patched:
        patched.setenv("HASTETRIO_PG_BIN", str(programs))
        starter = start_user(root)
    initdb = int(news.read_text())
    starter.end(signal.SIGKILL)
    (cluster,) = root.glob("pg*")
    assert is_held(cluster / "server.lock")
    assert not (cluster / "data").exists()
    os.killpg(initdb, signal.SIGKILL)
    with EmbeddedPostgres(root, options=QUICK) as server:
        assert not (cluster / "data" / "base" / "file").exists()
        assert not (cluster / "data.unfinished").exists()
    assert server.wait_stopped()
