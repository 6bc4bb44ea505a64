"""The README's and the examples' code runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hastetrio import AsyncJobStatus, JobHandler
from hastetrio.testing import run_job

ROOT = Path(__file__).parents[1]


def _blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)


def test_the_readme_handler_runs_and_its_test_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a newcomer copies from the README works."""
    handler, test = _blocks()
    (tmp_path / "my_handlers.py").write_text(handler, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    namespace: dict[str, object] = {}
    exec(compile(test, "README.md", "exec"), namespace)  # noqa: S102
    run = namespace["test_words_are_counted"]
    assert callable(run)
    run()


def test_the_example_is_the_readme_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file in examples/ counts words, and says what it needs when it is not given."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from count_words import count_words  # type: ignore[import-not-found, unused-ignore]

    assert isinstance(count_words, JobHandler)
    assert run_job(count_words, parameters={"text": "a b"}).output == {"words": 2}
    failed = run_job(count_words, parameters={})
    assert failed.status is AsyncJobStatus.FAILED
    assert failed.error["issue"][0]["code"] == "required"
