"""Handlers that do at random what handlers do, and worse."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import trio
from trio.testing import MockClock

from hastetrio import (
    AsyncJob,
    IssueType,
    JobContext,
    JobHandler,
    JobOutput,
    OperationOutcomeError,
    RetryLater,
    RetryPolicy,
    Snooze,
)
from hastetrio._errors import LeaseLost
from hastetrio._handler import HandlerOutput
from hastetrio._maintenance import CLEANUP_TIMEOUT

from .book import Body
from .ledger import Ledger
from .network import Process


class Unhandled(BaseException):
    """No Exception, and nobody's."""


class RandomHandler(JobHandler):
    """Runs the jobs of one kind in one process.

    Args:
        kind: The kind.
        process: Where it runs.
        ledger: Hears of every body.
        rng: Draws what a body does.
        clock: Jumps while a body blocks.
        wildness: How much of what may go wrong does, from 0 to 1; may change meanwhile.
    """

    def __init__(
        self,
        kind: str,
        process: Process,
        ledger: Ledger,
        rng: Random,
        clock: MockClock,
        wildness: Callable[[], float],
    ) -> None:
        self.kind = kind
        self._process = process
        self._ledger = ledger
        self._rng = rng
        self._clock = clock
        self._wildness = wildness
        self._lease = process.config.lease_duration
        if rng.random() < 0.5:
            # Of the errors of `_error`, one is tried again.
            self.retries = RetryPolicy(
                attempts=rng.choice((2, 3, 5)),
                first=self._lease * rng.choice((0.0, 0.1, 1.0)),
                cap=self._lease * 2,
                on=ValueError,
            )

    async def run(self, context: JobContext) -> HandlerOutput:
        """Do what comes up."""
        body = self._ledger.begin(self._process, context.job, context)
        try:
            for _ in range(self._rng.choice((0, 1, 1, 2, 3))):
                await self._step(body, context)
            output = self._ending(body, context)
            if body.asked:
                return output
            body.returned, body.output = True, context.claim
            return output
        finally:
            self._ledger.end(body)

    async def expire(self, job: AsyncJob) -> None:
        """Clean up quickly, slowly, not at all."""
        body = self._ledger.begin(self._process, job, None)
        try:
            if self._rng.random() < self._wildness():
                await self._odd_cleanup(body)
            else:
                await self._clean(body, self._rng.random())
            body.returned = True
        finally:
            self._ledger.end(body)

    async def _clean(self, body: Body, seconds: float) -> None:
        """Sleep, as a clean-up that nothing but its lease, its time and a shutdown may end."""
        start, claim, process = trio.current_time(), body.claim, self._process
        try:
            await trio.sleep(seconds)
        except trio.Cancelled:
            now = trio.current_time()
            self._ledger.require(
                claim.over
                or process.is_dead
                or process.stopped_at <= now
                or now >= min(claim.deadline, start + CLEANUP_TIMEOUT)
                or process.trouble_until >= now - self._lease,
                "the clean-up under c{} was cancelled for no reason",
                claim.number,
            )
            raise

    async def _odd_cleanup(self, body: Body) -> None:
        what = self._rng.random()
        if what < 0.4:
            await self._clean(body, self._lease * 3 * self._rng.random())
        elif what < 0.6:
            raise self._error()
        elif what < 0.7:
            await self._clean(body, CLEANUP_TIMEOUT * 2)
        elif what < 0.8:
            self._block()
        else:
            try:
                await self._clean(body, self._lease * 3)
            except trio.Cancelled:
                if self._process.is_dead:
                    raise
                await self._shielded(self._lease * self._rng.random())
                if self._rng.random() < 0.5:
                    raise

    async def _step(self, body: Body, context: JobContext) -> None:
        rng = self._rng
        if rng.random() > self._wildness():
            await self._sleep(body, context, rng.expovariate(0.5))
            return
        steps: tuple[Callable[[Body, JobContext], Awaitable[None]], ...] = (
            self._long,
            self._long,
            self._report,
            self._report,
            self._save,
            self._save,
            self._children,
            self._stubborn,
            self._swallow,
            self._swallow,
            self._raise_in_cleanup,
            self._blocking,
        )
        await rng.choice(steps)(body, context)

    async def _sleep(self, body: Body, context: JobContext, seconds: float) -> None:
        """Sleep, as a body that can be cancelled; one that is over must be."""
        ledger, claim = self._ledger, body.claim
        try:
            await trio.sleep(seconds)
            now, deadline, was_over = trio.current_time(), claim.deadline, claim.over
            ledger.require(
                context.lease_deadline <= deadline,
                "c{} is shown a deadline at {:.3f}, and it is at {:.3f}",
                claim.number,
                context.lease_deadline,
                deadline,
            )
            await trio.lowlevel.checkpoint()
            ledger.require(now < deadline, "c{} went on after its deadline", claim.number)
            ledger.require(not was_over, "c{} went on though it was over", claim.number)
        except trio.Cancelled:
            body.saw_cancelled = True
            ledger.require(
                context.is_cancelled or self._process.is_dead,
                "c{} was cancelled for no reason",
                claim.number,
            )
            raise

    async def _long(self, body: Body, context: JobContext) -> None:
        await self._sleep(body, context, self._lease * 2 * self._rng.random())

    async def _report(self, body: Body, context: JobContext) -> None:
        for _ in range(self._rng.randrange(1, 5)):
            body.reported += 1
            context.report(str(body.reported))
            await self._sleep(body, context, self._lease / 2 * self._rng.random())

    async def _save(self, body: Body, context: JobContext) -> None:
        """Save a state, which is then what the body and the next one see."""
        for _ in range(self._rng.randrange(1, 4)):
            body.saved += 1
            state = [body.claim.number, body.saved]
            try:
                await context.save_state(state)
                self._ledger.require(
                    context.state == state and state in self._ledger.states.get(context.job.id, ()),
                    "c{} is told that its state was saved, and it was not",
                    body.claim.number,
                )
            except LeaseLost:
                body.saw_cancelled = True
                self._ledger.require(
                    context.is_cancelled, "c{} lost its lease for no reason", body.claim.number
                )
                raise
            except trio.Cancelled:
                body.saw_cancelled = True
                raise
            await self._sleep(body, context, self._lease / 2 * self._rng.random())

    async def _children(self, body: Body, context: JobContext) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(self._rng.randrange(1, 4)):
                nursery.start_soon(self._child)

    async def _child(self) -> None:
        await trio.sleep(self._lease * self._rng.random())
        what = self._rng.random()
        if what < 0.1:
            raise self._error()
        if what < 0.3:
            await self._shielded(self._lease * self._rng.random())

    async def _stubborn(self, body: Body, context: JobContext) -> None:
        await self._shielded(self._lease * 2 * self._rng.random())

    async def _swallow(self, body: Body, context: JobContext) -> None:
        """Take cancellation for an error, and go on for a while."""
        try:
            await self._sleep(body, context, self._lease * 4 * self._rng.random())
        except trio.Cancelled:
            if self._process.is_dead:
                raise
            await self._shielded(self._lease * 1.5 * self._rng.random())
            what = self._rng.random()
            if what < 0.3:
                raise
            if what < 0.5:
                raise self._error() from None

    async def _raise_in_cleanup(self, body: Body, context: JobContext) -> None:
        try:
            await self._sleep(body, context, self._lease * self._rng.random())
        finally:
            if self._rng.random() < 0.3:
                await self._shielded(self._lease / 10 * self._rng.random())
            raise self._error()

    async def _blocking(self, body: Body, context: JobContext) -> None:
        self._block()
        if self._rng.random() < 0.5:
            await self._sleep(body, context, 1.0)

    def _block(self) -> None:
        """The loop stands still, with all the processes on it, and the storage's clock goes on."""
        seconds = self._lease * self._rng.choice((0.05, 0.3, 0.9, 1.1, 2.0))
        self._ledger.note("{} blocks for {:.1f} s", self._process.name, seconds)
        self._clock.jump(seconds)
        self._ledger.jumped()

    async def _shielded(self, seconds: float) -> None:
        with trio.CancelScope(shield=True) as shield:
            self._process.shields.append(shield)
            try:
                await trio.sleep(seconds)
            finally:
                self._process.shields.remove(shield)
        if self._process.is_dead:
            await trio.lowlevel.checkpoint()

    def _ending(self, body: Body, context: JobContext) -> HandlerOutput:
        what = self._rng.random() if self._wildness() else 1.0
        if what < 0.04:
            return JobOutput.json(object())
        if what < 0.08:
            return None  # type: ignore[return-value]
        if what < 0.2:
            raise self._error()
        if what < 0.4:
            return self._again(body)
        return JobOutput.json(context.claim)

    def _again(self, body: Body) -> HandlerOutput:
        """Ask to be run again, as a value or an error, for this or that reason."""
        rng = self._rng
        asked: RetryLater | Snooze
        if rng.random() < 0.5:
            body.asked = "snooze"
            asked = Snooze(self._lease * rng.choice((0.01, 0.5, 1.5)))
        else:
            body.asked = "retry"
            asked = RetryLater(rng.choice((0.0, self._lease / 2, self._lease * 1.5)), "not yet")
        if rng.random() < 0.5:
            return asked
        if rng.random() < 0.3:
            raise ExceptionGroup("one", [asked])
        raise asked

    def _error(self) -> BaseException:
        what = self._rng.random()
        if what < 0.1:
            return SystemExit(3)
        if what < 0.2:
            return Unhandled()
        if what < 0.3:
            return BaseExceptionGroup("two", [ValueError("one"), Unhandled()])
        if what < 0.32:
            self._process.interrupted = True
            self._ledger.note("a body in {} raises KeyboardInterrupt", self._process.name)
            return KeyboardInterrupt()
        if what < 0.6:
            return OperationOutcomeError(IssueType.PROCESSING, "no luck")
        return ValueError("no luck")
