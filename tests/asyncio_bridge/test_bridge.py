"""The bridge to asyncio, in processes of its own: importing it changes asyncio for a whole one."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

BRIDGED = sorted(Path(__file__).parent.glob("bridged*.py"))
ROOT = Path(__file__).parents[2]

# A child that hangs is killed, and fails its tests; the children take seconds.
PATIENCE = 120

if sys.version_info >= (3, 14):
    pytest.skip("trio-asyncio does not support Python 3.14", allow_module_level=True)
if find_spec("trio_asyncio") is None:
    pytest.skip("trio-asyncio (the extra asyncio) is not installed", allow_module_level=True)


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def _import_error(before: str) -> str:
    """The one line that the bridge's import raises after some other code."""
    done = _python("-W", "error", "-c", f"{before}\nimport hastetrio.asyncio_bridge")
    assert done.returncode == 1, done.stdout + done.stderr
    kind, _, text = done.stderr.strip().splitlines()[-1].partition(": ")
    assert kind in ("ImportError", "ModuleNotFoundError")
    return text


def _names() -> list[str]:
    body = [node for path in BRIDGED for node in ast.parse(path.read_text("utf-8")).body]
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        node.name for node in body if isinstance(node, functions) and node.name.startswith("test_")
    ]


@pytest.fixture(scope="module")
def bridged() -> tuple[dict[str, set[str]], str]:
    """What became of each test in `bridged*.py`, and the output of the child that ran them."""
    # Neither plugin is needed, and each wants to write into the checkout, which may not be ours.
    plugins = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    done = _python("-m", "pytest", "-vv", "--color=no", *plugins, *map(str, BRIDGED))
    found: dict[str, set[str]] = {name: set() for name in _names()}
    for name, result in re.findall(r"::(test_\w+)\S* ([A-Z]+)", done.stdout):
        found[name].add(result)
    return found, done.stdout + done.stderr


@pytest.mark.parametrize("name", _names())
def test_bridged(name: str, bridged: tuple[dict[str, set[str]], str]) -> None:
    """Each test of `bridged*.py` passes, in a process that imported the bridge."""
    results, output = bridged
    if results[name] == {"SKIPPED"}:
        pytest.skip("skipped in the child")
    assert results[name] == {"PASSED"}, output


def test_nothing_else_imports_trio_asyncio_and_the_order_does_not_matter_to_us() -> None:
    """Every other module may be loaded before the bridge, so that a module of handlers may be."""
    done = _python(
        "-W",
        "error",
        "-c",
        "import importlib, pkgutil, sys, hastetrio\n"
        "for module in pkgutil.walk_packages(hastetrio.__path__, 'hastetrio.'):\n"
        "    if not module.name.endswith(('.asyncio_bridge', '.__main__')):\n"
        "        importlib.import_module(module.name)\n"
        "assert 'hastetrio.postgres._connection' in sys.modules\n"
        "assert 'trio_asyncio' not in sys.modules\n"
        "import hastetrio.asyncio_bridge\n"
        "assert 'trio_asyncio' in sys.modules",
    )
    assert done.returncode == 0, done.stderr


def test_a_module_that_would_not_find_its_loop_is_named() -> None:
    """It took its copy of asyncio's function before trio-asyncio could replace it."""
    text = _import_error("from asyncio import get_running_loop as loop")
    assert text.startswith("import hastetrio.asyncio_bridge first in the entry point: __main__ ")


def test_python_3_14_is_refused() -> None:
    """With what to do instead."""
    text = _import_error("import hastetrio, sys; sys.version_info = (3, 14, 0, 'final', 0)")
    assert "does not work on Python 3.14" in text
    assert "trio.run_process" in text


def test_a_missing_extra_is_named() -> None:
    """As the command that installs it."""
    text = _import_error("import sys; sys.modules['trio_asyncio'] = None")
    assert text.endswith("needs trio-asyncio: pip install 'hastetrio[asyncio]'")


def test_the_command_line_of_the_documentation_works() -> None:
    """For libraries that must not be imported before the bridge: it comes before psycopg."""
    text = (ROOT / "docs" / "asyncio.md").read_text("utf-8")
    (program,) = re.findall(r'python -c "(.*?)" worker', text)
    done = _python("-W", "error", "-c", program, "worker", "--help")
    assert done.returncode == 0, done.stderr
    assert "--handlers" in done.stdout
