"""How a worker behaves: its durations, its slots and its limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from hastetrio._errors import ConfigError
from hastetrio._model import DAY, OUTPUT_LIMIT, check_duration
from hastetrio._outcome import OUTCOME_LIMIT

PROGRESS_LIMIT: Final = 1000

# A worker's margin is at least 0.2 s and must stay below a third of the lease, or renewals at a
# third would come after the deadline they are to move.
_SHORTEST_LEASE: Final = 0.7


def _seconds(
    *, zero: bool = False, least: float = 0.0
) -> Callable[[object, attrs.Attribute[float], object], None]:
    def check(_: object, field: attrs.Attribute[float], value: object) -> None:
        try:
            seconds = check_duration(value, field.name, zero=zero)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if seconds < least:
            raise ConfigError(f"{field.name} must be at least {least:g} seconds, not {seconds:g}")

    return check


def whole(least: int, most: int) -> Callable[[object, attrs.Attribute[int], object], None]:
    """A validator for whole numbers in a range."""

    def check(_: object, field: attrs.Attribute[int], value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ConfigError(
                f"{field.name} must be a whole number from {least:,} to {most:,}, not {value!r}"
            )

    return check


@attrs.frozen(kw_only=True)
class AsyncJobWorkerConfig:
    """How a worker behaves. Durations are seconds, sizes are bytes.

    Args:
        poll_interval: How long to wait before looking for work again after finding none, when no
            notification says otherwise.
        lease_duration: How long one claim or renewal holds a job, at least 0.7. Renewals happen
            at a third of this, so a worker misses two in a row before its job can be taken over.
        max_concurrent_jobs: Jobs this worker runs at once.
        maintenance_interval: How often the sweeps for abandoned and expired jobs run.
        retention: How long a finished job is kept, when the job itself does not say.
        drain_timeout: How long running jobs may go on after the worker was told to stop.
        cancel_grace: How long cancelled jobs may take to unwind and be handed back after that.
        output_limit: The most bytes of JSON a result may have.
        outcome_limit: The most bytes of JSON a failed job's OperationOutcome may have.
        progress_limit: The most characters of a progress text; what is longer is cut.
        thread_limit: Threads that `JobContext.run_sync` uses at once.

    Raises:
        ConfigError: A value is out of range; the text names it.
    """

    poll_interval: float = attrs.field(default=1.0, validator=_seconds())
    lease_duration: float = attrs.field(default=60.0, validator=_seconds(least=_SHORTEST_LEASE))
    max_concurrent_jobs: int = attrs.field(default=4, validator=whole(1, 100_000))
    maintenance_interval: float = attrs.field(default=60.0, validator=_seconds())
    retention: float = attrs.field(default=DAY, validator=_seconds())
    drain_timeout: float = attrs.field(default=20.0, validator=_seconds(zero=True))
    cancel_grace: float = attrs.field(default=5.0, validator=_seconds(zero=True))
    output_limit: int = attrs.field(default=OUTPUT_LIMIT, validator=whole(1024, 2**28))
    outcome_limit: int = attrs.field(default=OUTCOME_LIMIT, validator=whole(1024, 2**28))
    progress_limit: int = attrs.field(default=PROGRESS_LIMIT, validator=whole(1, 2**20))
    thread_limit: int = attrs.field(default=40, validator=whole(1, 10_000))

    @property
    def margin(self) -> float:
        """How long before the lease lapses a handler is cancelled: a tenth, from 0.2 s to 5 s.

        It lets the handler unwind before anybody else may start the job, and absorbs a database
        clock that jumps.
        """
        return min(max(self.lease_duration / 10, 0.2), 5.0)

    @property
    def call_budget(self) -> float:
        """The longest one database call may take: a sixth of the lease, at most 5 s."""
        return min(5.0, self.lease_duration / 6)
