"""HTTP to the API server: pooled connections, deadlines, rate limit, errors as our own.

One set of connections per TLS identity: when certificates change, new requests get new connections, running ones
finish, and watches end so that they start again with the new identity. A peer that is silently gone is noticed by
the kernel within 30 s (keep-alive and user timeout on every socket), a server that hangs by deadlines.
Does not cover: what the requests mean (client.py).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import platform
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlencode, urlsplit

import aiohttp
from yarl import URL

from pykubelet.clients.kube.answers import error_of
from pykubelet.clients.kube.credentials import Identity, Login, TlsMaterial, ssl_context
from pykubelet.clients.kube.kubeconfig import Kubeconfig, KubeconfigError
from pykubelet.clients.kube.proxies import proxy_for
from pykubelet.clients.kube.resolver import ApiResolver
from pykubelet.kit.clock import Clock
from pykubelet.kit.limits import TokenBucket
from pykubelet.kit.names import NameLookups
from pykubelet.model.errors import ApiDown, ApiError, Unauthorized

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
CallObserver = Callable[[str, str, str, float], None]
WaitObserver = Callable[[str, str, float], None]
"""(method, host, code, seconds); the code is `<error>` when no answer came."""


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
        """End everything now, without a farewell that nobody would answer."""
        self.retired = self.aborted = True
        # By hand: closing the sessions would leave whoever waits for an answer, or reads a stream, waiting.
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
        observe: CallObserver | None = None,
        observe_wait: WaitObserver | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._config = config
        self._clock = clock
        self._timeout = timeout
        self._login = Login(config, clock)
        self._limiter = rate_limit(qps, burst)
        self._observe = observe
        self._observe_wait = observe_wait
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
        if self._observe_wait is not None:
            self._observe_wait(method, self._host, waited)

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
        if self._observe is not None:
            self._observe(method, self._host, code, self._clock.monotonic() - started)

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
