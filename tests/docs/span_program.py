"""Runs two jobs with spans, and prints the spans; started by test_examples.py in `examples/`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import trio
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hastetrio import AsyncJobWorker, CreateAsyncJob, JobContext, JobOutput, job_handler
from hastetrio.memory import MemoryJobProvider

sys.path.insert(0, str(Path.cwd()))


@job_handler("good")
async def good(context: JobContext) -> JobOutput:
    """Makes a span of its own, as a library for databases would."""
    with trace.get_tracer("library").start_as_current_span("query"):
        await trio.lowlevel.checkpoint()
    return JobOutput.json(None)


@job_handler("bad")
async def bad(context: JobContext) -> JobOutput:
    """Fails."""
    raise ZeroDivisionError


async def main() -> None:
    """Run one job of each, one after the other."""
    from opentelemetry_spans import spans  # type: ignore[import-not-found, unused-ignore]

    provider = MemoryJobProvider()
    worker = AsyncJobWorker(provider, [good, bad], middleware=[spans])
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        for kind in ("good", "bad"):
            created = CreateAsyncJob(kind=kind, claims={"sub": "me"})
            job = await provider.create_job("t", "p", created)
            found = await provider.read_job("t", "p", job.id)
            while found is not None and found.status.is_live:
                await trio.sleep(0.005)
                found = await provider.read_job("t", "p", job.id)
        worker.stop()


def shown(span: ReadableSpan) -> dict[str, object]:
    """A span as JSON."""
    assert span.context is not None
    return {
        "name": span.name,
        "span": span.context.span_id,
        "parent": None if span.parent is None else span.parent.span_id,
        "status": span.status.status_code.name,
        "attributes": dict(span.attributes or {}),
        "errors": [(event.attributes or {})["exception.type"] for event in span.events],
    }


if __name__ == "__main__":
    exporter = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(tracers)
    trio.run(main)
    by_name = {span.name: span for span in exporter.get_finished_spans()}
    print(json.dumps([shown(by_name[name]) for name in ("run good", "run bad", "query")]))
