"""A server without access tokens, and the web pages that a person on its machine opens."""

from __future__ import annotations

import httpx2
import pytest

from hastetrio.fhir import make_app
from hastetrio.fhir._local import local_only

from .harness import BASE, PREFER, face, issue_of, stored

OWN = "http://server.example:8000"


@pytest.mark.parametrize(
    ("base", "origin", "answered"),
    [
        ("http://127.0.0.1:8000", None, True),
        ("http://127.8.8.8", None, True),
        ("http://localhost:8000", None, True),
        ("http://[::1]:8000", None, True),
        (OWN, None, True),
        ("http://127.0.0.1:8000", "http://localhost:3000", True),
        ("http://127.0.0.1:8000", OWN, True),
        ("http://rebound.example:8000", None, False),
        ("http://127.0.0.1.example", None, False),
        ("http://127.0.0.1:8000", "https://evil.example", False),
        ("http://127.0.0.1:8000", "null", False),
        ("http://127.0.0.1:8000", "http://[", False),
        ("http://127.0.0.1:8000", "", False),
    ],
)
async def test_only_programs_of_this_machine_are_answered(
    base: str, origin: str | None, answered: bool
) -> None:
    """Neither a page of another origin, nor a name that was made to resolve to the loopback."""
    it = face()
    transport = httpx2.ASGITransport(local_only(make_app(it), OWN))
    headers = PREFER if origin is None else {**PREFER, "Origin": origin}
    async with httpx2.AsyncClient(transport=transport, base_url=base) as http:
        answer = await http.post(f"{BASE}/$work", headers=headers)
    if answered:
        assert answer.status_code == 202
    else:
        status, code, diagnostics = issue_of(answer)
        assert (status, code) == (403, "forbidden")
        assert "127.0.0.1 or localhost" in diagnostics
        assert "access-control-allow-origin" not in answer.headers
    assert len(await stored(it)) == int(answered)
