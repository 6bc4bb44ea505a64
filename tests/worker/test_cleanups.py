"""The sweep that lets handlers clean up after expired jobs, and removes the rows."""

from __future__ import annotations

import math

import attrs
import pytest
import trio

from hastetrio import AsyncJob, AsyncJobStatus, JobContext, JobHandler, JobOutput
from hastetrio.testing import CallName

from .harness import DAY, DONE, HOUR, LEASE, Rig, Runs, gaps, handler, never, returning

TEN_MINUTES = 600.0


@attrs.define
class Expire:
    """A clean-up that tells how its runs went."""

    seconds: float = 0.0
    jobs: list[AsyncJob] = attrs.field(factory=list)
    times: list[float] = attrs.field(factory=list)
    done: list[str] = attrs.field(factory=list)
    running: list[str] = attrs.field(factory=list)
    most: int = 0
    doubled: bool = False

    @property
    def ids(self) -> list[str]:
        """The jobs it was called for, in order."""
        return [job.id for job in self.jobs]

    async def __call__(self, job: AsyncJob) -> None:
        """Clean up after one job."""
        self.jobs.append(job)
        self.times.append(trio.current_time())
        self.doubled = self.doubled or job.id in self.running
        self.running.append(job.id)
        self.most = max(self.most, len(self.running))
        try:
            await trio.sleep(self.seconds)
            self.done.append(job.id)
        finally:
            self.running.remove(job.id)


