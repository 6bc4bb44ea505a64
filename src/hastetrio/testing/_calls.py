"""The calls of a provider by name, what was recorded of one, and a fault that waits for one."""

from __future__ import annotations

from typing import Literal, TypeAlias

import attrs

CallName: TypeAlias = Literal[
    "create_job",
    "create_jobs",
    "retry_job",
    "read_job",
    "list_jobs",
    "count_live_jobs",
    "cancel_job",
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
]


class RenewalKilled(BaseException):  # a killed task, not an error of anybody's
    """Raised inside `renew_lease` by `FaultyProvider.kill_renewals`."""


@attrs.frozen
class RecordedCall:
    """One call that reached the provider.

    Attributes:
        name: The method.
        id: The job it was about, where it was about one.
        time: When it was made, on trio's clock.
        fault: What was done to it, or None.
    """

    name: CallName
    id: str | None
    time: float
    fault: str | None


@attrs.define(eq=False)
class Fault:
    """A fault that was put in; `remove` takes it out again."""

    name: CallName
    id: str | None
    times: int | None
    kind: str
    error: BaseException | None = None
    seconds: float = 0.0
    removed: bool = False

    def remove(self) -> None:
        """Let the calls through from now on."""
        self.removed = True

    def fits(self, name: CallName, id: str | None) -> bool:
        """Whether this fault is for such a call."""
        return not self.removed and self.name == name and self.id in (None, id)

    def matches(self, name: CallName, id: str | None) -> bool:
        """Whether this fault is for such a call; counts it if so."""
        if not self.fits(name, id):
            return False
        if self.times is not None:
            self.times -= 1
            self.removed = self.times <= 0
        return True
