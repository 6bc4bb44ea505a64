"""Handlers for worker processes: each pays once, and waits for its gate inside the transaction."""

from __future__ import annotations

from hastetrio import JobContext, JobOutput, job_handler

# Importing it makes this process die with its test.
from .process_handlers import answer, opened


@job_handler("pays-late")
async def pays_late(context: JobContext) -> JobOutput:
    """Waits before it gives its result."""
    async with context.transaction() as connection:
        await connection.execute("UPDATE account SET balance = balance + 1")
        await opened(context.job)
        return await context.finish(connection, answer(context))


@job_handler("pays")
async def pays(context: JobContext) -> JobOutput:
    """Waits before it commits."""
    async with context.transaction() as connection:
        await connection.execute("UPDATE account SET balance = balance + 1")
        await context.finish(connection, answer(context))
        await opened(context.job)
    return answer(context)


everything = [pays_late, pays]
