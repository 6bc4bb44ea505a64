"""How often a client may ask after a job: what it is told, and what it is held to."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

import attrs
import trio

# Polls a client may be ahead of what it was told: several programs of its may look at one job.
_BURST: Final = 10.0

# Polls a second that are always answered: @medplum/core 4.5.2 asks every second whatever it is
# told, and gives up the job at a 429 that it meets three times in two seconds.
_SLOWEST_RATE: Final = 1.0

# Seconds between two polls: a tenth of the job's age, between these.
_SHORTEST: Final = 1
_LONGEST: Final = 30

# Jobs with callers remembered. The longest unused is forgotten, and starts anew.
_MOST_BUCKETS: Final = 10_000


def retry_after(age: float) -> int:
    """Seconds after which to ask again after a job that is `age` seconds old.

    Small while it is young: a client that is told nothing waits a minute, and the testers of
    clients give up on long waits (https://github.com/onc-healthit/onc-certification-g10-test-kit/issues/420).
    """
    return min(max(_SHORTEST, math.ceil(age / 10)), _LONGEST)


@attrs.define
class _Bucket:
    tokens: float
    seconds: float
    seen: float


class PollLimiter:
    """A token bucket for each job and caller, filled at twice the rate the caller was told.

    One poll a second is never too many.
    """

    def __init__(self) -> None:
        self._buckets: OrderedDict[tuple[str, str], _Bucket] = OrderedDict()

    def wait(self, job: str, caller: str) -> int:
        """Whole seconds this poll comes too early; 0 if it may be answered."""
        bucket = self._buckets.get((job, caller))
        if bucket is None:
            return 0
        now = trio.current_time()
        rate = max(2 / bucket.seconds, _SLOWEST_RATE)
        bucket.tokens = min(_BURST, bucket.tokens + (now - bucket.seen) * rate)
        bucket.seen = now
        if bucket.tokens < 1:
            return math.ceil((1 - bucket.tokens) / rate)
        bucket.tokens -= 1
        return 0

    def told(self, job: str, caller: str, seconds: float) -> None:
        """The caller was told to ask again after so many seconds."""
        bucket = self._buckets.get((job, caller))
        if bucket is None:
            bucket = _Bucket(_BURST - 1, seconds, trio.current_time())
            self._buckets[job, caller] = bucket
        bucket.seconds = seconds
        self._buckets.move_to_end((job, caller))
        if len(self._buckets) > _MOST_BUCKETS:
            self._buckets.popitem(last=False)

    def ended(self, job: str, caller: str) -> None:
        """The job has ended; it may be looked at as often as anybody likes."""
        self._buckets.pop((job, caller), None)
