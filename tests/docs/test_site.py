"""The site builds without a warning, and without the network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hastetrio
from hastetrio._settings import KEYS

from .blocks import DOCS, ROOT

pytestmark = pytest.mark.slow


def test_the_site_builds_offline_without_a_warning(tmp_path: Path) -> None:
    """Each link leads somewhere; what comes from the code is there."""
    # Whoever opens a connection fails the build.
    offline = tmp_path / "offline"
    offline.mkdir()
    (offline / "sitecustomize.py").write_text(
        "import socket\n"
        "def refuse(*_):\n"
        "    raise OSError('the documentation must build without the network')\n"
        "socket.socket.connect = refuse\n"
    )
    site = tmp_path / "site"
    options = ["-W", "--keep-going", "-q", "-b", "html", "-d", str(tmp_path / "doctrees")]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(DOCS), str(site)],
        capture_output=True,
        text=True,
        env={"PATH": "", "PYTHONPATH": str(offline)},
    )
    assert done.returncode == 0, done.stderr
    settings = (site / "settings.html").read_text("utf-8")
    assert not [name for name in KEYS if f">{name}<" not in settings]
    statements = (site / "statements.html").read_text("utf-8")
    queries = [path.stem for path in (ROOT / "sql" / "queries").glob("*.sql")]
    assert not [name for name in queries if f'id="{name.replace("_", "-")}"' not in statements]
    reference = (site / "api" / "hastetrio.html").read_text("utf-8")
    assert f'id="{hastetrio.AsyncJob.__name__}"' not in reference
    assert 'id="hastetrio.AsyncJob"' in reference
    assert "hastetrio._" not in (site / "api" / "testing.html").read_text("utf-8")
