"""The audit of a soak finds what it is there to find, and blames nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tools.soak_audit import audit, figures

from .conftest import World


def test_a_clean_soak_is_found_clean(world: World) -> None:
    """Nothing is blamed for a killed worker, an abandoned, a cancelled and a removed job."""
    assert audit(world.load()) == []
    shown = figures(world.load())
    assert (shown["jobs"], shown["  completed"], shown["  failed"]) == (7, 3, 3)
    assert (shown["    of them abandoned"], shown["    killed"], shown["  removed"]) == (1, 2, 1)


def test_what_is_left_after_everything_expired_is_found(world: World) -> None:
    """Rows and effects that the last clean-up left are violations then."""
    assert world.rules(emptied=True) == {"left", "artefact"}


ROWS = {
    "a row that still runs": (
        "stuck",
        "done",
        """UPDATE async_jobs SET output = NULL, status = 'in-progress', locked_by = 'w/1',
           lease_expires_at = now() WHERE id = %(id)s""",
    ),
    "a row that is held": (
        "stuck",
        "done",
        """UPDATE async_jobs SET locked_by = 'w/1', lease_expires_at = now()
           WHERE id = %(id)s""",
    ),
    "an expired row": (
        "stuck",
        "done",
        "UPDATE async_jobs SET expires_at = now() - interval '1 minute' WHERE id = %(id)s",
    ),
    "a row that changed without a trace": (
        "history",
        "done",
        "UPDATE async_jobs SET attempts = 2 WHERE id = %(id)s",
    ),
    "a row that went without a trace": (
        "history",
        "done",
        "DELETE FROM async_jobs WHERE id = %(id)s",
    ),
    "another output": (
        "result",
        "done",
        "UPDATE async_jobs SET output = '{}' WHERE id = %(id)s",
    ),
    "the output of another claim": (
        "result",
        "retried",
        """UPDATE async_jobs SET finished_by = (
             SELECT after->>'token' FROM soak_history h
             WHERE h.id = %(id)s AND before->>'status' = 'accepted')
           WHERE id = %(id)s""",
    ),
    "an output of a kind that has none": (
        "result",
        "done",
        "UPDATE async_jobs SET kind = 'error' WHERE id = %(id)s",
    ),
    "an older progress": (
        "progress",
        "told",
        "UPDATE async_jobs SET progress = '1 of 2' WHERE id = %(id)s",
    ),
    "another outcome": (
        "outcome",
        "refused",
        "UPDATE async_jobs SET error = '{}' WHERE id = %(id)s",
    ),
    "no outcome": (
        "outcome",
        "broken",
        "UPDATE async_jobs SET error = '{}' WHERE id = %(id)s",
    ),
    "a failure of a kind that does not fail": (
        "outcome",
        "broken",
        "UPDATE async_jobs SET kind = 'quick' WHERE id = %(id)s",
    ),
}

CHANGES = {
    "finished by another token": (
        "transition",
        "done",
        """UPDATE soak_history SET after = jsonb_set(after, '{finished_by}', '"w/1"')
           WHERE id = %(id)s AND after->>'finished_by' IS NOT NULL""",
    ),
    "finished after it had expired": (
        "transition",
        "done",
        """UPDATE soak_history SET before = jsonb_set(before, '{expires}', '0')
           WHERE id = %(id)s AND after->>'finished_by' IS NOT NULL""",
    ),
    "claimed after it had expired": (
        "transition",
        "done",
        """UPDATE soak_history SET before = jsonb_set(before, '{expires}', '0')
           WHERE id = %(id)s AND before->>'status' = 'accepted'""",
    ),
    "taken inside a lease": (
        "transition",
        "retried",
        """UPDATE soak_history SET before = jsonb_set(before, '{lease}', to_jsonb(tx + 1))
           WHERE id = %(id)s AND after->>'token' <> before->>'token'""",
    ),
    "a claim that counts no attempt": (
        "transition",
        "retried",
        """UPDATE soak_history SET after = jsonb_set(after, '{attempts}', '1')
           WHERE id = %(id)s AND after->>'token' <> before->>'token'""",
    ),
    "abandoned inside its lease": (
        "transition",
        "abandoned",
        """UPDATE soak_history SET before = jsonb_set(before, '{lease}', to_jsonb(tx + 1))
           WHERE id = %(id)s AND after->>'status' = 'failed'""",
    ),
    "abandoned with attempts left": (
        "transition",
        "abandoned",
        """UPDATE soak_history SET after = jsonb_set(after, '{max_attempts}', '2')
           WHERE id = %(id)s AND after->>'status' = 'failed'""",
    ),
    "queued again after its end": (
        "transition",
        "done",
        """INSERT INTO soak_history (id, before, after)
           SELECT id, after, jsonb_set(after, '{status}', '"accepted"') FROM soak_history
           WHERE id = %(id)s AND after->>'finished_by' IS NOT NULL""",
    ),
    "failed after it had completed": (
        "transition",
        "done",
        """INSERT INTO soak_history (id, before, after)
           SELECT id, after, jsonb_set(after, '{status}', '"failed"') FROM soak_history
           WHERE id = %(id)s AND after->>'finished_by' IS NOT NULL""",
    ),
    "a result that was replaced": (
        "transition",
        "done",
        """INSERT INTO soak_history (id, before, after)
           SELECT id, after, jsonb_set(after, '{finished_by}', '"w/1"') FROM soak_history
           WHERE id = %(id)s AND after->>'finished_by' IS NOT NULL""",
    ),
    "a lease that shrank": (
        "transition",
        "done",
        """INSERT INTO soak_history (id, before, after)
           SELECT id, before, jsonb_set(before, '{lease}', '0') FROM soak_history
           WHERE id = %(id)s AND after->>'finished_by' IS NOT NULL""",
    ),
    "held with other attempts": (
        "transition",
        "done",
        """INSERT INTO soak_history (id, before, after)
           SELECT id, before, jsonb_set(before, '{attempts}', '2') FROM soak_history
           WHERE id = %(id)s AND after->>'finished_by' IS NOT NULL""",
    ),
    "finished with other attempts": (
        "transition",
        "done",
        """UPDATE soak_history SET after = jsonb_set(after, '{attempts}', '2')
           WHERE id = %(id)s AND after->>'finished_by' IS NOT NULL""",
    ),
    "queued while it is held": (
        "transition",
        "done",
        """INSERT INTO soak_history (id, before, after)
           SELECT id, before, jsonb_set(before, '{status}', '"accepted"') FROM soak_history
           WHERE id = %(id)s AND after->>'finished_by' IS NOT NULL""",
    ),
    "completed by nobody": (
        "transition",
        "done",
        """INSERT INTO soak_history (id, before, after)
           SELECT id, after, jsonb_set(after, '{status}', '"completed"') FROM soak_history
           WHERE id = %(id)s AND before IS NULL""",
    ),
    "created as a running job": (
        "transition",
        "done",
        """UPDATE soak_history SET after = jsonb_set(after, '{status}', '"in-progress"')
           WHERE id = %(id)s AND before IS NULL""",
    ),
    "two attempts given back": (
        "transition",
        "done",
        """INSERT INTO soak_history (id, before, after)
           SELECT id, jsonb_set(before, '{attempts}', '2'), after || before ||
             '{"status": "accepted", "token": null, "lease": null, "attempts": 0}'
           FROM soak_history WHERE id = %(id)s AND after->>'finished_by' IS NOT NULL""",
    ),
    "removed before it had expired": (
        "transition",
        "cancelled",
        """UPDATE soak_history SET before = jsonb_set(before, '{expires}', to_jsonb(tx + 1))
           WHERE id = %(id)s AND after IS NULL""",
    ),
    "swept before it had expired": (
        "transition",
        "cancelled",
        """UPDATE soak_history SET before = jsonb_set(before, '{expires}', to_jsonb(tx + 1))
           WHERE id = %(id)s AND before->>'token' IS NULL AND after->>'token' IS NOT NULL
             AND before->>'status' = 'cancelled'""",
    ),
    "no end": (
        "one-end",
        "done",
        """DELETE FROM soak_history
           WHERE id = %(id)s AND after->>'finished_by' IS NOT NULL""",
    ),
    "two ends": (
        "one-end",
        "done",
        """INSERT INTO soak_history (id, before, after) SELECT id, before, after
           FROM soak_history WHERE id = %(id)s AND after->>'finished_by' IS NOT NULL""",
    ),
    "more attempts than it may have": (
        "attempts",
        "done",
        """UPDATE soak_history SET after = jsonb_set(after, '{attempts}', '4')
           WHERE id = %(id)s AND after->>'finished_by' IS NOT NULL""",
    ),
}


@pytest.mark.parametrize("what", [*ROWS, *CHANGES])
def test_a_doctored_database_is_found(world: World, what: str) -> None:
    """Each wrong row, and each wrong change of one, breaks the rule that is meant for it."""
    rule, job, statement = (ROWS | CHANGES)[what]
    world.sql(statement, job)
    assert rule in world.rules()


def test_a_lost_creation_is_found(world: World) -> None:
    """A job that was answered and is not there."""
    world.add("journal.jsonl", event="created", at=0, jobs=["ghost"])
    assert world.rules() == {"lost"}


def test_a_cancel_that_did_not_happen_is_found(world: World) -> None:
    """A job whose cancelling was answered, and which completed."""
    world.add("journal.jsonl", event="cancelled", at=0, job=world.jobs["done"])
    assert world.rules() == {"cancel"}


def test_a_cancel_that_nobody_asked_for_is_found(world: World) -> None:
    """A job that was cancelled before it expired."""
    world.edit("journal.jsonl", lambda line: None if line["event"] == "asked" else line)
    assert world.rules() == {"transition"}


@pytest.mark.parametrize(
    "change",
    [
        lambda line: None if line["event"] == "exit" else line,
        lambda line: None if line["event"] == "term" else line,
        lambda line: line | {"code": -6} if line["event"] == "exit" else line,
    ],
    ids=["never ended", "ended by itself", "ended by a crash"],
)
def test_a_worker_that_ended_wrongly_is_found(
    world: World, change: Callable[[dict[str, Any]], dict[str, Any] | None]
) -> None:
    """Only a signal, or a database that was away at its start, ends a worker."""
    world.edit("journal.jsonl", lambda line: change(line) if line.get("worker") == "s1n1" else line)
    assert world.rules() == {"process"}


def test_a_body_without_an_end_is_found(world: World) -> None:
    """A body leaves by itself or with its process."""
    world.edit(
        "journal.jsonl",
        lambda line: None if (line["event"], line.get("worker")) == ("exit", "s0n1") else line,
    )
    assert world.rules() == {"process", "body"}


def test_an_abandoned_job_without_a_fault_is_found(world: World) -> None:
    """A worker that was not killed has no reason to lose a lease."""
    world.edit("journal.jsonl", lambda line: None if line["event"] == "kill" else line)
    assert "abandoned" in world.rules()


@pytest.mark.parametrize(
    ("rule", "event", "fields"),
    [
        ("body", "start", {"at": 0}),
        ("body", "start", {"attempt": 2}),
        ("body", "start", {"token": "s1n1-1-aaaaaa/99-zzzzzzzz"}),
        ("body", "start", {"what": "expire"}),
        ("lease", "end", {"lease_end": 4e9}),
        ("result", "end", {"how": "cancelled"}),
        ("effect", "end", {"at": 0}),
    ],
)
def test_a_doctored_record_is_found(
    world: World, rule: str, event: str, fields: dict[str, object]
) -> None:
    """Each wrong line about a body breaks the rule that is meant for it."""
    world.edit(
        "records/s1n1.jsonl",
        lambda line: (
            line | fields if (line["event"], line["job"]) == (event, world.jobs["done"]) else line
        ),
    )
    assert rule in world.rules()


def test_a_body_that_ran_twice_is_found(world: World) -> None:
    """One claim starts one body."""
    line = world.line("records/s1n1.jsonl", event="start", job=world.jobs["done"])
    world.add("records/s1n1.jsonl", **line)
    assert world.rules() == {"body"}


def test_a_body_that_was_not_claimed_is_found(world: World) -> None:
    """A body runs under a claim that the database knows of."""
    start = world.line("records/s1n1.jsonl", event="start", job=world.jobs["done"])
    end = world.line("records/s1n1.jsonl", event="end", job=world.jobs["done"])
    other = {"at": end["at"] + 0.001, "token": "s1n1-1-aaaaaa/99-zzzzzzzz"}
    world.add("records/s1n1.jsonl", **start | other)
    assert world.rules() == {"body"}


def test_a_removal_without_a_clean_up_is_found(world: World) -> None:
    """A row goes only after its `expire` has returned."""
    world.edit(
        "records/s1n1.jsonl",
        lambda line: line | {"how": "cancelled"} if line["what"] == "expire" else line,
    )
    assert world.rules() == {"expire"}


@pytest.mark.parametrize(("lease_end", "rules"), [(3e9, {"overlap", "lease"}), (0, set())])
def test_only_an_overlap_inside_a_lease_is_found(
    world: World, lease_end: float, rules: set[str]
) -> None:
    """A body that goes on while its job runs elsewhere is counted, and wrong inside its lease."""
    second = world.line("records/s1n1.jsonl", event="start", job=world.jobs["retried"])
    first = world.line("records/s0n1.jsonl", event="start", job=world.jobs["retried"])
    end = {"event": "end", "how": "cancelled", "at": second["at"] + 1, "lease_end": lease_end}
    world.add("records/s0n1.jsonl", **first | end)
    assert world.rules() == rules
    assert figures(world.load())["overlaps past the lease (allowed)"] == int(not rules)


@pytest.mark.parametrize("job", ["done", "retried"])
def test_a_missing_or_changed_effect_is_found(world: World, job: str) -> None:
    """What a completed job produced is there, and is what its result says."""
    path = world.effect(job)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"nonce": "another"}))
    assert world.rules() == {"artefact"}
    path.unlink()
    assert world.rules() == {"artefact"}


def test_files_that_no_attempt_explains_are_found(world: World) -> None:
    """A file of a claim that never was, a temporary one, and a folder of a removed job."""
    effect = world.effect("done")
    effect.with_name("1-zzzzzzzz.json").write_text(effect.read_text())
    assert world.rules() == {"effect"}
    effect.with_name("1-zzzzzzzz.json").rename(effect.with_suffix(".unfinished"))
    assert world.rules() == {"temporary"}
    effect.with_suffix(".unfinished").unlink()
    (world.folder / "effects" / world.jobs["cancelled"]).mkdir()
    assert world.rules() == {"artefact"}


@pytest.mark.parametrize("late", [False, True])
def test_only_a_write_past_the_lease_may_outlive_its_row(world: World, late: bool) -> None:
    """A stopped process can write a line late; nobody else leaves a file behind."""
    start = world.line("records/s1n1.jsonl", event="start", job=world.jobs["cancelled"], what="run")
    if late:
        world.edit(
            "records/s1n1.jsonl",
            lambda line: line | {"lease_end": start["at"] - 1} if "lease_end" in line else line,
        )
    folder = world.folder / "effects" / world.jobs["cancelled"]
    folder.mkdir()
    name = f"{start['attempt']}-{start['token'][-8:]}.json"
    (folder / name).write_text(json.dumps({"at": start["at"]}))
    assert world.rules() == (set() if late else {"artefact"})
