"""Small HTTP values: the GET that probes and lifecycle hooks send, and what came back.

Builds a request from an HTTPGetAction by upstream's rules: pod address as default host, named ports, default and
removable headers, a path that may hold a query. It sends nothing (clients/http does).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from msgspec import Struct

from pykubelet.api.types import ContainerPort, HTTPGetAction
from pykubelet.model.errors import PykubeletError

VERSION: Final = "1.36"
"""The Kubernetes version probes and hooks name themselves with."""

_PATH_SAFE: Final = "/%:@!$&'()*+,;=~-._[]"
_QUERY_SAFE: Final = _PATH_SAFE + '?"<>\\^`{|}'
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_ABSOLUTE: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:(?=//)")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")

_BAD_VALUE: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class HttpProblem(PykubeletError):
    """There is no usable answer; the text says why, in the words of Go's client where people know them."""


class PlainAnswer(HttpProblem):
    """The server answered a TLS hello in plain HTTP."""


class BodyProblem(HttpProblem):
    """The head of the answer arrived, its body did not."""


class BadRequest(HttpProblem):
    """The request cannot be made from what the pod says."""


class HttpRequest(Struct, frozen=True, kw_only=True):
    scheme: str
    host: str
    port: int
    target: str
    """Path and query as they stand in the request line."""
    headers: tuple[tuple[str, str], ...] = ()
    """Sent in this order; `Host` among them replaces the address."""

    @property
    def address(self) -> str:
        return join_host_port(self.host, self.port)

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.address}{self.target}"


class HttpAnswer(Struct, frozen=True, kw_only=True):
    status: int
    body: bytes = b""
    truncated: bool = False
    """The body was longer than the limit."""
    headers: tuple[tuple[str, str], ...] = ()
    """Names in lower case."""

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key == name), "")


def join_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def resolve_port(port: int | str | None, ports: Sequence[ContainerPort]) -> int:
    """A number, a name among the container's ports, or a number written as text."""
    found: int | str | None = port
    if isinstance(port, str):
        named = next((p.container_port for p in ports if p.name == port), None)
        found = named if named is not None else int(port) if port.isascii() and port.isdigit() else port
    if not isinstance(found, int):
        raise BadRequest(f"port {found!r} is neither a named port of the container nor a number")
    if not 0 < found < 65536:
        raise BadRequest(f"invalid port number: {found}")
    return found


def get_request(action: HTTPGetAction, ports: Sequence[ContainerPort], default_host: str, purpose: str) -> HttpRequest:
    """The GET an action stands for. `purpose` is `probe` or `lifecycle`."""
    host = action.host or default_host
    if not host:
        raise BadRequest("the pod has no address yet")
    return HttpRequest(
        scheme=(action.scheme or "http").lower(),
        host=host.strip("[]"),
        port=resolve_port(action.port, ports),
        target=request_target(action.path or "/"),
        headers=_with_defaults([(h.name or "", h.value or "") for h in action.http_headers], purpose),
    )


def request_target(path: str) -> str:
    """Path and query in the form a request line needs; scheme, host and fragment written in a path do not count."""
    if _CONTROL.search(path) or _BAD_ESCAPE.search(path.partition("?")[0]):
        # Not an address at all: the whole text is the path.
        return "/" + quote(path, safe=_PATH_SAFE.replace("%", "")).lstrip("/")
    path = _ABSOLUTE.sub("", path.partition("#")[0])
    path, mark, query = path.partition("?")
    if path.startswith("//"):
        _, slash, rest = path[2:].partition("/")
        path = slash + rest
    path = quote(path, safe=_PATH_SAFE)
    return (path if path.startswith("/") else "/" + path) + mark + quote(query, safe=_QUERY_SAFE)


def checked_headers(headers: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The same headers, or BadRequest: a line break in one would forge others."""
    for name, value in headers:
        if not _HEADER_NAME.fullmatch(name):
            raise BadRequest(f"invalid header field name {name!r}")
        if _BAD_VALUE.search(value):
            raise BadRequest(f"invalid header field value for {name!r}")
    return tuple(headers)


def _with_defaults(given: list[tuple[str, str]], purpose: str) -> tuple[tuple[str, str], ...]:
    """User-Agent and Accept unless given; given and empty, they are left out."""
    defaults = {"user-agent": ("User-Agent", f"kube-{purpose}/{VERSION}"), "accept": ("Accept", "*/*")}
    kept = [(name, value) for name, value in given if value or name.lower() not in defaults]
    names = {name.lower() for name, _ in given}
    return checked_headers([*(pair for key, pair in defaults.items() if key not in names), *kept])


def go_duration(seconds: int) -> str:
    """Whole seconds as Go prints them: `1s`, `1m30s`, `1h0m0s`."""
    hours, rest = divmod(seconds, 3600)
    minutes, left = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes}m{left}s"
    return f"{minutes}m{left}s" if minutes else f"{left}s"
