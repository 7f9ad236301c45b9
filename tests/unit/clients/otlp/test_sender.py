"""Spans on their way to a collector: on a real connection, and what happens when there is none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as wire
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.sdk.trace import ReadableSpan

from pykubelet.clients.grpc_connection import GrpcConnection, target_of
from pykubelet.clients.otlp import sender as module
from pykubelet.clients.otlp.sender import BATCH, MOST_WAITING, ExportFailed, SpanSender
from pykubelet.kit import tracing
from pykubelet.kit.clock import LoopClock, SystemClock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import running
from tests.grpc_services import add_service
from tests.recorded_spans import recorded_spans

SENT, DROPPED = "pykubelet_spans_sent_total", "pykubelet_spans_dropped_total"


def ended_spans(count: int) -> list[ReadableSpan]:
    with recorded_spans() as spans:
        for number in range(count):
            with tracing.span(f"s{number}"):
                pass
    return spans


class Collector:
    def __init__(self) -> None:
        self.requests: list[wire.ExportTraceServiceRequest] = []
        self.answer = wire.ExportTraceServiceResponse()
        self.failures: list[grpc.StatusCode] = []

    async def Export(self, request: wire.ExportTraceServiceRequest, context: Any) -> wire.ExportTraceServiceResponse:
        if self.failures:
            await context.abort(self.failures.pop(0), "not now")
        self.requests.append(request)
        return self.answer

    @property
    def spans(self) -> list[trace_pb2.Span]:
        return [
            s for r in self.requests for group in r.resource_spans for scope in group.scope_spans for s in scope.spans
        ]


@asynccontextmanager
async def collecting(socket: Path) -> AsyncIterator[Collector]:
    collector, server = Collector(), grpc.aio.server()
    add_service(server, wire, "TraceService", collector)
    server.add_insecure_port(f"unix://{socket}")
    await server.start()
    try:
        yield collector
    finally:
        await server.stop(None)


def values(metrics: Registry) -> tuple[float, float]:
    return metrics.counter(SENT, "").value(), metrics.counter(DROPPED, "").value()


@pytest.mark.real_loop
async def test_a_collector_gets_what_was_recorded_when_the_agent_stops(tmp_path: Path) -> None:
    metrics = Registry()
    async with collecting(tmp_path / "c.sock") as collector:
        sender = SpanSender(target_of(str(tmp_path / "c.sock")), clock=SystemClock(), metrics=metrics)
        with recorded_spans() as spans, tracing.span("whole") as whole:
            whole.set({"k8s.pod": "a/b", "count": 3, "yes": True})
            with tracing.span("part", tracing.Kind.CLIENT) as part:
                part.fail("broken")
        async with running(sender):
            for span in spans:
                sender.take(span)
            await asyncio.sleep(0)
    (request,) = collector.requests
    (group,) = request.resource_spans
    resource = {pair.key: pair.value.string_value for pair in group.resource.attributes}
    assert resource == {"service.name": "kubelet", "host.name": "node1"}
    (scope,) = group.scope_spans
    assert (scope.scope.name, scope.scope.version) == ("pykubelet", "1")
    got, outer = scope.spans
    assert (got.name, outer.name) == ("part", "whole")
    assert got.parent_span_id == outer.span_id and got.trace_id == outer.trace_id and not outer.parent_span_id
    assert len(got.trace_id) == 16 and len(got.span_id) == 8
    assert (got.kind, outer.kind) == (trace_pb2.Span.SPAN_KIND_CLIENT, trace_pb2.Span.SPAN_KIND_INTERNAL)
    assert (got.status.code, got.status.message) == (trace_pb2.Status.STATUS_CODE_ERROR, "broken")
    assert outer.start_time_unix_nano <= got.start_time_unix_nano <= got.end_time_unix_nano <= outer.end_time_unix_nano
    found = {pair.key: pair.value for pair in outer.attributes}
    assert (found["k8s.pod"].string_value, found["count"].int_value, found["yes"].bool_value) == ("a/b", 3, True)
    assert values(metrics) == (2, 0)


@pytest.mark.real_loop
async def test_what_the_collector_refuses_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    metrics = Registry()
    async with collecting(tmp_path / "c.sock") as collector:
        collector.answer.partial_success.rejected_spans = 2
        collector.answer.partial_success.error_message = "too old"
        collector.failures = [grpc.StatusCode.INVALID_ARGUMENT]
        sender = SpanSender(target_of(str(tmp_path / "c.sock")), clock=SystemClock(), metrics=metrics)
        with caplog.at_level(logging.INFO, logger=module.__name__):
            async with running(sender):
                for span in ended_spans(2 * BATCH):
                    sender.take(span)
                await asyncio.sleep(0)
    assert values(metrics) == (BATCH - 2, BATCH + 2)
    assert [record.message for record in caplog.records] == [
        "spans are dropped until the collector takes them",
        "spans are sent again",
    ]
    assert len(collector.spans) == BATCH


class ScriptedConnection:
    """Stands in for the connection; `answers` are errors, or None for success."""

    def __init__(self, *answers: ExportFailed | None, silent: bool = False) -> None:
        self.answers = list(answers)
        self.silent = silent
        self.at: list[float] = []
        self.closed = False

    async def call(self, path: str, request: Any, answer: Any, *, timeout: float | None) -> Any:
        self.at.append(asyncio.get_running_loop().time())
        if self.silent:
            await asyncio.Event().wait()
        outcome = self.answers.pop(0) if self.answers else None
        if outcome is not None:
            raise outcome
        return wire.ExportTraceServiceResponse()

    async def close(self) -> None:
        self.closed = True


AWAY = ExportFailed("UNAVAILABLE: connection refused", transient=True)


async def a_sender(connection: ScriptedConnection, metrics: Registry) -> SpanSender:
    sender = SpanSender("unix:///nothing", clock=LoopClock(), metrics=metrics)
    real: Any = sender
    assert isinstance(real._connection, GrpcConnection)
    await real._connection.close()
    real._connection = connection
    return sender


async def test_spans_wait_for_others_and_a_full_batch_for_nobody() -> None:
    connection, metrics = ScriptedConnection(), Registry()
    sender = await a_sender(connection, metrics)
    async with running(sender):
        await asyncio.sleep(100)
        began = asyncio.get_running_loop().time()
        sender.take(ended_spans(1)[0])
        await asyncio.sleep(50)
        for span in ended_spans(BATCH):
            sender.take(span)
        await asyncio.sleep(50)
    assert [round(at - began, 1) for at in connection.at] == [5.0, 50.0]
    assert values(metrics) == (BATCH + 1, 0)
    assert connection.closed


async def test_a_collector_that_comes_back_gets_the_batch() -> None:
    connection, metrics = ScriptedConnection(AWAY, AWAY), Registry()
    sender = await a_sender(connection, metrics)
    async with running(sender):
        began = asyncio.get_running_loop().time()
        sender.take(ended_spans(1)[0])
        await asyncio.sleep(100)
    assert [round(at - began) for at in connection.at] == [5, 10, 20]
    assert values(metrics) == (1, 0)


async def test_without_a_collector_nothing_grows_and_the_log_says_it_once(caplog: pytest.LogCaptureFixture) -> None:
    connection, metrics = ScriptedConnection(*[AWAY] * 1000), Registry()
    sender = await a_sender(connection, metrics)
    waiting: Any = sender
    with caplog.at_level(logging.INFO, logger=module.__name__):
        async with running(sender):
            for _ in range(20):
                for span in ended_spans(1000):
                    sender.take(span)
                assert len(waiting._waiting) <= MOST_WAITING
                await asyncio.sleep(600)
            connection.answers.clear()
            await asyncio.sleep(100)
            sender.take(ended_spans(1)[0])
            await asyncio.sleep(100)
    sent, dropped = values(metrics)
    assert sent + dropped == 20_001 and sent >= 1 and dropped > 10_000
    assert [record.message for record in caplog.records] == [
        "spans are dropped until the collector takes them",
        "spans are sent again",
    ]


@pytest.mark.parametrize("silent", [True, False])
async def test_the_end_is_not_delayed_by_a_collector_that_is_away_or_silent(silent: bool) -> None:
    connection, metrics = ScriptedConnection(*[AWAY] * 1000, silent=silent), Registry()
    sender = await a_sender(connection, metrics)
    async with running(sender):
        for span in ended_spans(300):
            sender.take(span)
        await asyncio.sleep(3)
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began == (2.0 if silent else 0.0)
    assert values(metrics) == (0, 300)
    assert connection.closed
