"""What the commands that serve HTTP share: the address, the extra packages, the probes."""

from __future__ import annotations

import contextlib
import importlib
import logging
import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import trio

from hastetrio._errors import ConfigError
from hastetrio._http_config import parse_address

if TYPE_CHECKING:
    from hastetrio._worker import AsyncJobWorker
    from hastetrio.fhir._health import Health

_EXTRA: Final = ("starlette", "hypercorn", "h11", "prometheus_client", "jwt", "cryptography")

_logger = logging.getLogger("hastetrio.cli")


def check_extra() -> None:
    """See that what HTTP needs is installed.

    Raises:
        ConfigError: It is not.
    """
    for name in _EXTRA:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            raise ConfigError(
                f"HTTP needs packages that are not installed ({name}): "
                "pip install 'hastetrio[http]'"
            ) from None


@contextlib.contextmanager
def listening_on(address: str, *, loopback_only: bool = False) -> Iterator[list[socket.socket]]:
    """Sockets that listen on `HOST:PORT`, closed after the block.

    Raises:
        ConfigError: It cannot be had, other machines can reach it though they should not, or the
            packages that HTTP needs are not installed.
    """
    check_extra()
    from hastetrio.fhir._serve import bound_sockets

    host, port = parse_address(address)
    with bound_sockets(host, port, loopback_only=loopback_only) as sockets:
        yield sockets


def say_listening(sockets: Sequence[socket.socket], what: str) -> None:
    """Log the address at which clients find something."""
    from hastetrio.fhir._serve import url_of

    _logger.info("Listening on %s for %s", url_of(sockets), what)


async def run_worker(
    worker: AsyncJobWorker,
    health: Health,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a worker whose state the probes tell; `task_status.started` is called once it listens.

    Cancellation: as of `AsyncJobWorker.run`.
    """
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(worker.run)
            health.worker_started()
            task_status.started()
    finally:
        health.worker_ended()
