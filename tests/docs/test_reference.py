"""The reference pages keep step with the program, and no page names what is not there."""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
import click
import prometheus_client
import pytest

from hastetrio import AsyncJobStatus, Counts, WorkerStatistics
from hastetrio._settings import CONFIG_VARIABLE, KEYS, load
from hastetrio.cli._app import app
from hastetrio.fhir._metrics import Metrics
from hastetrio.postgres import Holder, KindWaiting, QueueOverview, StatusCount

from .blocks import DOCS, ROOT, blocks_of

PAGES: Final = [ROOT / "README.md", *sorted(DOCS.glob("**/*.md"))]

# Variables of the tests, which are no settings.
_OF_TESTS: Final = {"HASTETRIO_TEST_SERVER", "HASTETRIO_CLIENTS_CACHE"}

_API: Final = re.compile(r"^\.\. (?:auto\w+|py:data):: (hastetrio\.[\w.]+)$", re.MULTILINE)


def test_every_public_name_is_in_the_api_reference() -> None:
    """Whatever may be imported is explained, once, under the name it is imported by."""
    text = "".join(page.read_text("utf-8") for page in sorted((DOCS / "api").glob("*.md")))
    documented = _API.findall(text)
    assert len(documented) == len(set(documented))
    modules = re.findall(r"^\.\. py:module:: ([\w.]+)$", text, re.MULTILINE)
    assert len(modules) == 8
    assert set(_public_names(modules)) == set(documented)


def _public_names(modules: list[str]) -> Iterator[str]:
    """What `X as X` exports, and what is defined there; read, for to import one patches asyncio."""
    for name in modules:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        found = []
        for node in ast.walk(ast.parse(Path(spec.origin).read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom):
                found += [one.name for one in node.names if one.asname == one.name]
        for node in ast.parse(Path(spec.origin).read_text("utf-8")).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                found.append(node.name)
        names = [one for one in found if not one.startswith("_")]
        assert names, name
        yield from (f"{name}.{one}" for one in names)


QUEUE: Final = QueueOverview(
    counts=(StatusCount(AsyncJobStatus.IN_PROGRESS, "export", 3),),
    waiting=(KindWaiting("export", 2, 12.5),),
    lapsed=1,
    holders=(Holder("w1", ("export",), 2, 30.0),),
)


@attrs.frozen
class Metric:
    """What is said of a metric, or shown by it."""

    type: str
    labels: frozenset[str]
    results: frozenset[str]


async def test_the_page_of_metrics_has_what_is_exported() -> None:
    """Name, type and labels of each metric, and the values of `result`."""

    async def overview() -> QueueOverview:
        return QUEUE

    statistics = WorkerStatistics("w1", 4, 3, 1, (), Counts())
    metrics = Metrics(overview, lambda: statistics)
    metrics._requests.count("metadata", "GET", 200, 0.1)
    await metrics.refresh()
    shown = {_name(family): _shown(family) for family in metrics.collect()}
    assert len(shown) > 15
    assert shown == dict(_told((DOCS / "metrics.md").read_text("utf-8")))


def _name(family: prometheus_client.Metric) -> str:
    return family.name + ("_total" if family.type == "counter" else "")


def _shown(family: prometheus_client.Metric) -> Metric:
    labels = {label for sample in family.samples for label in sample.labels} - {"le"}
    results = {sample.labels["result"] for sample in family.samples if "result" in sample.labels}
    return Metric(family.type, frozenset(labels), frozenset(results))


def _told(text: str) -> Iterator[tuple[str, Metric]]:
    for name, type_, labels in re.findall(
        r"^\| `(hastetrio_\w+)` \| (\w+) \| (.*?) ?\|", text, re.MULTILINE
    ):
        names, _, results = labels.partition(":")
        yield (
            name,
            Metric(
                type_,
                frozenset(re.findall(r"`(\w+)`", names)),
                frozenset(re.findall(r"`(\w+)`", results)),
            ),
        )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_variable_and_flag_that_a_page_names_exists(page: Path) -> None:
    """A setting that was renamed is renamed in the documentation too."""
    text = page.read_text("utf-8")
    known = {key.variable for key in KEYS.values()} | {CONFIG_VARIABLE} | _OF_TESTS
    assert set(re.findall(r"\bHASTETRIO_[A-Z_]*[A-Z]\b", text)) <= known
    assert set(re.findall(r"`(--[a-z][a-z-]*)[ `]", text)) <= _every_option(app)
    for words, rest in re.findall(r"\bhastetrio ([a-z]+(?: [a-z]+)*)( [^`\n#|]*)?", text):
        # Prose has the word too, but no options behind it.
        flags = set(re.findall(r"(?<= )--[a-z][a-z-]*", rest))
        if flags:
            assert flags <= _options(words.split()), f"hastetrio {words}"


def _options(words: list[str]) -> set[str]:
    """The options of a command, and those that every command has."""
    command: click.Command = app
    found = {"--help"} | _names(app)
    while isinstance(command, click.Group):
        inner = command.get_command(click.Context(command), words.pop(0))
        assert inner is not None
        command = inner
        found |= _names(command)
    return found


def _every_option(command: click.Command) -> set[str]:
    found = {"--help"} | _names(command)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            found |= _every_option(inner)
    return found


def _names(command: click.Command) -> set[str]:
    return {name for one in command.params for name in (*one.opts, *one.secondary_opts)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_settings_file_that_a_page_shows_is_one(page: Path, tmp_path: Path) -> None:
    """Its keys are known, and their values are accepted."""
    for block in blocks_of(page, "toml"):
        file = tmp_path / "hastetrio.toml"
        file.write_text(block.text, "utf-8")
        settings = load({}, {}, config=file).settings
        for name, value in tomllib.loads(block.text).items():
            owner = settings if hasattr(settings, name) else settings.worker
            assert getattr(owner, name) == value


def test_the_settings_page_names_every_setting_once() -> None:
    """Its three tables, made when the site is built, are all settings there are."""
    text = (DOCS / "settings.md").read_text("utf-8")
    groups = re.findall(r"^```\{settings-table\} (\w+)\n```$", text, re.MULTILINE)
    assert sorted(groups) == ["all", "face", "worker"]
