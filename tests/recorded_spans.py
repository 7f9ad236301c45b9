"""Spans kept in a list, made by the tracer of the agent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from pykubelet.clients.otlp.tracer import OtelTracer
from pykubelet.kit import tracing

ALL = 1_000_000


class RecordedSpans(list[ReadableSpan]):
    """In the order of their ends."""

    @property
    def names(self) -> list[str]:
        return [span.name for span in self]

    def one(self, name: str) -> ReadableSpan:
        (found,) = (span for span in self if span.name == name)
        return found

    def parent_of(self, span: ReadableSpan) -> str:
        """The name of its parent; empty for the first of a trace."""
        if span.parent is None:
            return ""
        return next(each.name for each in self if id_of(each) == span.parent.span_id)


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.trace_id


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@contextmanager
def recorded_spans(samples_per_million: int = ALL) -> Iterator[RecordedSpans]:
    spans = RecordedSpans()
    tracer = OtelTracer(samples_per_million=samples_per_million, host="node1", version="1", ended=spans.append)
    with tracing.traced(tracer):
        yield spans
