"""HTTP to the API server: pooled connections, deadlines, rate limit, proxies, errors as our own, request metrics.

One set of connections per TLS identity: when certificates change, new requests get new connections, running ones
finish, and watches end so that they start again with the new identity. A peer that is silently gone is noticed by
the kernel within 30 s (keep-alive and user timeout on every socket), a server that hangs by deadlines. An error's
reason decides where one status code has two meanings (409); bodies that are no Status, as proxies send them, keep the
beginning of their text as the message. Proxies are the kubeconfig's own, else HTTPS_PROXY and NO_PROXY as in Go.
Does not cover: what the requests mean (client.py).
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import platform
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlencode, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from pykubelet.api.codec import ManifestError, decode_json
from pykubelet.api.types import Status
from pykubelet.clients.kube.credentials import Identity, Login, TlsMaterial, ssl_context
from pykubelet.clients.kube.kubeconfig import Kubeconfig, KubeconfigError
from pykubelet.kit.clock import Clock
from pykubelet.kit.limits import TokenBucket
from pykubelet.kit.metrics import Registry
from pykubelet.kit.names import NameLookups
from pykubelet.model.errors import (
    ApiAlreadyExists,
    ApiConflict,
    ApiDown,
    ApiError,
    ApiNotFound,
    ApiServerError,
    Expired,
    Forbidden,
    Invalid,
    TooManyRequests,
    Unauthorized,
)

_BY_CODE: Mapping[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: ApiNotFound,
    409: ApiConflict,
    410: Expired,
    422: Invalid,
    429: TooManyRequests,
}


def error_of(code: int, body: bytes, retry_after_header: str = "") -> ApiError:
    """The error of an answer with status 300 and up."""
    try:
        status = decode_json(Status, body)
    except ManifestError:
        status = Status(message=body[:300].decode(errors="replace").strip())
    return error_of_status(status, code=code, retry_after_header=retry_after_header)


def error_of_status(status: Status, *, code: int = 0, retry_after_header: str = "") -> ApiError:
    """The error of a Status object, as answers and ERROR events of watches carry it."""
    code = code or status.code or 500
    reason = status.reason or ""
    kind = _BY_CODE.get(code, ApiServerError if code >= 500 else ApiError)
    if reason == "AlreadyExists":
        kind = ApiAlreadyExists
    elif reason in ("Expired", "Gone"):
        kind = Expired
    elif kind is Invalid and _is_about_uid(status):
        kind = ApiConflict  # a patch meant for another object of this name; validation sees it before preconditions
    return kind(
        status.message or f"the server answered {code}",
        code=code,
        reason=reason,
        retry_after=_retry_after(status, retry_after_header),
    )


def _is_about_uid(status: Status) -> bool:
    return status.details is not None and any(cause.field == "metadata.uid" for cause in status.details.causes)


def _retry_after(status: Status, header: str) -> float | None:
    if header.isascii() and header.isdigit() and len(header) < 10:
        return float(header)
    seconds = status.details.retry_after_seconds if status.details is not None else None
    return float(seconds) if seconds else None


def proxy_for(server: str, configured: str, environ: Mapping[str, str]) -> str:
    """The proxy's URL, empty for none."""
    if configured:
        return configured
    parts = urlsplit(server)
    name = f"{parts.scheme}_proxy"
    proxy = environ.get(name.upper()) or environ.get(name) or ""
    if not proxy or _bypassed(
        parts.hostname or "", parts.port, environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    ):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _bypassed(host: str, port: int | None, rules: str) -> bool:
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(
        _matches(host, address, port, rule) for rule in (text.strip().lower() for text in rules.split(",")) if rule
    )


def _matches(
    host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, port: int | None, rule: str
) -> bool:
    if rule == "*":
        return True
    if "/" in rule:
        try:
            return address is not None and address in ipaddress.ip_network(rule, strict=False)
        except ValueError:
            return False
    if (same := _address(rule)) is not None:
        return same == address
    name, _, rule_port = rule.rpartition(":") if ":" in rule else (rule, "", "")
    if rule_port and rule_port != str(port or ""):
        return False
    name = name.removeprefix("*").lstrip(".") if name.startswith("*.") else name
    if name.startswith("."):
        return host.endswith(name)
    return host == name or host.endswith("." + name)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None


