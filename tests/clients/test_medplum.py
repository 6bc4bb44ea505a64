"""@medplum/core, the library of the Medplum project: POST without a body, a poll every second.

https://www.npmjs.com/package/@medplum/core. It ignores Retry-After, follows what a 202 says in
Content-Location or in its diagnostics, and gives up at a 429 that it meets three times.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from .processes import PATH, Served, ended, started

pytestmark = pytest.mark.slow


def command(medplum: list[str], served: Served, *what: str) -> list[str]:
    """The command that does it."""
    return [*medplum, f"{served.url}/", PATH.removeprefix("/"), *what]


def seen_by(
    medplum: list[str], served: Served, *what: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The requests it made, and what came of them."""
    code, said = ended(command(medplum, served, *what))
    assert code == 0, said
    *requests, end = map(json.loads, said.splitlines())
    return requests, end


def check_polls(requests: list[dict[str, Any]], last: int) -> None:
    """See that it kicked off with POST, and polled one address until the end."""
    kick_off, *polls = requests
    assert (kick_off["method"], kick_off["body"]) == ("POST", None)
    assert (kick_off["prefer"], kick_off["status"]) == ("respond-async", 202)
    assert {poll["method"] for poll in polls} == {"GET"}
    assert len({poll["url"] for poll in polls}) == 1
    assert f"{PATH}/_async/" in polls[0]["url"]
    assert polls[-1]["status"] == last
    assert {poll["status"] for poll in polls[:-1]} <= {202, 429}


def test_medplum_exports(medplum: list[str], served: Served) -> None:
    """Its bulkExport ends with the manifest."""
    requests, end = seen_by(medplum, served, "export")
    check_polls(requests, 200)
    manifest = end["result"]
    assert manifest["request"] == f"{served.base}/$export?_type=Patient"
    assert [(item["type"], item["count"]) for item in manifest["output"]] == [("Patient", 60)]
    assert manifest["error"] == []


def test_medplum_gets_a_resource(medplum: list[str], served: Served) -> None:
    """Its startAsyncRequest ends with what the operation would have answered."""
    requests, end = seen_by(medplum, served, "$greet")
    check_polls(requests, 200)
    assert end["result"] == {
        "resourceType": "Parameters",
        "parameter": [{"name": "greeting", "valueString": "hello"}],
    }


def test_medplum_shows_why_a_job_failed(medplum: list[str], served: Served) -> None:
    """It throws the stored outcome."""
    requests, end = seen_by(medplum, served, "$refuse")
    check_polls(requests, 422)
    assert end["error"] == "There is nothing to be had on Sundays."
    assert end["outcome"]["issue"][0]["code"] == "business-rule"


def test_medplum_outlives_being_told_to_wait(
    medplum: list[str], served: Served, tmp_path: Path
) -> None:
    """Polling ten times a second it is refused now and then, and gets its result all the same."""
    gate = tmp_path / "gate"
    what = f"$hold?until={quote(str(gate), safe='')}"
    lines: list[dict[str, Any]] = []
    with started(command(medplum, served, what, "100")) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(json.loads(line))
            if lines[-1].get("status") == 429:
                gate.touch()
        assert process.wait() == 0
    *requests, end = lines
    check_polls(requests, 200)
    assert 429 in {request["status"] for request in requests}
    assert end == {"result": {"resourceType": "Basic", "id": "held"}}
