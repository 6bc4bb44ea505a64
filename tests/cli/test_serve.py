"""`hastetrio serve` as a process: a conversation with curl's manners, and every way it ends."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from hastetrio.bulk import sample_directory

from .harness import Run, Start, only_line

MODULE = """
from pathlib import Path

import trio
from hastetrio import JobOutput, Operation, job_handler

@job_handler("quick", operation=Operation(name="quick"))
async def quick(context):
    return JobOutput.resource({"resourceType": "Parameters"})

@job_handler("gated", operation=Operation(name="gated"))
async def gated(context):
    Path("begun").touch()
    while not Path("go").exists():
        await trio.sleep(0.02)
    return JobOutput.json("done")

everything = [quick, gated]
"""

BASE = "/w/t1/p1/api/v1/fhir/r4"
PREFER = {"Prefer": "respond-async"}


@pytest.fixture(autouse=True)
def module(tmp_path: Path) -> None:
    """The handlers, in the current folder."""
    (tmp_path / "serve_handlers.py").write_text(MODULE)


class Served:
    """A process that serves, and where."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.log = ""
        self.url = ""
        assert process.stderr is not None
        for line in process.stderr:
            self.log += line
            if found := re.search(r"Listening on (http://\S+)", line):
                self.url = found[1]
                return
        pytest.fail(f"the process ended before it listened: {self.log}")

    def wait_for_line(self, word: str) -> None:
        """Read the log up to the line that has this word."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line
            if word in line:
                return
        pytest.fail(f"the process ended without a line that has {word!r}: {self.log}")

    def stop(self) -> int:
        """Send SIGTERM, and wait for the end; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        """Wait for the end; the exit code. No traceback is ever in the log."""
        _, rest = self.process.communicate(timeout=30)
        self.log += rest
        assert "Traceback" not in self.log
        return self.process.returncode

    def until(self, path: str, status: int, text: str = "") -> httpx2.Response:
        """Ask until the answer is this; the answer."""
        end = time.monotonic() + 20
        with httpx2.Client(base_url=self.url) as http:
            while time.monotonic() < end:
                answer = http.get(path)
                if answer.status_code == status and text in answer.text:
                    return answer
                time.sleep(0.02)
        raise AssertionError(f"{path} answers {answer.status_code} {answer.text!r}")

    def until_refused(self) -> None:
        """Connect until that is refused."""
        port = int(self.url.rsplit(":", maxsplit=1)[1])
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
            except ConnectionRefusedError:
                return
            except ConnectionResetError:
                # It was still in the queue of the socket that has just been closed.
                continue
        raise AssertionError("connections are still accepted")


def serve(start: Start, url: str, *arguments: str, **environ: str) -> Served:
    """Serve on a free port, with the handlers above."""
    return Served(
        start(
            *("serve", "--http", "127.0.0.1:0", "--handlers", "serve_handlers:everything"),
            *("--poll-interval", "0.2"),
            *arguments,
            HASTETRIO_DATABASE_URL=url,
            **environ,
        )
    )


def finished(http: httpx2.Client, location: str) -> httpx2.Response:
    """Poll as told until the job is over; the answer."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        answer = http.get(location)
        if answer.status_code != 202:
            return answer
        time.sleep(min(float(answer.headers["retry-after"]), 0.2))
    raise AssertionError("the job does not end")


def connections(url: str) -> int:
    """How many others are connected to the database."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchone()
    assert row is not None
    return int(row[0])


def test_a_whole_export_from_kick_off_to_file_and_back(
    start: Start, database_url: str, tmp_path: Path
) -> None:
    """One process serves and works; every address it gives leads somewhere; nothing is left."""
    served = serve(
        start,
        database_url,
        "--worker",
        *("--export-source", str(sample_directory()), "--export-output", "out"),
    )
    with httpx2.Client(base_url=served.url) as http:
        started = http.get(f"{BASE}/$export?_type=Patient", headers=PREFER)
        assert started.status_code == 202
        location = started.headers["content-location"]
        assert location.startswith(f"{served.url}{BASE}/_async/")
        done = finished(http, location)
        assert done.status_code == 200
        manifest = done.json()
        assert manifest["requiresAccessToken"] is False
        assert manifest["request"] == f"{served.url}{BASE}/$export?_type=Patient"
        (item,) = manifest["output"]
        lines = http.get(item["url"]).text.splitlines()
        assert {json.loads(line)["resourceType"] for line in lines} == {"Patient"}
        assert http.delete(location).status_code == 202
        assert http.get(location).status_code == 404
        assert http.get(f"{BASE}/metadata").json()["rest"][0]["operation"]
        assert "server" not in started.headers
    assert "everybody on this machine" in served.log
    assert served.stop() == 0
    assert connections(database_url) == 0


