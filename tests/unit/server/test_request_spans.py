"""Requests to the node's server as spans: which have one, whose parent counts, how long they last."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs
from msgspec.structs import replace

from pykubelet.server.request_spans import request_span
from pykubelet.server.requests import Match, Request
from tests.recorded_spans import attributes_of, recorded_spans
from tests.unit.server.support import ServedNode, connected, get, serving

pytestmark = pytest.mark.real_loop

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SAMPLED = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture
def world(tmp_path: Path) -> ServedNode:
    return ServedNode(tmp_path)


async def test_an_authorized_request_goes_on_with_the_trace_of_its_caller(world: ServedNode) -> None:
    world.reviewer.everything = {"ada"}
    context = world.client_context(world.ca.issue("ada"))
    with recorded_spans(0) as spans:
        async with serving(world.server()) as port, connected(port, context) as client:
            headers = {"traceparent": SAMPLED, "User-Agent": "kubectl/v1"}
            assert (await client.ask("GET", "/containerLogs/ns/gone/app?tail=1", headers)).status == 404
            assert (await client.ask("GET", "/pods", {})).status == 200
            assert (await client.ask("GET", "/nothing", {"traceparent": SAMPLED})).status == 404
    first, second = spans
    assert first.name == "/containerLogs/{namespace}/{pod}/{container}" and first.kind.name == "SERVER"
    assert first.context is not None and f"{first.context.trace_id:x}" == TRACE
    assert attributes_of(first)["network.peer.port"] > 0
    assert {key: value for key, value in attributes_of(first).items() if key != "network.peer.port"} == {
        "server.address": "kubelet",
        "url.scheme": "https",
        "url.path": "/containerLogs/ns/gone/app",
        "http.request.method": "GET",
        "http.route": "/containerLogs/{namespace}/{pod}/{container}",
        "http.response.status_code": 404,
        "network.peer.address": "127.0.0.1",
        "network.protocol.version": "1.1",
        "client.address": "127.0.0.1",
        "user_agent.original": "kubectl/v1",
    }
    assert first.status.is_unset
    assert second.name == "GET" and "http.route" not in attributes_of(second)


def test_ports_and_methods_that_are_not_usual() -> None:
    request = Request(method="BREW", path="/x", headers=[("host", "node:10250"), ("x-forwarded-for", "192.0.2.1, b")])
    with recorded_spans() as spans:
        request_span(request, Match(("proxy",)), scheme="https", trusted=True).end()
    assert attributes_of(spans[0]) == {
        "server.address": "kubelet",
        "server.port": 10250,
        "url.scheme": "https",
        "url.path": "/x",
        "network.protocol.version": "1.1",
        "http.request.method": "GET",
        "http.request.method_original": "BREW",
        "client.address": "192.0.2.1",
    }


async def test_failures_of_the_node_are_errors(world: ServedNode) -> None:
    world.reviewer.everything = {"ada"}
    context = world.client_context(world.ca.issue("ada"))
    with recorded_spans() as spans:
        async with serving(world.server()) as port:
            assert (await get(port, "/stats/summary", context)).status == 503
    (span,) = spans
    assert attributes_of(span)["http.response.status_code"] == 503 and not span.status.is_ok


async def test_callers_that_may_not_ask_make_no_spans(world: ServedNode) -> None:
    with recorded_spans() as spans:
        async with serving(world.server()) as port:
            nobody = world.client_context()
            assert (await get(port, "/pods", nobody, traceparent=SAMPLED)).status == 401
            eve = world.client_context(world.ca.issue("eve"))
            assert (await get(port, "/pods", eve, traceparent=SAMPLED)).status == 403
    assert spans == []


@pytest.mark.parametrize("rate", [0, 1_000_000])
async def test_callers_of_the_read_only_port_decide_nothing(world: ServedNode, rate: int) -> None:
    world.settings = replace(world.settings, enable_server=False, read_only_port=1, healthz_port=1)
    server = world.server()
    for listener in server.listeners:
        listener.address = structs.replace(listener.address, port=0)  # type: ignore[type-var]
    with recorded_spans(rate) as spans:
        async with serving(server) as port:
            assert (await get(port, "/pods", traceparent=SAMPLED)).status == 200
            assert (await get(server.listeners[1].port, "/healthz", traceparent=SAMPLED)).status == 200
    assert spans.names == (["/pods"] if rate else [])
    for span in spans:
        assert span.parent is None
        assert [f"{link.context.trace_id:x}" for link in span.links] == [TRACE]
        assert attributes_of(span)["url.scheme"] == "http"
