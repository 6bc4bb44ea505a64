"""Operations for clients to start, beside `$export`: a resource, a failure, and one that waits."""

from __future__ import annotations

import trio

from hastetrio import JobContext, JobOutput, Operation, OperationOutcomeError, job_handler


@job_handler("greet", operation=Operation(name="greet"))
async def greet(context: JobContext) -> JobOutput:
    """A resource at once."""
    parameter = {"name": "greeting", "valueString": "hello"}
    return JobOutput.resource({"resourceType": "Parameters", "parameter": [parameter]})


@job_handler("refuse", operation=Operation(name="refuse"))
async def refuse(context: JobContext) -> JobOutput:
    """A failure that only the client can mend."""
    raise OperationOutcomeError("business-rule", "There is nothing to be had on Sundays.")


@job_handler("hold", operation=Operation(name="hold"))
async def hold(context: JobContext) -> JobOutput:
    """A resource, once the file that the parameter `until` names is there."""
    gate = trio.Path(context.job.parameters["until"])
    context.report("holding")
    while not await gate.exists():  # noqa: ASYNC110  # a file announces itself to nobody
        await trio.sleep(0.02)
    return JobOutput.resource({"resourceType": "Basic", "id": "held"})


HANDLERS = [greet, refuse, hold]
