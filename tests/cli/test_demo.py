"""The demo happens as it is told, and says so when it did not."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import psycopg
import pytest

from hastetrio import AsyncJob, AsyncJobStatus
from hastetrio.cli._demo_story import Verdict, _judge
from hastetrio.embedded import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for the demo's server, which its account can reach."""
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="hastetrio-demo-test-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_the_demo_kills_a_worker_and_every_export_completes(data_dir: Path) -> None:
    """The whole story: exit 0, two attempts where the dead worker was, files, nothing left."""
    output = data_dir / "exports"
    server = EmbeddedPostgres(data_dir)
    # Held for the test: otherwise the last user's leaving would hide a database left behind.
    dsn = server.start()
    try:
        command = [sys.executable, "-m", "hastetrio", "demo", "--data-dir", str(data_dir)]
        done = subprocess.run(
            [*command, "--output", str(output)], capture_output=True, text=True, timeout=90
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Killed" in done.stdout
        table = done.stdout.partition("JOB ")[2].splitlines()[1:7]
        assert sum(" then " in line for line in table) >= 1
        assert all("completed" in line for line in table)
        assert len(list(output.iterdir())) == 6
        with psycopg.connect(dsn) as connection:
            rows = connection.execute("SELECT datname FROM pg_database").fetchall()
        assert not [name for (name,) in rows if name.startswith("hastetrio_demo")]
    finally:
        server.stop()
        server.wait_stopped(20)


def _story(tmp_path: Path) -> tuple[list[AsyncJob], set[str]]:
    """Two jobs as the demo leaves them, one of them taken over."""
    jobs = []
    for id, attempts in (("a", 2), ("b", 1)):
        (tmp_path / id).mkdir()
        (tmp_path / id / "Patient.1.ndjson").write_bytes(b"{}\n")
        manifest: dict[str, Any] = {
            "output": [{"url": "http://x/Patient.1.ndjson", "count": 1, "type": "Patient"}]
        }
        jobs.append(
            AsyncJob(
                id=id,
                tenant="demo",
                project="demo",
                kind="bulk-export",
                status=AsyncJobStatus.COMPLETED,
                request="",
                parameters={},
                claims={},
                submitted_by="demo",
                output=manifest,
                attempts=attempts,
                created_at=_NOW,
                updated_at=_NOW,
                expires_at=_NOW,
                run_at=_NOW,
                finished_by="beta-1-abcdef/1-abcdefgh",
            )
        )
    return jobs, {"a"}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"status": AsyncJobStatus.FAILED}, "a is failed"),
        ({"attempts": 1}, "a took 1 attempts"),
        ({"finished_by": "alpha-1-abcdef/1-abcdefgh"}, "finished by alpha"),
        ({"output": {"output": [{"url": "http://x/Gone.1.ndjson", "count": 1}]}}, "a lacks output"),
        ({"output": None}, "a lacks output"),
    ],
)
def test_the_demo_tells_what_did_not_happen(
    tmp_path: Path, change: dict[str, Any], complaint: str
) -> None:
    """A story that went otherwise is not called a success."""
    jobs, held = _story(tmp_path)
    good = Verdict()
    _judge(good, jobs, held, "beta", tmp_path)
    assert good.failures == []
    bad = Verdict()
    _judge(bad, [attrs.evolve(jobs[0], **change), jobs[1]], held, "beta", tmp_path)
    assert len(bad.failures) == 1
    assert complaint in bad.failures[0]


def test_the_demo_tells_of_half_written_exports(tmp_path: Path) -> None:
    """A hidden folder is what an export leaves that never ended."""
    jobs, held = _story(tmp_path)
    (tmp_path / ".a.tmp").mkdir()
    verdict = Verdict()
    _judge(verdict, jobs, held, "beta", tmp_path)
    assert "half-written" in verdict.failures[0]
