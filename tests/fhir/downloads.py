"""A handler whose files are made by the test."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Final

from hastetrio import AsyncJob, JobContext, JobHandler, JobOutput
from hastetrio._operation import ResultFile
from hastetrio.fhir import Face
from hastetrio.memory import MemoryJobProvider

from .harness import BASE, face

NDJSON: Final = "application/fhir+ndjson"
LONG: Final = b"".join(b'{"resourceType":"Patient","id":"%d"}\n' % n for n in range(10_000))


class Files(JobHandler):
    """A handler whose files are made by the test, and which counts those that are open."""

    kind = "files"

    def __init__(self, **files: bytes | Callable[[], io.BytesIO]) -> None:
        self.files = files
        self.opened: list[io.BytesIO] = []
        self.on_open: Callable[[], None] = lambda: None

    async def run(self, context: JobContext) -> JobOutput:
        """Never called."""
        raise NotImplementedError

    def open_result(self, job: AsyncJob, name: str, /) -> ResultFile | None:
        """Open what the test put under that name; the size is that of its bytes."""
        self.on_open()
        given = self.files.get(name)
        if given is None:
            return None
        file = io.BytesIO(given) if isinstance(given, bytes) else given()
        self.opened.append(file)
        return ResultFile(file=file, size=len(file.getbuffer()), content_type=NDJSON)

    def all_closed(self) -> bool:
        """Whether something was opened, and nothing is open any more."""
        return bool(self.opened) and all(file.closed for file in self.opened)


def a_face(handler: JobHandler, **options: Any) -> Face:  # noqa: ANN401
    """A face on storage in memory."""
    return face([handler], provider=MemoryJobProvider(), **options)


def insert(of: Face, status: str = "completed", **columns: Any) -> str:  # noqa: ANN401
    """Insert a job of the kind; its id."""
    provider = of.provider
    assert isinstance(provider, MemoryJobProvider)
    values: dict[str, Any] = {
        "tenant": "t1",
        "project": "p1",
        "kind": "files",
        "submitted_by": "anonymous",
        "claims": {"sub": "anonymous"},
        "status": status,
    }
    return provider.insert_row(**(values | columns)).id


def path_of(id: str, name: str = "x") -> str:
    """Where a file of a job is."""
    return f"{BASE}/_async/{id}/files/{name}"


class Unreadable(io.BytesIO):
    """A file that fails when it is read, from a given place on."""

    def __init__(self, content: bytes, good: int = 0) -> None:
        super().__init__(content)
        self._good = good

    def read(self, size: int | None = -1, /) -> bytes:
        """Read, or fail."""
        if self.tell() >= self._good:
            raise OSError(5, "Input/output error")
        return super().read(size)
