"""The status of a job, its cancellation, and the list of a caller's own jobs.

Bulk Data Access v2, https://hl7.org/fhir/uv/bulkdata/STU2/export.html#bulk-data-status-request.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, Final

import attrs
from starlette.requests import Request
from starlette.responses import Response

from hastetrio._errors import UnstorableValue
from hastetrio._model import PLAIN_JSON, AsyncJob, AsyncJobStatus
from hastetrio._outcome import Issue, IssueType, Json, outcome_json
from hastetrio._storable import is_text
from hastetrio.fhir._accept import check_accept
from hastetrio.fhir._callers import Caller
from hastetrio.fhir._errors import RequestError, not_found, status_of_failure
from hastetrio.fhir._face import Face, information, json_response
from hastetrio.fhir._places import Place
from hastetrio.fhir._polls import retry_after

# Bulk Data Access v2: X-Progress has fewer than 100 characters.
_PROGRESS_LIMIT: Final = 99

_PAGE: Final = 50
_LARGEST_PAGE: Final = 200


async def own_job(face: Face, place: Place, caller: Caller, id: str) -> AsyncJob:
    """A job of the caller's.

    Raises:
        RequestError: 404, whatever the reason is.
    """
    job = await face.provider.read_job(
        place.tenant, place.project, id, submitted_by=caller.submitter
    )
    if job is None:
        raise not_found()
    return job


async def status(face: Face, _: Request, place: Place, caller: Caller) -> Response:
    """How a job stands: 202 while it is to be waited for, then its result or its failure."""
    id = place.rest[1]
    early = face.polls.wait(id, caller.submitter)
    if early:
        raise RequestError(
            429,
            IssueType.THROTTLED,
            f"The status is asked for too often: ask again in {early} s.",
            headers={"Retry-After": str(early)},
        )
    job = await own_job(face, place, caller, id)
    if job.status.is_live:
        seconds = retry_after((datetime.now(UTC) - job.created_at).total_seconds())
        face.polls.told(id, caller.submitter, seconds)
        return _running(job, seconds, face.url(place, "_async", id))
    face.polls.ended(id, caller.submitter)
    if job.status is AsyncJobStatus.FAILED:
        return _failed(job)
    return _completed(job)


def _running(job: AsyncJob, seconds: int, address: str) -> Response:
    waiting = job.status is AsyncJobStatus.ACCEPTED
    progress = progress_field(job.progress or ("queued" if waiting else "in progress"))
    fields = {
        "X-Progress": progress,
        "Retry-After": str(seconds),
        # @medplum/core 4.5.2 asks next at Content-Location, or else at whatever stands in the
        # diagnostics, at each 202.
        "Content-Location": address,
    }
    text = "The job waits to be started." if waiting else "The job is running."
    return information(202, text, fields)


def progress_field(text: str) -> str:
    """A progress text as a header field: one line of ASCII, below 100 characters."""
    line = " ".join(text.split()).encode("ascii", "replace").decode()
    return "".join(c if c.isprintable() else "?" for c in line)[:_PROGRESS_LIMIT].strip() or "?"


def _completed(job: AsyncJob) -> Response:
    if job.output is None and job.claims is None:
        # The row holds something that cannot be loaded; it was read without its JSON.
        raise RequestError(
            500,
            IssueType.EXCEPTION,
            "The job completed, but its stored result is outside what this server can read.",
        )
    return json_response(job.output, content_type=_content_type(job), headers=_expires(job))


def _content_type(job: AsyncJob) -> str:
    type = job.output_content_type or ""
    # Another program may have stored any text; a line break in it would break the answer.
    return type if type.isascii() and type.isprintable() and type.strip() else PLAIN_JSON


def _failed(job: AsyncJob) -> Response:
    outcome = job.error
    if not isinstance(outcome, dict) or outcome.get("resourceType") != "OperationOutcome":
        issue = Issue(IssueType.EXCEPTION, "The job failed; what it left does not say why.")
        outcome = outcome_json((issue,))
    # No Retry-After: once failed, the request is done.
    return json_response(_final(outcome), status_of_failure(outcome), headers=_expires(job))


def _final(outcome: Json) -> Json:
    """The outcome as that of a job, which is never `transient`.

    Bulk Data Access v2 keeps that code for a poll that failed: a client that meets it asks again.
    """
    issues = outcome.get("issue")
    if not isinstance(issues, list):
        return outcome
    transient, final = IssueType.TRANSIENT.value, IssueType.EXCEPTION.value
    return outcome | {
        "issue": [
            one | {"code": final} if isinstance(one, dict) and one.get("code") == transient else one
            for one in issues
        ]
    }


def _expires(job: AsyncJob) -> dict[str, str]:
    return {"Expires": format_datetime(job.expires_at.astimezone(UTC), usegmt=True)}


async def cancel(face: Face, _: Request, place: Place, caller: Caller) -> Response:
    """Cancel a job, or give up its result; it is gone at once."""
    id = place.rest[1]
    try:
        job = await face.provider.cancel_job(
            place.tenant, place.project, id, submitted_by=caller.submitter
        )
    except UnstorableValue:
        # It is cancelled all the same: only what it was before cannot be read.
        pass
    else:
        if job is None:
            raise not_found()
    face.polls.ended(id, caller.submitter)
    return information(202, f"Job {id} was cancelled, and what it produced is deleted.")


async def jobs(face: Face, request: Request, place: Place, caller: Caller) -> Response:
    """A page of the caller's own jobs, newest first, as a Parameters resource."""
    check_accept(request.headers.getlist("accept"))
    count = _count(request.query_params.get("_count"))
    found = await face.provider.list_jobs(
        place.tenant,
        place.project,
        submitted_by=caller.submitter,
        limit=count + 1,
        before=_position(request.query_params.get("_after")),
    )
    listed: list[dict[str, Any]] = [
        {"name": "job", "part": _parts(face, place, job)} for job in found[:count]
    ]
    if len(found) > count:
        last = found[count - 1]
        query = f"_count={count}&_after={_token(last)}"
        listed.append({"name": "next", "valueUri": face.url(place, "_async") + "?" + query})
    resource: dict[str, Any] = {"resourceType": "Parameters"}
    if listed:
        # FHIR has no empty arrays.
        resource["parameter"] = listed
    return json_response(resource)


