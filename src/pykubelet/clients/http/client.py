"""A lean HTTP/1.1 client for short GETs into pods, and the other two calls probes make.

One connection per request, no keep-alive, no proxy, one deadline over everything. TLS is not verified into pods, and
is for `fetch`. Redirects are followed on the same host only. Errors read `Get "<url>": <reason>` as people know
them from Go's client.
Does not cover: other verbs, cookies, compression. The API server has a client of its own.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import urljoin, urlsplit

from msgspec.structs import replace

from pykubelet.clients.http.grpc_health import check_health
from pykubelet.clients.http.http1 import ResponseReader, error_text
from pykubelet.clients.http.port import ConnectProblem
from pykubelet.clients.http.wires import dial, open_wire, unverified, verified
from pykubelet.kit.names import NameLookups
from pykubelet.kit.text import shortened
from pykubelet.model.http import (
    BadRequest,
    BodyProblem,
    HttpAnswer,
    HttpProblem,
    HttpRequest,
    checked_headers,
    join_host_port,
    request_target,
)

MAX_REDIRECTS: Final = 10
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_PORTS: Final = {"http": 80, "https": 443}
_TIMED_OUT: Final = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
_SLOW_BODY: Final = "context deadline exceeded (Client.Timeout or context cancellation while reading body)"


class ShortCalls:
    """Implements `PodNetwork`; holds nothing open, so one serves everybody."""

    def __init__(self, lookups: NameLookups | None = None, roots: ssl.SSLContext | None = None) -> None:
        """`roots` verifies what `fetch` asks; without it the system's authorities do."""
        self._lookups = lookups or NameLookups()
        self._roots = roots

    async def get(self, request: HttpRequest, *, timeout: float | None, max_body: int) -> HttpAnswer:
        return await self._run(_Exchange(request, self._lookups, unverified()), timeout, max_body)

    async def _run(self, exchange: _Exchange, timeout: float | None, max_body: int) -> HttpAnswer:
        try:
            async with asyncio.timeout(timeout):
                return await exchange.run(max_body)
        except TimeoutError as error:
            text, kind = (_SLOW_BODY, BodyProblem) if exchange.in_body else (_TIMED_OUT, HttpProblem)
            raise kind(f'Get "{exchange.request.url}": {text}') from error
        except BadRequest:
            raise
        except HttpProblem as error:
            raise type(error)(f'Get "{exchange.request.url}": {error}') from error
        except (ConnectProblem, OSError) as error:
            text = str(error) if isinstance(error, ConnectProblem) else error_text(error)
            raise HttpProblem(f'Get "{exchange.request.url}": {text}') from error

    async def connect(self, host: str, port: int, *, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                (await dial(host, port, self._lookups)).close()
        except TimeoutError as error:
            raise ConnectProblem(f"dial tcp {join_host_port(host, port)}: i/o timeout") from error

    async def grpc_health(self, host: str, port: int, service: str, *, timeout: int) -> None:
        await check_health(host, port, service, timeout=timeout)

    async def fetch(self, url: str, headers: Mapping[str, str], *, timeout: float, max_bytes: int) -> HttpAnswer:
        """GET any address with the default headers of a program; a body beyond `max_bytes` is an HttpProblem.

        Over TLS the server must prove its name: the answer gives orders, and the headers may hold a password.
        """
        request = _request_for(url, [("Accept", "*/*"), ("User-Agent", "pykubelet"), *headers.items()])
        exchange = _Exchange(request, self._lookups, self._roots or verified(), stays_secret=True)
        answer = await self._run(exchange, timeout, max_bytes)
        if answer.truncated:
            raise HttpProblem(f'Get "{url}": the answer is longer than {max_bytes} bytes')
        return answer


class _Exchange:
    """A request with the redirects it leads to; remembers where it stands."""

    __slots__ = ("_lookups", "_reader", "_stays_secret", "_tls", "request")

    def __init__(
        self, request: HttpRequest, lookups: NameLookups, tls: ssl.SSLContext, *, stays_secret: bool = False
    ) -> None:
        """With `stays_secret` no redirect leads from TLS to plain text."""
        self.request = request
        self._lookups = lookups
        self._tls = tls
        self._stays_secret = stays_secret
        self._reader: ResponseReader | None = None

    @property
    def in_body(self) -> bool:
        return self._reader is not None and self._reader.in_body

    async def run(self, max_body: int) -> HttpAnswer:
        first = self.request.host
        for _ in range(MAX_REDIRECTS):
            answer = await self._once(max_body)
            following = redirect_of(self.request, answer)
            if following is None or following.host != first:
                return answer
            if self._stays_secret and self.request.scheme == "https" and following.scheme != "https":
                raise HttpProblem("redirected from https to http")
            self.request = following
        raise HttpProblem(f"stopped after {MAX_REDIRECTS} redirects")

    async def _once(self, max_body: int) -> HttpAnswer:
        self._reader = None
        request = self.request
        wire = await open_wire(request.scheme, request.host, request.port, self._lookups, self._tls)
        try:
            await wire.send(request_bytes(self.request))
            self._reader = ResponseReader(wire.recv)
            return await self._reader.answer(max_body)
        finally:
            wire.close()


def request_bytes(request: HttpRequest) -> bytes:
    """The request as it goes over the wire."""
    host = next((value for name, value in request.headers if name.lower() == "host" and value), request.address)
    lines = [f"GET {request.target} HTTP/1.1", f"Host: {host}"]
    # These describe a connection or a body we do not have.
    skipped = ("host", "connection", "content-length", "transfer-encoding", "trailer")
    lines += [f"{name}: {value}" for name, value in request.headers if name.lower() not in skipped]
    lines += ["Connection: close", "", ""]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape")


def redirect_of(request: HttpRequest, answer: HttpAnswer) -> HttpRequest | None:
    """Where the answer sends us; None when it is final."""
    location = answer.header("location")
    if answer.status not in _REDIRECTS or not location:
        return None
    try:
        joined = urljoin(request.url, location)
    except ValueError as error:
        raise HttpProblem(f'failed to parse Location header "{shortened(location, 200)}": {error}') from error
    following = _request_for(joined, request.headers)
    if following.address != request.address:
        # A name asked for by hand belongs to the address it was asked at.
        following = replace(following, headers=tuple(h for h in following.headers if h[0].lower() != "host"))
    return following


def _request_for(url: str, headers: list[tuple[str, str]] | tuple[tuple[str, str], ...]) -> HttpRequest:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise HttpProblem(f'parse "{shortened(url, 200)}": {error}') from error
    if parts.scheme not in _PORTS:
        raise HttpProblem(f'unsupported protocol scheme "{parts.scheme}"')
    if not parts.hostname:
        raise HttpProblem(f'no host in address "{url}"')
    return HttpRequest(
        scheme=parts.scheme,
        host=parts.hostname,
        port=port or _PORTS[parts.scheme],
        target=request_target((parts.path or "/") + (f"?{parts.query}" if parts.query else "")),
        headers=checked_headers(headers),
    )
