"""A handler that counts words; see the README.

Run it: hastetrio worker --handlers count_words:count_words
"""

from __future__ import annotations

import trio

from hastetrio import JobContext, JobOutput, OperationOutcomeError, job_handler


@job_handler("count-words")
async def count_words(context: JobContext) -> JobOutput:
    """Count the words of the parameter `text`, a line at a time."""
    text = context.parameters.get("text")
    if not isinstance(text, str):
        raise OperationOutcomeError("required", "Give the text to count, as 'text'.")
    words = 0
    for part in text.split("\n"):
        words += len(part.split())
        context.report(f"{words} words so far")
        await trio.sleep(0.1)
    return JobOutput.json({"words": words})
