"""`AsyncJobWorker`: the nursery tree, stopping and draining.

    keepers { renewals, wake-ups, phases, jobs { clean-ups, jobs, loops { claims, sweeps } } }

What is inside ends first: the loops when the worker is told to stop, then the jobs, and only when
the last handler has left the renewals and the watch for cancels. The tree is shielded, so that a
cancelled `run()` still cancels its handlers with a reason and hands their jobs back. For the same
reason each of its tasks is protected from KeyboardInterrupt, which then reaches a handler's own
code or the caller of `run()`, and not a loop in the middle of a claim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from hastetrio import _log
from hastetrio._claims import ERROR_BACKOFF, Claims
from hastetrio._config import AsyncJobWorkerConfig
from hastetrio._context import CancelReason
from hastetrio._desk import LeaseDesk
from hastetrio._errors import ConfigError
from hastetrio._ids import generate_worker_id
from hastetrio._job import JobRunner
from hastetrio._log import describe, log
from hastetrio._maintenance import AbandonedSweep, ExpiredSweep, jittered
from hastetrio._middleware import check_middleware
from hastetrio._provider import JobCancelled, JobQueued
from hastetrio._record import Recorder
from hastetrio._registration import handlers_by_kind
from hastetrio._renewals import Renewals
from hastetrio._statistics import Counts, WorkerStatistics
from hastetrio._storable import is_text
from hastetrio._watchdog import watching_the_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from hastetrio._handler import JobHandler
    from hastetrio._held import HeldJob
    from hastetrio._middleware import JobMiddleware
    from hastetrio._provider import AsyncJobProvider

# How long a worker waits for notifications to flow before it says that it has started; behind a
# pooler without session state they never do, and the poll does the work.
_LISTENING_TIMEOUT: Final = 5.0


class AsyncJobWorker:
    """Claims jobs of the kinds its handlers cover, and runs them under leases.

    Any number of workers may run over one database, on any number of hosts.

    Args:
        provider: Where the jobs are.
        handlers: One handler for each kind, at least one.
        config: Durations, slots and limits.
        worker_id: Names this worker in `locked_by`; by default host, process and 6 characters.
        middleware: What goes around each run of a handler, the first outermost.

    Raises:
        ConfigError: No handler, two of one kind, one that declares what cannot be, a middleware
            that is none, or a worker id that cannot be stored.
    """

    def __init__(
        self,
        provider: AsyncJobProvider,
        handlers: Iterable[JobHandler],
        config: AsyncJobWorkerConfig | None = None,
        *,
        worker_id: str | None = None,
        middleware: Sequence[JobMiddleware] = (),
    ) -> None:
        self._config = config = config or AsyncJobWorkerConfig()
        self._handlers = handlers_by_kind(handlers)
        if not self._handlers:
            raise ConfigError("a worker needs at least one handler")
        self._id = generate_worker_id() if worker_id is None else worker_id
        if not isinstance(self._id, str) or not self._id or not is_text(self._id):
            raise ConfigError("the worker id must be text that is not empty and holds no NUL")
        self._provider = provider
        self._counts = counts = Counts()
        self._renewals = Renewals(provider, config, counts)
        self._recorder = Recorder(provider, config)
        self._desk = LeaseDesk(provider, config, self._renewals)
        self._claims = Claims(
            provider,
            list(self._handlers),
            config,
            self._id,
            self._renewals,
            counts,
            start=self._start_job,
            hand_back=self._start_hand_back,
        )
        self._runner = JobRunner(
            provider,
            self._handlers,
            config,
            self._recorder,
            self._renewals,
            counts,
            desk=self._desk,
            middleware=check_middleware(middleware),
            interrupt=self._interrupt,
            ended=self._claims.slot_freed,
            postponed=self._claims.due_in,
            start=self._start_soon,
        )
        self._abandoned = AbandonedSweep(provider, config)
        self._expired = ExpiredSweep(
            provider,
            self._handlers,
            config,
            self._id,
            self._recorder,
            self._renewals,
            counts,
            interrupt=self._interrupt,
            start=lambda held: self._start(self._expired.clean_up, held),
        )
        self._jobs: trio.Nursery | None = None
        self._stopping = trio.Event()
        self._hurrying = trio.Event()
        self._listening = trio.Event()
        self._interruption: BaseException | None = None
        self._has_run = False

    @property
    def worker_id(self) -> str:
        """The worker's id; `locked_by` of its jobs begins with it."""
        return self._id

    def statistics(self) -> WorkerStatistics:
        """How the worker stands now."""
        return WorkerStatistics(
            worker=self._id,
            slots=self._config.max_concurrent_jobs,
            free=self._claims.free,
            held=len(self._renewals),
            unwinding=tuple(h.job.id for h in self._renewals.held() if h.is_unwinding),
            totals=attrs.evolve(self._counts),
        )

    def stop(self) -> None:
        """Tell the worker to stop, and return at once.

        The first call drains: no new claims, running jobs may finish for `drain_timeout`. The
        second cancels: jobs are cancelled now and handed back.
        """
        if self._stopping.is_set():
            self._hurrying.set()
        else:
            log(_log.WORKER_STOPPING, worker=self._id, phase="letting its jobs finish")
            self._stop_claiming()

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until stopped, and return after the last handler has left.

        `task_status.started` is called with the worker's id once the worker listens for wake-ups.

        Raises:
            RuntimeError: This worker has run before.
            KeyboardInterrupt: A handler raised it or was hit by it; its job was handed back.

        Cancellation: handlers are cancelled (reason shutdown) and their jobs handed back, at most
        `cancel_grace` after the last has left; then this returns.
        """
        if self._has_run:
            raise RuntimeError("a worker runs once; make another")
        self._has_run = True
        failure: BaseException | None = None
        done = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._shielded, task_status, done)
            try:
                await done.wait()
            except BaseException as error:  # noqa: BLE001
                # Raised again below: the nursery would wrap it in a group.
                failure = error
                self._stop_claiming()
                self._hurrying.set()
        failure = failure or self._interruption
        if failure is not None:
            raise failure

    @trio.lowlevel.enable_ki_protection
    async def _shielded(self, task_status: trio.TaskStatus[str], done: trio.Event) -> None:
        try:
            with trio.CancelScope(shield=True), watching_the_loop(self._config.call_budget):
                await self._tree(task_status)
        finally:
            done.set()

    async def _tree(self, task_status: trio.TaskStatus[str]) -> None:
        log(_log.WORKER_STARTING, worker=self._id, kinds=sorted(self._handlers))
        async with trio.open_nursery() as keepers:
            keepers.start_soon(self._renewals.run)
            keepers.start_soon(self._watch)
            async with trio.open_nursery() as self._jobs, trio.open_nursery() as loops:
                keepers.start_soon(self._phases, loops.cancel_scope)
                for run in (self._claims.run, self._abandoned.run, self._expired.run):
                    loops.start_soon(run)
                with trio.move_on_after(_LISTENING_TIMEOUT):
                    await self._listening.wait()
                task_status.started(self._id)
                await self._stopping.wait()
            await self._claims.settle()
            keepers.cancel_scope.cancel("the last handler has left")
        log(_log.WORKER_STOPPED, worker=self._id)

    def _stop_claiming(self) -> None:
        self._stopping.set()
        for loop in (self._claims, self._abandoned, self._expired):
            loop.stop()

    @trio.lowlevel.enable_ki_protection
    async def _phases(self, loops: trio.CancelScope) -> None:
        """Once told to stop: let jobs finish, cancel them, and at last give up recording."""
        await self._stopping.wait()
        self._listening.set()
        with trio.move_on_after(self._config.drain_timeout):
            await self._hurrying.wait()
        self._hurrying.set()
        log(_log.WORKER_STOPPING, worker=self._id, phase="cancelling its jobs")
        for held in self._renewals.held():
            held.cancel(CancelReason.SHUTDOWN)
        await trio.sleep(self._config.cancel_grace)
        loops.cancel("the worker is stopping")
        self._recorder.give_up()

    @trio.lowlevel.enable_ki_protection
    async def _watch(self) -> None:
        """Turn notifications into claims and renewals, for ever."""
        while True:
            try:
                async with self._provider.watch(list(self._handlers)) as events:
                    async for event in events:
                        if isinstance(event, JobQueued):
                            self._claims.wake()
                        elif isinstance(event, JobCancelled):
                            self._renewals.due_now(event.id)
                        else:
                            self._listening.set()
                            self._renewals.all_due_now()
                            self._recorder.retry_now()
                            self._claims.wake(restored=True)
            except Exception as error:  # noqa: BLE001  # the poll goes on without wake-ups
                log(_log.WATCH_FAILED, error=describe(error))
            await trio.sleep(jittered(ERROR_BACKOFF))

    def _start_soon(self, run: Callable[..., Awaitable[None]], *args: object) -> None:
        assert self._jobs is not None  # noqa: S101  # whoever calls this runs inside that nursery
        self._jobs.start_soon(run, *args)

    def _start(self, run: Callable[[HeldJob], Awaitable[None]], held: HeldJob) -> None:
        if self._hurrying.is_set():
            held.cancel(CancelReason.SHUTDOWN)
        self._start_soon(run, held)

    def _start_job(self, held: HeldJob) -> None:
        self._start(self._run_job, held)

    def _start_hand_back(self, held: HeldJob) -> None:
        self._start(self._run_hand_back, held)

    @trio.lowlevel.enable_ki_protection
    async def _run_job(self, held: HeldJob) -> None:
        if self._stopping.is_set():
            # Claimed just before the stop, and not begun.
            await self._hand_back(held, "stopping")
        else:
            await self._runner.run(held)

    @trio.lowlevel.enable_ki_protection
    async def _run_hand_back(self, held: HeldJob) -> None:
        await self._renewals.dropped(held)
        await self._hand_back(held, "claimed too late to start")

    async def _hand_back(self, held: HeldJob, reason: str) -> None:
        try:
            await self._runner.hand_back(held, reason)
        finally:
            self._claims.slot_freed(held)

    def _interrupt(self, error: BaseException) -> None:
        """A handler met KeyboardInterrupt: stop at once, and let it leave `run()`."""
        self._interruption = KeyboardInterrupt()
        self._interruption.__cause__ = error
        self._stop_claiming()
        self._hurrying.set()
