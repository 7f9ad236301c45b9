"""Requests over HTTP/1.1 by aiohttp: a connection for each request under way, kept for the next ones.

Imported when it is needed: for a server that does not speak HTTP/2, or with DISABLE_HTTP2.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import ClassVar, Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.tracing import Trace
from yarl import URL

from pykubelet.clients.http2.session import ConnectionEnded
from pykubelet.clients.kube.dialing import CONNECT_TIMEOUT, Route, make_socket, reach, with_tls
from pykubelet.clients.kube.exchanges import Answer, Request
from pykubelet.clients.kube.socks import is_socks
from pykubelet.kit.names import NameLookups

IDLE_KEPT: Final = 60.0
PARALLEL_CALLS: Final = 16
"""Ordinary requests at once; more would only mean more handshakes."""


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


class SocksConnector(aiohttp.BaseConnector):
    """Connections through a SOCKS proxy, which aiohttp does not know."""

    def __init__(self, route: Route, tls: ssl.SSLContext | None, lookups: NameLookups, limit: int) -> None:
        super().__init__(limit=limit, keepalive_timeout=IDLE_KEPT)
        self._route = route
        self._tls = tls
        self._lookups = lookups

    async def _create_connection(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        made = self._factory()
        name = self._route.server_name or req.url.host or ""
        await with_tls(made, await reach(self._route, self._lookups), self._tls, name)
        return made


class Http1Connections:
    def __init__(self, route: Route, tls: ssl.SSLContext | bool, lookups: NameLookups) -> None:
        self._route = route
        self._lookups = lookups
        self._proxy = route.proxy if route.proxy and not is_socks(route.proxy) else None
        self._calls = self._session(tls, PARALLEL_CALLS)
        self._streams = self._session(tls, 0)

    def _session(self, tls: ssl.SSLContext | bool, limit: int) -> aiohttp.ClientSession:
        connector: aiohttp.BaseConnector
        if is_socks(self._route.proxy):
            secure = tls if isinstance(tls, ssl.SSLContext) else None
            connector = SocksConnector(self._route, secure, self._lookups, limit)
        else:
            resolver = ApiResolver(self._lookups)
            connector = aiohttp.TCPConnector(
                ssl=tls, limit=limit, keepalive_timeout=IDLE_KEPT, socket_factory=make_socket, resolver=resolver
            )
        traced = aiohttp.TraceConfig()
        traced.on_request_headers_sent.append(_note_sent)
        return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trace_configs=[traced])

    async def open(self, request: Request) -> Answer:
        """Raises OSError, TimeoutError."""
        session = self._calls if request.silence is None else self._streams
        with _own_errors():
            response = await session.request(
                request.method,
                URL(request.url, encoded=True),
                data=request.body or None,
                headers=request.headers,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=request.silence),
                server_hostname=self._route.server_name or None,
                proxy=self._proxy,
                allow_redirects=False,
                trace_request_ctx=request,
            )
        return Http1Answer(response)

    async def close(self) -> None:
        await self._calls.close()
        await self._streams.close()


async def _note_sent(session: aiohttp.ClientSession, context: SimpleNamespace, sent: object) -> None:
    request: Request = context.trace_request_ctx
    if request.sent is not None:
        request.sent(True)


class Http1Answer:
    __slots__ = ("_response", "retry_after", "status")
    version: ClassVar = "1.1"

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.retry_after = response.headers.get("Retry-After", "")

    async def chunk(self) -> bytes:
        with _own_errors():
            return await self._response.content.readany()

    def end(self) -> None:
        self._abort()
        self._response.close()

    def leave(self) -> None:
        # Left early: do not wait half a minute for the server's TLS farewell.
        self._abort()
        self._response.close()

    def _abort(self) -> None:
        connection = self._response.connection
        if connection is not None and connection.transport is not None:
            connection.transport.abort()


@contextmanager
def _own_errors() -> Iterator[None]:
    """The library's errors as those of connections."""
    try:
        yield
    except aiohttp.ServerDisconnectedError as error:
        raise ConnectionEnded(str(error)) from error
    except aiohttp.ClientError as error:
        if isinstance(error, OSError):
            raise
        raise ConnectionAbortedError(str(error) or type(error).__name__) from error
