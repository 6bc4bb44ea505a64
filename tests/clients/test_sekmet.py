"""sekmet-fhir: a bulk client that is strict, and an engine for FHIR TestScripts.

https://pypi.org/project/sekmet-fhir/. The scripts in testscripts/ are FHIR R4 TestScripts, which
any other engine can run as well.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import quote

import httpx2
import pytest

from .processes import Served, ended, until

pytestmark = pytest.mark.slow

SCRIPTS: Final = Path(__file__).with_name("testscripts")


@pytest.fixture
def folder(tmp_path: Path, served: Served) -> Path:
    """A folder with settings that name the server."""
    settings = {"peers": {"server": {"base_url": served.base}}}
    # YAML is a superset of JSON.
    (tmp_path / "settings.yaml").write_text(json.dumps(settings), "utf-8")
    return tmp_path


def test_sekmet_exports(sekmet: str, folder: Path) -> None:
    """Its strict client finds every file, line and count as the manifest says."""
    code, said = ended(
        [sekmet, "bulk", "export", "-p", "server", "--level", "system", "-c", "settings.yaml"],
        folder=folder,
    )
    assert code == 0, said
    assert "kick-off 202" in said
    assert "VALID" in said.split()
    for type in ("Patient", "Observation", "Organization"):
        assert type in said


def run_script(
    sekmet: str, folder: Path, name: str, *peers: str, gate: Path
) -> tuple[int, str, dict[str, object]]:
    """Run a TestScript: its exit code, what was said, and its TestReport."""
    code, said = ended(
        [
            *(sekmet, "testscript", "run", str(SCRIPTS / f"{name}.json"), "-c", "settings.yaml"),
            *(word for peer in peers for word in ("-p", peer)),
            *("--fixture-base", "", "--report-dir", "reports"),
            *("--var", f"gate={quote(str(gate), safe='')}"),
        ],
        folder=folder,
    )
    (report,) = folder.glob(f"reports/*/TestReport-{name}.json")
    return code, said, json.loads(report.read_text("utf-8"))


def test_sekmet_finds_the_whole_life_cycle(sekmet: str, folder: Path, served: Served) -> None:
    """Refused kick-off, kick-off, 202, result, DELETE, 404 and 404, with outcomes throughout."""
    gate = folder / "gate"
    with waiting_room(gate, served) as address:
        settings = json.loads((folder / "settings.yaml").read_text("utf-8"))
        settings["peers"]["room"] = {"base_url": address}
        (folder / "settings.yaml").write_text(json.dumps(settings), "utf-8")
        code, said, report = run_script(sekmet, folder, "life_cycle", "server", "room", gate=gate)
    assert code == 0, said
    assert (report["result"], report["score"]) == ("pass", 100.0)


def test_sekmet_cancels(sekmet: str, folder: Path) -> None:
    """A running job is cancelled, and gone."""
    code, said, report = run_script(sekmet, folder, "cancel", "server", gate=folder / "never")
    assert code == 0, said
    assert (report["result"], report["score"]) == ("pass", 100.0)


@contextmanager
def waiting_room(gate: Path, served: Served) -> Iterator[str]:
    """A server that answers once a job has ended: a TestScript cannot wait."""

    def newest() -> str:
        listed = httpx2.get(f"{served.base}/_async?_count=1").json()["parameter"]
        part = {one["name"]: one for one in listed[0]["part"]}
        return str(part["status"]["valueCode"])

    class Room(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the library's name
            gate.touch()
            until(lambda: newest() == "completed" or None, "the end of the job")
            body = b'{"resourceType": "Parameters"}'
            self.send_response(200)
            self.send_header("Content-Type", "application/fhir+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Room) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