def test_a_stop_lets_jobs_and_requests_finish(
    start: Start, database_url: str, tmp_path: Path
) -> None:
    """The door is closed at once; what was begun is ended."""
    served = serve(start, database_url, "--worker")
    with httpx2.Client(base_url=served.url) as http:
        location = http.post(f"{BASE}/$gated", headers=PREFER).headers["content-location"]
        served.until("/metrics", 200, "hastetrio_worker_leases_held 1.0")
    served.process.send_signal(signal.SIGTERM)
    served.wait_for_line("once more to hurry")
    served.until_refused()
    (tmp_path / "go").touch()
    assert served.ended() == 0
    id = location.rsplit("/", maxsplit=1)[-1]
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SELECT status FROM async_jobs WHERE id = %s", [id]).fetchone()
    assert row == ("completed",)


def test_a_face_without_a_worker_queues_for_others(start: Start, database_url: str) -> None:
    """The handlers are needed for what they declare; their jobs wait for a worker."""
    served = serve(start, database_url)
    with httpx2.Client(base_url=served.url) as http:
        location = http.post(f"{BASE}/$quick", headers=PREFER).headers["content-location"]
        assert http.get(location).headers["x-progress"] == "queued"
        assert http.get("/readyz").text == "ready\n"
        metrics = http.get("/metrics").text
        assert 'hastetrio_jobs{kind="quick",status="accepted"} 1.0' in metrics
        assert "hastetrio_worker_slots" not in metrics
        worker = start(
            *("worker", "--handlers", "serve_handlers:everything"),
            HASTETRIO_DATABASE_URL=database_url,
        )
        assert finished(http, location).status_code == 200
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=20)
    assert served.stop() == 0
    assert "requests under way have" in served.log


def test_a_face_without_handlers_serves_status_only(start: Start, database_url: str) -> None:
    """Another program may queue the jobs; the log says what is missing."""
    process = start("serve", "--http", "127.0.0.1:0", HASTETRIO_DATABASE_URL=database_url)
    served = Served(process)
    assert "nothing can be kicked off" in served.log
    with httpx2.Client(base_url=served.url) as http:
        assert http.get(f"{BASE}/_async").status_code == 200
        assert http.post(f"{BASE}/$quick", headers=PREFER).status_code == 404
    assert served.stop() == 0


def test_addresses_begin_with_the_public_url(start: Start, database_url: str) -> None:
    """Behind a proxy nobody can reach the address it listens on."""
    public = "https://fhir.example.org/base"
    served = serve(start, database_url, "--public-url", public)
    with httpx2.Client(base_url=served.url) as http:
        answer = http.post(f"{BASE}/$quick", headers=PREFER)
    assert answer.headers["content-location"].startswith(f"{public}{BASE}/_async/")
    assert served.stop() == 0


def test_readiness_follows_the_database(start: Start, database_url: str) -> None:
    """A process that cannot work says so, stays alive, and is ready again by itself."""
    served = serve(start, database_url)
    with psycopg.connect(database_url, autocommit=True) as connection:
        served.until("/readyz", 200)
        connection.execute("ALTER TABLE hastetrio_migrations RENAME TO hidden")
        assert "migrate" in served.until("/readyz", 503).text
        assert httpx2.get(f"{served.url}/livez").status_code == 200
        connection.execute("ALTER TABLE hidden RENAME TO hastetrio_migrations")
        served.until("/readyz", 200)
    assert served.stop() == 0


@pytest.mark.parametrize("with_worker", [True, False])
def test_the_third_signal_leaves_at_once(
    with_worker: bool, start: Start, database_url: str
) -> None:
    """Whatever is under way."""
    arguments = ("--worker",) if with_worker else ()
    served = serve(start, database_url, "--drain-timeout", "600", *arguments)
    if with_worker:
        with httpx2.Client(base_url=served.url) as http:
            http.post(f"{BASE}/$gated", headers=PREFER)
            served.until("/metrics", 200, "hastetrio_worker_leases_held 1.0")
    with socket.create_connection(("127.0.0.1", int(served.url.rsplit(":", maxsplit=1)[1]))) as one:
        one.sendall(
            f"POST {BASE}/$quick HTTP/1.1\r\nHost: x\r\nContent-Type: application/fhir+json\r\n"
            "Prefer: respond-async\r\nContent-Length: 9\r\n\r\n{".encode()
        )
        served.until("/livez", 200)
        served.process.send_signal(signal.SIGTERM)
        served.wait_for_line("once more to hurry")
        for _ in range(2):
            served.process.send_signal(signal.SIGTERM)
        served.ended()


def test_a_worker_serves_probes_and_metrics(
    start: Start, database_url: str, tmp_path: Path
) -> None:
    """Also while its jobs drain: then it is alive, and not ready."""
    served = Served(
        start(
            *("worker", "--http", "127.0.0.1:0", "--handlers", "serve_handlers:everything"),
            HASTETRIO_DATABASE_URL=database_url,
        )
    )
    served.until("/readyz", 200)
    with httpx2.Client(base_url=served.url) as http:
        assert http.get("/livez").text == "alive\n"
        assert "hastetrio_worker_slots 4.0" in http.get("/metrics").text
        nothing = http.get(f"{BASE}/metadata")
        assert nothing.status_code == 404
        assert nothing.json()["resourceType"] == "OperationOutcome"
    front = serve(start, database_url)
    with httpx2.Client(base_url=front.url) as http:
        http.post(f"{BASE}/$gated", headers=PREFER)
    served.until("/metrics", 200, "hastetrio_worker_leases_held 1.0")
    served.process.send_signal(signal.SIGTERM)
    served.until("/readyz", 503, "stopping")
    assert httpx2.get(f"{served.url}/livez").status_code == 200
    (tmp_path / "go").touch()
    assert served.ended() == 0
    assert front.stop() == 0
    assert connections(database_url) == 0


