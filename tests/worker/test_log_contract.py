"""The log is a contract: the table in the documentation, and what really is emitted."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest
import trio

from hastetrio import (
    AsyncJob,
    AsyncJobStatus,
    JobContext,
    JobOutput,
    JobRun,
    JobTimeout,
    RetryLater,
    RetryPolicy,
    Snooze,
    UnstorableValue,
    job_handler,
)
from hastetrio._log import EVENTS

from .harness import DAY, DONE, LEASE, EventLog, Rig, Runs, handler, returning

TABLE = Path(__file__).parents[2] / "docs" / "logging.md"


def documented() -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Name, level, message and fields of each row of the table."""
    rows = re.findall(
        r"^\| `([^`]+)` \| (\w+) \| ([^|]+) \| ([^|]+) \| [^|]+ \|$",
        TABLE.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    return [
        (name, level, message, tuple(fields.split(", "))) for name, level, message, fields in rows
    ]


def test_the_table_in_the_documentation_is_what_the_code_says() -> None:
    """Names, levels, messages and fields, in the same order; nothing more and nothing less."""
    declared = [
        (
            event.name,
            logging.getLevelName(event.level).lower(),
            re.sub(r"%\((\w+)\)(?:\.\d+)?[sfg]", r"{\1}", event.message),
            event.fields,
        )
        for event in EVENTS
    ]
    assert documented() == declared
    assert len({name for name, *_ in declared}) == len(declared)


def test_every_event_of_a_job_says_which_job_it_is() -> None:
    """Whoever filters by one of these five fields misses no line."""
    for event in EVENTS:
        if event.name.startswith("job."):
            assert event.fields[:5] == ("job", "kind", "tenant", "project", "attempt")


async def test_every_documented_event_is_emitted_with_its_fields(rig: Rig) -> None:
    """One eventful life of a worker; the fixture holds each record to its declaration."""
    long, waiting = Runs(), Runs(LEASE)

    async def expire(job: AsyncJob) -> None:
        if job.parameters == "broken":
            raise OSError("disk")

    async def raises(context: JobContext) -> JobOutput:
        raise ValueError("odd")

    async def stubborn(context: JobContext) -> JobOutput:
        try:
            await trio.sleep_forever()
        finally:
            return DONE  # noqa: B012  # it swallows its cancellation

    async def too_late(context: JobContext) -> JobOutput:
        rig.take_over(context.job.id)
        return DONE

    @job_handler("slow", timeout=1)
    async def slow(context: JobContext) -> JobOutput:
        await trio.sleep_forever()

    @job_handler("again")
    async def again(context: JobContext) -> JobOutput | RetryLater | Snooze:
        if context.attempt == 1:
            return RetryLater(1)
        if context.state is None:
            await context.save_state("put off")
            return Snooze(1)
        return DONE

    @contextmanager
    def broken(run: JobRun) -> Iterator[None]:
        yield
        if run.job.kind == "slow":
            raise OSError("no collector")

    def no_watch(kinds: object) -> object:
        raise OSError("no listening")

    rig.insert_abandoned()
    rig.insert_expired(parameters="broken")
    removed = rig.insert_expired()
    rig.insert_expired("gone", ago=8 * DAY)
    rig.provider.fail("fail_abandoned_jobs", times=1)
    rig.provider.fail("claim_jobs", times=1)
    watch = rig.memory.watch
    rig.memory.watch = no_watch  # type: ignore[method-assign, assignment]
    async with rig.running(
        handler(long, "long"),
        handler(waiting, "waiting"),
        handler(raises, "raises"),
        handler(stubborn, "stubborn"),
        handler(too_late, "too-late"),
        handler(returning(None), "rubbish"),
        handler(returning(DONE), expire=expire),
        slow,
        again,
        middleware=[broken],
        maintenance_interval=20,
        max_concurrent_jobs=20,
    ) as worker:
        rig.memory.watch = watch  # type: ignore[method-assign]
        await rig.removed(removed)
        await rig.ended(await rig.create("raises"))
        await rig.ended(await rig.create("rubbish"))
        await rig.ended(await rig.create("slow"))
        rig.provider.fail("save_state", times=1)
        await rig.ended(await rig.create("again"))
        await rig.create("too-late")
        cancelled = await rig.create("long")
        stubborn_one = await rig.create("stubborn")
        await rig.until(lambda: long.running and rig.log.count("job.not-ours"))
        await rig.cancel(cancelled)
        await rig.cancel(stubborn_one)
        rig.provider.fail("renew_lease", times=1)
        rig.provider.fail("finish_job", times=1)
        await rig.ended(await rig.create("waiting"))
        rig.provider.kill_renewals(times=1)
        rig.provider.fail("finish_job", times=1, error=UnstorableValue("no room"))
        await rig.ended(await rig.create("waiting"))
        await rig.until(lambda: rig.log.count("sweep.orphans"))
        await rig.create("long")
        await rig.until(lambda: long.running)
        rig.provider.fail("release_job")
        worker.stop()
        worker.stop()
        await rig.left(worker)
    emitted = {record.__dict__["event"] for record in rig.log.records}
    # A loop is blocked in real time only.
    assert emitted | {"loop.blocked"} == {event.name for event in EVENTS}


async def test_a_handler_that_blocks_the_loop_is_named_while_it_does(rig: Rig) -> None:
    """With its job and its line of code; the limit is a sixth of the lease, here 0.12 s."""

    async def body(context: JobContext) -> JobOutput:
        end = time.monotonic() + 30
        while not rig.log.count("loop.blocked") and time.monotonic() < end:
            time.sleep(0.01)  # noqa: ASYNC251  # what must not be done
        return DONE

    async with rig.running(handler(body), lease_duration=0.7):
        id = await rig.create()
        await rig.ended(id)
    (fields,) = rig.log.fields("loop.blocked")
    assert fields["job"] == id
    assert __file__ in fields["where"]
    assert fields["elapsed"] > 0.1


async def test_a_finished_job_is_logged_with_status_and_elapsed_time(rig: Rig) -> None:
    """From its claim to its recorded result, in seconds."""
    runs = Runs(7)
    async with rig.running(handler(runs)):
        id = await rig.create()
        await rig.ended(id)
        await rig.until(lambda: rig.log.count("job.finished"))
    (fields,) = rig.log.fields("job.finished", id)
    assert fields == {
        "job": id,
        "kind": "work",
        "tenant": "acme",
        "project": "main",
        "attempt": 1,
        "status": "completed",
        "elapsed": pytest.approx(7, abs=0.01),
    }
    assert rig.log.of("job.finished")[0].getMessage() == f"Job completed after 7.000 s (work {id})"


async def test_neither_claims_nor_parameters_nor_outputs_are_ever_logged(rig: Rig) -> None:
    """Whatever becomes of the job: at INFO, and at DEBUG too."""
    secret = "s3cr3t"  # noqa: S105
    outputs: dict[str, object] = {
        "good": secret,
        "large": secret * 1000,
        "set": {secret},
        "nan": [secret, float("nan")],
        "nul": secret + "\x00",
        "key": {(secret,): secret},
        "surrogate": secret + "\ud800",
    }

    async def body(context: JobContext) -> JobOutput:
        name = context.job.kind
        if name == "rubbish":
            return secret  # type: ignore[return-value]
        if name == "waits":
            await trio.sleep_forever()
        return JobOutput.json(outputs[name])

    async def expire(job: AsyncJob) -> None:
        if job.kind == "nan":
            raise OSError("disk")

    kinds = [*outputs, "rubbish", "waits"]
    handlers = [handler(body, kind, expire) for kind in kinds]
    async with rig.running(
        *handlers, output_limit=1024, max_concurrent_jobs=20, maintenance_interval=10
    ):
        made = {
            kind: await rig.create(
                kind, parameters={"p": secret}, claims={"sub": secret, "x": secret}, retention=60
            )
            for kind in kinds
        }
        for kind, id in made.items():
            if kind != "waits":
                await rig.ended(id)
        assert rig.job(made["good"]).status is AsyncJobStatus.COMPLETED
        await rig.cancel(made["waits"])
        await rig.until(lambda: rig.log.count("job.cleanup-failed"))
    shown = rig.log.text()
    assert rig.log.count("job.rejected") == 7
    assert "Running job" in shown
    assert secret not in shown


async def test_neither_states_nor_typed_parameters_are_ever_logged(rig: Rig) -> None:
    """A client's mistake is told to the client, and a state stays with its job."""
    secret = "s3cr3t"  # noqa: S105

    @attrs.frozen
    class Number:
        number: int

    @job_handler("typed", parameters=Number)
    async def typed(context: JobContext[Number]) -> JobOutput:
        return DONE

    @job_handler("saves", timeout=1, retries=RetryPolicy(first=1, on=(JobTimeout,)))
    async def saves(context: JobContext) -> JobOutput:
        with pytest.raises(UnstorableValue):
            await context.save_state([secret, object()])
        await context.save_state([secret])
        await trio.sleep_forever()

    rig.provider.fail("save_state", times=2)
    async with rig.running(typed, saves):
        await rig.ended(await rig.create("typed", parameters={"number": secret}))
        await rig.ended(await rig.create("saves", parameters=secret, unique_key=secret))
        await rig.until(lambda: rig.log.count("job.finished") == 2)
    assert rig.log.count("job.call-retried") == 2
    assert secret not in rig.log.text()


def test_a_record_that_is_not_as_declared_is_noticed(event_log: EventLog) -> None:
    """What the other tests rely on: the fixture sees a missing field and an unknown event."""
    for record in ({"event": "worker.stopped", "fields": {}}, {"event": "new", "fields": {}}):
        event_log.records[:] = [logging.makeLogRecord(record)]
        with pytest.raises((AssertionError, KeyError)):
            event_log.check()
    event_log.records.clear()
