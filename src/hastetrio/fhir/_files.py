"""The files of a completed job's result, streamed from wherever its handler keeps them.

    own job -> handler.open_result, in a thread -> 64 KiB after 64 KiB, each read in a thread

Bulk Data Access v2, https://hl7.org/fhir/uv/bulkdata/STU2/export.html#bulk-data-output-file-request.
No database connection is held while a file is sent.
"""

from __future__ import annotations

import logging
import zlib
from typing import Final

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from hastetrio._model import AsyncJobStatus
from hastetrio._operation import ResultFile
from hastetrio._outcome import IssueType
from hastetrio.fhir._callers import Caller
from hastetrio.fhir._coding import chosen_coding
from hastetrio.fhir._errors import RequestError, not_found
from hastetrio.fhir._face import Face
from hastetrio.fhir._places import Place
from hastetrio.fhir._status import own_job

CHUNK: Final = 64 * 1024

# Seconds in which a client must take one chunk. 64 KiB a minute is 1 KiB/s, slower than any line
# that an export of megabytes is fetched over: whoever takes less has stopped reading.
STALL: Final = 60.0

# Threads that read files at once. A disk that hangs blocks these and nothing else: trio's default
# 40 stay with the rest of the process. More would not read faster than one disk can.
_THREADS: Final = 16

# zlib's number for "with a gzip header, and the largest window": 16 + 15.
_GZIP_WINDOW: Final = 31

_logger = logging.getLogger("hastetrio.fhir")

_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("hastetrio.fhir.files")


def _threads() -> trio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        limiter = trio.CapacityLimiter(_THREADS)
        _limiter.set(limiter)
        return limiter


async def result_file(face: Face, request: Request, place: Place, caller: Caller) -> Response:
    """A file of a completed job of the caller's.

    Raises:
        RequestError: 404 where there is none, whatever the reason is; 406 where the client takes
            neither the bytes as they are nor gzip.

    Cancellation: waits for the thread that opens the file. The answer owns the file, and closes
    it when it has been sent or cut short.
    """
    _, id, _, name = place.rest
    job = await own_job(face, place, caller, id)
    handler = face.handlers.get(job.kind)
    if handler is None or job.status is not AsyncJobStatus.COMPLETED:
        raise not_found()
    coding = chosen_coding(request.headers.getlist("accept-encoding"))
    if coding is None:
        raise RequestError(
            406,
            IssueType.NOT_SUPPORTED,
            "Files are sent as they are or with gzip; Accept-Encoding takes neither.",
        )
    opened = await trio.to_thread.run_sync(handler.open_result, job, name, limiter=_threads())
    if opened is None:
        raise not_found()
    return _Download(opened, is_gzipped=coding == "gzip", job_id=job.id)


class _Download(Response):
    """An answer that is read from a file while it is sent, and closes it."""

    def __init__(self, opened: ResultFile, *, is_gzipped: bool, job_id: str) -> None:
        fields = {
            "Content-Type": opened.content_type,
            "Cache-Control": "no-store",
            "Vary": "Accept-Encoding",
        }
        if is_gzipped:
            fields["Content-Encoding"] = "gzip"
        else:
            fields["Content-Length"] = str(opened.size)
        super().__init__(None, headers=fields)
        if is_gzipped:
            # Starlette counts the empty body it was given.
            del self.headers["content-length"]
        self._source = _Source(opened, is_gzipped=is_gzipped)
        self._job_id = job_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer.

        What cannot be sent whole is left without its end, on which the server cuts the
        connection: a short file must not look like a complete one.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_until_gone, receive, nursery.cancel_scope)
                await self._send(send, with_body=scope["method"] != "HEAD")
                nursery.cancel_scope.cancel()
        finally:
            self._source.close()

    async def _send(self, send: Send, *, with_body: bool) -> None:
        start: Message = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        is_taken = await self._sent(send, start)
        while is_taken and with_body:
            try:
                chunk = await trio.to_thread.run_sync(self._source.read, limiter=_threads())
            except OSError as error:
                _logger.error("A file of job %s cannot be read to its end: %s", self._job_id, error)
                return
            if not chunk:
                break
            body: Message = {"type": "http.response.body", "body": chunk, "more_body": True}
            is_taken = await self._sent(send, body)
        if is_taken:
            await self._sent(send, {"type": "http.response.body", "body": b""})

    async def _sent(self, send: Send, message: Message) -> bool:
        """Send one message; False where the client does not take it."""
        with trio.move_on_after(STALL) as scope:
            try:
                await send(message)
            except OSError:
                # The client went away (ASGI's HTTP specification, 2.4).
                return False
        if scope.cancelled_caught:
            _logger.info(
                "A download from job %s ended: the client took nothing for %.0f s",
                self._job_id,
                STALL,
            )
        return not scope.cancelled_caught


async def _until_gone(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


class _Source:
    """A result's bytes in chunks, gzipped or as they are. `read` blocks: call it in a thread."""

    def __init__(self, opened: ResultFile, *, is_gzipped: bool) -> None:
        self._file = opened.file
        self._size = opened.size
        self._left = opened.size
        self._gzip = zlib.compressobj(wbits=_GZIP_WINDOW) if is_gzipped else None

    def read(self) -> bytes:
        """The next bytes; none at the end.

        Raises:
            OSError: The file cannot be read, or is shorter than it was when it was opened.
        """
        while self._left:
            data = self._file.read(min(CHUNK, self._left))
            if not data:
                read = self._size - self._left
                raise OSError(f"it ends after {read:,} of {self._size:,} bytes")
            self._left -= len(data)
            if self._gzip is None:
                return data
            # The compressor keeps what it takes until it has enough of it.
            packed = self._gzip.compress(data)
            if packed:
                return packed
        if self._gzip is None:
            return b""
        rest, self._gzip = self._gzip.flush(), None
        return rest

    def close(self) -> None:
        """Close the file."""
        self._file.close()
