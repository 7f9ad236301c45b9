"""The connections to the API server, for all clients of one login: as whom, by which way, in which protocol.

One set of connections per TLS identity: when certificates change, new requests get new connections, running ones
finish, and watches end so that they start again with the new identity. HTTP/2 where the server speaks it, HTTP/1.1
else or when DISABLE_HTTP2 is set; which one is asked again after a connection over HTTP/1.1 failed.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import math
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pykubelet.clients.http2.connection import Health, Http2Connection
from pykubelet.clients.kube.credentials import Identity, Login, TlsMaterial, ssl_context
from pykubelet.clients.kube.dialing import CONNECT_TIMEOUT, Route, dial_http2
from pykubelet.clients.kube.exchanges import Answer, Http2Connections, Request
from pykubelet.clients.kube.kubeconfig import Kubeconfig, KubeconfigError
from pykubelet.clients.kube.proxies import proxy_for
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.names import NameLookups
from pykubelet.model.errors import ApiDown

if TYPE_CHECKING:
    from pykubelet.clients.kube.http1 import Http1Connections

logger = logging.getLogger(__name__)


class Connections:
    """Everything opened with one TLS identity; `async with` it for as long as something of it is used."""

    def __init__(self, tls: TlsMaterial, route: Route, lookups: NameLookups, health: Health | None) -> None:
        """Without `health` only HTTP/1.1 is spoken. Raises ssl.SSLError, ValueError."""
        self.tls = tls
        self.retired = self.aborted = False
        self._route = route
        self._lookups = lookups
        self._health = health or Health()
        self._is_secure = route.server.startswith("https:")
        self._http1: Http1Connections | None = None
        self._http2: Http2Connections | None = None
        self._context = ssl_context(tls, http2=health is not None) if self._is_secure else None
        if health is not None and self._is_secure:
            self._http2 = Http2Connections(route, self._dial)
        self._open_streams: set[Answer] = set()
        self._open_calls: set[asyncio.Timeout] = set()
        self._users = 0

    async def open(self, request: Request) -> Answer:
        """Send a request. Raises OSError, TimeoutError."""
        if self._http2 is not None and not self._http2.not_spoken:
            answer = await self._http2.open(request)
            if answer is not None:
                return answer
        if self._http1 is None:
            from pykubelet.clients.kube.http1 import Http1Connections

            self._http1 = Http1Connections(self._route, self._plain_context() or True, self._lookups)
        return await self._http1.open(request)

    def broke(self) -> None:
        """A connection failed: the server may be another one next time."""
        if self._http2 is not None:
            self._http2.not_spoken = False

    async def _dial(self) -> Http2Connection | None:
        assert self._context is not None
        return await dial_http2(self._route, self._context, self._plain_context, self._lookups, self._health)

    def _plain_context(self) -> ssl.SSLContext | None:
        """For HTTP/1.1, also to a proxy; it offers no other protocol."""
        if self._http2 is None:
            return self._context
        return ssl_context(self.tls)

    async def __aenter__(self) -> None:
        self._users += 1

    async def __aexit__(self, *exc: object) -> None:
        self._users -= 1
        if self.retired and self._users == 0:
            await self.close()

    @asynccontextmanager
    async def calling(self, within: float) -> AsyncIterator[None]:
        """Ends with a TimeoutError after that time, and when the connections are aborted."""
        async with asyncio.timeout(within) as scope:
            self._open_calls.add(scope)
            try:
                yield
            finally:
                self._open_calls.discard(scope)

    def follow(self, stream: Answer) -> None:
        """Remember an endless answer; it ends with the connections."""
        self._open_streams.add(stream)
        if self.retired:
            stream.end()

    def forget(self, stream: Answer) -> None:
        self._open_streams.discard(stream)

    async def retire(self) -> None:
        """No new requests; watches end now, the rest when it is done."""
        self.retired = True
        for stream in list(self._open_streams):
            stream.end()
        if self._http2 is not None:
            self._http2.retire()
        if self._users == 0:
            await self.close()

    async def abort(self) -> None:
        """End everything now, without a TLS farewell that would not be answered."""
        self.retired = self.aborted = True
        # By hand: closing the sessions would leave callers that wait for an answer, or read a stream, waiting.
        now = asyncio.get_running_loop().time()
        for scope in list(self._open_calls):
            if not scope.expired():
                scope.reschedule(now)
        for stream in list(self._open_streams):
            stream.end()
        if self._http2 is not None:
            self._http2.abort()
        if self._users == 0:
            await self.close()

    async def close(self) -> None:
        self.retired = True
        if self._http1 is not None:
            await self._http1.close()
        if self._http2 is not None:
            await self._http2.close()


def http2_health(environ: Mapping[str, str]) -> Health | None:
    """How HTTP/2 connections are watched over, by the variables that all Kubernetes clients know; None: not spoken."""
    if environ.get("DISABLE_HTTP2"):
        return None
    usual = Health()
    idle = _seconds(environ, "HTTP2_READ_IDLE_TIMEOUT_SECONDS", usual.idle)
    answer = _seconds(environ, "HTTP2_PING_TIMEOUT_SECONDS", usual.answer)
    # As in client-go: no time to be silent means no health checks, no time to answer the usual one.
    return Health(idle=idle if idle > 0 else math.inf, answer=answer if answer > 0 else usual.answer)


def _seconds(environ: Mapping[str, str], name: str, usual: float) -> float:
    text = environ.get(name, "")
    if not text:
        return usual
    try:
        return float(int(text))
    except ValueError:
        logger.warning("not a number of seconds, the usual is used", extra={"variable": name, "value": text})
        return usual


class ServerConnections:
    def __init__(
        self,
        config: Kubeconfig,
        *,
        clock: Clock,
        environ: Mapping[str, str] = os.environ,
        metrics: Registry | None = None,
    ) -> None:
        self._config = config
        self.clock = clock
        self.host = urlsplit(config.cluster.server).netloc
        self._login = Login(config, clock, metrics)
        self._route = Route(
            server=config.cluster.server,
            server_name=config.cluster.tls_server_name,
            proxy=proxy_for(config.cluster.server, config.cluster.proxy_url, environ),
        )
        self._health = http2_health(environ)
        self._lookups = NameLookups(within=CONNECT_TIMEOUT)
        self._current: Connections | None = None
        self._usable_tls: TlsMaterial | None = None
        """The last of which connections could be made."""
        self._refused_tls: TlsMaterial | None = None
        """The newest, if none could."""
        self._closed = False

    @property
    def url(self) -> str:
        """The server's, without a trailing slash."""
        return self._config.cluster.server

    def apart(self) -> ServerConnections:
        """Others of the same login, for what must not wait behind everything that goes over these."""
        made = copy.copy(self)
        made._current = None
        return made

    async def open(self) -> None:
        """Read the credentials now, so that a mistake in them is a KubeconfigError at start; does not connect."""
        await self.connections(await self._login.identity())

    async def close(self) -> None:
        """End everything; safe to repeat."""
        self._closed = True
        if self._current is not None:
            connections, self._current = self._current, None
            await connections.close()

    async def renew(self) -> None:
        """Leave all connections, e.g. because a new certificate is there; running requests may finish."""
        if self._current is not None:
            connections, self._current = self._current, None
            await connections.retire()

    async def abandon(self) -> None:
        """End all connections at once: the peer is silent. Requests that can be repeated are, on new ones."""
        if self._current is not None:
            connections, self._current = self._current, None
            await connections.abort()

    async def identity(self, refused: Identity | None = None) -> Identity:
        """As whom to log in now; `refused` is one that the server did not accept. Raises ApiDown."""
        try:
            return await (self._login.identity() if refused is None else self._login.renewed(refused))
        except KubeconfigError as error:
            raise ApiDown(str(error)) from error

    async def connections(self, identity: Identity) -> Connections:
        """Those of the identity. Raises ApiDown when closed, KubeconfigError when the first one cannot be used."""
        if self._closed:
            raise ApiDown(f"{self.host}: the client is closed")
        current = self._current
        if current is not None and identity.tls in (current.tls, self._refused_tls):
            return current
        made = self._connections(identity.tls)
        if made is None:
            return current if current is not None else self._of_last_usable()
        self._current, self._usable_tls, self._refused_tls = made, made.tls, None
        if current is not None:
            logger.info("credentials changed; using new connections", extra={"server": self.host})
            await current.retire()
            if made.retired:  # renewed while we waited
                return await self.connections(identity)
        return made

    def _connections(self, tls: TlsMaterial) -> Connections | None:
        """None when they cannot be made of this, but could be made of what was there before."""
        if tls == self._refused_tls:
            return None
        try:
            return Connections(tls, self._route, self._lookups, self._health)
        except (ssl.SSLError, ValueError) as error:
            problem = f"kubeconfig {self._config.source}: certificate, key or CA cannot be used: {error}"
            if self._usable_tls is None:
                raise KubeconfigError(problem) from None
            # Half of a new pair, probably: stay with what works until the files change again.
            self._refused_tls = tls
            logger.warning("new client certificate cannot be used yet", extra={"problem": problem})
            return None

    def _of_last_usable(self) -> Connections:
        assert self._usable_tls is not None
        self._current = Connections(self._usable_tls, self._route, self._lookups, self._health)
        return self._current
