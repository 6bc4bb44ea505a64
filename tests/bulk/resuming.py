"""Attempts that are cut short, for those that go on behind them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import trio
from tests.fakes import FakeClaim, make_context

from hastetrio import CancelReason
from hastetrio.bulk import BulkExport

from .harness import export, files_in, make_job, resource, write_lines

NAMES = ["a.ndjson", "b.ndjson", "c.ndjson", "d.ndjson"]

# A few files for each type.
FILE_SIZE = 200


def write_mixed(source: Path) -> None:
    """Four files of mixed types, some lines of which are bad, and one that cannot be read."""
    for place, name in enumerate(NAMES):
        lines = [resource(kind, n) for n in range(3) for kind in ("Patient", "Device")]
        write_lines(source / name, [*lines[place:], b"rubbish", resource("Group", place)])
    (source / "aa.ndjson").symlink_to(source / "nowhere")


async def cut_short(
    handler: BulkExport,
    reason: CancelReason | None = CancelReason.SHUTDOWN,
    *,
    saves: int = 3,
    claim: str = "claim001",
    state: object = None,
) -> Any:  # noqa: ANN401  # JSON is any value
    """An attempt that is cancelled when it has saved so often; the state it leaves."""
    held = FakeClaim(make_job(), claim, state=state)
    left = saves
    with trio.CancelScope() as scope:

        def cancel(_: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                held.cancel_reason = reason
                scope.cancel()

        held.on_save = cancel
        await handler.run(make_context(held))
    assert scope.cancelled_caught
    # As a database gives it back.
    return json.loads(json.dumps(held.state))


async def undisturbed(source: Path, tmp_path: Path, **values: Any) -> dict[str, bytes]:  # noqa: ANN401
    """What the export is when nothing happens."""
    done = await export(BulkExport(source, tmp_path / "undisturbed", file_size=FILE_SIZE), **values)
    return files_in(done.directory)
