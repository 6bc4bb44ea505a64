"""One number decides everything: what is drawn, and in which order trio runs its tasks."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar

import pytest
from trio._core import _run

from hastetrio import _ids

_tokens: ContextVar[Iterator[int] | None] = ContextVar("simulation_tokens", default=None)


class _ProcessCounter:
    """The counter in claim tokens, from 1 in each simulated process as in each real one."""

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        counter = _tokens.get()
        if counter is None:
            counter = begin_process()
        return next(counter)


def begin_process() -> Iterator[int]:
    """What this task starts from now on belongs to a process of its own."""
    counter = itertools.count(1)
    _tokens.set(counter)
    return counter


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Make a trio run inside this block a function of `seed`, and put everything back after it.

    Job ids and the random part of tokens stay random: no behaviour may depend on them.
    """
    state, order = random.getstate(), _run._r.getstate()
    with pytest.MonkeyPatch.context() as patch:
        # What trio's plugin for Hypothesis does: batches of tasks are sorted, then shuffled.
        patch.setattr(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
        patch.setattr(_ids, "_counter", _ProcessCounter())
        # Its thread watches the real clock, which says nothing here.
        patch.setattr("hastetrio._worker.watching_the_loop", lambda _: nullcontext())
        patch.setattr(logging.getLogger("hastetrio"), "disabled", True)
        random.seed(seed)
        _run._r.seed(seed)
        try:
            yield
        finally:
            random.setstate(state)
            _run._r.setstate(order)
