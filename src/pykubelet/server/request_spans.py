"""The span of a request: its name is the route, its attributes are those of upstream's filter.

Only requests of callers that may make them have one. On the read-only port, where callers are unknown, it is a trace of
its own: a caller there cannot decide what is sampled.
"""

from __future__ import annotations

from pykubelet.kit import tracing
from pykubelet.kit.tracing import Span, Value
from pykubelet.server.requests import Match, Reply, Request, Response, Upgrade

SERVICE = "kubelet"
METHODS = frozenset(("CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"))
PORTS = {"https": 443, "http": 80}


def request_span(request: Request, match: Match, *, scheme: str, trusted: bool) -> Span:
    route = match.route.pattern if match.route is not None else ""
    span = tracing.served(route or request.method, request.headers, trusted=trusted)
    if span.recorded:
        span.set(_attributes(request, scheme))
        if route:
            span.set({"http.route": route})
    return span


def _attributes(request: Request, scheme: str) -> dict[str, Value]:
    found: dict[str, Value] = {
        "server.address": SERVICE,
        "url.scheme": scheme,
        "url.path": request.path,
        "network.protocol.version": request.version,
    }
    if request.method in METHODS:
        found["http.request.method"] = request.method
    else:
        found |= {"http.request.method": "GET", "http.request.method_original": request.method}
    port = request.header("host").rpartition(":")[2]
    if port.isascii() and port.isdigit() and len(port) <= 5 and int(port) != PORTS[scheme]:
        found["server.port"] = int(port)
    peer, peer_port = request.peer
    if peer:
        found |= {"network.peer.address": peer, "network.peer.port": peer_port}
    client = request.header("x-forwarded-for").partition(",")[0].strip() or peer
    if client:
        found["client.address"] = client
    if agent := request.header("user-agent"):
        found["user_agent.original"] = agent
    return found


def note_reply(reply: Reply) -> None:
    """Give the status of the reply to the span of its request."""
    span = tracing.current.get()
    if not span.recorded:
        return
    status = reply.status if isinstance(reply, Response) else 101 if isinstance(reply, Upgrade) else 200
    span.set({"http.response.status_code": status})
    if status >= 500:
        span.fail("")
