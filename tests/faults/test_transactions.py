"""Handlers' transactions under workers that die or stand still, a restart, and a pooler."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tests.postgres.effects import (
    DONE,
    LONG,
    Steps,
    effects_table,
    perform,
    performing,
    write,
)
from tests.postgres.harness import PROJECT, TENANT, column, kick_off, run, until, value
from tests.postgres.processes import WorkerProcess

from hastetrio import JobContext, ProviderUnavailable
from hastetrio.postgres import PostgresJobProvider

from .history import History
from .pooler import open_pooler
from .processes import command
from .server import FAST, IMMEDIATE, Server
from .workers import completed


@pytest.fixture
def account(url: str) -> Iterator[None]:
    """What the worker processes' handlers pay into."""
    run(url, "CREATE TABLE account (balance int); INSERT INTO account VALUES (0)")
    yield
    run(url, "DROP TABLE account")


def paying(url: str) -> AbstractAsyncContextManager[WorkerProcess]:
    """A worker process for the handlers that pay."""
    handlers = {"handlers": "tests.faults.transaction_handlers:everything"}
    return command(url, "pays", "pays-late", **handlers)  # type: ignore[arg-type]


async def submit(provider: PostgresJobProvider, kind: str, gate: Path) -> str:
    """Queue a job that waits for a file; its id."""
    job = kick_off(kind, parameters={"gate": str(gate)})
    return (await provider.create_job(TENANT, PROJECT, job)).id


def payers(url: str) -> set[int]:
    """The sessions that have the account locked, and wait for nothing themselves."""
    rows = run(
        url,
        "SELECT pid FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
        " WHERE l.relation = 'account'::regclass AND l.granted AND a.wait_event_type <> 'Lock'"
        " AND a.state = 'idle in transaction' AND a.application_name = 'hastetrio'",
    )
    return {pid for (pid,) in rows}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pays", "pays-late"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.usefixtures("account")
async def test_a_worker_that_goes_inside_of_a_transaction_holds_up_nobody_for_long(
    provider: PostgresJobProvider,
    url: str,
    history: History,
    tmp_path: Path,
    kind: str,
    how: signal.Signals,
) -> None:
    """The server ends what a dead or silent worker had begun; the job is paid once, elsewhere."""
    gate = tmp_path / "gate"
    async with paying(url) as first:
        id = await submit(provider, kind, gate)
        await until(lambda: payers(url))
        was = payers(url)
        first.send(how)
        async with paying(url) as second:
            # It cannot have it before the first one's locks are gone.
            await until(lambda: payers(url) - was)
            assert not payers(url) & was
            gate.touch()
            await completed(url, id)
            if how is signal.SIGSTOP:
                first.send(signal.SIGCONT)
                await first.logged("job.dropped", id)
                assert first.events("job.finished") == []
            await second.logged("job.finished", id)
    assert value(url, "SELECT balance FROM account") == 1
    (token,) = history.results(id)
    assert token is not None
    assert f"-{second.pid}-" in token
    assert column(url, id, "output ->> 'by'") == str(second.pid)


@pytest.mark.slow
@pytest.mark.parametrize("how", [FAST, IMMEDIATE], ids=["restarted", "crashed"])
async def test_a_restart_inside_of_the_block_undoes_it(server: Server, how: signal.Signals) -> None:
    """The commit is asked about until the server is back, and then known to have failed."""
    steps = Steps()
    with effects_table(server.url):
        async with performing(server.url, steps, config=LONG) as stage:
            steps.go_on("written")
            await steps.reached("finished")
            await server.stop(how)
            steps.go_on("finished")
            await server.restart()
            await stage.over()
        assert isinstance(stage.errors[0], ProviderUnavailable)
        stage.check_neither("failed")


async def test_transactions_work_behind_a_pooler_that_keeps_no_session(url: str) -> None:
    """Each transaction is another session's; nothing of one is needed in the next."""

    async def script(context: JobContext) -> object:
        for number in range(3):
            async with context.transaction() as connection, connection.transaction():
                await write(connection, str(number))
        async with context.transaction() as connection:
            await write(connection, "last")
            return await context.finish(connection, DONE)

    with effects_table(url):
        async with open_pooler(url) as pooler:
            stage = await perform(url, script, through=pooler.url, prepared_statements=False)
            assert pooler.switched > 0
        stage.check_both("0", "1", "2", "last")