class Unprintable(Exception):
    """An error that cannot even be described."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


async def test_an_expired_job_is_cleaned_up_and_removed(rig: Rig) -> None:
    """At the start of the worker; the handler sees the job as it was."""
    expire = Expire()
    id = rig.insert_expired(parameters={"files": 3})
    async with rig.running(handler(returning(DONE), expire=expire)) as worker:
        await rig.removed(id)
        await rig.until(lambda: worker.statistics().totals.cleaned_up == 1)
    assert expire.ids == [id]
    assert expire.jobs[0].parameters == {"files": 3}
    assert expire.jobs[0].status is AsyncJobStatus.COMPLETED
    assert rig.log.count("job.removed", id) == 1


async def test_a_cancelled_job_is_cleaned_up_at_the_next_sweep(rig: Rig) -> None:
    """Once its body has left."""
    expire, runs = Expire(), Runs()
    async with rig.running(handler(runs, expire=expire), maintenance_interval=10):
        id = await rig.create()
        await runs.begun.wait()
        await rig.cancel(id)
        await rig.removed(id)
    assert (expire.ids, runs.reasons) == ([id], ["cancelled"])


async def test_a_job_that_never_ran_is_cleaned_up_too(rig: Rig) -> None:
    """It expired while it waited; its attempts are not touched, and it never runs."""
    expire = Expire()
    id = rig.insert_expired(status="accepted")
    async with rig.running(handler(never, expire=expire)):
        await rig.removed(id)
    assert expire.ids == [id]
    assert (expire.jobs[0].status, expire.jobs[0].attempts) == (AsyncJobStatus.CANCELLED, 0)


async def test_a_finished_job_is_removed_when_its_retention_is_over(rig: Rig) -> None:
    """And not before."""
    expire = Expire()
    async with rig.running(handler(returning(DONE), expire=expire), maintenance_interval=10):
        id = await rig.create(retention=TEN_MINUTES)
        await rig.ended(id)
        await rig.removed(id)
        assert TEN_MINUTES <= trio.current_time() <= TEN_MINUTES + 12


async def test_the_row_goes_only_after_the_clean_up_has_returned(rig: Rig) -> None:
    """A clean-up may take several leases: it runs under one, with renewals, like a job."""
    expire = Expire(5 * LEASE)
    async with rig.running(handler(returning(DONE), expire=expire), maintenance_interval=5):
        id = rig.insert_expired()
        await rig.until(lambda: expire.running)
        await trio.sleep(4 * LEASE)
        assert rig.lease_left(id) > 0
        await rig.removed(id)
    assert (expire.ids, expire.done) == ([id], [id])
    assert len(rig.provider.made("renew_lease", id)) >= 14


async def test_a_clean_up_does_not_mind_that_notifications_flow_again(rig: Rig) -> None:
    """All leases are asked about then, and those of clean-ups belong to jobs that are over."""
    expire = Expire(5)
    async with rig.running(handler(returning(DONE), expire=expire), maintenance_interval=5):
        id = rig.insert_expired()
        await rig.until(lambda: expire.running)
        rig.restore_watch()
        await rig.removed(id)
    assert (expire.ids, expire.done) == ([id], [id])


@pytest.mark.parametrize(
    "error",
    [OSError("disk"), SystemExit(1), Unprintable(), ExceptionGroup("x", [OSError()])],
    ids=lambda error: type(error).__name__,
)
async def test_a_clean_up_that_fails_is_tried_again_after_ten_minutes(
    rig: Rig, error: BaseException
) -> None:
    """The row stays, the error is logged whole, and the worker goes on."""
    times: list[float] = []

    async def expire(job: AsyncJob) -> None:
        times.append(trio.current_time())
        if len(times) < 3:
            raise error

    id = rig.insert_expired()
    async with rig.running(
        handler(returning(DONE), expire=expire), maintenance_interval=10
    ) as worker:
        await rig.removed(id)
        assert worker.statistics().totals.cleanups_failed == 2
    assert len(times) == 3
    assert all(TEN_MINUTES <= gap <= TEN_MINUTES + 12 for gap in gaps(times))
    records = rig.log.of("job.cleanup-failed", id)
    assert len(records) == 2
    assert records[0].exc_info is not None
    assert type(records[0].exc_info[1]) is type(error)


async def test_a_clean_up_that_hangs_is_cancelled_after_ten_minutes(rig: Rig) -> None:
    """And tried again ten minutes later."""
    expire = Expire(math.inf)
    id = rig.insert_expired()
    async with rig.running(handler(returning(DONE), expire=expire), maintenance_interval=10):
        await rig.until(lambda: rig.log.count("job.cleanup-failed", id))
        assert trio.current_time() == pytest.approx(TEN_MINUTES, abs=1)
        expire.seconds = 1
        await rig.removed(id)
    assert "TooSlowError" in rig.log.fields("job.cleanup-failed", id)[0]["error"]
    assert len(expire.ids) == 2


async def test_clean_ups_that_fail_hold_up_no_others(rig: Rig) -> None:
    """120 rows that always fail come first; the 380 behind them are gone in the same sweep."""
    bad = {rig.insert_expired(ago=HOUR) for _ in range(120)}
    good = {rig.insert_expired(ago=1) for _ in range(380)}

    async def expire(job: AsyncJob) -> None:
        if job.id in bad:
            raise OSError("never")

    async with rig.running(handler(returning(DONE), expire=expire)):
        await rig.until(lambda: not any(rig.exists(id) for id in good), 5)
        assert all(rig.exists(id) for id in bad)
    claims = rig.provider.made("claim_expired_jobs")
    assert len(claims) >= 50


async def test_at_most_ten_clean_ups_run_at_once_and_never_two_for_one_job(rig: Rig) -> None:
    """They run outside of the slots for jobs; another worker sweeps beside."""
    expire = Expire(60)
    ids = [rig.insert_expired() for _ in range(35)]
    async with rig.running(
        handler(returning(DONE), expire=expire), max_concurrent_jobs=1, maintenance_interval=5
    ):
        await rig.until(lambda: len(expire.running) == 10)
        assert (await rig.ended(await rig.create())).status is AsyncJobStatus.COMPLETED
        for id in ids:
            await rig.removed(id)
    assert (expire.most, expire.doubled) == (10, False)
    assert sorted(expire.ids) == sorted(ids)


async def test_two_workers_never_clean_up_one_job_at_once(rig: Rig) -> None:
    """Each row is taken under a lease."""
    expire = Expire(3 * LEASE)
    one = handler(returning(DONE), expire=expire)
    ids = [rig.insert_expired() for _ in range(30)]
    async with (
        rig.running(one, worker_id="one", maintenance_interval=5),
        rig.running(one, worker_id="two", maintenance_interval=5),
    ):
        for id in ids:
            await rig.removed(id)
    assert sorted(expire.ids) == sorted(ids)


async def test_a_slow_clean_up_stops_no_claim(rig: Rig) -> None:
    """The sweep is no part of the claim loop."""
    expire = Expire(math.inf)
    for _ in range(50):
        rig.insert_expired()
    async with rig.running(handler(returning(DONE), expire=expire)):
        await rig.until(lambda: len(expire.running) == 10)
        for _ in range(10):
            begun = trio.current_time()
            await rig.ended(await rig.create())
            assert trio.current_time() - begun < 1


SWEEPS = pytest.mark.parametrize(
    ("call", "expire"), [("claim_expired_jobs", Expire()), ("discard_expired_jobs", None)]
)


@SWEEPS
async def test_a_slow_sweep_statement_stops_no_claim(
    rig: Rig, call: CallName, expire: Expire | None
) -> None:
    """Nor does one that never answers, and it is tried again."""
    rig.provider.hang(call, times=1)
    id = rig.insert_expired()
    async with rig.running(handler(returning(DONE), expire=expire)):
        begun = trio.current_time()
        await rig.ended(await rig.create())
        assert trio.current_time() - begun < 1
        await rig.until(lambda: not rig.exists(id), HOUR)
    assert [fields["what"] for fields in rig.log.fields("sweep.failed")] == ["expired"]


@SWEEPS
async def test_an_error_of_the_sweep_is_followed_by_another_soon(
    rig: Rig, call: CallName, expire: Expire | None
) -> None:
    """After a back-off of about 5 s, not a whole interval."""
    rig.provider.fail(call, times=2)
    id = rig.insert_expired()
    async with rig.running(handler(returning(DONE), expire=expire), maintenance_interval=HOUR):
        await rig.removed(id)
        assert 9 <= trio.current_time() <= 11
    assert rig.log.count("sweep.failed") == 2


async def test_a_deletion_is_repeated_until_it_is_answered(rig: Rig) -> None:
    """The clean-up itself is not run again for it."""
    expire = Expire()
    rig.provider.fail("delete_expired_job", times=3)
    id = rig.insert_expired()
    async with rig.running(handler(returning(DONE), expire=expire)):
        await rig.removed(id)
    assert expire.ids == [id]


async def test_a_clean_up_that_loses_its_lease_is_cancelled_and_tried_again(rig: Rig) -> None:
    """Before anybody else may take the row."""
    expire = Expire(2 * LEASE)
    broken = rig.provider.fail("renew_lease")
    id = rig.insert_expired()
    async with rig.running(handler(returning(DONE), expire=expire), maintenance_interval=5):
        await rig.until(lambda: len(expire.ids) == 1 and not expire.running)
        assert trio.current_time() == pytest.approx(LEASE - 3, abs=0.1)
        broken.remove()
        await rig.removed(id)
    assert (expire.ids, expire.done, expire.doubled) == ([id, id], [id], False)


async def test_a_late_clean_up_is_never_joined_by_a_second(rig: Rig) -> None:
    """It swallowed its cancellation and lost its lease; the sweep of this worker leaves it be."""
    running, most = list[str](), list[int]()

    async def expire(job: AsyncJob) -> None:
        running.append(job.id)
        most.append(len(running))
        try:
            if len(most) == 1:
                with trio.CancelScope(shield=True):
                    await trio.sleep(5 * LEASE)
        finally:
            running.pop()

    rig.provider.fail("renew_lease")
    id = rig.insert_expired()
    async with rig.running(handler(returning(DONE), expire=expire), maintenance_interval=5):
        await rig.removed(id)
    assert most == [1, 1]


class Silent(JobHandler):
    """A handler whose jobs leave nothing but their rows."""

    kind = "silent"

    async def run(self, context: JobContext) -> JobOutput:
        """Nothing to do."""
        return DONE


async def test_jobs_that_leave_nothing_are_removed_many_at_a_time(rig: Rig) -> None:
    """Whole statements of rows, more than are cleaned up at once; and those that leave some too."""
    expire = Expire()
    silent = [rig.insert_expired("silent") for _ in range(2500)]
    bare = rig.insert_expired("bare")
    own = rig.insert_expired()
    handlers = (Silent(), handler(returning(DONE), "bare"), handler(returning(DONE), expire=expire))
    async with rig.running(*handlers) as worker:
        await rig.removed(own)
        assert worker.statistics().totals.cleaned_up == 2502
    assert not any(rig.exists(id) for id in (*silent, bare))
    assert expire.ids == [own]
    discarded = [fields["count"] for fields in rig.log.fields("sweep.discarded")]
    assert discarded == [1000, 1000, 501]


async def test_a_handler_with_an_expire_of_its_own_is_always_asked(rig: Rig) -> None:
    """Also where it was inherited, or put on the instance."""
    asked = []

    class Careful(Silent):
        kind = "careful"

        async def expire(self, job: AsyncJob) -> None:
            asked.append(job.kind)

    class Heir(Careful):
        kind = "heir"

    async def expire(job: AsyncJob) -> None:
        asked.append(job.kind)

    patched = Silent()
    patched.expire = expire  # type: ignore[method-assign]
    for kind in ("careful", "heir", "silent"):
        rig.insert_expired(kind)
    async with rig.running(Careful(), Heir(), patched) as worker:
        await rig.until(lambda: worker.statistics().totals.cleaned_up == 3)
    assert sorted(asked) == ["careful", "heir", "silent"]


async def test_only_registered_kinds_are_cleaned_up(rig: Rig) -> None:
    """The handler that knows what to remove may be registered elsewhere."""
    expire = Expire()
    other = rig.insert_expired("other")
    own = rig.insert_expired()
    async with rig.running(handler(returning(DONE), expire=expire), maintenance_interval=5):
        await rig.removed(own)
        await trio.sleep(200)
        assert rig.exists(other)
    assert expire.ids == [own]


async def test_rows_nobody_cleans_up_after_go_after_seven_days_with_a_warning(rig: Rig) -> None:
    """Kinds that no worker registers would fill the table for ever."""
    ids = [rig.insert_expired("gone", ago=7 * DAY + 1) for _ in range(250)]
    young = rig.insert_expired("gone", ago=7 * DAY - 1.5 * HOUR)
    async with rig.running(handler(returning(DONE)), poll_interval=60):
        await rig.until(lambda: not any(rig.exists(id) for id in ids), 1)
        assert rig.exists(young)
        await rig.until(lambda: not rig.exists(young), 4 * HOUR)
    warnings = rig.log.of("sweep.orphans")
    assert [record.__dict__["fields"] for record in warnings] == [
        {"count": count, "kind": "gone"} for count in (100, 100, 50, 1)
    ]
    assert {record.levelname for record in warnings} == {"WARNING"}


async def test_a_clean_up_cancelled_by_shutdown_releases_its_row(rig: Rig) -> None:
    """Another worker's sweep takes it at once, not ten minutes later."""
    expire = Expire(math.inf)
    id = rig.insert_expired()
    async with rig.running(handler(returning(DONE), expire=expire)) as worker:
        await rig.until(lambda: expire.running)
        worker.stop()
        worker.stop()
        await rig.left(worker)
        assert rig.job(id).locked_by is None
    assert rig.log.count("job.cleanup-failed") == 0


async def test_a_clean_up_may_finish_while_the_worker_drains(rig: Rig) -> None:
    """Like a job."""
    expire = Expire(10)
    id = rig.insert_expired()
    async with rig.running(handler(returning(DONE), expire=expire)) as worker:
        await rig.until(lambda: expire.running)
        worker.stop()
        await rig.left(worker)
    assert (expire.done, rig.exists(id)) == ([id], False)


async def test_no_clean_up_begins_once_the_worker_stops(rig: Rig) -> None:
    """Rows that a statement under way took are released."""
    expire = Expire(5)
    ids = [rig.insert_expired() for _ in range(15)]
    rig.provider.delay_answer("claim_expired_jobs", 2)
    async with rig.running(handler(returning(DONE), expire=expire)) as worker:
        await rig.until(lambda: rig.provider.made("claim_expired_jobs"))
        worker.stop()
        await rig.left(worker)
    assert expire.done == []
    assert [rig.job(id).locked_by for id in ids] == [None] * 15
