"""A nursery for what serves a block, without wrapping what the block raises."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


@asynccontextmanager
async def serving_nursery() -> AsyncGenerator[trio.Nursery]:
    """A nursery whose tasks serve the block and are cancelled when it ends.

    An exception of the block leaves as it is, not in a group; one of a task's ends the block and
    leaves in a group.
    """
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except (trio.Cancelled, BaseExceptionGroup):
            # Cancellation must meet its scope, which may be this nursery's own.
            nursery.cancel_scope.cancel()
            raise
        except BaseException as error:  # noqa: BLE001
            # Raised again below, where the nursery cannot wrap it.
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