class ApiResolver(AbstractResolver):
    """Behind aiohttp's connector."""

    def __init__(self, lookups: NameLookups) -> None:
        self._lookups = lookups

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._lookups.addresses(host, port)
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=port,
                family=each,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for each, address in found
            if family in (socket.AF_UNSPEC, each)
        ]

    async def close(self) -> None:
        return None


logger = logging.getLogger(__name__)

REQUEST_TIMEOUT = 60.0
CONNECT_TIMEOUT = 10.0
IDLE_KEPT = 60.0
PARALLEL_CALLS = 16
"""Ordinary requests at once; more would only mean more handshakes."""
RETRIES = 10
DEFAULT_QPS = 5.0
DEFAULT_BURST = 10
LONGEST_RETRY_AFTER = 30.0
# Silence of 10 s is probed every 5 s; 20 s without any sign of life ends the connection.
KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_COUNT, USER_TIMEOUT_MS = 10, 5, 3, 20_000

Query = Sequence[tuple[str, str]]
_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)


class RequestMetrics:
    """The request metrics every Kubernetes client has, for all clients of one agent together."""

    def __init__(self, registry: Registry) -> None:
        self._total = registry.counter(
            "rest_client_requests_total", "Requests to the API server by status code.", ("code", "host", "method")
        )
        self._seconds = registry.histogram(
            "rest_client_request_duration_seconds",
            "Duration of requests to the API server.",
            ("host", "verb"),
            _BUCKETS,
        )
        self._waits = registry.histogram(
            "rest_client_rate_limiter_duration_seconds",
            "Waiting for the client's own limit.",
            ("verb", "host"),
            _BUCKETS,
        )

    def requested(self, method: str, host: str, code: str, seconds: float) -> None:
        """`code` is `<error>` when no answer came."""
        self._total.inc(code, host, method)
        self._seconds.observe(seconds, host, method)

    def waited(self, method: str, host: str, seconds: float) -> None:
        self._waits.observe(seconds, method, host)


def user_agent(version: str) -> str:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return f"kubelet/{version} (linux/{machine}) kubernetes/pykubelet"


def _make_socket(address: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
    made = socket.socket(family=address[0], type=address[1], proto=address[2])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_COUNT)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    return made


class _Connections:
    """Everything opened with one TLS identity."""

    def __init__(self, tls: TlsMaterial, context: ssl.SSLContext | bool, lookups: NameLookups) -> None:
        self.tls = tls
        self.retired = False
        self._resolver = ApiResolver(lookups)
        self.calls = self._session(context, PARALLEL_CALLS)
        self.streams = self._session(context, 0)
        self._open_streams: set[aiohttp.ClientResponse] = set()
        self._open_calls: set[asyncio.Timeout] = set()
        self._users = 0
        self.aborted = False

    def _session(self, context: ssl.SSLContext | bool, limit: int) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            ssl=context,
            limit=limit,
            keepalive_timeout=IDLE_KEPT,
            socket_factory=_make_socket,
            resolver=self._resolver,
        )
        return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[None]:
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self.retired and self._users == 0:
                await self.close()

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[None]:
        """Ends with a TimeoutError when the connections are aborted."""
        async with asyncio.timeout(None) as scope:
            self._open_calls.add(scope)
            try:
                yield
            finally:
                self._open_calls.discard(scope)

    @asynccontextmanager
    async def streaming(self, response: aiohttp.ClientResponse) -> AsyncIterator[None]:
        self._open_streams.add(response)
        try:
            yield
        finally:
            self._open_streams.discard(response)
            # A stream left early: do not wait half a minute for the server's TLS farewell.
            connection = response.connection
            if connection is not None and connection.transport is not None:
                connection.transport.abort()

    async def retire(self) -> None:
        """No new requests; watches end now, the rest when it is done."""
        self.retired = True
        for response in list(self._open_streams):
            response.close()
        if self._users == 0:
            await self.close()

    async def abort(self) -> None:
        """End everything now, without a TLS farewell that would not be answered."""
        self.retired = self.aborted = True
        # By hand: closing the sessions would leave callers that wait for an answer, or read a stream, waiting.
        now = asyncio.get_running_loop().time()
        for scope in list(self._open_calls):
            scope.reschedule(now)
        for response in list(self._open_streams):
            if response.connection is not None and response.connection.transport is not None:
                response.connection.transport.abort()
        if self._users == 0:
            await self.close()

    async def close(self) -> None:
        await self.calls.close()
        await self.streams.close()