TOKENS = ("--token-issuer", "i", "--token-audience", "a")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--http", "0.0.0.0:0"), ("0.0.0.0:0", "--jwks-file", "127.0.0.1")),
        (("--http", "[::]:0"), ("[::]:0", "--jwks-file")),
        (("--http", "8000"), ("http must be HOST:PORT", "--http")),
        (("--http", "no-such-host.invalid:0"), ("no-such-host.invalid",)),
        (("--jwks-file", "k"), ("token_issuer and token_audience",)),
        (("--jwks-file", "none.json", *TOKENS), ("none.json",)),
        (("--jwks-url", "ftp://x", *TOKENS), ("ftp://x",)),
        (("--worker",), ("no handlers",)),
        (("--export-source", "nowhere", "--export-output", "out"), ("nowhere",)),
        (("--handlers", "serve_handlers:nothing"), ("serve_handlers:nothing",)),
        (("--poll-connections", "0"), ("poll_connections",)),
    ],
)
def test_a_server_that_cannot_start_says_why_in_one_line(
    arguments: tuple[str, ...], words: tuple[str, ...], run: Run
) -> None:
    """What to mend comes first; then whether the database is there."""
    result = run(
        *("--database-url", "postgresql://127.0.0.1:1/jobs", "--log-level", "error"),
        *("serve", "--http", "127.0.0.1:0", *arguments),
    )
    assert result.exit_code == 2
    line = only_line(result.stderr)
    for word in words:
        assert word in line


def test_a_busy_port_is_said_in_one_line(run: Run) -> None:
    """With what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for command in (("serve",), ("worker", "--handlers", "serve_handlers:everything")):
            result = run(
                *("--embedded", "--log-level", "error", *command, "--http", address),
            )
            assert result.exit_code == 2
            assert address in only_line(result.stderr)
            assert "already" in result.stderr


def test_a_database_that_is_away_is_said_in_one_line(run: Run) -> None:
    """As by every command."""
    result = run(
        *("--database-url", "postgresql://127.0.0.1:1/jobs", "--log-level", "error"),
        *("serve", "--http", "127.0.0.1:0"),
    )
    assert result.exit_code == 3
    assert "127.0.0.1" in only_line(result.stderr)


@pytest.mark.parametrize("missing", ["starlette", "hypercorn", "prometheus_client", "jwt"])
def test_a_missing_extra_is_named(missing: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever installed the package without it learns what to install."""
    monkeypatch.setitem(sys.modules, missing, None)
    for command in (("serve",), ("worker", "--handlers", "serve_handlers:everything")):
        result = run("--embedded", "--log-level", "error", *command, "--http", "127.0.0.1:0")
        assert result.exit_code == 2
        line = only_line(result.stderr)
        assert missing in line
        assert "pip install 'hastetrio[http]'" in line


def test_every_address_needs_a_public_url(run: Run, tmp_path: Path) -> None:
    """Clients cannot be sent to 0.0.0.0."""
    (tmp_path / "keys.json").write_text(json.dumps(_keys()))
    result = run(
        *("--database-url", "postgresql://127.0.0.1:1/jobs", "--log-level", "error"),
        *("serve", "--http", "0.0.0.0:0", "--jwks-file", "keys.json", *TOKENS),
    )
    assert result.exit_code == 2
    assert "public_url is needed" in only_line(result.stderr)


def test_tokens_are_demanded_where_keys_are_given(
    start: Start, database_url: str, tmp_path: Path
) -> None:
    """The settings reach the authenticator, and open the server to other machines."""
    (tmp_path / "keys.json").write_text(json.dumps(_keys()))
    served = serve(
        start,
        database_url,
        *("--http", "0.0.0.0:0", "--public-url", "https://fhir.example.org"),
        *("--jwks-file", "keys.json", *TOKENS),
    )
    port = served.url.rsplit(":", maxsplit=1)[1]
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as http:
        assert http.post(f"{BASE}/$quick", headers=PREFER).status_code == 401
        assert http.get(f"{BASE}/metadata").json()["rest"][0]["security"]["service"]
        assert http.get("/livez").status_code == 200
    assert "everybody on this machine" not in served.log
    assert served.stop() == 0


def _keys() -> dict[str, Any]:
    """A key set of one key that nobody has the private half of."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from jwt.algorithms import OKPAlgorithm

    public = Ed25519PrivateKey.generate().public_key()
    return {"keys": [json.loads(OKPAlgorithm.to_jwk(public)) | {"kid": "one"}]}
