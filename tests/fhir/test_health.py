"""The probes: alive is not ready, and asking costs little."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import attrs
import httpx2
import pytest
import trio
from starlette.routing import Route
from trio.testing import MockClock

from hastetrio import ProviderUnavailable, SchemaError
from hastetrio.fhir._health import Health, probes_app

from .harness import check_outcome


@attrs.define
class Database:
    """What a probe looks at."""

    looks: int = 0
    error: Callable[[], Exception] | None = None
    seconds: float = 0.0

    async def check(self) -> None:
        """Answer as told."""
        self.looks += 1
        await trio.sleep(self.seconds)
        if self.error is not None:
            raise self.error()


@asynccontextmanager
async def probing(routes: Iterable[Route]) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of an application of probes."""
    transport = httpx2.ASGITransport(probes_app(routes))
    async with httpx2.AsyncClient(transport=transport, base_url="http://inside.invalid") as client:
        yield client


async def ready(health: Health) -> tuple[int, str]:
    """What `/readyz` answers."""
    async with probing(health.routes()) as http:
        answer = await http.get("/readyz")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.text.count("\n") == 1
    return answer.status_code, answer.text.strip()


async def test_a_process_is_ready_while_its_database_answers() -> None:
    """200 is all that a balancer looks at."""
    assert await ready(Health(Database().check)) == (200, "ready")
    assert await ready(Health(None)) == (200, "ready")


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (lambda: ProviderUnavailable("no route to db.internal as alice:hunter2"), "reached"),
        (lambda: SchemaError("the tables are not up to date: run `hastetrio migrate`"), "migrate"),
        (lambda: RuntimeError("hunter2"), "could not be asked"),
    ],
)
async def test_not_ready_says_why_but_not_where(error: Callable[[], Exception], word: str) -> None:
    """Anybody may ask; the address and whatever the database said are for the log."""
    status, text = await ready(Health(Database(error=error).check))
    assert status == 503
    assert word in text
    assert "hunter2" not in text


async def test_a_slow_database_is_not_waited_for(autojump_clock: MockClock) -> None:
    """A probe has its own limit, and silence says less than a reason."""
    began = trio.current_time()
    status, text = await ready(Health(Database(seconds=60).check))
    assert status == 503
    assert "does not answer" in text
    assert trio.current_time() - began <= 3


async def test_any_number_of_probes_costs_one_look_a_second(autojump_clock: MockClock) -> None:
    """Also when they come at once while the database is slow."""
    database = Database(seconds=0.5)
    health = Health(database.check)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ready, health)
    assert database.looks == 1
    await trio.sleep(1)
    await ready(health)
    assert database.looks == 2


async def test_the_end_of_an_outage_is_seen(autojump_clock: MockClock) -> None:
    """A process that was not ready once is not so for ever."""
    database = Database(error=lambda: ProviderUnavailable("away"))
    health = Health(database.check)
    assert (await ready(health))[0] == 503
    database.error = None
    await trio.sleep(1)
    assert (await ready(health))[0] == 200


async def test_a_worker_must_run() -> None:
    """Before it listens, and after it has ended, the process does not do its work."""
    health = Health(Database().check, has_worker=True)
    assert await ready(health) == (503, "not ready: its worker is starting")
    health.worker_started()
    assert (await ready(health))[0] == 200
    health.worker_ended()
    assert await ready(health) == (503, "not ready: its worker has ended")


async def test_a_process_that_stops_is_alive_but_not_ready() -> None:
    """At once, and without asking the database."""
    database = Database()
    health = Health(database.check)
    health.stop()
    assert await ready(health) == (503, "not ready: it is stopping")
    assert database.looks == 0
    async with probing(health.routes()) as http:
        alive = await http.get("/livez")
    assert (alive.status_code, alive.text) == (200, "alive\n")


async def test_what_a_probe_refuses_is_an_outcome() -> None:
    """As everywhere."""
    async with probing(Health(None).routes()) as http:
        for path in ("/livez", "/readyz"):
            answer = await http.request("BREW", path)
            assert answer.status_code == 405
            assert answer.headers["allow"] == "GET, HEAD"
            check_outcome(answer)
        unknown = await http.get("/w/t1/p1/api/v1/fhir/r4/metadata")
        assert unknown.status_code == 404
        check_outcome(unknown)
