"""The rounds: ours, a peer, ours, the next peer and so on, over and over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.peers._ceiling import BATCH
from benchmarks.peers._report import Pair
from benchmarks.peers._run import Outcome, RunFailed
from benchmarks.peers._systems import OURS, System

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

# A system whose runs fail again and again would only keep the others waiting for its timeout.
FAILURES_ALLOWED: Final = 2


class Race:
    """Gathers the rounds as they go, so that an interruption loses none of them.

    Args:
        ours: The interpreter of our own adapter.
        contenders: The other systems, each with what runs it.
        run: Runs a system once, with so many jobs.
        jobs: How many jobs a run for all; None for each system's own number.
        say: Tells the person who waits.

    Attributes:
        pairs: The pairs of runs until now.
    """

    def __init__(
        self,
        ours: Path,
        contenders: Sequence[tuple[System, Path]],
        run: Callable[[System, Path, int], Outcome],
        *,
        jobs: int | None,
        say: Callable[[str], None],
    ) -> None:
        self._ours = ours
        self._contenders = contenders
        self._run = run
        self._jobs = jobs
        self._say = say
        self._failures = dict.fromkeys((system.key for system, _ in contenders), 0)
        self.pairs: list[Pair] = []

    def round(self, number: int) -> None:
        """Run each contender once, right after a run of ours."""
        for system, program in self._contenders:
            if self._failures[system.key] >= FAILURES_ALLOWED:
                continue
            errors: list[str] = []
            ours = self._attempt(number, OURS, self._ours, errors)
            other = self._attempt(number, system, program, errors)
            self._failures[system.key] += other is None
            self.pairs.append(Pair(number, system.key, ours, other, tuple(errors)))

    def _attempt(
        self, number: int, system: System, program: Path, errors: list[str]
    ) -> Outcome | None:
        where = f"round {number}  {system.key:<17}"
        try:
            outcome = self._run(system, program, jobs_for(system, self._jobs))
        except RunFailed as failure:
            errors.append(f"{system.key}: {failure}")
            self._say(f"{where} FAILED: {failure}")
            return None
        self._say(f"{where}{outcome.rate:>9,.0f} jobs/s {outcome.seconds:>7.2f} s")
        return outcome


def jobs_for(system: System, given: int | None) -> int:
    """How many jobs a run has; pgbench's come out even in batches over its connections."""
    jobs = given or system.jobs
    batch = BATCH * system.connections
    return max(batch, jobs - jobs % batch) if batch else jobs
