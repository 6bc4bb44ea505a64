"""The page on the HTTP face: its operation is kicked off with the body that it shows."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Final

import attrs
from tests.fhir.harness import BASE, PREFER, client, face, stored

from hastetrio import Operation
from hastetrio.testing import run_job

from .blocks import DOCS, blocks_of, files_of, imported

PAGE: Final = DOCS / "fhir.md"


async def test_a_parameters_resource_as_shown_is_what_the_class_declares(tmp_path: Path) -> None:
    """Parts, a repeated name and a code; the headers and the address are the command's."""
    (block,) = blocks_of(PAGE, "sh")
    # Within quotes the shell takes the backslash away, and Python's reader of it does not.
    program, *words = shlex.split(block.text.replace("\\$", "$"))
    assert program == "curl"
    headers = dict(words[place + 1].split(": ") for place, word in enumerate(words) if word == "-H")
    assert PREFER.items() <= headers.items()
    (address,) = [word for word in words if word.startswith("$base/")]
    body = words[words.index("-d") + 1]
    assert json.loads(body)["resourceType"] == "Parameters"
    with imported(files_of(PAGE), tmp_path) as modules:
        visits = modules["visits"]
        it = face([visits.plan_visit])
        async with client(it, headers) as http:
            answer = await http.post(address.replace("$base", BASE), content=body)
            read = await http.get(address.replace("$base", BASE))
        assert answer.status_code == 202
        # It changes state.
        assert read.status_code == 405
        (job,) = await stored(it)
        visit = visits.Visit(visits.Place("Graz", 2), ["fever", "cough"], visits.Urgency.URGENT)
        done = run_job(visits.plan_visit, parameters=job.parameters)
        assert done.output == {"where": "Graz", "reasons": 2}
        typed = run_job(visits.plan_visit, parameters=visit)
        assert typed.parameters == job.parameters


def test_the_table_of_operations_has_every_argument_and_its_default() -> None:
    """A new argument is explained, and a default that changed is changed there."""
    text = PAGE.read_text("utf-8").partition("| `Operation(...)` | If unsaid |\n|---|---|\n")[2]
    told = dict(
        re.findall(r"^\| `(\w+)`:.* \| ?(.*?) ?\|$", text.partition("\n\n")[0], re.MULTILINE)
    )
    assert list(told) == [one.name for one in attrs.fields(Operation)]
    unsaid = Operation(name="x")
    assert [str(level) for level in unsaid.levels] == ["system"]
    assert told["levels"].startswith("`system` only")
    assert told["scope"] == f"`{unsaid.scope}`"
    assert told["affects_state"].startswith(f"`{unsaid.affects_state}`")
