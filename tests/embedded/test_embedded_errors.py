"""Every way in which there is no server is one line that says why and what to do."""

from __future__ import annotations

import importlib.util
import logging
import os
from pathlib import Path

import pytest

from hastetrio._errors import HastetrioError
from hastetrio.embedded import EmbeddedPostgres, EmbeddedUnavailable, _binaries, find_binaries
from hastetrio.embedded._cluster import Cluster
from hastetrio.embedded._locks import LockFile

QUICK = ("fsync=off", "shared_buffers=16MB")


def refusal(server: EmbeddedPostgres) -> str:
    """What a start that must fail says: one line, with nothing held afterwards."""
    with pytest.raises(EmbeddedUnavailable) as caught:
        server.start()
    text = str(caught.value)
    assert "\n" not in text
    assert isinstance(caught.value, HastetrioError)
    assert server.wait_stopped()
    if server.log is not None:
        users = LockFile(server.log.with_name("users.lock"))
        assert users.try_exclusive()
        users.release()
    return text


def script(path: Path, text: str) -> None:
    """Write a program for /bin/sh."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A machine without any PostgreSQL."""
    monkeypatch.delenv("HASTETRIO_PG_BIN", raising=False)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(_binaries, "_SYSTEM", ())
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)


@pytest.mark.usefixtures("nothing_installed")
def test_no_binaries_says_how_to_get_some(folder: Path) -> None:
    """All three ways out are in the line."""
    said = refusal(EmbeddedPostgres(folder / "root"))
    assert "pip install 'hastetrio[embedded]'" in said
    assert "install PostgreSQL" in said
    assert "--database-url" in said


@pytest.mark.usefixtures("nothing_installed")
def test_binaries_that_do_not_run_are_named_with_the_reason(folder: Path) -> None:
    """An old server, and one without its initdb, are passed over and not kept secret."""
    script(folder / "postgres", "echo 'postgres (PostgreSQL) 13.9 (Debian 13.9-0)'")
    said = refusal(EmbeddedPostgres(folder / "root"))
    assert f"{folder}: PostgreSQL 13.9 is too old, 14 or later is needed" in said
    script(folder / "postgres", "echo 'postgres (PostgreSQL) 16.2'")
    assert f"{folder}: there is no initdb beside postgres" in refusal(
        EmbeddedPostgres(folder / "root")
    )
    script(folder / "postgres", "echo 'libssl.so.9 is missing' >&2; exit 127")
    assert "libssl.so.9 is missing" in refusal(EmbeddedPostgres(folder / "root"))


@pytest.mark.usefixtures("nothing_installed")
def test_the_version_is_read_in_all_its_forms(folder: Path) -> None:
    """Distributions and development builds write it differently."""
    script(folder / "initdb", "")
    for said, version, major in [
        ("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", "15.18", 15),
        ("postgres (PostgreSQL) 19devel", "19devel", 19),
        ("postgres (PostgreSQL) 18beta2", "18beta2", 18),
    ]:
        script(folder / "postgres", f"echo '{said}'")
        found = find_binaries()
        assert (found.folder, found.version, found.major) == (folder, version, major)


