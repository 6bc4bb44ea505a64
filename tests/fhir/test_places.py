"""Which project a path belongs to, and what it asks for there."""

from __future__ import annotations

import pytest

from hastetrio.fhir._places import Place, place_of

BASE = "/w/t1/p1/api/v1/fhir"


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (b"/w/t1/p1/api/v1/fhir/r4/$export", Place("t1", "p1", BASE + "/r4", ("$export",))),
        (b"/w/t1/p1/api/v1/fhir/$export", Place("t1", "p1", BASE, ("$export",))),
        (b"/w/t1/p1/api/v1/fhir/r4/", Place("t1", "p1", BASE + "/r4", ())),
        (
            b"/w/t%2F1/p%201/api/v1/fhir/_async/a%2Fb",
            Place("t/1", "p 1", "/w/t%2F1/p%201/api/v1/fhir", ("_async", "a/b")),
        ),
        # The absolute form of a target, RFC 9112 section 3.2.2.
        (b"http://host:80/w/t1/p1/api/v1/fhir/x", Place("t1", "p1", BASE, ("x",))),
        (b"HTTPS://host/w/t1/p1/api/v1/fhir/x", Place("t1", "p1", BASE, ("x",))),
        (b"http://host", None),
        (b"http://", None),
        (b"ftp://host/w/t1/p1/api/v1/fhir/x", None),
        (b"/w/t1/p1/api/v1", None),
        (b"/w//p1/api/v1/fhir/x", None),
        (b"/w/t1/p%00/api/v1/fhir/x", None),
        (b"/w/t1/p1/api/v1/fhir/%ff", None),
        (b"", None),
        (b"*", None),
    ],
)
def test_a_path_names_its_place(path: bytes, place: Place | None) -> None:
    """Segments are split as they were sent, and decoded after that."""
    assert place_of(path) == place
