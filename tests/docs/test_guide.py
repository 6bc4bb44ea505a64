"""The how-to page for handlers: every handler on it is run, and does what the page says."""

from __future__ import annotations

import base64
import dataclasses
import enum
import hashlib
import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, TypedDict
from uuid import UUID

import attrs
import psycopg
import pytest
import trio

from hastetrio import (
    AsyncJob,
    AsyncJobStatus,
    AsyncJobWorker,
    ConfigError,
    CreateAsyncJob,
    JobContext,
    JobHandler,
    JobLease,
    JobOutput,
    ParameterMismatch,
    RetryPolicy,
    job_handler,
)
from hastetrio._typed import check_class, structure
from hastetrio.memory import MemoryJobProvider
from hastetrio.testing import run_job

from .blocks import DOCS, ROOT, blocks_of, files_of, imported
from .test_examples import ended

PAGE: Final = DOCS / "handlers.md"

Modules = Mapping[str, ModuleType]


@pytest.fixture
def modules(tmp_path: Path) -> Iterator[Modules]:
    """The files of the page, imported anew."""
    with imported(files_of(PAGE), tmp_path) as found:
        yield found


# Where the Python of each page is run.
RUN_BY: Final = {
    "asyncio.md": "tests/asyncio_bridge",
    "fhir.md": "tests/docs/test_operations.py",
    "handlers.md": "tests/docs/test_guide.py",
    "kubernetes.md": "tests/docs/test_deployment.py",
    "logging.md": "tests/docs/test_guide.py",
    "testing.md": "tests/testing/test_docs_page.py",
    "tutorial.md": "tests/docs/test_tutorial.py",
}


def test_no_page_has_python_that_nobody_runs() -> None:
    """A new page with a block of it says here where it is run."""
    pages = {page.name for page in DOCS.glob("**/*.md") if blocks_of(page, "python")}
    assert pages == set(RUN_BY)
    assert not [place for place in RUN_BY.values() if not (ROOT / place).exists()]


def test_lines_of_a_job_carry_its_id_as_the_page_on_logging_shows() -> None:
    """Its set-up writes the job in brackets, and None outside of a job."""
    (block,) = blocks_of(DOCS / "logging.md", "python")
    namespace: dict[str, Any] = {"logging": logging}
    exec(compile(block.text, "logging.md", "exec"), namespace)  # noqa: S102
    written = io.StringIO()
    handler = namespace["stream"]
    handler.setStream(written)
    log = logging.getLogger("tests.docs.clinic")
    log.addHandler(handler)

    @job_handler("logs")
    async def logs(context: JobContext) -> JobOutput:
        log.warning("inside")
        return JobOutput.json(context.job.id)

    try:
        id = run_job(logs).output
        log.warning("outside")
    finally:
        log.removeHandler(handler)
    assert written.getvalue() == f"WARNING [{id}] inside\nWARNING [None] outside\n"


# Each handler by its kind: where it is, parameters, and what it answers.
ANSWERS: Final[dict[str, tuple[str, dict[str, Any], object]]] = {
    "greet": ("two_forms.greet", {"name": "Ada"}, "Hello Ada"),
    "merge": (
        "typed.merge",
        {"keep": {"name": "Ada", "born": 1815}, "drop": [{"name": "A.", "born": 1815}]},
        {"kept": "Ada", "dropped": 1},
    ),
    "discharge": ("failing.discharge", {"signed": True}, {"discharged": True}),
    "attach": ("snoozing.attach", {"report": "report-1"}, {"attached": True}),
    "render": ("timeouts.render", {"seconds": 89}, "rendered"),
    "factors": ("processes.factors", {"number": 360}, [2, 2, 2, 3, 3, 5]),
    "archive": ("resuming.archive", {"pages": 5}, {"resumed_at": 2}),
    "fax": ("guarding.fax", {"text": "hello"}, {"sent": True}),
}

# The kinds that need something beside them, and have tests of their own below.
APART: Final = {"greet-as-class", "fetch", "checksum", "charge", "report"}


def find(modules: Modules, place: str) -> JobHandler:
    """The handler at `module.name`."""
    module, _, name = place.partition(".")
    found = getattr(modules[module], name)
    assert isinstance(found, JobHandler)
    return found