def test_the_newest_system_server_is_preferred(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Majors are compared as numbers: 99 does not beat 100, nor does a digit further up."""
    for place, major in (("pg-99", 99), ("pg-100", 100), ("500/latest", 14)):
        (folder / place / "bin").mkdir(parents=True)
        script(folder / place / "bin" / "initdb", "")
        script(folder / place / "bin" / "postgres", f"echo 'postgres (PostgreSQL) {major}.1'")
    monkeypatch.delenv("HASTETRIO_PG_BIN", raising=False)
    monkeypatch.setattr(_binaries, "_WHEELS", ())
    monkeypatch.setattr(_binaries, "_SYSTEM", (f"{folder}/pg-*/bin", f"{folder}/500/*/bin"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_binaries().major == 100


@pytest.mark.parametrize("fsync", ["on", "off"])
def test_a_new_cluster_is_on_disk_unless_the_caller_does_not_care(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fsync: str
) -> None:
    """A power cut right after the first start must not leave a torn cluster; tests may go fast."""
    (folder / "postgres").symlink_to(find_binaries().folder / "postgres")
    script(folder / "initdb", 'echo "error: called with $*"; exit 1')
    monkeypatch.setenv("HASTETRIO_PG_BIN", str(folder))
    said = refusal(EmbeddedPostgres(folder / "root", options=[f"fsync={fsync}"]))
    assert ("--no-sync" in said) == (fsync == "off")


def test_an_override_that_does_not_run_is_not_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who names a folder wants that one: nothing else is taken in its place."""
    monkeypatch.setenv("HASTETRIO_PG_BIN", str(folder / "absent"))
    said = refusal(EmbeddedPostgres(folder / "root"))
    assert f"HASTETRIO_PG_BIN={folder}/absent" in said
    assert "No such file or directory" in said


def test_a_server_that_refuses_its_settings_is_quoted(root: Path) -> None:
    """The line holds what PostgreSQL said and where the rest is."""
    server = EmbeddedPostgres(root, options=[*QUICK, "no_such_setting=1"])
    said = refusal(server)
    assert 'FATAL:  unrecognized configuration parameter "no_such_setting"' in said
    assert str(server.log) in said


def test_a_failing_initdb_is_quoted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line holds initdb's complaint and where the rest is."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "postgres").symlink_to(find_binaries().folder / "postgres")
    script(programs / "initdb", "echo 'initdb: error: disk is full'; echo 'bye'; exit 1")
    server = EmbeddedPostgres(folder / "root", options=QUICK)
    monkeypatch.setenv("HASTETRIO_PG_BIN", str(programs))
    said = refusal(server)
    assert "initdb: error: disk is full" in said
    assert str(server.log) in said


def test_an_initdb_that_hangs_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeout of a start covers all of it."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "postgres").symlink_to(find_binaries().folder / "postgres")
    os.mkfifo(folder / "never")
    script(programs / "initdb", f"exec cat {folder}/never")
    monkeypatch.setenv("HASTETRIO_PG_BIN", str(programs))
    with pytest.raises(EmbeddedUnavailable, match="initdb did not finish in time"):
        EmbeddedPostgres(folder / "root").start(timeout=0.5)


def test_what_is_no_cluster_is_neither_used_nor_removed(folder: Path) -> None:
    """Somebody's files in our place, or another major's, are theirs."""
    major = find_binaries().major
    data = folder / f"pg{major}" / "data"
    data.mkdir(parents=True)
    (data / "precious").write_text("mine")
    assert f"{data} is no PostgreSQL cluster" in refusal(EmbeddedPostgres(folder))
    (data / "PG_VERSION").write_text("11\n")
    assert f"{data} is a cluster of PostgreSQL 11" in refusal(EmbeddedPostgres(folder))
    assert (data / "precious").read_text() == "mine"


def test_a_new_major_beside_an_old_cluster_is_announced(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody should wonder silently where the jobs of yesterday have gone."""
    (folder / "postgres").symlink_to(find_binaries().folder / "postgres")
    script(folder / "initdb", "exit 1")
    monkeypatch.setenv("HASTETRIO_PG_BIN", str(folder))
    with caplog.at_level(logging.WARNING):
        refusal(EmbeddedPostgres(folder / "root"))
        assert caplog.text == ""
        (folder / "root" / "pg11" / "data").mkdir(parents=True)
        (folder / "root" / "pg11" / "data" / "PG_VERSION").write_text("11\n")
        refusal(EmbeddedPostgres(folder / "root"))
        assert "the data in pg11 is left alone" in caplog.text


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_root_that_cannot_be_a_folder_is_one_line(folder: Path, name: str) -> None:
    """A mistyped --data-dir is named, not traced back."""
    (folder / "file").write_text("")
    said = refusal(EmbeddedPostgres(folder / name))
    assert f"{folder}/file" in said
    assert "give another --data-dir" in said


def test_a_home_that_does_not_exist_is_one_line() -> None:
    """`--data-dir=~name` reaches us as it is, and may be mistyped."""
    with pytest.raises(EmbeddedUnavailable, match="~no-such-user/jobs names a user without a home"):
        EmbeddedPostgres(Path("~no-such-user/jobs"))


@pytest.mark.parametrize("option", ["fsync", "=off", "--fsync=off", "two words=1"])
def test_a_malformed_option_is_refused_at_once(option: str) -> None:
    """The mistake is the caller's, and shows where it was made."""
    with pytest.raises(ValueError, match="must look like name=value"):
        EmbeddedPostgres(Path("/nowhere"), options=[option])


def test_a_long_log_is_set_aside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Years of starts do not fill the disk, and one old log is kept to be read."""
    monkeypatch.setattr("hastetrio.embedded._cluster._LOG_LIMIT", 10)
    cluster = Cluster(folder)
    cluster.log.write_text("eleven char")
    size, log = cluster.open_log()
    os.close(log)
    assert size == 0
    assert cluster.log.with_name("server.log.old").read_text() == "eleven char"
