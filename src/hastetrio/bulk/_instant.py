"""FHIR instants: reading, comparing, writing.

Source: https://hl7.org/fhir/R4/datatypes.html#instant: a date, a time to the second or finer, and
always a zone.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime

import attrs

_INSTANT = re.compile(
    r"(\d{4})-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
    r"T([01]\d|2[0-3]):([0-5]\d):([0-5]\d|60)(?:\.(\d+))?"
    r"(?:Z|([+-])(0\d|1[0-4]):([0-5]\d))",
    re.ASCII,
)


@attrs.frozen(order=True)
class Instant:
    """A moment, ordered in time whatever the zones it was written in.

    Attributes:
        seconds: Whole seconds since the first day of year 1, UTC. Plain arithmetic, because
            `datetime` refuses the leap second and overflows at both ends of its range when a zone
            is applied.
        fraction: The digits after the point without trailing zeros. As text they order as the
            fractions do, to any precision (a datetime would cut them at a microsecond).
    """

    seconds: int
    fraction: str = ""


def parse_instant(text: str) -> Instant | None:
    """`text` as an instant, or None when it is not one."""
    match = _INSTANT.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, zone_hours, zone_minutes = (
        match.groups()
    )
    try:
        days = date(int(year), int(month), int(day)).toordinal()
    except ValueError:
        return None
    seconds = ((days * 24 + int(hour)) * 60 + int(minute)) * 60 + int(second)
    if sign is not None:
        offset = (int(zone_hours) * 60 + int(zone_minutes)) * 60
        seconds += offset if sign == "-" else -offset
    return Instant(seconds, (fraction or "").rstrip("0"))


def instant_now() -> str:
    """The present moment as an instant in UTC, cut (never rounded up) to the millisecond."""
    text = datetime.now(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