def test_every_handler_of_the_page_has_a_test(modules: Modules) -> None:
    """And every Python block of it is a file, so that it was imported."""
    kinds = {
        value.kind
        for module in modules.values()
        for value in vars(module).values()
        if isinstance(value, JobHandler)
    } | {one.kind for one in modules["two_forms"].all_handlers}
    assert kinds == set(ANSWERS) | APART
    assert all(block.file for block in blocks_of(PAGE, "python"))
    assert len(modules) == len(files_of(PAGE)) >= 14


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_handler_of_the_page_answers(modules: Modules, kind: str) -> None:
    """As whoever copies it would see."""
    place, parameters, answer = ANSWERS[kind]
    job = run_job(find(modules, place), parameters=parameters)
    assert job.error is None
    assert job.output == answer


def test_a_class_is_a_handler_like_a_function(modules: Modules) -> None:
    """Its instances are told apart by their state."""
    (handler,) = (one for one in modules["two_forms"].all_handlers if one.kind == "greet-as-class")
    assert run_job(handler, parameters={"name": "Ada"}).output == "Good morning Ada"


@pytest.mark.parametrize(
    ("parameters", "code", "path"),
    [
        ({"keep": {"name": "Ada", "born": 1815}}, "required", "drop"),
        ({"keep": {"name": 7, "born": 1815}, "drop": []}, "structure", "keep.name"),
        (
            {
                "keep": {"name": "Ada", "born": 1815},
                "drop": [{"name": "A", "born": 1}, {"name": "B"}],
            },
            "required",
            "drop[1].born",
        ),
    ],
)
def test_parameters_that_do_not_fit_fail_with_their_place(
    modules: Modules, parameters: dict[str, Any], code: str, path: str
) -> None:
    """The code and the path that the page promises."""
    job = run_job(modules["typed"].merge, parameters=parameters)
    (issue,) = job.error["issue"]
    assert (issue["code"], issue["expression"]) == (code, [path])


def test_words_for_the_client_fail_the_job_at_once(modules: Modules) -> None:
    """No policy, no second attempt."""
    job = run_job(modules["failing"].discharge, parameters={})
    assert job.error["issue"][0]["code"] == "business-rule"
    assert job.attempts == 1


class Urgency(enum.Enum):
    """Values of an enum."""

    FINE = "fine"


class Point(TypedDict):
    """A dict of known names."""

    x: int


@attrs.frozen
class Inner:
    """A class in a class."""

    a: int


@dataclasses.dataclass
class Data:
    """Another."""

    b: int


UUID_TEXT: Final = "0f8fad5b-d9cb-469f-a165-70867728950e"
UNZONED: Final = datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001  # as the page says

# By the words of the page's table: a type, JSON that fits it, and what that becomes.
TYPES: Final[dict[str, list[tuple[Any, object, object]]]] = {
    "str": [(str, "a", "a")],
    "bool": [(bool, True, True)],
    "int": [(int, 1, 1)],
    "float": [(float, 1, 1.0), (float, 1.5, 1.5)],
    "attrs class": [(Inner, {"a": 1}, Inner(1))],
    "dataclass": [(Data, {"b": 1}, Data(1))],
    "list": [(list[int], [1], [1])],
    "Sequence": [(Sequence[int], [1], (1,))],
    "tuple": [(tuple[int, str], [1, "a"], (1, "a")), (tuple[int, ...], [1], (1,))],
    "set": [(set[int], [1, 1], {1})],
    "frozenset": [(frozenset[int], [1], frozenset({1}))],
    "dict": [(dict[str, int], {"a": 1}, {"a": 1})],
    "Mapping": [(Mapping[Urgency, int], {"fine": 1}, {Urgency.FINE: 1})],
    "TypedDict": [(Point, {"x": 1}, {"x": 1})],
    "Enum": [(Urgency, "fine", Urgency.FINE)],
    "Literal": [(Literal["a", 1], 1, 1)],
    "datetime": [
        (datetime, "2026-01-02T03:04:05", UNZONED),
        (datetime, "2026-01-02T03:04:05Z", UNZONED.replace(tzinfo=UTC)),
    ],
    "date": [(date, "2026-01-02", date(2026, 1, 2))],
    "UUID": [(UUID, UUID_TEXT, UUID(UUID_TEXT))],
    "Decimal": [(Decimal, "0.10", Decimal("0.10")), (Decimal, 0.1, Decimal("0.1"))],
    "Path": [(Path, "a/b", Path("a/b"))],
    "bytes": [(bytes, base64.b64encode(b"hello").decode(), b"hello")],
    "Unions": [
        (Path | None, None, None),
        (Path | None, "a", Path("a")),
        (Inner | Data, {"b": 1}, Data(1)),
        (date | str, "2026-01-02", "2026-01-02"),
    ],
    "Any": [(Any, [{}], [{}])],
}


