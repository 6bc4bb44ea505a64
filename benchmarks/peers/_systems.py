"""What is compared: each system's adapter, setting, packages and figures to reach."""

from __future__ import annotations

from typing import Final

import attrs

# True or false, cheap enough to be asked every 2 ms: is a job left? And how many are recorded?
_OURS_LEFT: Final = (
    "SELECT EXISTS (SELECT FROM async_jobs WHERE status IN ('accepted', 'in-progress'))"
)
_OURS_RECORDED: Final = "SELECT count(*) FROM async_jobs WHERE status = 'completed'"

# Its completions are rows, arrays in batches, and counts of what it has pruned already.
_AWA_RECORDED: Final = """
    SELECT (SELECT coalesce(sum(completed_count), 0) FROM awa.receipt_completion_batches)
         + (SELECT count(*) FROM awa.done_entries WHERE state = 'completed')
         + (SELECT coalesce(sum(pruned_completed_count), 0) FROM awa.queue_terminal_rollups)
"""


@attrs.frozen(kw_only=True)
class System:
    """Something that drains no-op jobs.

    Attributes:
        key: Names it on the command line and in JSON.
        title: Names it in the table.
        setting: How it runs, in a few words.
        keeps: What the database holds of a finished job.
        remark: What a reader of its figure has to know besides.
        module: The adapter, a module of this package; empty for pgbench.
        arguments: The adapter's arguments.
        environment: The peer's virtual environment; empty for this project's own interpreter.
        requirements: What pip installs there.
        python: The oldest Python it runs on.
        jobs: Jobs a run, for 3 to 5 seconds on two cores.
        left: A statement that tells whether jobs are left.
        recorded: A statement that counts the jobs recorded as done.
        connections: pgbench's connections; 0 for an adapter.
        must: The least ratio ours/this to reach; None if there is none.
        aim: The ratio to aim at; None if there is none.
    """

    key: str
    title: str
    setting: str
    keeps: str
    remark: str = ""
    module: str = ""
    arguments: tuple[str, ...] = ()
    environment: str = ""
    requirements: tuple[str, ...] = ()
    python: tuple[int, int] = (3, 11)
    jobs: int
    left: str
    recorded: str
    connections: int = 0
    must: float | None = None
    aim: float | None = None


OURS: Final = System(
    key="ours",
    title="hastetrio",
    setting="100 slots",
    keeps="row, result",
    module="_ours",
    jobs=30_000,
    left=_OURS_LEFT,
    recorded=_OURS_RECORDED,
)

# psycopg in its fastest build for all: without `binary` it is Python through ctypes. Each range is
# the minor version whose API and tables the adapter was written for.
_PSYCOPG: Final = "psycopg[binary]>=3.2.13,<3.4"
_PGQUEUER: Final = ("pgqueuer[asyncpg,psycopg]>=1.6,<1.7", "asyncpg<0.33", _PSYCOPG)
_PGQUEUER_LEFT: Final = "SELECT EXISTS (SELECT FROM pgqueuer)"
_PGQUEUER_RECORDED: Final = "SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'"

PEERS: Final = (
    System(
        key="pgqueuer-psycopg",
        title="pgqueuer, psycopg",
        setting="batch 100, uvloop",
        keeps="log lines",
        remark=(
            "stands still for 1.0 s once, after its second batch, while its listener holds the "
            "only connection; that is inside its time, and weighs more the fewer jobs there are"
        ),
        module="_pgqueuer",
        arguments=("psycopg",),
        environment="pgqueuer",
        requirements=_PGQUEUER,
        jobs=40_000,
        left=_PGQUEUER_LEFT,
        recorded=_PGQUEUER_RECORDED,
        must=2,
        aim=3,
    ),
    System(
        key="oban",
        title="oban (Python)",
        setting="limit 100, uvloop",
        keeps="row",
        module="_oban",
        environment="oban",
        requirements=("oban>=0.7,<0.8", _PSYCOPG),
        python=(3, 12),
        jobs=16_000,
        left=(
            "SELECT EXISTS (SELECT FROM oban_jobs WHERE state IN "
            "('available', 'executing', 'scheduled', 'retryable'))"
        ),
        recorded="SELECT count(*) FROM oban_jobs WHERE state = 'completed'",
        must=4,
        aim=6,
    ),
    System(
        key="awa",
        title="awa-pg",
        setting="200 workers",
        keeps="row, soon pruned",
        module="_awa",
        environment="awa",
        requirements=("awa-pg>=0.6.9,<0.7",),
        jobs=24_000,
        # There is no cheap way to ask; %(jobs)s is how many there were.
        left=f"SELECT ({_AWA_RECORDED}) < %(jobs)s",
        recorded=_AWA_RECORDED,
        must=1.2,
        aim=2,
    ),
    System(
        key="procrastinate",
        title="procrastinate",
        setting="concurrency 100",
        keeps="row, events",
        module="_procrastinate",
        environment="procrastinate",
        requirements=("procrastinate>=3.10,<3.11", _PSYCOPG),
        jobs=3_000,
        left="SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))",
        recorded="SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'",
        must=15,
        aim=30,
    ),
    System(
        key="pgqueuer-asyncpg",
        title="pgqueuer, asyncpg",
        setting="batch 100, uvloop",
        keeps="log lines",
        module="_pgqueuer",
        arguments=("asyncpg",),
        environment="pgqueuer",
        requirements=_PGQUEUER,
        jobs=70_000,
        left=_PGQUEUER_LEFT,
        recorded=_PGQUEUER_RECORDED,
        must=0.6,
        aim=1,
    ),
)


def _ceiling(connections: int, jobs: int, must: float | None, aim: float | None) -> System:
    return System(
        key=f"pgbench-{connections}",
        title="pgbench, our SQL",
        setting=f"{connections} connection{'s' if connections > 1 else ''}",
        keeps="row, result",
        remark=(
            "a finish steps over rows that another connection's claim holds for a moment; those "
            "jobs are not counted"
            if connections > 1
            else ""
        ),
        jobs=jobs,
        left=_OURS_LEFT,
        recorded=_OURS_RECORDED,
        connections=connections,
        must=must,
        aim=aim,
    )


CEILINGS: Final = (_ceiling(1, 120_000, 0.4, 0.6), _ceiling(4, 100_000, None, None))