def _parts(face: Face, place: Place, job: AsyncJob) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [
        {"name": "url", "valueUri": face.url(place, "_async", job.id)},
        {"name": "status", "valueCode": job.status.value},
        {"name": "kind", "valueString": job.kind},
        {"name": "submitted", "valueInstant": _instant(job.created_at)},
    ]
    if job.request:
        parts.append({"name": "request", "valueUri": job.request})
    if job.progress and job.status.is_live:
        parts.append({"name": "progress", "valueString": job.progress})
    if job.finished_at is not None:
        parts.append({"name": "finished", "valueInstant": _instant(job.finished_at)})
    parts.append({"name": "expires", "valueInstant": _instant(job.expires_at)})
    return parts


def _instant(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _count(text: str | None) -> int:
    if text is None:
        return _PAGE
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text)):
        raise RequestError(
            400, IssueType.VALUE, "_count must be a whole number of jobs, 1 at least."
        )
    return min(int(text), _LARGEST_PAGE)


@attrs.frozen
class _Position:
    """Where a page of the list ended."""

    created_at: datetime
    id: str


def _token(job: AsyncJob) -> str:
    text = f"{job.created_at.astimezone(UTC).isoformat()} {job.id}"
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _position(token: str | None) -> _Position | None:
    if token is None:
        return None
    try:
        text = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
        moment, _, id = text.partition(" ")
        created_at = datetime.fromisoformat(moment)
    except (ValueError, binascii.Error):
        raise _no_position() from None
    if created_at.tzinfo is None or not is_text(id):
        raise _no_position()
    return _Position(created_at, id)


def _no_position() -> RequestError:
    return RequestError(
        400, IssueType.VALUE, "_after must be taken from the next link of an earlier page."
    )
