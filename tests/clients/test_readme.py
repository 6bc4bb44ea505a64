"""What the README shows over HTTP is what happens to somebody who copies it."""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
import pytest

from hastetrio.bulk import sample_directory

from .processes import ended, serving, until

pytestmark = pytest.mark.slow

ROOT: Final = Path(__file__).parents[2]
TEXT: Final = (ROOT / "README.md").read_text("utf-8").partition("## Over HTTP\n")[2]

ADDRESS: Final = "http://127.0.0.1:8000"
SERVE: Final = ".venv/bin/python -m hastetrio serve --worker "
CLIENT: Final = ".venv/bin/smart-fetch "

# What is another each time: an instant, an HTTP date.
_INSTANT: Final = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
_DATE: Final = r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT"

_ID: Final = re.compile(r"(?m)^content-location: .*/_async/([\w-]+)")
_WAIT: Final = re.compile(r"(?m)^retry-after: (\d+)")


def block(language: str) -> list[str]:
    """The lines of the section's first block in a language."""
    found = re.search(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    return found[1].splitlines()


@attrs.frozen
class Step:
    """A command, and what the README shows of its answer."""

    command: str
    shown: str

    def fits(self, said: str) -> bool:
        """Whether that is what was said; line breaks may be others, `...` is anything."""
        pattern = re.escape(self.shown.strip())
        pattern = re.sub(r"\d{4}\\-\d\d\\-\d\dT[\d:\\.]+Z", lambda _: _INSTANT, pattern)
        pattern = re.sub(r"[A-Z][a-z]{2},\\ [\w:\\ ]+\\ GMT", lambda _: _DATE, pattern)
        pattern = re.sub(r"\\\n", r"\\s*", pattern).replace(r"\.\.\.", ".*")
        return re.fullmatch(pattern, said.strip(), re.DOTALL) is not None


def conversation() -> Iterator[Step]:
    """The steps of the conversation."""
    for part in re.split(r"^\$ ", "\n".join(block("console")), flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield Step(command, shown)


@pytest.fixture
def served_lines() -> Iterator[tuple[Path, list[str]]]:
    """A folder that looks like a checkout, open to the account of the embedded server."""
    folder = Path(tempfile.mkdtemp(prefix="hastetrio-readme-", dir="/tmp"))
    folder.chmod(0o755)
    (folder / "src").symlink_to(ROOT / "src")
    yield folder, [line for line in block("sh") if line.startswith(SERVE)]
    # The embedded server ends when its last user has gone.
    until(lambda: None if list(folder.rglob("postmaster.pid")) else True, "the server's end")
    until(lambda: _removed(folder) or None, "the end of who uses the folder")


def _removed(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def test_the_conversation_of_the_readme_takes_place(database_url: str, tmp_path: Path) -> None:
    """Each command of it, and each line it shows, from the kick-off to the 404."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    (tmp_path / "src").symlink_to(ROOT / "src")
    (line,) = [line for line in block("sh") if line.startswith(SERVE)]
    arguments = shlex.split(line.removeprefix(SERVE).replace("--embedded ", ""))
    pace = shlex.split(re.findall(r"`(--export-pace \S+)`", TEXT)[0])
    assignments: list[str] = []
    ids: dict[str, str] = {}
    with serving(
        tmp_path,
        *(*arguments, *pace, "--http", "127.0.0.1:0"),
        environ={"HASTETRIO_DATABASE_URL": database_url},
    ) as served:

        def run(step: Step) -> str:
            command = step.command.replace(ADDRESS, served.url)
            for shown, real in ids.items():
                command = command.replace(shown, real)
            code, said = ended(["bash", "-c", "; ".join([*assignments, command])], folder=tmp_path)
            assert code == 0, said
            shown_id, real_id = _ID.search(step.shown), _ID.search(said)
            if shown_id is not None and real_id is not None:
                ids[shown_id[1]] = real_id[1]
            said = "\n".join(one.rstrip() for one in said.splitlines()).replace(served.url, ADDRESS)
            for shown, real in ids.items():
                said = said.replace(real, shown)
            return said

        steps = list(conversation())
        for step in steps:
            if not step.shown:
                assignments.append(step.command.replace(ADDRESS, served.url))
                continue
            said = run(step)
            # Whoever reads along asks again, as the server tells them to, until the export is done.
            while "HTTP/1.1 200" in step.shown and (wait := _WAIT.search(said)):
                time.sleep(int(wait[1]))
                said = run(step)
            assert step.fits(said), f"{step.command}\n{said}"
    assert len(steps) == 7


def test_three_lines_of_the_readme_export_the_sample_data(
    smart_fetch: str, served_lines: tuple[Path, list[str]]
) -> None:
    """Serve with an embedded database, and let a foreign client export; installing apart."""
    folder, (serve,) = served_lines
    install, again, fetch = block("sh")
    assert again == serve
    assert install.startswith("python3 -m venv .venv && .venv/bin/pip install ")
    assert fetch.startswith(CLIENT)
    arguments = shlex.split(serve.removeprefix(SERVE))
    place = ("--http", "127.0.0.1:0", "--data-dir", str(folder / "data"))
    with serving(folder, *arguments, *place) as served:
        command = shlex.split(fetch.removeprefix(CLIENT).replace(ADDRESS, served.url))
        code, said = ended([smart_fetch, *command], folder=folder)
    assert code == 0, said
    fetched = (folder / "fetched" / "Patient.001.ndjson").read_bytes()
    assert fetched == (sample_directory() / "Patient.ndjson").read_bytes()
