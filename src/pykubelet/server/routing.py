"""From method and path to a route. Every route says what a caller needs; one without it cannot be made.

Patterns are segments: `{name}` takes one, `{name:*}` takes the rest of the path, slashes included. Literal segments
win over named ones. Unknown paths need the `proxy` right like any route that has no finer one, so that a stranger
cannot learn from 404 and 403 what exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from pykubelet.model.errors import PykubeletError
from pykubelet.server.calls import Handler

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
            raise BadRoute(f"route {route.pattern} asks for unknown subresource {', '.join(sorted(unknown))}")
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