def test_fields_may_have_the_types_of_the_table() -> None:
    """Each is turned from the JSON that the table says; other JSON and other types are refused."""
    table = PAGE.read_text("utf-8").partition("| Type | In JSON |\n|---|---|\n")[2]
    rows = [row.split(" | ") for row in table.partition("\n\n")[0].splitlines()]
    firsts = [row[0].removeprefix("| ").partition(", such as ")[0] for row in rows]
    named = [name.strip("`") for first in firsts for name in first.split(", ")]
    assert sorted(named) == sorted(TYPES)
    for kind, given, became in (one for several in TYPES.values() for one in several):
        made: Any = attrs.make_class("Made", {"x": attrs.field(type=kind)})
        check_class(made)
        found = structure(made, {"x": given}).x
        assert (type(found), found) == (type(became), became)
    for kind, given in ((float, "1"), (int, 1.0), (Inner, {"a": 1, "z": 1}), (UUID, 7), (date, 7)):
        with pytest.raises(ParameterMismatch):
            structure(attrs.make_class("Made", {"x": attrs.field(type=kind)}), {"x": given})
    for kind in (complex, timedelta, dict[int, int]):
        with pytest.raises(ConfigError):
            check_class(attrs.make_class("Made", {"x": attrs.field(type=kind)}))


async def test_an_attempt_whose_worker_died_is_counted_and_tells_nothing(
    modules: Modules, autojump_clock: trio.testing.MockClock
) -> None:
    """Its number is missing in the history; the next one's failure is there."""
    provider = MemoryJobProvider()
    created = CreateAsyncJob(kind="discharge", parameters={}, claims={"sub": "me"})
    job = await provider.create_job("t", "p", created)
    assert await provider.claim_jobs(["discharge"], JobLease("died", 10), 1)
    await trio.sleep(20)
    worker = AsyncJobWorker(provider, [modules["failing"].discharge])
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await trio.sleep(30)
        worker.stop()
    found = await provider.read_job("t", "p", job.id)
    assert found is not None
    assert found.attempts == 2
    assert found.attempt_errors is not None
    assert [one["attempt"] for one in found.attempt_errors] == [2]


async def test_what_is_not_there_yet_is_asked_for_again(
    modules: Modules, autojump_clock: trio.testing.MockClock
) -> None:
    """A snooze costs no attempt; the job ends once the report has arrived."""
    module = modules["snoozing"]
    provider = MemoryJobProvider()
    worker = AsyncJobWorker(provider, [module.attach])
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        created = CreateAsyncJob(
            kind="attach", parameters={"report": "late"}, claims={"sub": "me"}, retention=86400
        )
        job = await provider.create_job("t", "p", created)
        await trio.sleep(1000)
        module.arrived.add("late")
        await trio.sleep(400)
        found = await provider.read_job("t", "p", job.id)
        worker.stop()
    assert found is not None
    assert found.output == {"attached": True}
    assert found.attempts == 1


def test_a_body_that_takes_too_long_fails_with_timeout(modules: Modules) -> None:
    """After 90 seconds, which are virtual here."""
    job = run_job(modules["timeouts"].render, parameters={"seconds": 91})
    assert [issue["code"] for issue in job.error["issue"]] == ["timeout"]


def test_a_policy_waits_as_the_page_says(modules: Modules) -> None:
    """Its numbers are those of the prose: first, factor, cap, and the errors."""
    policy = modules["retries"].PATIENT
    assert policy == RetryPolicy(attempts=5, first=1.0, factor=2.0, cap=3600.0, on=(OSError,))
    for attempt, seconds in ((1, 1.0), (2, 2.0), (4, 8.0), (30, 3600.0)):
        assert seconds * 0.9 <= policy.wait(attempt) <= min(seconds * 1.1, 3600.0)


