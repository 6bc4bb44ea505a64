"""What is shipped: the wheel holds everything it needs, and the package says what it exports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hastetrio

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[1]


def _run(command: Sequence[str], **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    assert isinstance(done, subprocess.CompletedProcess)
    return done


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as its wheel installs it, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "src", "sql"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name)
        else:
            shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    _run([*build, str(source)])
    [wheel] = folder.glob("*.whl")
    target = folder / "site"
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target"]
    _run([*pip, str(target), str(wheel)])
    return target


def _from_wheel(installed: Path, *arguments: str, **environment: str) -> str:
    # Before this checkout's editable install on the path; in a folder that is not the checkout.
    variables = os.environ | {"PYTHONPATH": str(installed)} | environment
    return _run([sys.executable, *arguments], cwd=installed.parent, env=variables).stdout


def test_a_wheel_migrates_a_database(installed: Path, empty_database_url: str) -> None:
    """The statements are in the wheel, so that an installed program can make its tables."""
    where = _from_wheel(installed, "-c", "import hastetrio; print(hastetrio.__file__)")
    assert Path(where.strip()).is_relative_to(installed)
    url = {"HASTETRIO_DATABASE_URL": empty_database_url}
    assert "0001_async_jobs" in _from_wheel(installed, "-m", "hastetrio", "migrate", **url)
    _from_wheel(installed, "-m", "hastetrio", "migrate", "--check", **url)


def test_a_wheel_has_the_demo_and_its_sample(installed: Path) -> None:
    """The demo works from the wheel: its help, its sample data and its types are there."""
    assert "SIGKILL" in _from_wheel(installed, "-m", "hastetrio", "demo", "--help")
    program = "from hastetrio.bulk import sample_directory as s; print(len(list(s().iterdir())))"
    assert int(_from_wheel(installed, "-c", program)) >= 8
    assert (installed / "hastetrio" / "py.typed").is_file()
    assert (installed / "_hastetrio_pytest.py").is_file()


def test_every_public_name_is_reexported_on_purpose() -> None:
    """A type checker sees exactly the names that the package has at run time."""
    text = Path(hastetrio.__file__).read_text(encoding="utf-8")
    declared = {line.split(" as ")[1] for line in text.splitlines() if " as " in line}
    public = {name for name in vars(hastetrio) if not name.startswith("_")}
    modules = {name for name in public if isinstance(getattr(hastetrio, name), type(hastetrio))}
    assert declared == public - modules


def test_layers_import_downwards_only() -> None:
    """The worker core knows no SQL and no psycopg; the storages know no worker."""
    source = ROOT / "src" / "hastetrio"
    # Not `_context`: for type checkers it names the connection that a handler is given.
    core = (
        *("_worker", "_claims", "_job", "_held", "_renewals", "_record", "_maintenance"),
        *(
            "_finishing",
            "_handler",
            "_body",
            "_verdict",
            "_retry",
            "_typed",
            "_middleware",
            "_desk",
        ),
    )
    for name in core:
        text = (source / f"{name}.py").read_text(encoding="utf-8")
        for forbidden in ("psycopg", "hastetrio.postgres", "hastetrio.memory", "hastetrio.cli"):
            assert forbidden not in text, f"{name} imports {forbidden}"
    storages = [*source.glob("postgres/*.py"), source / "memory.py", *source.glob("_memory*.py")]
    for path in storages:
        text = path.read_text(encoding="utf-8")
        for name in (*core, "cli", "bulk", "testing"):
            assert f"hastetrio.{name}" not in text, f"{path.name} imports {name}"
