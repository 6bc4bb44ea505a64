"""The longest a call to the storage may take."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

import trio

from hastetrio._errors import ProviderUnavailable

T = TypeVar("T")


async def within(seconds: float, call: Awaitable[T]) -> T:
    """The answer of `call`, which has so many seconds.

    Raises:
        ProviderUnavailable: There was none in that time; the call was cancelled.
    """
    with trio.CancelScope(relative_deadline=seconds):
        return await call
    raise ProviderUnavailable(f"no answer within {seconds:g} s")
