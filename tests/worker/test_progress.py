"""What a handler reports, and when it reaches the row."""

from __future__ import annotations

import trio

from hastetrio import AsyncJobStatus, JobContext, JobOutput, UnstorableValue

from .harness import DONE, THIRD, Rig


async def test_progress_is_recorded_with_the_next_renewal_and_the_latest_wins(rig: Rig) -> None:
    """Reporting costs nothing by itself."""

    async def body(context: JobContext) -> JobOutput:
        for text in ("one", "two", "three"):
            context.report(text)
        await trio.sleep(THIRD / 2)
        seen.append(rig.job(context.job.id).progress)
        await trio.sleep(THIRD)
        seen.append(rig.job(context.job.id).progress)
        return DONE

    seen: list[str | None] = []
    await rig.outcome_of(body)
    assert seen == [None, "three"]


async def test_the_last_progress_goes_with_the_result(rig: Rig) -> None:
    """A short job is never renewed, and still leaves its last words."""

    async def body(context: JobContext) -> JobOutput:
        context.report("all done")
        return DONE

    job = await rig.outcome_of(body)
    assert job.progress == "all done"
    assert not rig.provider.made("renew_lease", job.id)


async def test_progress_is_cleaned_and_cut(rig: Rig) -> None:
    """NUL and lone surrogates are replaced, and what is longer than the limit is cut."""

    async def body(context: JobContext) -> JobOutput:
        context.report("a\x00b\ud800c" + "x" * 100)
        return DONE

    job = await rig.outcome_of(body, progress_limit=7)
    assert (job.status, job.progress) == (AsyncJobStatus.COMPLETED, "a\ufffdb\ufffdcxx")


async def test_progress_is_kept_until_it_is_acknowledged(rig: Rig) -> None:
    """A failed renewal takes it along again when it is repeated."""

    async def body(context: JobContext) -> JobOutput:
        context.report("one")
        await rig.until(lambda: len(rig.provider.made("renew_lease")) == 3)
        seen.append(rig.job(context.job.id).progress)
        return DONE

    seen: list[str | None] = []
    rig.provider.fail("renew_lease", times=2)
    job = await rig.outcome_of(body)
    assert (seen, job.progress) == (["one"], "one")


async def test_progress_reported_while_a_renewal_is_under_way_is_not_lost(rig: Rig) -> None:
    """The renewal's answer acknowledges what it carried, not what came since."""

    async def body(context: JobContext) -> JobOutput:
        context.report("one")
        await trio.sleep(THIRD + 1)
        context.report("two")
        await trio.sleep(2)
        seen.append(rig.job(context.job.id).progress)
        return DONE

    seen: list[str | None] = []
    rig.provider.delay_answer("renew_lease", 2, times=1)
    job = await rig.outcome_of(body)
    assert (seen, job.progress) == (["one"], "two")


async def test_progress_the_storage_refuses_is_given_up_for_the_lease(rig: Rig) -> None:
    """The renewal is repeated without it, and the job goes on to its result."""

    async def body(context: JobContext) -> JobOutput:
        context.report("refused")
        await trio.sleep(3 * THIRD + 1)
        return DONE

    rig.provider.fail("renew_lease", times=1, error=UnstorableValue("no"))
    job = await rig.outcome_of(body)
    assert (job.status, job.progress, job.attempts) == (AsyncJobStatus.COMPLETED, None, 1)
