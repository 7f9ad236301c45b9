"""The span of a request to the API server, as upstream's transport makes it, and its context in the headers."""

from __future__ import annotations

from urllib.parse import urlsplit

from msgspec.structs import replace

from pykubelet.clients.kube.exchanges import Answer, Request
from pykubelet.kit import tracing
from pykubelet.kit.tracing import Kind, Span, Value

PORTS = {"https": 443, "http": 80}


def request_span(request: Request) -> Span:
    span = tracing.span(f"HTTP {request.method}", Kind.CLIENT)
    if span.recorded:
        parts = urlsplit(request.url)
        host = parts.netloc.rpartition("@")[2]
        found: dict[str, Value] = {
            "http.request.method": request.method,
            "url.full": parts._replace(netloc=host).geturl(),
            "server.address": parts.hostname or "",
        }
        if parts.port is not None and parts.port != PORTS.get(parts.scheme):
            found["server.port"] = parts.port
        span.set(found)
    return span


def carried(request: Request, span: Span) -> Request:
    """The request with the context of its span."""
    return replace(request, headers=[*request.headers, *span.carrier]) if span.carrier else request


def note_answer(span: Span, answer: Answer) -> None:
    if span.recorded:
        span.set({"http.response.status_code": answer.status, "network.protocol.version": answer.version})
        if answer.status >= 400:
            span.set({"error.type": str(answer.status)})
            span.fail("")
