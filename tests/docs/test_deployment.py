"""The manifests and statements that operators copy: they fit the program as it is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import psycopg
import pytest
import trio
import yaml  # type: ignore[import-untyped, unused-ignore]

from hastetrio import AsyncJob, CreateAsyncJob, JobLease, JobResult, Operation
from hastetrio._settings import Settings, load
from hastetrio.cli._app import app
from hastetrio.postgres import PostgresJobProvider
from hastetrio.postgres._unit import open_session

from .blocks import DOCS, Block, blocks_of, files_of, imported

# Seconds a stopping process has for handing its jobs back; see hastetrio.cli._stop.
_HAND_BACK: Final = 2


def manifests() -> list[dict[str, Any]]:
    """What the page on Kubernetes deploys."""
    texts = [block.text for block in blocks_of(DOCS / "kubernetes.md", "yaml")]
    return [one for text in texts for one in yaml.safe_load_all(text)]


def pods() -> Iterator[tuple[dict[str, Any], dict[str, Any], Settings]]:
    """Each pod, its container, and the settings that this one has."""
    for manifest in manifests():
        if "template" in manifest["spec"]:
            pod = manifest["spec"]["template"]["spec"]
            (container,) = pod["containers"]
            environ = {one["name"]: one.get("value", "set") for one in container["env"]}
            loaded = load({}, environ | {"HASTETRIO_DATABASE_URL": "postgresql://there/jobs"})
            assert loaded.warnings == ()
            yield pod, container, loaded.settings


def test_the_image_holds_what_the_handlers_import() -> None:
    """The tutorial's handler, and each of its modules that is no package."""
    (block,) = blocks_of(DOCS / "kubernetes.md", "dockerfile")
    (copied,) = re.findall(r"^COPY (.*) /app/$", block.text, re.MULTILINE)
    files = files_of(DOCS / "tutorial.md")
    needed, found = {"letters.py"}, set[str]()
    while needed:
        name = needed.pop()
        found.add(name)
        imports = re.findall(r"^(?:from|import) (\w+)", files[name], re.MULTILINE)
        needed |= {f"{one}.py" for one in imports} & set(files) - found
    assert set(copied.split()) == found == {"letters.py", "printer.py"}


