"""The server of a test or a benchmark leaves nothing behind, however its block ends."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from hastetrio.embedded import throw_away_server


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_an_error_in_the_block_takes_the_server_along() -> None:
    """Its process has ended and its folder is gone when the error arrives."""
    seen: list[tuple[Path, int]] = []

    def fail() -> None:
        with throw_away_server(["fsync=off"]) as server:
            with psycopg.connect(server.start()) as connection:
                assert connection.execute("SHOW fsync").fetchone() == ("off",)
            seen.append((server.root, server.server_pid() or 0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    ((root, pid),) = seen
    assert pid
    assert not root.exists()
    assert not _is_alive(pid)


def test_a_server_that_was_never_started_leaves_no_folder() -> None:
    """As when what should start it fails before."""
    with throw_away_server() as server:
        root = server.root
        assert root.exists()
    assert not root.exists()