def rate_limit(qps: float, burst: int) -> TokenBucket:
    """A `qps` below zero means no limit, zero the usual default of a Kubernetes client."""
    return TokenBucket(rate=qps or DEFAULT_QPS, burst=burst or DEFAULT_BURST)


class Transport:
    def __init__(
        self,
        config: Kubeconfig,
        *,
        clock: Clock,
        agent: str,
        qps: float = 50,
        burst: int = 100,
        timeout: float = REQUEST_TIMEOUT,
        metrics: RequestMetrics | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._config = config
        self._clock = clock
        self._timeout = timeout
        self._login = Login(config, clock)
        self._limiter = rate_limit(qps, burst)
        self._metrics = metrics or RequestMetrics(Registry())
        self._headers = {"User-Agent": agent, "Accept": "application/json"}
        self._host = urlsplit(config.cluster.server).netloc
        self._server_name = config.cluster.tls_server_name or None
        self._proxy = proxy_for(config.cluster.server, config.cluster.proxy_url, environ) or None
        self._lookups = NameLookups(within=CONNECT_TIMEOUT)
        self._connections: _Connections | None = None
        self._refused_tls: TlsMaterial | None = None
        self._closed = False

    async def open(self) -> None:
        """Read the credentials now, so that a mistake in them is a KubeconfigError at start; does not connect."""
        await self._connections_for(await self._login.identity())

    async def close(self) -> None:
        self._closed = True
        if self._connections is not None:
            connections, self._connections = self._connections, None
            connections.retired = True
            await connections.close()

    async def renew(self) -> None:
        """Leave all connections, e.g. because a new certificate is there; running requests may finish."""
        if self._connections is not None:
            connections, self._connections = self._connections, None
            await connections.retire()

    async def abandon(self) -> None:
        """End all connections at once: the peer is silent. Requests that can be repeated are, on new ones."""
        if self._connections is not None:
            connections, self._connections = self._connections, None
            await connections.abort()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: bytes = b"",
        content_type: str = "application/json",
        timeout: float | None = None,
    ) -> bytes:
        """The body of a good answer; everything else raises ApiError."""
        deadline = self._clock.monotonic() + (timeout or self._timeout)
        refused: Identity | None = None
        broken = retries = 0
        while True:
            await self._turn(method)
            identity = await self._identity(refused)
            try:
                return await self._call(identity, method, path, query, body, content_type, deadline)
            except Unauthorized:
                if refused is not None or await self._identity(identity) == identity:
                    raise
                refused = identity
            except _Broken:
                # A pooled connection may end just as it is used. Never send a POST twice: it might create twice.
                broken += 1
                if broken > 1 or method == "POST":
                    raise
            except ApiError as error:
                wait = min(error.retry_after or 0.0, LONGEST_RETRY_AFTER)
                retries += 1
                if not wait or retries > RETRIES or self._clock.monotonic() + wait >= deadline:
                    raise
                await self._clock.sleep(wait)

    async def _turn(self, method: str) -> None:
        """Wait until the limit of requests a second lets one more go."""
        waited = await self._limiter.take(self._clock)
        self._metrics.waited(method, self._host, waited)

    async def stream(self, path: str, *, query: Query = (), silence: float) -> AsyncGenerator[bytes, None]:
        """The lines of an endless answer; more than `silence` seconds without a byte is ApiDown."""
        await self._turn("GET")
        identity = await self._identity(None)
        connections = await self._connections_for(identity)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=silence)
        started = self._clock.monotonic()
        async with connections.in_use():
            try:
                async with connections.streams.request(
                    "GET",
                    self._url(path, query),
                    headers=[*self._headers.items(), *identity.headers],
                    timeout=timeout,
                    server_hostname=self._server_name,
                    proxy=self._proxy,
                    allow_redirects=False,
                ) as response:
                    self._note("GET", str(response.status), started)
                    if response.status >= 300:
                        raise error_of(response.status, await response.read(), response.headers.get("Retry-After", ""))
                    async with connections.streaming(response):
                        lines = _Lines()
                        async for chunk in response.content.iter_any():
                            for line in lines.feed(chunk):
                                yield line
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                if connections.retired:
                    return
                raise ApiDown(f"{self._host}: {_what(error)}") from error

    async def _call(
        self,
        identity: Identity,
        method: str,
        path: str,
        query: Query,
        body: bytes,
        content_type: str,
        deadline: float,
    ) -> bytes:
        connections = await self._connections_for(identity)
        started = self._clock.monotonic()
        code = "<error>"
        headers = [*self._headers.items(), *identity.headers]
        if body:
            headers.append(("Content-Type", content_type))
        async with connections.in_use():
            try:
                async with (
                    connections.calling(),
                    connections.calls.request(
                        method,
                        self._url(path, query),
                        data=body or None,
                        headers=headers,
                        timeout=aiohttp.ClientTimeout(
                            total=max(0.1, deadline - started), sock_connect=min(CONNECT_TIMEOUT, self._timeout)
                        ),
                        server_hostname=self._server_name,
                        proxy=self._proxy,
                        allow_redirects=False,
                    ) as response,
                ):
                    answer = await response.read()
                    code = str(response.status)
                    if response.status >= 300:
                        raise error_of(response.status, answer, response.headers.get("Retry-After", ""))
                    return answer
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                kind = _Broken if connections.aborted or _is_broken(error) else ApiDown
                raise kind(f"{self._host}: {_what(error)}") from error
            finally:
                self._note(method, code, started)

    def _note(self, method: str, code: str, started: float) -> None:
        self._metrics.requested(method, self._host, code, self._clock.monotonic() - started)

    async def _identity(self, refused: Identity | None) -> Identity:
        try:
            return await (self._login.identity() if refused is None else self._login.renewed(refused))
        except KubeconfigError as error:
            raise ApiDown(str(error)) from error

    async def _connections_for(self, identity: Identity) -> _Connections:
        if self._closed:
            raise ApiDown(f"{self._host}: the client is closed")
        current = self._connections
        if current is not None and identity.tls in (current.tls, self._refused_tls):
            return current
        try:
            context = ssl_context(identity.tls) if self._config.cluster.server.startswith("https:") else True
        except (ssl.SSLError, ValueError) as error:
            problem = f"kubeconfig {self._config.source}: certificate, key or CA cannot be used: {error}"
            if current is None:
                raise KubeconfigError(problem) from None
            # Half of a new pair, probably: stay with what works until the files change again.
            self._refused_tls = identity.tls
            logger.warning("new client certificate cannot be used yet", extra={"problem": problem})
            return current
        self._connections = made = _Connections(identity.tls, context, self._lookups)
        if current is not None:
            logger.info("credentials changed; using new connections", extra={"server": self._host})
            await current.retire()
            if made.retired:  # renewed while we waited
                return await self._connections_for(identity)
        return made

    def _url(self, path: str, query: Query) -> URL:
        text = self._config.cluster.server + path + (f"?{urlencode(query)}" if query else "")
        return URL(text, encoded=True)


class _Broken(ApiDown):
    """A connection ended before an answer came."""


def _what(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__


def _is_broken(error: BaseException) -> bool:
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return True
    return isinstance(error, OSError) and error.errno in (errno.ECONNRESET, errno.EPIPE)


class _Lines:
    """Cuts a stream into lines. (aiohttp's readline refuses lines longer than its buffer; a Secret may be a MiB.)"""

    def __init__(self) -> None:
        self._pending: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that are complete now."""
        first, *others = chunk.split(b"\n")
        self._pending.append(first)
        if not others:
            return []
        lines = [b"".join(self._pending), *others[:-1]]
        self._pending = [others[-1]]
        return [line for line in lines if line]
