"""Where the foreign clients live: an environment of its own for each, made once, in a cache folder.

The folder is `hastetrio-clients` of the user's cache, or the one HASTETRIO_CLIENTS_CACHE names.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs

from .processes import ended

# Written last, so that an environment whose making was interrupted is made again.
_MARKER: Final = "client.json"

_INSTALL_SECONDS: Final = 300.0


class NotToBeHad(Exception):
    """A client cannot be installed here; the text says why."""


@attrs.frozen
class Client:
    """A foreign client.

    Args:
        name: Its folder.
        installer: What installs it: pip, or npm.
        packages: What to install.
    """

    name: str
    installer: str
    packages: tuple[str, ...]


# smart-fetch and sekmet want different versions of the same packages.
SMART_FETCH: Final = Client("smart-fetch", "pip", ("smart-fetch>=1.0.3,<1.1",))
SEKMET: Final = Client("sekmet-fhir", "pip", ("sekmet-fhir>=0.1.1,<0.2",))
# The newest that runs on Node 20.
MEDPLUM: Final = Client("medplum-core", "npm", ("@medplum/core@~4.5.2",))


def cache_folder() -> Path:
    """Where the environments are kept."""
    if given := os.environ.get("HASTETRIO_CLIENTS_CACHE"):
        return Path(given)
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "hastetrio-clients"


def folder_of(client: Client) -> Path:
    """The folder of a client's environment, which is made if it is not there.

    Raises:
        NotToBeHad: What installs it is missing, or could not.
    """
    cache = cache_folder()
    folder = cache / client.name
    wanted = {"packages": list(client.packages)}
    try:
        with _alone(cache):
            if _marker(folder) != wanted:
                shutil.rmtree(folder, ignore_errors=True)
                _install(client, folder)
                (folder / _MARKER).write_text(json.dumps(wanted), "utf-8")
    except OSError as error:
        raise NotToBeHad(f"{folder} cannot be written: {error.strerror}") from None
    return folder


def _install(client: Client, folder: Path) -> None:
    if client.installer == "pip":
        _call([sys.executable, "-m", "venv", str(folder)])
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        _call([*pip, *client.packages])
        return
    npm = shutil.which("npm")
    if npm is None:
        raise NotToBeHad("npm is not installed")
    folder.mkdir(parents=True)
    quiet = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
    _call([npm, "install", *quiet, "--prefix", str(folder), *client.packages])


def _call(command: Sequence[str]) -> None:
    try:
        code, said = ended(command, seconds=_INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        raise NotToBeHad(f"installing took more than {_INSTALL_SECONDS:.0f} s") from None
    if code:
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith(("error", "npm error"))]
        raise NotToBeHad((errors or lines or [f"{command[0]} ended with {code}"])[-1][:300])


def _marker(folder: Path) -> Mapping[str, object] | None:
    try:
        found: Mapping[str, object] = json.loads((folder / _MARKER).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found


@contextmanager
def _alone(cache: Path) -> Iterator[None]:
    """One process at a time makes environments in that folder."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
