"""What goes wrong between one worker and the storage."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Final

import trio

from hastetrio.memory import MemoryJobProvider
from hastetrio.testing import CallName, FaultyProvider

from .book import margin_of
from .ledger import Ledger
from .network import Process

_CALLS: Final[tuple[CallName, ...]] = (
    "claim_jobs",
    "forget_claim",
    "renew_lease",
    "finish_job",
    "finish_jobs",
    "release_job",
    "reschedule_job",
    "save_state",
    "fail_abandoned_jobs",
    "claim_expired_jobs",
    "delete_expired_job",
    "discard_expired_jobs",
    "delete_orphans",
)
# What faults strike most: the calls a lease depends on.
_AIMED: Final[tuple[CallName, ...]] = (
    *("renew_lease",) * 5,
    *("claim_jobs",) * 3,
    *("finish_job", "finish_jobs") * 3,
    *("release_job", "reschedule_job", "save_state") * 2,
    *_CALLS,
)


class Faults:
    """Puts faults into calls, for a while or a number of times.

    Args:
        rng: Draws which.
        ledger: Notes them.
        memory: The storage all share.
        lease: Seconds; faults last for parts of it.
        post: Where outages last.
    """

    def __init__(
        self,
        rng: Random,
        ledger: Ledger,
        memory: MemoryJobProvider,
        lease: float,
        post: trio.Nursery,
    ) -> None:
        self._rng = rng
        self._ledger = ledger
        self._memory = memory
        self._lease = lease
        self._post = post
        self._clock_steps = rng.random() < 0.2

    def strike(self, process: Process, others: list[Process]) -> None:
        """One fault of `process`, or of it and `others`."""
        rng, ledger, network = self._rng, self._ledger, process.wire
        what = rng.random()
        if what < 0.58:
            self._in_calls(process)
        elif what < 0.7:
            self._outage(others if rng.random() < 0.3 else [process])
        elif what < 0.82:
            times = rng.choice((1, 1, 2, 5))
            network.kill_renewals(times=times)
            ledger.note("{} renewals of {} are to be killed", times, process.name)
        elif what < 0.87:
            if rng.random() < 0.5:
                network.drop_wakeups()
            else:
                network.hear_again()
        elif what < 0.91:
            network.break_watch()
            ledger.note("{} loses its watch", process.name)
        elif what < 0.95:
            if self._clock_steps:
                self._step_clock()
        else:
            held = [c.job for c in ledger.claims() if c.process is process and not c.ended]
            if held:
                network.lose_lease(held[-1])
                ledger.note("{} is to lose {}", process.name, ledger.name(held[-1]))

    def _in_calls(self, process: Process) -> None:
        rng, network = self._rng, process.wire
        name = rng.choice(_AIMED)
        times = rng.choice((1, 1, 2, 4, 8))
        how = rng.choice(("fail", "drop", "drop", "hang", "delay", "delay_answer"))
        seconds = self._lease * rng.choice((0.05, 0.2, 0.4, 0.8))
        if how in ("delay", "delay_answer"):
            getattr(network, how)(name, seconds, times=times)
        else:
            getattr(network, how)(name, times=times)
        self._ledger.note(
            "{} of {}, {} times: {} ({:.1f} s)", name, process.name, times, how, seconds
        )

    def _outage(self, processes: list[Process]) -> None:
        rng = self._rng
        seconds = self._lease * rng.choice((0.2, 0.7, 1.2, 2.0))
        how = rng.choice((FaultyProvider.fail, FaultyProvider.drop, FaultyProvider.hang))
        for process in processes:
            self._post.start_soon(self._cut_off, process, how.__name__, seconds)

    async def _cut_off(self, process: Process, how: str, seconds: float) -> None:
        network = process.wire
        self._ledger.note("all calls of {} {} for {:.1f} s", process.name, how, seconds)
        network.break_watch()
        faults = [getattr(network, how)(name) for name in _CALLS]
        with trio.move_on_after(seconds):
            await self._ledger.failed.wait()
        for fault in faults:
            fault.remove()

    def _step_clock(self) -> None:
        """Set the database's clock, once: mostly forward by less than the margin."""
        self._clock_steps = False
        margin = margin_of(self._lease)
        seconds = self._rng.choice(
            (0.9 * margin, 0.5 * margin, 0.5 * self._lease, 2 * self._lease, -1.0, -self._lease)
        )
        memory = self._memory
        memory._epoch = memory._now() - timedelta(seconds=trio.current_time() - seconds)
        if seconds > 0:
            self._ledger.stepped(seconds)
        self._ledger.note("the database's clock is set by {:.2f} s", seconds)
