"""How late renewals are: what a worker counts of it."""

from __future__ import annotations

import pytest

from hastetrio import WorkerStatistics
from hastetrio._statistics import RENEWAL_BUCKETS

from .harness import LEASE, THIRD, Rig, handler, sleeping


def classes(statistics: WorkerStatistics) -> dict[float, int]:
    """Renewals by the upper end of the class they fall in; none that are empty."""
    ends = [*RENEWAL_BUCKETS, float("inf")]
    counted = zip(ends, statistics.totals.renewal_lateness, strict=True)
    return {end: count for end, count in counted if count}


async def test_renewals_in_time_are_in_the_first_class(rig: Rig) -> None:
    """A third of the lease is when they are due, not late."""
    async with rig.running(handler(sleeping(3 * THIRD + 1))) as worker:
        await rig.ended(await rig.create())
        found = worker.statistics()
    assert classes(found) == {RENEWAL_BUCKETS[0]: 3}
    assert found.totals.renewal_lateness_sum == pytest.approx(0, abs=0.01)
    assert found.totals.renewal_worst == pytest.approx(1 / 3, abs=0.001)


async def test_a_slow_answer_is_late(rig: Rig) -> None:
    """The lease is in danger until the answer is here, whenever the question was sent."""
    rig.provider.delay_answer("renew_lease", 4, times=1)
    async with rig.running(handler(sleeping(THIRD + 5))) as worker:
        await rig.ended(await rig.create())
        found = worker.statistics()
    assert classes(found) == {5.0: 1}
    assert found.totals.renewal_lateness_sum == pytest.approx(4, abs=0.01)
    assert found.totals.renewal_worst == pytest.approx((THIRD + 4) / LEASE, abs=0.001)


async def test_what_failed_before_makes_a_renewal_late(rig: Rig) -> None:
    """Counted from the last grant, not from the last try."""
    rig.provider.fail("renew_lease", times=4)
    async with rig.running(handler(sleeping(2 * THIRD - 1))) as worker:
        await rig.ended(await rig.create())
        found = worker.statistics()
    assert found.totals.renewals_failed == 4
    assert sum(classes(found).values()) == 1
    # Four retries, each after 0.75 to 1.5 s.
    assert 3 <= found.totals.renewal_lateness_sum <= 6.1
    assert found.totals.renewal_worst > (THIRD + 3 - 0.01) / LEASE


async def test_a_renewal_ahead_of_time_is_not_late(rig: Rig) -> None:
    """A notification may make one due at once."""
    async with rig.running(handler(sleeping(THIRD - 1))) as worker:
        id = await rig.create()
        await rig.until(lambda: worker.statistics().held)
        worker._renewals.all_due_now()
        await rig.ended(id)
        found = worker.statistics()
    assert classes(found) == {RENEWAL_BUCKETS[0]: 1}
    assert found.totals.renewal_worst < 1 / 3


async def test_statistics_are_of_their_moment(rig: Rig) -> None:
    """What was handed out does not go on counting."""
    async with rig.running(handler(sleeping(THIRD + 1))) as worker:
        before = worker.statistics()
        await rig.ended(await rig.create())
        assert sum(before.totals.renewal_lateness) == 0
        assert sum(worker.statistics().totals.renewal_lateness) == 1
