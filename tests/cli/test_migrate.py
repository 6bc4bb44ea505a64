"""`hastetrio migrate` on a real database."""

from __future__ import annotations

import psycopg

from .harness import Run, only_line


def tables(url: str) -> int:
    """How many tables of ours the database has."""
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM pg_class WHERE relname = 'async_jobs'")
        return int(row.fetchone()[0])  # type: ignore[index]  # count has a row


def test_migrate_makes_the_tables_once(run: Run, empty_database_url: str) -> None:
    """The first run says what it did, the second that there was nothing to do."""
    first = run("--database-url", empty_database_url, "migrate")
    assert first.exit_code == 0
    assert first.stdout.startswith("applied ")
    assert tables(empty_database_url) == 1
    second = run("--database-url", empty_database_url, "migrate")
    assert (second.exit_code, second.stdout) == (0, "up to date\n")


def test_check_changes_nothing_and_names_what_is_missing(
    run: Run, empty_database_url: str, database_url: str
) -> None:
    """A deployment can ask before it rolls out."""
    pending = run("--database-url", empty_database_url, "migrate", "--check")
    assert pending.exit_code == 1
    assert pending.stdout.startswith("pending ")
    assert tables(empty_database_url) == 0
    done = run("--database-url", database_url, "migrate", "--check")
    assert (done.exit_code, done.stdout) == (0, "up to date\n")


def test_sql_prints_what_would_run(run: Run, empty_database_url: str) -> None:
    """A database administrator reads it, changes nothing in it, and runs it by hand."""
    result = run("--database-url", empty_database_url, "migrate", "--sql")
    assert result.exit_code == 0
    assert "async_jobs" in result.stdout
    assert tables(empty_database_url) == 0
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(result.stdout.encode())
    assert run("--database-url", empty_database_url, "migrate", "--check").exit_code == 0
    again = run("--database-url", empty_database_url, "migrate", "--sql")
    assert (again.exit_code, again.stdout) == (0, "")
    assert "up to date" in only_line(again.stderr)


def test_other_commands_never_make_tables_in_a_given_database(
    run: Run, empty_database_url: str
) -> None:
    """A typing mistake in a database's name must not leave tables there."""
    for command in (("status",), ("jobs", "list"), ("jobs", "submit", "k")):
        result = run("--database-url", empty_database_url, *command)
        assert result.exit_code == 1
        assert "migrate" in only_line(result.stderr)
    assert tables(empty_database_url) == 0
