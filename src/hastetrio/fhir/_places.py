"""Where a request is addressed: tenant, project, and what lies behind the base of their server.

/w/{tenant}/{project}/api/v1/fhir[/r4]/{rest}
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote_to_bytes

import attrs

from hastetrio._storable import is_text

_MIDDLE: Final = ("api", "v1", "fhir")
_VERSION: Final = "r4"

# Characters of a tenant's or a project's name, four bytes each at most: PostgreSQL refuses rows
# whose indexed columns have more than 2,704 bytes together, and says so only when one is written.
_LONGEST: Final = 255


@attrs.frozen
class Place:
    """A request's address.

    Attributes:
        tenant: The tenant.
        project: The project of that tenant.
        base: The path of the project's FHIR server as the client wrote it, with or without the
            version, percent-encoded anew.
        rest: The segments behind it, decoded.
    """

    tenant: str
    project: str
    base: str
    rest: tuple[str, ...]


def place_of(raw_path: bytes) -> Place | None:
    """The place that a path as sent names; None where it is none of the FHIR server's.

    Nor is one whose tenant or project no row could name.

    Segments are split before they are decoded, so that an encoded slash separates nothing.
    """
    if raw_path.lower().startswith((b"http://", b"https://")):
        # The absolute form, which every server must accept (RFC 9112 section 3.2.2).
        raw_path = b"/" + raw_path.split(b"/", 3)[3] if raw_path.count(b"/") > 2 else b"/"
    segments = raw_path.split(b"/")
    if segments[-1] == b"":
        segments.pop()
    try:
        first, w, *parts = [unquote_to_bytes(one).decode() for one in segments]
    except ValueError:
        # Too few segments, or one that is no UTF-8.
        return None
    if (first, w) != ("", "w") or len(parts) < 5 or tuple(parts[2:5]) != _MIDDLE:
        return None
    tenant, project = parts[:2]
    size = 6 if parts[5:6] == [_VERSION] else 5
    if not all(0 < len(name) <= _LONGEST and is_text(name) for name in (tenant, project)):
        return None
    base = "/w/" + "/".join(quote(part, safe="") for part in parts[:size])
    return Place(tenant, project, base, tuple(parts[size:]))
