"""Which faults are in, and what they do to a call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import trio

from hastetrio._errors import ProviderUnavailable
from hastetrio.testing._calls import CallName, Fault, RecordedCall, RenewalKilled

if TYPE_CHECKING:
    from hastetrio._model import AsyncJob
    from hastetrio._provider import AsyncJobProvider

T = TypeVar("T")


class FaultBook:
    """The faults of a `FaultyProvider`, and the calls it has seen.

    Faults are tried in the order they were put in, and the first that matches is used. All is
    deterministic: a fault names its call, the job (any, by default) and how many times it strikes
    (always, by default).
    """

    def __init__(self, provider: AsyncJobProvider) -> None:
        self._provider = provider
        self._faults: list[Fault] = []
        self._lost: set[str] = set()
        self._deaf = False
        self._unheard: set[str] = set()
        self.calls: list[RecordedCall] = []
        """Every call, in order."""

    def fail(
        self,
        name: CallName,
        *,
        job: str | None = None,
        times: int | None = None,
        error: BaseException | None = None,
    ) -> Fault:
        """Raise `error` (ProviderUnavailable) instead of making the call."""
        error = error or ProviderUnavailable("a fault was injected")
        return self._put(Fault(name, job, times, "fail", error))

    def drop(self, name: CallName, *, job: str | None = None, times: int | None = None) -> Fault:
        """Make the call, but lose its answer: ProviderUnavailable is raised afterwards."""
        error = ProviderUnavailable("the answer was lost")
        return self._put(Fault(name, job, times, "drop", error))

    def hang(self, name: CallName, *, job: str | None = None, times: int | None = None) -> Fault:
        """Never make the call and never answer, until the caller is cancelled."""
        return self._put(Fault(name, job, times, "hang"))

    def delay(
        self, name: CallName, seconds: float, *, job: str | None = None, times: int | None = None
    ) -> Fault:
        """Make the call `seconds` later."""
        return self._put(Fault(name, job, times, "delay", seconds=seconds))

    def delay_answer(
        self, name: CallName, seconds: float, *, job: str | None = None, times: int | None = None
    ) -> Fault:
        """Make the call at once, and answer `seconds` later."""
        return self._put(Fault(name, job, times, "delay_answer", seconds=seconds))

    def kill_renewals(self, *, job: str | None = None, times: int | None = None) -> Fault:
        """Kill the task that renews: RenewalKilled is raised inside of `renew_lease`."""
        return self._put(Fault("renew_lease", job, times, "fail", RenewalKilled()))

    def lose_lease(self, id: str) -> None:
        """Answer from now on as if another worker had taken the job."""
        self._lost.add(id)

    def drop_wakeups(self) -> None:
        """Let no notification through from now on."""
        self._deaf = True

    async def cancel_behind(self, job: AsyncJob) -> AsyncJob | None:
        """Cancel a job as its client would, past all faults and without a notification."""
        self._unheard.add(job.id)
        return await self._provider.cancel_job(job.tenant, job.project, job.id)

    def made(self, name: CallName, id: str | None = None) -> list[RecordedCall]:
        """The calls of one method (about one job), in order."""
        return [c for c in self.calls if c.name == name and (id is None or c.id == id)]

    def _put(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    async def _call(self, name: CallName, id: str | None, call: Callable[[], Awaitable[T]]) -> T:
        await trio.lowlevel.checkpoint()
        fault = next((fault for fault in self._faults if fault.matches(name, id)), None)
        self.calls.append(
            RecordedCall(name, id, trio.current_time(), fault.kind if fault else None)
        )
        if fault is None:
            return await call()
        if fault.kind == "hang":
            await trio.sleep_forever()
        if fault.kind == "fail" and fault.error is not None:
            raise fault.error
        if fault.kind == "delay":
            await trio.sleep(fault.seconds)
        answer = await call()
        if fault.kind == "delay_answer":
            await trio.sleep(fault.seconds)
        if fault.error is not None:
            raise fault.error
        return answer
