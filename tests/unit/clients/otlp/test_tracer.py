"""Which spans are sampled, whose parents count, what is passed on."""

from __future__ import annotations

import random

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan

from pykubelet.clients.otlp.tracer import OtelTracer
from pykubelet.kit import tracing
from tests.recorded_spans import ALL, id_of, recorded_spans, trace_of

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{CALLER}-01", f"00-{TRACE}-{CALLER}-00"


def counted(rate: int, times: int) -> int:
    random.seed(7)
    with recorded_spans(rate) as spans:
        for _ in range(times):
            with tracing.span("root"), tracing.span("child"):
                pass
    assert spans.names.count("root") == spans.names.count("child")
    return spans.names.count("root")


def test_the_rate_decides_for_whole_traces() -> None:
    assert counted(ALL, 50) == 50
    assert counted(0, 50) == 0
    assert 350 < counted(400_000, 1000) < 450
    assert counted(1, 1000) == 0


@pytest.mark.parametrize(
    ("rate", "parent", "trusted", "sampled", "same_trace"),
    [
        (0, SAMPLED, True, True, True),
        (0, UNSAMPLED, True, False, True),
        (ALL, UNSAMPLED, True, False, True),
        (ALL, SAMPLED, True, True, True),
        # Callers that nobody knows decide nothing.
        (0, SAMPLED, False, False, False),
        (ALL, UNSAMPLED, False, True, False),
    ],
)
def test_who_decides_on_a_request(rate: int, parent: str, trusted: bool, sampled: bool, same_trace: bool) -> None:
    with (
        recorded_spans(rate) as spans,
        tracing.served("/pods", [("traceparent", parent)], trusted=trusted) as span,
        tracing.span("inside") as inside,
    ):
        assert (TRACE in span.carrier[0][1]) is same_trace
        assert span.carrier[0][1][:35] == inside.carrier[0][1][:35]
        assert span.recorded is inside.recorded is sampled
    assert spans.names == (["inside", "/pods"] if sampled else [])
    if sampled:
        served = spans.one("/pods")
        assert (served.parent is not None) is same_trace
        assert [f"{link.context.trace_id:x}" for link in served.links] == ([] if trusted else [TRACE])


@pytest.mark.parametrize(
    "headers",
    [
        [("traceparent", "")],
        [("traceparent", "nonsense")],
        [("traceparent", f"ff-{TRACE}-{CALLER}-01")],
        [("traceparent", f"00-{'0' * 32}-{CALLER}-01")],
        [("traceparent", f"00-{TRACE}-{'0' * 16}-01")],
        [("traceparent", SAMPLED + "-more")],
        [("traceparent", SAMPLED), ("traceparent", SAMPLED)],
        [("tracestate", "a=b")],
    ],
)
def test_what_is_no_parent(headers: list[tuple[str, str]]) -> None:
    with recorded_spans(0) as spans, tracing.served("/pods", headers, trusted=True) as span:
        assert TRACE not in span.carrier[0][1]
    assert spans == []


def test_the_state_of_a_trace_is_passed_on_within_bounds() -> None:
    with recorded_spans():
        headers = [("traceparent", SAMPLED), ("tracestate", "a=b"), ("tracestate", "c=d")]
        with tracing.served("/pods", headers, trusted=True), tracing.span("inside") as span:
            assert dict(span.carrier)["tracestate"] == "a=b,c=d"
        with tracing.served(
            "/pods", [("traceparent", SAMPLED), ("tracestate", "a=" + "b" * 600)], trusted=True
        ) as span:
            assert [name for name, _ in span.carrier] == ["traceparent"]


def test_only_the_flag_that_every_program_takes_is_passed_on() -> None:
    with recorded_spans() as spans, tracing.span("a") as span:
        pass
    (found,) = spans
    assert span.carrier == [("traceparent", f"00-{trace_of(found):032x}-{id_of(found):016x}-01")]
    with recorded_spans(0), tracing.span("b") as span:
        assert span.carrier[0][1].endswith("-00")


def test_the_resource_is_the_kubelet_on_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.cluster.name=lab,service.name=other")
    found: list[ReadableSpan] = []
    tracer = OtelTracer(samples_per_million=ALL, host="node1", version="0.1.0", ended=found.append)
    with tracing.traced(tracer), tracing.span("a"):
        pass
    assert dict(found[0].resource.attributes) == {
        "service.name": "kubelet",
        "host.name": "node1",
        "k8s.cluster.name": "lab",
    }


def test_texts_of_strangers_can_be_sent_and_have_no_secrets() -> None:
    with recorded_spans(ALL) as spans, pytest.raises(ValueError), tracing.span("work") as span:
        span.set({"user_agent": "x\udcff", "count": 1})
        raise ValueError("no \udcff, Authorization: Bearer abc")
    (found,) = spans
    assert encode_spans([found]).SerializeToString()
    assert found.attributes == {"user_agent": "x?", "count": 1}
    assert found.status.description == "no ?, Authorization: Bearer <masked>"
