"""When renewals fall due, and what their answers mean.

One clock serves a worker: a queue of claims, since the jobs of one claim fall due together. A
renewal enters its job's nursery when it is due, a third into the lease, and every third after, so
a shorter job never pays for one (a task started with every job and parked in `sleep` costs 75 of
190 microseconds). After the body has left, the clock itself goes on renewing the row until its
finish or release was answered: recording may take longer than a lease.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from typing import TYPE_CHECKING

import attrs
import trio

from hastetrio._budget import within
from hastetrio._context import CancelReason
from hastetrio._errors import UnstorableValue
from hastetrio._log import JOB_RENEW_FAILED, JOB_RENEWAL_DIED, describe, log_job
from hastetrio._model import LeaseRenewal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hastetrio._config import AsyncJobWorkerConfig
    from hastetrio._held import HeldJob
    from hastetrio._provider import AsyncJobProvider
    from hastetrio._statistics import Counts


@attrs.define(order=True)
class _Claim:
    due: float
    number: int
    members: dict[str, HeldJob] = attrs.field(order=False)


class Renewals:
    """The clock of a worker's leases; `run` must be running while anything is held."""

    def __init__(
        self, provider: AsyncJobProvider, config: AsyncJobWorkerConfig, counts: Counts
    ) -> None:
        self._provider = provider
        self._config = config
        self._counts = counts
        self._claims: list[_Claim] = []
        self._numbers = itertools.count()
        self._held: dict[str, tuple[HeldJob, _Claim]] = {}
        self._over: dict[str, HeldJob] = {}
        self._look_at = math.inf
        self._last_attempts: dict[str, HeldJob] = {}
        self._awaited: dict[str, trio.Event] = {}
        self._silenced: set[str | None] = set()
        self._nursery: trio.Nursery | None = None
        self._sleep = trio.CancelScope()

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, id: str) -> bool:
        return id in self._held

    def held(self) -> list[HeldJob]:
        """All rows held now."""
        return [held for held, _ in self._held.values()]

    def over(self) -> list[str]:
        """The ids of jobs that are no longer to be run, though their bodies may still be here."""
        # All are looked through only when the earliest deadline may have passed: with 10,000 held
        # that takes 3 ms, and deadlines only move later.
        if trio.current_time() >= self._look_at:
            self._look_at = math.inf
            for held in self.held():
                if held.cancel_reason is not None:
                    self._over[held.job.id] = held
                else:
                    self._look_at = min(self._look_at, held.deadline)
        return list(self._over)

    def has_suspect(self) -> bool:
        """Whether a job held now may be one that kills its process, on its last attempt."""
        return any(held.is_suspect for held in self._last_attempts.values())

    def hold(self, claimed: Iterable[HeldJob], sent: float) -> None:
        """Renew these rows, of one claim sent at `sent`, until each is dropped."""
        claim = _Claim(self._after(sent), next(self._numbers), {})
        for held in claimed:
            claim.members[held.job.id] = held
            self._held[held.job.id] = (held, claim)
            if held.is_last_attempt:
                self._last_attempts[held.job.id] = held
            self._look_at = min(self._look_at, held.deadline)
        if claim.members:
            heapq.heappush(self._claims, claim)
            # Only an idle clock sleeps without an end; others wake for an earlier claim.
            if self._claims[0] is claim:
                self._sleep.deadline = claim.due

    def drop(self, held: HeldJob) -> None:
        """The row's finish or release was answered, or given up."""
        entry = self._held.get(held.job.id)
        if entry is not None and entry[0] is held:
            del self._held[held.job.id]
            del entry[1].members[held.job.id]
            self._over.pop(held.job.id, None)
            self._last_attempts.pop(held.job.id, None)
            awaited = self._awaited.pop(held.job.id, None)
            if awaited is not None:
                awaited.set()
        held.lost = True

    def end(self, id: str) -> bool:
        """A later claim took the row: the lease held until now is over. False if none was."""
        entry = self._held.get(id)
        if entry is not None:
            entry[0].lost = True
            self._cancel(entry[0], CancelReason.LEASE_LOST)
        return entry is not None

    async def confirm(self, held: HeldJob) -> None:
        """Ask about one row until it is answered; `held` then knows what the answer was.

        Cancellation: the question under way may still be answered, by an extended lease.
        """
        while not (held.lost or self._is_silenced(held)):
            if await self._ask(held):
                return
            await self._pause()
        if not held.is_settled:
            # Of a silenced row no answer is believed, and what is lost stays lost.
            self._cancel(held, CancelReason.LEASE_LOST)

    async def dropped(self, held: HeldJob) -> None:
        """Wait until no earlier claim of the same job is held."""
        entry = self._held.get(held.job.id)
        if entry is not None and entry[0] is not held:
            await self._awaited.setdefault(held.job.id, trio.Event()).wait()

    def silence(self, id: str | None = None) -> None:
        """Renew this row (all rows) no more, and believe no answer that is still to come.

        For chaos tests: what is left then is the deadline.
        """
        self._silenced.add(id)

    def _is_silenced(self, held: HeldJob) -> bool:
        return bool(self._silenced) and not self._silenced.isdisjoint({None, held.job.id})

    def due_now(self, id: str) -> None:
        """Ask about one row at once: a notification says that it may have been cancelled."""
        if entry := self._held.get(id):
            self._start(entry[0])

    def all_due_now(self) -> None:
        """Ask about all rows at once: notifications may have been missed."""
        for held in self.held():
            self._start(held)

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Start each renewal when it is due, for ever.

        Cancellation: renewals under way outside of jobs' nurseries are cancelled.
        """
        async with trio.open_nursery() as self._nursery:
            while True:
                due = self._claims[0].due if self._claims else math.inf
                with trio.CancelScope(deadline=due) as self._sleep:
                    await trio.sleep_forever()
                now = trio.current_time()
                while self._claims and self._claims[0].due <= now:
                    claim = heapq.heappop(self._claims)
                    for held in list(claim.members.values()):
                        self._start(held)
                    if claim.members:
                        claim.due = self._after(now)
                        heapq.heappush(self._claims, claim)

    def _after(self, sent: float) -> float:
        return sent + self._config.lease_duration / 3

    def _start(self, held: HeldJob) -> None:
        if held.lost or self._is_silenced(held):
            return
        if held.renewing:
            # The one under way may have left before what this one is to find out.
            held.renew_again = True
            return
        nursery = held.nursery
        if nursery is not None and not nursery.cancel_scope.cancel_called:
            held.renewing = True
            nursery.start_soon(self._renew_within, held)
        elif self._nursery is not None:
            # A body that unwinds, or a result being recorded, still needs its lease.
            held.renewing = True
            self._nursery.start_soon(self._renew_apart, held)

    @trio.lowlevel.enable_ki_protection
    async def _renew_within(self, held: HeldJob) -> None:
        """Renew in the job's nursery, which a task that dies takes along."""
        try:
            await self._renew(held)
        except trio.Cancelled:
            raise
        except BaseException:
            # The nursery cancels the body without a reason; this gives it one.
            self._cancel(held, CancelReason.LEASE_LOST)
            raise

    @trio.lowlevel.enable_ki_protection
    async def _renew_apart(self, held: HeldJob) -> None:
        """Renew outside of the job's nursery, where a task that dies must take nobody along."""
        try:
            await self._renew(held)
        except (trio.Cancelled, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001
            log_job(JOB_RENEWAL_DIED, held.job, trace=error)

    async def _renew(self, held: HeldJob) -> None:
        """Renew until one renewal was answered; errors change nothing."""
        try:
            while not (held.lost or self._is_silenced(held)):
                held.renew_again = False
                if not await self._ask(held):
                    await self._pause()
                elif not held.renew_again:
                    return
        finally:
            held.renewing = False

    async def _pause(self) -> None:
        retry = self._config.lease_duration / 20
        await trio.sleep(random.uniform(retry / 2, retry))  # noqa: S311

    async def _ask(self, held: HeldJob) -> bool:
        progress = held.pending_progress()
        sent = trio.current_time()
        try:
            answer = await within(
                self._config.call_budget,
                self._provider.renew_lease(
                    held.job.id, held.lease, progress[0] if progress else None
                ),
            )
        except UnstorableValue:
            # Only the progress can be at fault, and the lease matters more.
            held.acknowledge(progress)
            return False
        except Exception as error:  # noqa: BLE001  # whatever it is, the deadline has the last word
            self._counts.renewals_failed += 1
            log_job(JOB_RENEW_FAILED, held.job, error=describe(error))
            return False
        self._counts.renewals += 1
        if held.lost or self._is_silenced(held):
            return True
        if answer is LeaseRenewal.LOST:
            held.lost = True
            self._cancel(held, CancelReason.LEASE_LOST)
        elif answer is LeaseRenewal.RENEWED or held.is_over:
            held.acknowledge(progress)
            # The deadline still says when the last grant was sent.
            last = held.deadline - held.lease.duration + self._config.margin
            self._counts.granted(trio.current_time() - last, held.lease.duration)
            held.extend(sent)
        elif answer is LeaseRenewal.CANCELLED:
            self._cancel(held, CancelReason.CANCELLED)
        else:
            self._cancel(held, CancelReason.EXPIRED)
        return True

    def _cancel(self, held: HeldJob, reason: CancelReason) -> None:
        held.cancel(reason)
        entry = self._held.get(held.job.id)
        if entry is not None and entry[0] is held:
            self._over[held.job.id] = held
