"""docs/testing.md, followed to the letter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg

from hastetrio._settings import TEST_SERVER_VARIABLE
from hastetrio.testing import run_job
from hastetrio.testing._finished import story

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


def test_what_the_page_shows_works(tmp_path: Path, server_url: str) -> None:
    """Each block of Python is a file of a project; its tests pass, and leave no database."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    for block in blocks:
        name = re.match(r"# (\w+\.py)\n", block)
        assert name is not None, f"the first line names no file: {block}"
        (tmp_path / name[1]).write_text(block, "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\ntrio_mode = true\n")
    plugins = ("no:cacheprovider", "pytest_trio.plugin", "hastetrio.testing.plugin")
    arguments = [part for name in plugins for part in ("-p", name)]
    variables = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", TEST_SERVER_VARIABLE: server_url}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=tmp_path,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tests = sum(len(re.findall(r"def test_", block)) for block in blocks)
    assert tests >= 5
    assert f"{tests} passed" in done.stdout
    with psycopg.connect(server_url) as connection:
        names = {row[0] for row in connection.execute("SELECT datname FROM pg_database")}
    ours = f"hastetrio_test_{os.getpid()}_"
    assert not {n for n in names if n.startswith("hastetrio_test_") and not n.startswith(ours)}


def test_a_failure_reads_as_the_page_shows_it() -> None:
    """But for the job's id."""
    text = PAGE.read_text("utf-8")
    (block,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    (handlers,) = re.findall(r"```python\n(# my_handlers.py\n.*?)```", text, re.DOTALL)
    namespace: dict[str, object] = {"__name__": "my_handlers"}
    exec(compile(handlers, "testing.md", "exec", dont_inherit=True), namespace)  # noqa: S102
    job = run_job(namespace["count_words"], parameters={})  # type: ignore[arg-type]
    shown = block.replace("6k1h8y7ogq2xpwzr9jb4uftncd", job.id).splitlines()
    assert shown[1:] == story(job).splitlines()
