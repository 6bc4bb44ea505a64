"""The relay counts what crosses it, and nothing else."""

from __future__ import annotations

import os
import tempfile

import psycopg
import pytest
import trio
from psycopg.conninfo import conninfo_to_dict

from hastetrio.bench._wire import StatementParser, counted_wire
from hastetrio.postgres import connect


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4) + body


def _first(code: int, body: bytes = b"") -> bytes:
    return (len(body) + 8).to_bytes(4) + code.to_bytes(4) + body


# What a client may say: a request to encrypt, a start, a password, a prepared statement, a query
# whose text looks like messages, a function call, the end.
SAID = b"".join(
    (
        _first(80877103),
        _first(80877104),
        _first(196608, b"user\0someone\0\0"),
        _message(b"p", b"secret\0"),
        _message(b"P", b"name\0SELECT 1\0\0\0"),
        _message(b"B", b"\0name\0\0\0\0\0\0\0"),
        _message(b"D", b"P\0"),
        _message(b"E", b"\0\0\0\0\0"),
        _message(b"S", b""),
        _message(b"Q", b"Q\0\0\0\4E\0\0\0\4\0" * 40),
        _message(b"F", b"\0" * 14),
        _message(b"X", b""),
    )
)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 8, 64, len(SAID)])
def test_statements_are_found_however_the_bytes_arrive(size: int) -> None:
    """A header may be cut anywhere, and a text may look like a header."""
    parser = StatementParser()
    parts = [SAID[at : at + size] for at in range(0, len(SAID), size)]
    assert sum(parser.feed(part) for part in parts) == 3


async def test_each_statement_of_a_session_counts_once(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prepared or not, in a transaction or not, failed or not; connecting is none."""
    folder = tempfile.mkdtemp(prefix="hastetrio-wire-test-", dir="/tmp")
    monkeypatch.setattr(tempfile, "tempdir", folder)
    try:
        async with counted_wire(server_url) as wire:
            assert wire.is_counted
            assert conninfo_to_dict(wire.dsn)["host"] != conninfo_to_dict(server_url)["host"]
            connection = await connect(wire.dsn)
            try:
                assert wire.statements == 0
                await connection.execute("SELECT 1")
                assert wire.statements == 1
                for number in range(3):
                    await connection.execute("SELECT %s::int", [number], prepare=True)
                assert wire.statements == 4
                async with connection.transaction():
                    await connection.execute("SELECT repeat('x', 200000)")
                assert wire.statements == 7
                with pytest.raises(psycopg.errors.UndefinedTable):
                    await connection.execute("SELECT * FROM nowhere")
                assert wire.statements == 8
            finally:
                connection.discard()
    finally:
        # Fails if anything is left in it.
        os.rmdir(folder)  # noqa: PTH106  # a Path's is for synchronous tests


async def test_the_wire_ends_with_its_block_though_a_session_is_open(server_url: str) -> None:
    """A worker process that was killed or hangs does not keep the benchmark."""
    with trio.fail_after(20):
        async with counted_wire(server_url) as wire:
            connection = await connect(wire.dsn)
        with pytest.raises(psycopg.OperationalError):
            await connection.execute("SELECT 1")
    connection.discard()