async def test_what_cannot_be_fetched_is_fetched_later(modules: Modules) -> None:
    """A refused connection is retried by the policy, and a service may ask for patience."""
    answers = [b"come back later\n", b"here it is"]

    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.send_all(answers.pop(0))

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, answer, [listener])
        parameters = {"host": "127.0.0.1", "port": port}
        handler = modules["retries"].fetch
        job = await trio.to_thread.run_sync(lambda: run_job(handler, parameters=parameters))
        nursery.cancel_scope.cancel()
    assert job.output == "here it is"
    assert job.attempts == 2
    (attempt,) = job.attempt_errors
    assert "the service asked for ten minutes" in attempt["errors"][0]
    job = await trio.to_thread.run_sync(lambda: run_job(handler, parameters=parameters))
    assert job.status is AsyncJobStatus.FAILED
    assert job.attempts == 5


def test_a_checksum_is_made_in_a_thread(modules: Modules, tmp_path: Path) -> None:
    """Of a file of more than one part."""
    file = tmp_path / "file"
    file.write_bytes(b"0123456789" * 200_000)
    job = run_job(modules["threads"].checksum_file, parameters={"path": str(file)})
    assert job.output == hashlib.sha256(file.read_bytes()).hexdigest()


def test_pages_that_were_read_are_not_read_again(modules: Modules) -> None:
    """But for the one that was read when the archive hung up."""
    module = modules["resuming"]
    run_job(module.archive, parameters={"pages": 5})
    assert module.pages_read == [0, 1, 2, 2, 3, 4]


def test_a_charge_is_committed_with_its_result(modules: Modules, database_url: str) -> None:
    """The balance changed by as much as the completed job says, once."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE accounts (owner text, balance integer)")
        connection.execute("INSERT INTO accounts VALUES ('Ada', 100)")
        parameters = {"owner": "Ada", "amount": 30}
        job = trio.run(ended, database_url, modules["transactions"].charge, parameters)
        assert job.output == {"charged": True}
        assert connection.execute("SELECT balance FROM accounts").fetchone() == (70,)


def test_a_report_is_removed_with_its_job(
    modules: Modules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the job wrote, and whatever an attempt that died left; a second time finds nothing."""
    module = modules["files"]
    monkeypatch.setattr(module, "FOLDER", tmp_path / "reports")
    job = run_job(module.report)
    assert Path(job.output["file"]).read_text() == "All is well.\n"
    (tmp_path / "reports" / f"{job.id}.12345678").mkdir()
    for _ in range(2):
        trio.run(module.report.expire, job)
        assert list((tmp_path / "reports").iterdir()) == []


async def test_a_middleware_counts_how_runs_end(
    modules: Modules, autojump_clock: trio.testing.MockClock
) -> None:
    """By kind and status."""
    module = modules["middleware"]
    handlers = [modules["two_forms"].greet, modules["failing"].discharge]
    provider = MemoryJobProvider()
    worker = AsyncJobWorker(provider, handlers, middleware=[module.counted])
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        for kind, parameters in (("greet", {"name": "Ada"}), ("discharge", {})):
            created = CreateAsyncJob(kind=kind, parameters=parameters, claims={"sub": "me"})
            await provider.create_job("t", "p", created)
        await trio.sleep(10)
        worker.stop()
    assert module.endings == {("greet", "completed"): 1, ("discharge", "failed"): 1}


async def _on_postgres(url: str, work: Callable[[Any], Any]) -> Any:  # noqa: ANN401
    from hastetrio.postgres import PostgresJobProvider

    async with PostgresJobProvider.open(url) as provider:
        return await work(provider)


@pytest.mark.parametrize("storage", ["memory", "postgres"])
def test_a_reminder_is_queued_once_and_for_later(
    modules: Modules, storage: str, request: pytest.FixtureRequest
) -> None:
    """The second kick-off for a visit is the first one's job."""
    module = modules["kick_offs"]

    async def twice(provider: Any) -> list[AsyncJob]:  # noqa: ANN401
        return [await module.remind(provider, "visit-7", module.MONDAY) for _ in range(2)]

    if storage == "memory":

        async def work() -> list[AsyncJob]:
            return await twice(MemoryJobProvider())

        first, second = trio.run(work)
    else:
        url = request.getfixturevalue("database_url")
        first, second = trio.run(_on_postgres, url, twice)
    assert first.id == second.id
    assert first.unique_key == "visit-7"
    assert (module.MONDAY - first.run_at).days == 1
