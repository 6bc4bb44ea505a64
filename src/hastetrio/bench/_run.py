"""One run: the server, the room, the tables, and the sections one after the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from hastetrio.bench import _latency, _throughput, _watched
from hastetrio.bench._plan import SECTIONS, Plan, Progress
from hastetrio.bench._report import Report, read_machine, read_server, read_versions
from hastetrio.bench._room import Room, open_server, own_room
from hastetrio.bench._worker import open_provider

if TYPE_CHECKING:
    from hastetrio.bench._figures import Section

_Measure: TypeAlias = "Callable[[Room, Plan, Progress], Awaitable[Section]]"

_MEASURES: Final[dict[str, _Measure]] = {
    "throughput": _throughput.measure,
    "pick-up": _latency.measure_pick_up,
    "cancel": _latency.measure_cancel,
    "idle": _watched.measure_idle,
    "leases": _watched.measure_leases,
}


async def run(plan: Plan, progress: Progress) -> Report:
    """Measure what the plan says, and leave nothing behind.

    Args:
        plan: What to measure.
        progress: Shows how far it is.

    Raises:
        HastetrioError: It could not be measured; the text says why.

    Cancellation: what was started is stopped, and the database or schema is dropped.
    """
    sections: dict[str, Section] = {}
    async with open_server(plan) as server, own_room(server) as room:
        machine = read_machine()
        about = await read_server(room, plan)
        async with open_provider(room, plan) as provider:
            await provider.migrate()
            await provider.check_schema()
        for name in SECTIONS:
            if name in plan.sections:
                sections[name] = await _MEASURES[name](room, plan, progress)
    return Report(
        versions=read_versions(),
        machine=machine,
        server=about,
        log_level=plan.log_level,
        sections=sections,
    )