def test_each_version_migrates_by_a_job_of_its_own() -> None:
    """A Job's template is immutable: the name goes with the image, and the Job goes some day."""
    (job,) = [one for one in manifests() if one["kind"] == "Job"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert job["metadata"]["name"].rpartition("-")[2] == container["image"].rpartition(":")[2]
    assert job["spec"]["ttlSecondsAfterFinished"] == 86400


def test_what_is_served_can_be_kicked_off(tmp_path: Path) -> None:
    """With the decorator of the page, the tutorial's handler declares `$letter`."""
    (block,) = blocks_of(DOCS / "kubernetes.md", "python")
    files = files_of(DOCS / "tutorial.md")
    served, count = re.subn(
        r"@job_handler\(\n.*?^\)\n", block.text, files["letters.py"], flags=re.DOTALL | re.MULTILINE
    )
    assert count == 1
    assert set(files["letters.py"].splitlines()) < set(served.splitlines())
    served = served.replace("JobOutput, RetryPolicy", "JobOutput, Operation, RetryPolicy")
    with imported({"letters.py": served, "printer.py": files["printer.py"]}, tmp_path) as modules:
        operation = modules["letters"].letter.operation
    assert operation == Operation(name="letter", affects_state=True)


def test_the_handlers_table_is_written_by_the_working_role(database_url: str) -> None:
    """The page's table and grant are enough for the statement of the tutorial's handler."""
    (block,) = sql("kubernetes.md")
    (insert,) = re.findall(r'"(INSERT [^"]+)"', files_of(DOCS / "tutorial.md")["letters.py"])
    (table,) = re.findall(
        r'"(CREATE TABLE [^"]+)"', files_of(DOCS / "tutorial.md")["make_tables.py"]
    )
    assert table in block.text
    # Roles are the whole server's, and so undone with the transaction.
    with psycopg.connect(database_url) as connection:
        connection.execute("CREATE ROLE hastetrio_working")
        connection.execute("GRANT USAGE ON SCHEMA public TO hastetrio_working")
        connection.execute(block.text.encode())
        connection.execute("SET ROLE hastetrio_working")
        connection.execute(insert.encode(), ["id", "Ada", 1])
        assert connection.execute("SELECT recipient FROM sent_letters").fetchall() == [("Ada",)]
        connection.rollback()


def check_command(name: str, arguments: list[str]) -> None:
    """See that the command line understands a command."""
    with click.Context(app) as whole:
        command = app.get_command(whole, name)
        assert command is not None
        with command.make_context(name, list(arguments), parent=whole) as context:
            assert context.args == []


def test_each_container_is_started_with_what_the_program_knows() -> None:
    """Its command has these flags, and each variable is a setting with a value that fits."""
    commands = []
    for _, container, _ in pods():
        name, *arguments = container["args"]
        check_command(name, arguments)
        commands.append(name)
    assert commands == ["migrate", "worker", "serve"]


def test_each_pod_has_the_time_that_it_takes_to_leave() -> None:
    """Kubernetes kills after the grace period, which begins before the hook: longer must do."""
    graces = []
    for pod, container, settings in pods():
        if "terminationGracePeriodSeconds" not in pod:
            assert container["args"] == ["migrate"]
            continue
        hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
        assert hook is None or hook[0] == "sleep"
        worker = settings.worker
        takes = float(hook[1]) if hook else 0.0
        takes += worker.drain_timeout + worker.cancel_grace + _HAND_BACK
        assert takes < pod["terminationGracePeriodSeconds"] <= takes + 30
        graces.append(takes)
    assert len(graces) == 2


def test_each_pod_is_asked_whether_it_lives_and_whether_it_is_ready() -> None:
    """A pod is restarted when its leases are lost anyway, and never for its database."""
    probed = 0
    for _, container, settings in pods():
        if "livenessProbe" not in container:
            continue
        live, ready = container["livenessProbe"], container["readinessProbe"]
        assert live["httpGet"]["path"] == "/livez"
        assert ready["httpGet"]["path"] == "/readyz"
        assert live["periodSeconds"] * live["failureThreshold"] >= settings.worker.lease_duration
        # The database is given 2 s there.
        assert ready["timeoutSeconds"] > 2
        (port,) = container["ports"]
        address = container["args"][container["args"].index("--http") + 1]
        assert address == f"0.0.0.0:{port['containerPort']}"
        probed += 1
    assert probed == 2


def test_the_alerts_are_about_metrics_there_are() -> None:
    """Each rule has an expression over metrics of the same page."""
    (block,) = blocks_of(DOCS / "metrics.md", "yaml")
    table = (DOCS / "metrics.md").read_text("utf-8").partition("## Alerts")[0]
    known = set(re.findall(r"`(hastetrio_\w+)`", table))
    rules = [rule for group in yaml.safe_load(block.text)["groups"] for rule in group["rules"]]
    assert len(rules) >= 5
    for rule in rules:
        named = set(re.findall(r"hastetrio_\w+", rule["expr"]))
        assert named
        assert named <= known


def sql(page: str) -> list[Block]:
    """The statements of a page."""
    return blocks_of(DOCS / page, "sql")


def test_the_statements_that_queue_jobs_queue_jobs(database_url: str) -> None:
    """In the order of the page; what waits for its time, and what has a key, does as is said."""
    answers = []
    with psycopg.connect(database_url, autocommit=True) as connection:
        for block in sql("enqueueing.md"):
            if "CREATE ROLE" not in block.text and "UPDATE async_jobs" not in block.text:
                cursor = connection.execute(block.text.encode())
                answers.append(cursor.fetchall() if cursor.description else None)
        (again,) = [one.text for one in sql("enqueueing.md") if "DO NOTHING" in one.text]
        assert connection.execute(again.encode()).fetchall() == []
    small, usual, several, later, keyed, found, stands = answers
    assert several is None
    assert stands == []
    assert found is not None
    assert keyed is not None
    assert [id for id, _ in found] == [id for (id,) in keyed]
    claimed = trio.run(_claim, database_url)
    assert small is not None
    assert usual is not None
    assert later is not None
    ids = [job.id for job in claimed]
    assert ids[:2] == [small[0][0], usual[0][0]]
    assert len(ids) == 6
    assert later[0][0] not in ids
    assert claimed[1].parameters["to"] == "Ada"
    assert claimed[1].submitted_by == claimed[1].claims["sub"]


async def _claim(url: str) -> list[AsyncJob]:
    async with PostgresJobProvider.open(url) as provider:
        return await provider.claim_jobs(["letter"], JobLease("w1", 60), 10)


def test_a_job_for_later_is_kept_until_then(database_url: str) -> None:
    """The page says that a row without an `expires_at` of its own would be gone before its time."""
    (text,) = [one.text for one in sql("enqueueing.md") if "7 days" in one.text]
    without = re.sub(r", expires_at\)|, now\(\) \+ interval '\d days'\)(?=\n)", ")", text)
    assert without != text
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(text.encode())
        connection.execute(without.encode())
        kept = connection.execute(
            "SELECT expires_at > run_at FROM async_jobs ORDER BY created_at"
        ).fetchall()
    assert kept == [(True,), (False,)]


def test_the_grants_let_a_client_queue_and_read_and_no_more(database_url: str) -> None:
    """Such a role runs the page's statements, and can neither finish nor take a job."""
    (grants,) = [one.text for one in sql("enqueueing.md") if "CREATE ROLE" in one.text]
    others = [
        one.text
        for one in sql("enqueueing.md")
        if one.text != grants and "UPDATE async_jobs" not in one.text
    ]
    # Roles are the whole server's, and so undone with the transaction.
    with psycopg.connect(database_url) as connection:
        connection.execute(grants.encode())
        connection.execute("GRANT USAGE ON SCHEMA public TO jobs_client")
        connection.execute("SET ROLE jobs_client")
        for text in others:
            connection.execute(text.encode())
        for forbidden in (
            giving_up(),
            "UPDATE async_jobs SET status = 'completed'",
            "DELETE FROM async_jobs",
            "INSERT INTO async_jobs (tenant, project, kind, locked_by) VALUES ('t', 'p', 'k', 'w')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
                connection.execute(forbidden.encode())
        connection.rollback()


def giving_up() -> str:
    """The page's statement that cancels a job."""
    (text,) = [one.text for one in sql("enqueueing.md") if "UPDATE async_jobs" in one.text]
    return text


def test_a_job_is_given_up_by_sql_as_by_the_program(database_url: str) -> None:
    """Queued, running and completed ones: the row is then the same, but for id and times."""

    async def ours(provider: PostgresJobProvider, id: str) -> None:
        assert await provider.cancel_job("clinic", "north", id) is not None

    async def by_sql(_: PostgresJobProvider, id: str) -> None:
        with psycopg.connect(database_url) as connection:
            text = giving_up().replace("the id", id).encode()
            assert connection.execute(text).statusmessage == "UPDATE 1"
            assert connection.execute(text).statusmessage == "UPDATE 0"

    async def rows() -> list[list[tuple[Any, ...]]]:
        async with PostgresJobProvider.open(database_url) as provider:
            for way in (ours, by_sql):
                for kind in ("queued", "running", "completed"):
                    new = CreateAsyncJob(kind=kind, claims={"sub": way.__name__})
                    job = await provider.create_job("clinic", "north", new)
                    lease = JobLease("w1", 60)
                    if kind != "queued":
                        assert await provider.claim_jobs([kind], lease, 1)
                    if kind == "completed":
                        result = JobResult.completed({"a": 1}, limit=1000)
                        assert await provider.finish_job(job.id, lease, result, 60.0)
                    with psycopg.connect(database_url) as connection:
                        connection.execute(
                            "UPDATE async_jobs SET progress = 'half', attempt_errors = %s"
                            " WHERE id = %s",
                            ['[{"attempt": 1, "at": "now", "errors": []}]', job.id],
                        )
                    await way(provider, job.id)
        with psycopg.connect(database_url) as connection:
            return [
                connection.execute(
                    "SELECT kind, status, output, output_content_type, error, progress, attempts,"
                    " attempt_errors, max_attempts, state, unique_key,"
                    " lease_expires_at IS NULL, expires_at <= now(), finished_at <= now(),"
                    " updated_at = expires_at, locked_by IS NULL"
                    " FROM async_jobs WHERE submitted_by = %s ORDER BY kind",
                    [way.__name__],
                ).fetchall()
                for way in (ours, by_sql)
            ]

    first, second = trio.run(rows)
    assert len(first) == 3
    assert first == second


def test_the_role_behind_a_pooler_gets_what_sessions_set_themselves(database_url: str) -> None:
    """The page's ALTER ROLE statements are accepted, and say what a worker's session says."""
    (block,) = sql("pgbouncer.md")
    with psycopg.connect(database_url) as connection:
        connection.execute("CREATE ROLE hastetrio_working")
        connection.execute(block.text.encode())
        row = connection.execute(
            "SELECT setconfig FROM pg_db_role_setting s JOIN pg_roles r ON r.oid = s.setrole "
            "WHERE rolname = 'hastetrio_working'"
        ).fetchone()
        connection.rollback()
    assert row is not None
    told = dict(one.split("=", 1) for one in row[0])
    assert len(told) == block.text.count("ALTER ROLE")

    async def own() -> dict[str, str]:
        connection = await open_session(database_url, 5.0)
        try:
            shown = {}
            for name in told:
                cursor = await connection.execute(f"SHOW {name}")
                shown[name] = (await cursor.fetchall())[0][0]
            return shown
        finally:
            connection.discard()

    assert trio.run(own) == told


def test_the_commands_of_the_pages_name_settings_that_commands_know() -> None:
    """Lines of `sh` on the pages for operators are command lines that are understood."""
    lines = [
        line
        for page in ("hosts.md", "upgrading.md")
        for block in blocks_of(DOCS / page, "sh")
        for part in block.text.splitlines()
        for line in part.split("||")
        if line.strip().startswith("hastetrio")
    ]
    assert len(lines) == 4
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "hastetrio"
        check_command(arguments[0], arguments[1:])
