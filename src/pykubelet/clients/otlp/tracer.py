"""Spans made with the OpenTelemetry library: sampling, parents from other processes, bounds of what is kept.

A span is sampled when its parent is, and one without a parent by the configured rate. Imported only where tracing is
configured, because the library is an extra. Does not cover: what spans are made of (callers), sending (sender.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import Token
from types import TracebackType
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pykubelet.kit import tracing
from pykubelet.kit.log import clean
from pykubelet.kit.tracing import Kind, Pairs, Span, Value

SCOPE: Final = "pykubelet"
SERVICE: Final = "kubelet"
MOST_PAIRS: Final = 128
"""Attributes, events and links of a span; what upstream's library keeps."""
LONGEST: Final = 2048
"""Characters of an attribute or a text: callers, images and runtimes choose them."""
LONGEST_STATE: Final = 512
"""Characters of a caller's tracestate, which is passed on."""

_KINDS: Final = {
    Kind.INTERNAL: trace.SpanKind.INTERNAL,
    Kind.CLIENT: trace.SpanKind.CLIENT,
    Kind.SERVER: trace.SpanKind.SERVER,
}
_SAMPLED: Final = trace.TraceFlags.SAMPLED


class OtelTracer:
    def __init__(
        self, *, samples_per_million: int, host: str, version: str, ended: Callable[[ReadableSpan], None]
    ) -> None:
        """`ended` takes each sampled span at its end."""
        rate = samples_per_million / 1_000_000
        named = Resource({"service.name": SERVICE, "host.name": host})
        provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(rate) if rate > 0 else ALWAYS_OFF),
            # OTEL_RESOURCE_ATTRIBUTES may add to the names, as for the Go kubelet.
            resource=OTELResourceDetector().detect().merge(named),
            shutdown_on_exit=False,
            span_limits=SpanLimits(
                max_span_attributes=MOST_PAIRS,
                max_events=MOST_PAIRS,
                max_links=MOST_PAIRS,
                max_event_attributes=MOST_PAIRS,
                max_span_attribute_length=LONGEST,
                max_attribute_length=LONGEST,
            ),
        )
        provider.add_span_processor(_Ended(ended))
        self._tracer = provider.get_tracer(SCOPE, version)
        self._parents = TraceContextTextMapPropagator()

    def span(self, name: str, kind: Kind, parent: Span) -> Span:
        context = parent.context if isinstance(parent, OtelSpan) else Context()
        return OtelSpan(self._tracer.start_span(name, context, _KINDS[kind]))

    def served(self, name: str, headers: Pairs, *, trusted: bool) -> Span:
        caller = self._caller(headers)
        given = trace.get_current_span(caller).get_span_context()
        if trusted or not given.is_valid:
            return OtelSpan(self._tracer.start_span(name, caller, trace.SpanKind.SERVER))
        # A trace of its own, sampled by our rate, that says which one it belongs to.
        links = [trace.Link(given)]
        return OtelSpan(self._tracer.start_span(name, Context(), trace.SpanKind.SERVER, links=links))

    def _caller(self, headers: Pairs) -> Context:
        parents = [value for key, value in headers if key == "traceparent"]
        state = ",".join(value for key, value in headers if key == "tracestate")
        if len(parents) != 1:
            return Context()
        carrier = {"traceparent": parents[0]}
        if 0 < len(state) <= LONGEST_STATE:
            carrier["tracestate"] = state
        return self._parents.extract(carrier, Context())


class _Ended(SpanProcessor):
    def __init__(self, ended: Callable[[ReadableSpan], None]) -> None:
        self._ended = ended

    def on_end(self, span: ReadableSpan) -> None:
        self._ended(span)


class OtelSpan:
    __slots__ = ("_span", "_token", "recorded")

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self.recorded = span.is_recording()
        self._token: Token[Span] | None = None

    @property
    def context(self) -> Context:
        """In which spans are parts of this one."""
        return trace.set_span_in_context(self._span, Context())

    @property
    def carrier(self) -> Pairs:
        given = self._span.get_span_context()
        # Only the flag of sampling: Go programs with a library before 1.43, as Kubernetes 1.36 and containerd 2.0 are
        # built with, take no other flag, and then no parent.
        flags = given.trace_flags & _SAMPLED
        parent = f"00-{trace.format_trace_id(given.trace_id)}-{trace.format_span_id(given.span_id)}-{flags:02x}"
        pairs = [("traceparent", parent)]
        if given.trace_state:
            pairs.append(("tracestate", given.trace_state.to_header()))
        return pairs

    def set(self, attributes: Mapping[str, Value]) -> None:
        self._span.set_attributes(_clean(attributes))

    def event(self, name: str, attributes: Mapping[str, Value]) -> None:
        self._span.add_event(name, _clean(attributes))

    def fail(self, text: str) -> None:
        self._span.set_status(trace.StatusCode.ERROR, clean(text, LONGEST)[:LONGEST])

    def end(self) -> None:
        self._span.end()

    def __enter__(self) -> Span:
        self._token = tracing.current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            tracing.current.reset(self._token)
            self._token = None
        if error is not None and self.recorded:
            text = str(error) or type(error).__name__
            self.event("exception", {"exception.type": type(error).__name__, "exception.message": text})
            self.fail(text)
        self.end()


def _clean(attributes: Mapping[str, Value]) -> Mapping[str, Value]:
    """Texts come from callers, pods and runtimes: as in logs, without secrets and what is no character."""
    return {
        key: clean(value, LONGEST)[:LONGEST] if isinstance(value, str) else value for key, value in attributes.items()
    }
