"""The HTTP face in this process: a client that speaks to the application itself."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import httpx2

from hastetrio import AsyncJob, JobContext, JobOutput, job_handler
from hastetrio._handler import FunctionHandler, JobHandler
from hastetrio._http_config import HttpConfig
from hastetrio._operation import Operation
from hastetrio._outcome import SEVERITIES, IssueType
from hastetrio._provider import AsyncJobProvider
from hastetrio._registration import handlers_by_kind
from hastetrio.fhir import Authenticator, Face, InvalidToken, make_app
from hastetrio.fhir._callers import PROJECT_CLAIM, TENANT_CLAIM
from hastetrio.memory import MemoryJobProvider

PUBLIC: Final = "https://fhir.example.org"
BASE: Final = "/w/t1/p1/api/v1/fhir/r4"
PREFER: Final = {"Prefer": "respond-async"}
RETENTION: Final = 3600.0


def handler(kind: str = "work", operation: Operation | None = None) -> FunctionHandler:
    """A handler of `kind` that returns nothing much; started by `$work` unless told otherwise."""

    @job_handler(kind, operation=operation or Operation(name="work"))
    async def work(context: JobContext) -> JobOutput:
        return JobOutput.resource({"resourceType": "Parameters"})

    return work


@attrs.define
class Tokens:
    """Believes exactly the tokens it was given, and says what they claim."""

    claims: dict[str, dict[str, Any]] = attrs.field(factory=dict)

    def add(
        self,
        token: str,
        *,
        sub: str = "somebody",
        tenant: str = "t1",
        project: str = "p1",
        scope: str = "system/*.rs",
    ) -> dict[str, str]:
        """Make a token believed; the header fields that present it."""
        self.claims[token] = {
            "sub": sub,
            "scope": scope,
            TENANT_CLAIM: tenant,
            PROJECT_CLAIM: project,
        }
        return {"Authorization": f"Bearer {token}"}

    async def claims_of(self, token: str) -> dict[str, Any]:
        """What a token claims."""
        if token not in self.claims:
            raise InvalidToken("it is not one of this test's")
        return self.claims[token]


def face(
    handlers: Iterable[JobHandler] = (),
    *,
    provider: AsyncJobProvider | None = None,
    authenticator: Authenticator | None = None,
    **config: Any,  # noqa: ANN401  # whatever HttpConfig takes
) -> Face:
    """A face on storage in memory, with the one handler of `$work` unless others are given."""
    return Face(
        provider=provider or MemoryJobProvider(),
        handlers=handlers_by_kind(list(handlers) or [handler()]),
        config=HttpConfig(**{"public_url": PUBLIC, **config}),
        authenticator=authenticator,
        retention=RETENTION,
    )


@asynccontextmanager
async def client(
    face: Face, headers: Mapping[str, str] | None = None
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of an application that serves `face`; addresses are relative to the host."""
    # The host differs from the public one: no address in an answer may be made of it.
    transport = httpx2.ASGITransport(make_app(face))
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://inside.invalid", headers=headers
    ) as client:
        yield client


async def stored(face: Face, tenant: str = "t1", project: str = "p1") -> list[AsyncJob]:
    """All jobs of a project, newest first."""
    return await face.provider.list_jobs(tenant, project, limit=200)


def check_outcome(answer: httpx2.Response) -> list[dict[str, Any]]:
    """See that an answer is a well-formed OperationOutcome that shows nothing of the server.

    Returns:
        Its issues.
    """
    assert answer.headers["content-type"] == "application/fhir+json"
    assert answer.headers["cache-control"] == "no-store"
    outcome = json.loads(answer.content)
    assert outcome["resourceType"] == "OperationOutcome"
    assert outcome["issue"]
    for issue in outcome["issue"]:
        assert issue["severity"] in SEVERITIES
        assert issue["code"] in set(IssueType)
        assert issue["diagnostics"].strip()
    for word in ("Traceback", 'File "', ".py", "site-packages"):
        assert word not in answer.text
    issues: list[dict[str, Any]] = outcome["issue"]
    return issues


def issue_of(answer: httpx2.Response) -> tuple[int, str, str]:
    """The status, and code and diagnostics of the only issue of an OperationOutcome."""
    (issue,) = check_outcome(answer)
    return answer.status_code, issue["code"], issue["diagnostics"]
