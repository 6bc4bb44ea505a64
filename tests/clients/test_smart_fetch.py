"""smart-fetch, the client of Boston Children's Hospital: exports, cancels, resumes, is refused.

https://pypi.org/project/smart-fetch/. It follows the Bulk Data specification to the letter: any
status it does not expect ends it, and it deletes what it has fetched.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.fhir import tokens

from hastetrio.bulk import sample_directory

from .processes import SOON, Served, ended, serving, started

pytestmark = pytest.mark.slow


def command(program: str, out: Path, base: str, *more: str) -> list[str]:
    """The command that exports patients."""
    return [
        *(program, "bulk", str(out), "--fhir-url", base, "--type", "Patient"),
        *("--no-default-filters", "--no-compression", *more),
    ]


def log_of(out: Path) -> list[dict[str, Any]]:
    """What it logged, in the format of the Bulk Data specification's clients."""
    return [json.loads(line) for line in (out / "log.ndjson").read_text("utf-8").splitlines()]


def check_exported(out: Path) -> None:
    """See that it has all patients of the sample, byte for byte."""
    exported = (out / "Patient.001.ndjson").read_bytes()
    assert exported == (sample_directory() / "Patient.ndjson").read_bytes()


def test_smart_fetch_exports(smart_fetch: str, served: Served, tmp_path: Path) -> None:
    """All patients are there, the log says complete, and the job is gone from the server."""
    out = tmp_path / "out"
    code, said = ended(command(smart_fetch, out, served.base))
    assert code == 0, said
    check_exported(out)
    events = log_of(out)
    assert [event["eventId"] for event in events] == [
        *("kickoff", "status_complete", "status_page_complete", "manifest_complete"),
        *("download_request", "download_complete", "export_complete"),
    ]
    assert events[0]["eventDetail"]["softwareName"] == "hastetrio"
    assert events[0]["eventDetail"]["fhirVersion"] == "4.0.1"
    assert events[-1]["eventDetail"]["resources"] == 60
    # It deleted the export, and was answered 202: anything else it would have complained about.
    assert "clean up" not in said
    assert httpx2.get(events[0]["exportId"]).status_code == 404


def test_smart_fetch_shows_why_it_is_refused(
    smart_fetch: str, served: Served, tmp_path: Path
) -> None:
    """A kick-off with a filter that is not supported ends it at once, with the server's words."""
    out = tmp_path / "out"
    code, said = ended(
        command(smart_fetch, out, served.base, "--type-filter", "Patient?gender=female")
    )
    assert code == 1, said
    (event,) = log_of(out)
    assert event["eventId"] == "kickoff"
    assert event["eventDetail"]["errorCode"] == 400
    issue = event["eventDetail"]["errorBody"]["issue"][0]
    assert issue["code"] == "not-supported"
    assert "_typeFilter" in issue["diagnostics"]


def interrupted(program: str, out: Path, base: str) -> str:
    """Begin an export and press Ctrl-C while it polls; the address of its status."""
    with started(command(program, out, base)) as process:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if "Starting bulk FHIR export" in line:
                break
        else:
            pytest.fail(said)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(SOON) != 0
    (kick_off,) = log_of(out)
    return str(kick_off["exportId"])


def test_smart_fetch_cancels(
    smart_fetch: str, export_arguments: list[str], database_url: str, tmp_path: Path
) -> None:
    """An export that was interrupted is cancelled from its folder, and stops on the server."""
    out = tmp_path / "out"
    with serving(
        tmp_path,
        *export_arguments,
        *("--export-pace", "600"),
        environ={"HASTETRIO_DATABASE_URL": database_url},
    ) as served:
        status = interrupted(smart_fetch, out, served.base)
        running = httpx2.get(status)
        assert running.status_code == 202
        code, said = ended(command(smart_fetch, out, served.base, "--cancel"))
        assert code == 0, said
        assert httpx2.get(status).status_code == 404


def test_smart_fetch_resumes_behind_a_restart(
    smart_fetch: str, export_arguments: list[str], database_url: str, tmp_path: Path
) -> None:
    """An export goes on while its client is away, and its address outlives the server."""
    out = tmp_path / "out"
    environ = {"HASTETRIO_DATABASE_URL": database_url}
    slow = ("--export-pace", "600", "--drain-timeout", "0")
    with serving(tmp_path, *export_arguments, *slow, environ=environ) as first:
        status = interrupted(smart_fetch, out, first.base)
        address = first.url.removeprefix("http://")
    with serving(tmp_path, *export_arguments, "--http", address, environ=environ) as second:
        code, said = ended(command(smart_fetch, out, second.base))
        assert code == 0, said
        assert "Resuming" in said
    assert log_of(out)[-1]["exportId"] == status
    check_exported(out)


def test_smart_fetch_exports_with_a_token(
    smart_fetch: str, export_arguments: list[str], database_url: str, tmp_path: Path
) -> None:
    """With a key file configured a good token is enough, and another one gets nothing."""
    (tmp_path / "keys.json").write_bytes(tokens.key_set(tokens.jwk()))
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    secrets = {good: tokens.token(sub="ann"), bad: tokens.token(sub="ann", number=1)}
    for path, token in secrets.items():
        path.write_text(token, "utf-8")
    with serving(
        tmp_path,
        *export_arguments,
        *("--jwks-file", "keys.json", "--token-issuer", tokens.ISSUER),
        *("--token-audience", tokens.AUDIENCE),
        environ={"HASTETRIO_DATABASE_URL": database_url},
    ) as served:
        out = tmp_path / "out"
        code, said = ended(command(smart_fetch, out, served.base, "--bearer-token", str(good)))
        assert code == 0, said
        check_exported(out)
        (kick_off, *_) = log_of(out)
        headers = tokens.bearer(secrets[good])
        assert httpx2.get(kick_off["exportId"], headers=headers).status_code == 404
        refused = tmp_path / "refused"
        code, said = ended(command(smart_fetch, refused, served.base, "--bearer-token", str(bad)))
        assert code == 1, said
        assert not list(refused.glob("Patient*"))
        log = served.log.read_text("utf-8")
    for token in secrets.values():
        assert token not in log
        assert token.split(".")[1] not in log
