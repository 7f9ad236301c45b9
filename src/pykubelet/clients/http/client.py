"""A lean HTTP/1.1 client for short GETs into pods, and the other two calls probes make.

One connection per request, no keep-alive, no proxy, one deadline over everything. TLS is not verified into pods, and
is for `fetch`. Redirects are followed on the same host only. Errors read `Get "<url>": <reason>` as people know
them from Go's client. The gRPC health check (grpc.health.v1.Health/Check) is in plain text, with upstream's texts; its
two messages are small enough to be written by hand, and the gRPC library is imported at the first check.
Does not cover: other verbs, cookies, compression. The API server has a client of its own.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin, urlsplit

from msgspec.structs import replace

from pykubelet.clients.http.http1 import ResponseReader, error_text
from pykubelet.clients.http.port import ConnectProblem, HealthProblem
from pykubelet.clients.http.wires import THIS_MACHINE, dial, open_wire, unverified, verified
from pykubelet.kit.names import NameLookups
from pykubelet.kit.text import shortened
from pykubelet.model.http import (
    VERSION,
    BadRequest,
    BodyProblem,
    HttpAnswer,
    HttpProblem,
    HttpRequest,
    checked_headers,
    go_duration,
    join_host_port,
    request_target,
)

if TYPE_CHECKING:
    import grpc.aio

METHOD: Final = "/grpc.health.v1.Health/Check"
STATUS_NAMES: Final = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
SERVING: Final = 1


async def check_health(host: str, port: int, service: str, *, timeout: int) -> None:
    import grpc.aio

    address = join_host_port(host, port)
    options = [
        ("grpc.primary_user_agent", f"kube-probe/{VERSION}"),
        ("grpc.enable_http_proxy", 0),
        # Else the library shares connections, and their back-off, between probes of one address.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    async with grpc.aio.insecure_channel(_target(host, port), options=options) as channel:
        deadline = asyncio.get_running_loop().time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                await channel.channel_ready()
        except TimeoutError as error:
            raise HealthProblem(
                f'timeout: failed to connect service "{address}" within {go_duration(timeout)}: '
                "context deadline exceeded"
            ) from error
        status = await _ask(channel, service, deadline - asyncio.get_running_loop().time(), timeout)
    if status != SERVING:
        raise HealthProblem(f'service unhealthy (responded with "{STATUS_NAMES.get(status, str(status))}")')


async def _ask(channel: grpc.aio.Channel, service: str, left: float, timeout: int) -> int:
    import grpc

    call = channel.unary_unary(METHOD, request_serializer=health_request, response_deserializer=health_status)
    try:
        return int(await call(service, timeout=max(left, 0.001)))
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise HealthProblem(
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): "
                f"{error.details()}"
            ) from error
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise HealthProblem(f"timeout: health rpc did not complete within {go_duration(timeout)}") from error
        code = error.code().name.title().replace("_", "")
        raise HealthProblem(
            f"error: health rpc probe failed: rpc error: code = {code} desc = {error.details()}"
        ) from error


def _target(host: str, port: int) -> str:
    host = host or THIS_MACHINE
    return f"ipv6:{join_host_port(host, port)}" if ":" in host else f"dns:///{join_host_port(host, port)}"


def health_request(service: str) -> bytes:
    """HealthCheckRequest: field 1, the service's name."""
    name = service.encode()
    return b"\x0a" + _varint(len(name)) + name if name else b""


def health_status(data: bytes) -> int:
    """HealthCheckResponse: field 1, a status number; other fields are read over. Raises ValueError."""
    position, status = 0, 0
    while position < len(data):
        key, position = _read_varint(data, position)
        field, kind = key >> 3, key & 7
        if kind == 0:
            value, position = _read_varint(data, position)
            status = value if field == 1 else status
        elif kind == 2:
            length, position = _read_varint(data, position)
            position += length
        elif kind in (1, 5):
            position += 8 if kind == 1 else 4
        else:
            raise ValueError(f"health answer has a field of unknown kind {kind}")
    return status


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        number |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return number, position
    raise ValueError("health answer is cut short")


MAX_REDIRECTS: Final = 10
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_PORTS: Final = {"http": 80, "https": 443}
_TIMED_OUT: Final = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
_SLOW_BODY: Final = "context deadline exceeded (Client.Timeout or context cancellation while reading body)"


class ShortCalls:
    """Implements `PodNetwork`; holds nothing open, so one serves all callers."""

    def __init__(self, lookups: NameLookups | None = None, roots: ssl.SSLContext | None = None) -> None:
        """`roots` verifies servers of `fetch`; without it the system's authorities do."""
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
        # A Host header given by hand belongs to its address.
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
