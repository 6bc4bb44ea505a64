"""An effect in one's own table, committed with the job's result: both, or neither.

The table is `CREATE TABLE invoices (visit text, cents integer)`, in the database of the jobs.

Run it: hastetrio worker --handlers exactly_once:invoice
"""

from __future__ import annotations

import attrs

from hastetrio import JobContext, JobOutput, job_handler


@attrs.frozen
class Visit:
    """What is to be invoiced."""

    visit: str
    minutes: int


@job_handler("invoice", parameters=Visit)
async def invoice(context: JobContext[Visit]) -> JobOutput:
    """Write the invoice of one visit, once, though this may run more than once."""
    # Slow work comes before the transaction: while that is open, nobody may change its rows.
    cents = context.parameters.minutes * 150
    async with context.transaction() as connection:
        await connection.execute(
            "INSERT INTO invoices (visit, cents) VALUES (%s, %s)",
            [context.parameters.visit, cents],
        )
        return await context.finish(connection, JobOutput.json({"cents": cents}))
