"""A middleware that makes an OpenTelemetry span of each run.

It needs `opentelemetry-api`; what becomes of the spans is the program's set-up of
`opentelemetry-sdk`. Spans that a handler's libraries make become children of the run's.

Run it: hastetrio worker --handlers my_handlers:all --middleware opentelemetry_spans:spans
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from hastetrio import JobRun

_tracer = trace.get_tracer("hastetrio")


@contextmanager
def spans(run: JobRun) -> Iterator[None]:
    """A span around one run, in the task of its handler."""
    attributes: dict[str, str | int] = {
        "hastetrio.job.id": run.job.id,
        "hastetrio.job.kind": run.job.kind,
        "hastetrio.job.attempt": run.context.attempt,
    }
    with _tracer.start_as_current_span(
        f"run {run.job.kind}", kind=SpanKind.CONSUMER, attributes=attributes
    ) as span:
        yield
        outcome = run.outcome
        if outcome is None:
            return
        span.set_attribute("hastetrio.job.outcome", outcome.status)
        if outcome.reason is not None:
            span.set_attribute("hastetrio.job.cancel_reason", str(outcome.reason))
        if outcome.error is not None:
            span.record_exception(outcome.error)
        if outcome.status == "failed":
            span.set_status(Status(StatusCode.ERROR, str(outcome.error)))
