"""Requests, responses and the router, independent of the HTTP library.

A handler gets a `Request` and returns a whole `Response`, a `Stream` of bytes that may never end, or an `Upgrade`
of the connection to the runtime's stream. `Refused` is an error response from any layer. Every `Route` names the
right a caller needs. Patterns are segments: `{name}` takes one, `{name:*}` the rest of the path, slashes included;
literal segments win over named ones. Unknown paths need the `proxy` right like any route without a finer one, so
that 404 and 403 do not reveal what exists. Does not cover: sockets and HTTP itself (http.py), rights (auth.py).
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence

from msgspec import Struct, field

from pykubelet.model.errors import PykubeletError

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"


class Refused(PykubeletError):
    """The request is answered with this status and text."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers or {}


async def no_body(limit: int) -> bytes:
    return b""


class Request(Struct, frozen=True, kw_only=True):
    """One request. Header names are lower case; the query is decoded and keeps order and repeats."""

    method: str = "GET"
    path: str = "/"
    query: Sequence[tuple[str, str]] = ()
    headers: Sequence[tuple[str, str]] = ()
    params: Mapping[str, str] = field(default_factory=dict)
    """The parts of the path that the route names."""
    body: Callable[[int], Awaitable[bytes]] = no_body
    """Reads the body, at most so many bytes; more is refused with 413."""
    has_body: bool = False
    address: str = ""
    """Where it comes from, as connections are counted (admission.py)."""
    peer: tuple[str, int] = ("", 0)
    """The other end of its connection; empty on the local socket."""
    version: str = "1.1"

    def header(self, name: str) -> str:
        """All values of a header, joined as HTTP allows; empty when absent."""
        return ", ".join(value for key, value in self.headers if key == name)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.query if key == name]

    def get(self, name: str, default: str = "") -> str:
        return next((value for key, value in self.query if key == name), default)

    def has(self, name: str) -> bool:
        return any(key == name for key, _ in self.query)

    def tokens(self, name: str) -> list[str]:
        """The comma-separated words of a header, lower case."""
        return [word.strip().lower() for word in self.header(name).split(",") if word.strip()]

    @property
    def wants_upgrade(self) -> bool:
        return "upgrade" in self.tokens("connection") and bool(self.header("upgrade"))


class Response(Struct, frozen=True, kw_only=True):
    status: int = 200
    body: bytes = b""
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def text(cls, text: str, status: int = 200) -> Response:
        return cls(status=status, body=text.encode())

    @classmethod
    def json(cls, body: bytes) -> Response:
        return cls(body=body, content_type=JSON)


class Stream(Struct, frozen=True, kw_only=True):
    """Bytes sent as they come; the generator is closed when the caller goes away."""

    chunks: AsyncGenerator[bytes, None]
    content_type: str = TEXT
    length: int | None = None
    """Known in advance for files; otherwise the answer is chunked."""
    headers: Mapping[str, str] = field(default_factory=dict)


class Bridging(enum.Enum):
    """The way an upgraded connection is joined to the runtime's streaming server."""

    VERBATIM = "verbatim"
    """Both speak the same: bytes pass untouched."""
    CHANNELS = "channels"
    """The caller speaks WebSocket v5 channels, the runtime SPDY streams."""
    TUNNEL = "tunnel"
    """The caller speaks SPDY inside WebSocket messages, the runtime bare SPDY."""


class Upgrade(Struct, frozen=True, kw_only=True):
    """The connection leaves HTTP and is joined to the runtime's streaming URL."""

    url: str
    bridging: Bridging = Bridging.VERBATIM
    streams: Sequence[str] = ()
    """For CHANNELS: which of stdin, stdout, stderr, resize are open."""


Reply = Response | Stream | Upgrade
Handler = Callable[[Request], Awaitable[Reply]]
Admit = Callable[[str], None]
"""Called with a request's namespace or user when its caller is known and authorized. Raises Refused 429."""


ANY = "*"
PROXY = ("proxy",)
SUBRESOURCES = frozenset(
    {"proxy", "pods", "healthz", "configz", "stats", "metrics", "log", "checkpoint", "statusz", "spec"}
)


class BadRoute(PykubeletError):
    """A route that must not be served: a mistake of ours, found when the server is made."""


class Route(Struct, frozen=True, kw_only=True):
    pattern: str
    handler: Handler
    access: tuple[str, ...]
    """Subresources of the node; a right to any one of them is enough."""
    methods: tuple[str, ...] = ("GET",)
    long_running: bool = False


class Match(Struct, frozen=True):
    """Where a request goes. Without a route there is only a status to answer, after the caller was checked."""

    access: tuple[str, ...]
    route: Route | None = None
    params: Mapping[str, str] | None = None
    status: int = 404


class _Compiled(Struct, frozen=True):
    route: Route
    parts: tuple[str, ...]

    def match(self, segments: list[str]) -> dict[str, str] | None:
        found: dict[str, str] = {}
        for index, part in enumerate(self.parts):
            if part.endswith(":*}"):
                found[part[1:-3]] = "/".join(segments[index:])
                return found
            if index >= len(segments):
                return None
            segment = segments[index]
            if part.startswith("{"):
                if not segment:
                    return None
                found[part[1:-1]] = segment
            elif part != segment:
                return None
        return found if len(segments) == len(self.parts) else None


class Router:
    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes: dict[str, list[_Compiled]] = {}
        for route in routes:
            self._add(route)
        for group in self._routes.values():
            # Literal segments first: "{" sorts after every letter.
            group.sort(key=lambda compiled: tuple(part.startswith("{") for part in compiled.parts))

    def _add(self, route: Route) -> None:
        if not route.access:
            raise BadRoute(f"route {route.pattern} names no right that a caller needs")
        unknown = set(route.access) - SUBRESOURCES
        if unknown:
            raise BadRoute(f"route {route.pattern} names the unknown subresource {', '.join(sorted(unknown))}")
        if not route.pattern.startswith("/") or not route.methods:
            raise BadRoute(f"route {route.pattern!r} needs a path and a method")
        parts = tuple(route.pattern[1:].split("/"))
        if any(part.endswith(":*}") for part in parts[:-1]):
            raise BadRoute(f"route {route.pattern} goes on after taking the rest of the path")
        self._routes.setdefault(parts[0], []).append(_Compiled(route, parts))

    def find(self, method: str, path: str) -> Match:
        """`path` is decoded segment by segment by the caller; it never contains `..` that means anything."""
        segments = path[1:].split("/") if path.startswith("/") else [path]
        other: Route | None = None
        for compiled in self._routes.get(segments[0], ()):
            params = compiled.match(segments)
            if params is None:
                continue
            route = compiled.route
            if ANY in route.methods or method in route.methods:
                return Match(route.access, route, params)
            other = other or route
        if other is not None:
            return Match(other.access, status=405)
        return Match(PROXY)

    def patterns(self) -> list[str]:
        return sorted({compiled.route.pattern for group in self._routes.values() for compiled in group})
