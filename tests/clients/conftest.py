"""The clients, and a server for them; a client that cannot be had skips its tests, and says why."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from .environments import MEDPLUM, SEKMET, SMART_FETCH, Client, NotToBeHad, folder_of
from .processes import Served, serving

if TYPE_CHECKING:
    from hastetrio.testing._databases import Databases

from hastetrio.bulk import sample_directory


def _had(client: Client) -> Path:
    try:
        return folder_of(client)
    except NotToBeHad as error:
        pytest.skip(f"{client.name} cannot be installed: {error}")


@pytest.fixture(scope="session")
def smart_fetch() -> str:
    """The program smart-fetch."""
    return str(_had(SMART_FETCH) / "bin" / "smart-fetch")


@pytest.fixture(scope="session")
def sekmet() -> str:
    """The program sekmet."""
    return str(_had(SEKMET) / "bin" / "sekmet")


@pytest.fixture(scope="session")
def node() -> str:
    """The program node."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("@medplum/core needs Node, which is not installed")
    asked = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)
    major = int(asked.stdout.strip().lstrip("v").partition(".")[0])
    if major < 20:
        pytest.skip(f"@medplum/core needs Node 20; this is {asked.stdout.strip()}")
    return found


@pytest.fixture(scope="session")
def medplum(node: str) -> list[str]:
    """The command of the script that uses @medplum/core, without what it is to do."""
    return [node, str(Path(__file__).with_name("medplum.mjs")), f"{_had(MEDPLUM)}/"]


@pytest.fixture
def export_arguments(tmp_path: Path) -> list[str]:
    """A free port, and the sample data to export."""
    output = tmp_path / "exported"
    return [
        *("--http", "127.0.0.1:0", "--poll-interval", "0.2"),
        *("--export-source", str(sample_directory()), "--export-output", str(output)),
    ]


@pytest.fixture(scope="session")
def served(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for all clients of the session, with the operations of these tests."""
    folder = tmp_path_factory.mktemp("served")
    with (
        databases.migrated() as url,
        serving(
            folder,
            *("--http", "127.0.0.1:0", "--max-concurrent-jobs", "8", "--poll-interval", "0.2"),
            *(
                "--export-source",
                str(sample_directory()),
                "--export-output",
                str(folder / "exported"),
            ),
            *("--handlers", "client_handlers:HANDLERS"),
            environ={"HASTETRIO_DATABASE_URL": url},
        ) as served,
    ):
        yield served
