"""What is refused before a worker runs, each in one clear line."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from hastetrio import AsyncJobWorker, AsyncJobWorkerConfig, ConfigError, JobContext, JobHandler
from hastetrio.memory import MemoryJobProvider

from .harness import DONE, handler, returning


class Echo(JobHandler):
    """A handler as a class."""

    kind = "echo"

    async def run(self, context: JobContext) -> Any:  # noqa: ANN401
        """Do nothing."""
        return DONE


class Kindless(Echo):
    """A handler that forgot its kind."""

    kind = ""


def worker(*handlers: Any, **options: Any) -> AsyncJobWorker:  # noqa: ANN401
    """A worker of these handlers."""
    return AsyncJobWorker(MemoryJobProvider(), list(handlers), **options)


@pytest.mark.parametrize(
    ("handlers", "says"),
    [
        ([], "a worker needs at least one handler"),
        ([Echo(), Echo()], "two handlers are registered for the kind 'echo'"),
        ([Echo(), handler(returning(DONE), "echo")], "two handlers are registered for the kind"),
        ([Echo], "Echo is a class; register an instance of it: Echo()"),
        ([Kindless()], "Kindless has no kind: give it one, as text"),
        ([handler(returning(DONE), "a\x00b")], "the kind 'a\\x00b' cannot be stored"),
        ([returning(DONE)], "is not a JobHandler"),
        ([None], "None is not a JobHandler"),
    ],
)
def test_handlers_that_cannot_be_registered_are_refused(handlers: list[Any], says: str) -> None:
    """Before anything runs, and in one line."""
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        worker(*handlers)
    assert "\n" not in str(caught.value)


def test_a_handler_that_is_not_in_a_list_is_refused_clearly() -> None:
    """The commonest slip of all."""
    with pytest.raises(ConfigError, match="handlers must be a list of handlers, not Echo"):
        AsyncJobWorker(MemoryJobProvider(), Echo())  # type: ignore[arg-type]


@pytest.mark.parametrize("id", ["", "a\x00", "\ud800", 5, b"x"], ids=repr)
def test_a_worker_id_that_cannot_be_stored_is_refused(id: Any) -> None:  # noqa: ANN401
    """It goes into `locked_by`, which is text."""
    with pytest.raises(ConfigError, match="the worker id must be text") as caught:
        worker(Echo(), worker_id=id)
    assert "\n" not in str(caught.value)


def test_a_workers_id_names_host_process_and_six_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two workers of one process differ in the last."""
    monkeypatch.setenv("HOSTNAME", "node-7")
    ids = {worker(Echo()).worker_id for _ in range(2)}
    assert len(ids) == 2
    for id in ids:
        assert re.fullmatch(rf"node-7-{os.getpid()}-[0-9a-z]{{6}}", id)
    monkeypatch.delenv("HOSTNAME")
    assert worker(Echo()).worker_id.startswith(f"worker-{os.getpid()}-")


def test_a_workers_id_may_be_given() -> None:
    """Any text, a slash included: the token is taken apart from its end."""
    assert worker(Echo(), worker_id="rack/3").worker_id == "rack/3"


@pytest.mark.parametrize(
    "setting",
    [
        {"poll_interval": -1},
        {"lease_duration": 0.5},
        {"max_concurrent_jobs": 0},
        {"drain_timeout": float("nan")},
        {"retention": float("inf")},
    ],
    ids=str,
)
def test_a_setting_that_makes_no_sense_is_refused_before_there_is_a_worker(
    setting: dict[str, Any],
) -> None:
    """The error is one line that names it."""
    (name,) = setting
    with pytest.raises(ConfigError, match=f"^{name} must be") as caught:
        worker(Echo(), config=AsyncJobWorkerConfig(**setting))
    assert "\n" not in str(caught.value)
