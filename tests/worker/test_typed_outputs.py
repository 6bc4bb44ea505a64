"""Outputs of attrs classes and dataclasses: their JSON is the job's output."""

from __future__ import annotations

import dataclasses
import enum
import math
from datetime import UTC, date, datetime
from typing import Any

import attrs
import pytest

from hastetrio import AsyncJobStatus, JobOutput

from .harness import Rig, issues, returning

COMPLETED = AsyncJobStatus.COMPLETED


class Level(enum.Enum):
    """How fine."""

    FINE = "fine"


@attrs.frozen
class Part:
    """A part of the output."""

    at: datetime
    level: Level = Level.FINE
    _share: float = 0.5


@dataclasses.dataclass
class Report:
    """An output."""

    parts: list[Part]
    day: date
    notes: dict[str, Any] = dataclasses.field(default_factory=dict)
    total: int | None = None


@attrs.define
class One:
    """An output of one value."""

    value: Any


async def test_an_instance_becomes_json(rig: Rig) -> None:
    """Nested, with times in ISO 8601, enums by their values, private fields by their aliases."""
    report = Report([Part(datetime(2026, 1, 2, 3, tzinfo=UTC))], date(2026, 1, 2), {"a": [1]})
    job = await rig.outcome_of(returning(report))
    assert job.output == {
        "parts": [{"at": "2026-01-02T03:00:00+00:00", "level": "fine", "share": 0.5}],
        "day": "2026-01-02",
        "notes": {"a": [1]},
        "total": None,
    }
    assert (job.status, job.output_content_type) == (COMPLETED, "application/json")


async def test_any_instance_in_a_field_of_any_type_becomes_json(rig: Rig) -> None:
    """A field that says nothing of its type holds what it holds."""
    at = datetime(2026, 1, 2, tzinfo=UTC)
    job = await rig.outcome_of(returning(One({"part": Part(at), "many": [One(1), (2, 3)]})))
    assert job.output == {
        "value": {
            "part": {"at": "2026-01-02T00:00:00+00:00", "level": "fine", "share": 0.5},
            "many": [{"value": 1}, [2, 3]],
        }
    }


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (math.nan, "is not JSON"),
        ([math.inf], "is not JSON"),
        (object(), "is not JSON"),
        ("nul \x00", "holds a NUL character"),
        ("\ud800", "holds a lone surrogate"),
        ("x" * 2000, "and the limit is 1,024"),
    ],
    ids=["nan", "infinity", "object", "nul", "surrogate", "large"],
)
async def test_an_instance_that_cannot_be_stored_fails_the_job_and_says_why(
    rig: Rig, value: object, says: str
) -> None:
    """By the same rules as any other output."""
    job = await rig.outcome_of(returning(One(value)), output_limit=1024)
    ((_, code, text),) = issues(job)
    assert code == "processing"
    assert says in text
    assert rig.log.count("job.rejected", job.id) == 1


@pytest.mark.parametrize("value", [One, Report], ids=["attrs", "dataclass"])
async def test_a_class_is_no_instance(rig: Rig, value: type) -> None:
    """A handler that forgot to make one is told."""
    job = await rig.outcome_of(returning(value))
    assert "the handler returned type, not a JobOutput" in issues(job)[0][2]


async def test_an_instance_may_be_put_into_an_output_only_as_json(rig: Rig) -> None:
    """`JobOutput.json` takes JSON; it converts nothing."""
    job = await rig.outcome_of(returning(JobOutput.json(One(1))))
    assert "is not JSON" in issues(job)[0][2]


async def test_an_instance_whose_conversion_breaks_fails_only_its_job(rig: Rig) -> None:
    """A field may hold anything, also what raises when it is walked."""

    class Broken(dict[str, int]):
        """A dict that breaks when it is looked at."""

        def items(self) -> Any:  # noqa: ANN401
            """Break."""
            raise OSError("the file is gone")

    job = await rig.outcome_of(returning(One(Broken(a=1))))
    assert issues(job)[0][1] == "exception"
    assert rig.log.count("job.raised", job.id) == 1
