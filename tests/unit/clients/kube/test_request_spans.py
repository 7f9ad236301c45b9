"""Requests to the API server as spans, and their context in its headers."""

from __future__ import annotations

from contextlib import aclosing

import pytest
from aiohttp import web

from pykubelet.kit import tracing
from pykubelet.model.errors import ApiError, NotFound
from tests.recorded_spans import attributes_of, id_of, recorded_spans, trace_of
from tests.unit.clients.kube import api_server
from tests.unit.clients.kube.test_transport import a_transport

pytestmark = pytest.mark.real_loop


async def test_requests_and_watches() -> None:
    parents: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        parents.append(request.headers.get("traceparent", ""))
        if request.path == "/gone":
            return web.Response(status=404, text="{}")
        if request.path == "/watch":
            return web.Response(text="1\n2\n")
        return web.Response(text="{}")

    async def line(data: bytes) -> str:
        return data.decode()

    async with api_server.serving(answer) as server:
        transport = a_transport(server.url)
        with recorded_spans() as spans:
            with tracing.span("whole"):
                await transport.request("PATCH", "/api", query=[("a", "b")], body=b"{}")
            with pytest.raises(NotFound):
                await transport.request("GET", "/gone")
            async with aclosing(transport.stream("/watch", silence=5, read=line)) as events:
                async for event in events:
                    with tracing.span(f"saw {event}"):
                        pass
            with pytest.raises(ApiError):
                async with aclosing(transport.stream("/gone", silence=5, read=line)) as events:
                    async for _ in events:
                        raise AssertionError
        await transport.request("GET", "/off")
        await transport.close()
    patched, _whole, gone, one, two, watched, refused = spans
    assert (patched.name, spans.parent_of(patched), patched.kind.name) == ("HTTP PATCH", "whole", "CLIENT")
    host, _, port = server.url.removeprefix("http://").partition(":")
    assert attributes_of(patched) == {
        "http.request.method": "PATCH",
        "url.full": f"{server.url}/api?a=b",
        "server.address": host,
        "server.port": int(port),
        "http.response.status_code": 200,
        "network.protocol.version": "1.1",
    }
    assert attributes_of(gone)["error.type"] == "404" and not gone.status.is_ok
    assert (one.name, two.name, one.parent, watched.name) == ("saw 1", "saw 2", None, "HTTP GET")
    assert attributes_of(watched)["http.response.status_code"] == 200
    assert attributes_of(refused)["http.response.status_code"] == 404 and not refused.status.is_ok
    sent = [patched, gone, watched, refused]
    assert parents == [*(f"00-{trace_of(each):032x}-{id_of(each):016x}-01" for each in sent), ""]
