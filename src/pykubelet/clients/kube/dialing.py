"""Opening connections to the API server: names, sockets that notice a dead peer, proxies, TLS, the protocol agreed on.

A peer that is silently gone is noticed by the kernel within 30 s (keep-alive and user timeout on every socket).
HTTP/2 is offered in the TLS handshake and used when the server takes it; HTTP/1.1 is aiohttp's (http1.py).
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import socket
import ssl
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote, urlsplit

from aiohappyeyeballs import start_connection
from msgspec import Struct

from pykubelet.clients.http.http1 import read_upgrade_head
from pykubelet.clients.http2.connection import Health, Http2Connection
from pykubelet.clients.kube.socks import is_socks, pass_through
from pykubelet.kit.names import NameLookups
from pykubelet.model.http import HttpProblem, join_host_port

CONNECT_TIMEOUT: Final = 10.0
HANDSHAKE_TIMEOUT: Final = 10.0
FAREWELL_TIMEOUT: Final = 1.0
SECOND_FAMILY_AFTER: Final = 0.25
# Silence of 10 s is probed every 5 s; 20 s without any sign of life ends the connection.
KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_COUNT, USER_TIMEOUT_MS = 10, 5, 3, 20_000
PORTS: Final = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}


def make_socket(address: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
    made = socket.socket(family=address[0], type=address[1], proto=address[2])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_COUNT)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    return made


class Route(Struct, frozen=True, kw_only=True):
    """The way to the API server."""

    server: str
    """Its URL."""
    server_name: str = ""
    """The name its certificate must have, if not the URL's."""
    proxy: str = ""
    """URL; empty for none."""


async def dial_http2(
    route: Route,
    tls: ssl.SSLContext,
    proxy_tls: Callable[[], ssl.SSLContext | None],
    lookups: NameLookups,
    health: Health,
) -> Http2Connection | None:
    """A connection; None when the server does not speak HTTP/2. Raises OSError, TimeoutError."""
    loop = asyncio.get_running_loop()
    host, port = _host_port(route.server)
    made = Http2Connection(health)
    try:
        if route.proxy and not is_socks(route.proxy):
            tunnel = await _tunnel(route.proxy, join_host_port(host, port), proxy_tls, lookups)
            try:
                transport = await loop.start_tls(
                    tunnel,
                    made,
                    tls,
                    server_hostname=route.server_name or host,
                    ssl_handshake_timeout=HANDSHAKE_TIMEOUT,
                    ssl_shutdown_timeout=FAREWELL_TIMEOUT,
                )
            except BaseException:
                tunnel.abort()
                raise
            if transport is None:
                raise ConnectionAbortedError("the connection ended in its TLS handshake")
        else:
            transport = await with_tls(made, await reach(route, lookups), tls, route.server_name or host)
        made.begin(transport)
        if not made.speaks_http2:
            return None
        # Else the first requests after a restart would be spread over more connections than they need.
        await made.ready(HANDSHAKE_TIMEOUT)
    except BaseException:
        made.abort()
        raise
    return made


async def reach(route: Route, lookups: NameLookups) -> socket.socket:
    """A socket to the server itself, or through its SOCKS proxy. Raises OSError, TimeoutError."""
    host, port = _host_port(route.server)
    if not is_socks(route.proxy):
        return await connect(host, port, lookups)
    sock = await connect(*_host_port(route.proxy), lookups)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            await pass_through(sock, route.proxy, host, port)
    except BaseException:
        sock.close()
        raise
    return sock


async def connect(host: str, port: int, lookups: NameLookups) -> socket.socket:
    """A connected socket; addresses of both families are tried side by side. Raises OSError, TimeoutError."""
    async with asyncio.timeout(CONNECT_TIMEOUT):
        found = [
            (family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address)
            for family, address in await _addresses(host, port, lookups)
        ]
        return await start_connection(
            found, happy_eyeballs_delay=SECOND_FAMILY_AFTER, interleave=1, socket_factory=make_socket
        )


async def with_tls(
    made: asyncio.Protocol, sock: socket.socket, tls: ssl.SSLContext | None, name: str
) -> asyncio.Transport:
    """The protocol on that socket, which is closed if that fails; TLS unless there is no context."""
    try:
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: made,
            sock=sock,
            ssl=tls,
            server_hostname=name if tls is not None else None,
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT if tls is not None else None,
            ssl_shutdown_timeout=FAREWELL_TIMEOUT if tls is not None else None,
        )
    except BaseException:
        sock.close()
        raise
    return transport


async def _addresses(host: str, port: int, lookups: NameLookups) -> list[tuple[int, tuple[object, ...]]]:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return list(await lookups.addresses(host, port))
    if address.version == 6:
        return [(socket.AF_INET6, (host, port, 0, 0))]
    return [(socket.AF_INET, (host, port))]


async def _tunnel(
    proxy: str, target: str, tls: Callable[[], ssl.SSLContext | None], lookups: NameLookups
) -> asyncio.Transport:
    """A connection through the proxy to the target. Raises OSError, TimeoutError."""
    parts = urlsplit(proxy)
    host, port = _host_port(proxy)
    head = _ProxyAnswer()
    sock = await connect(host, port, lookups)
    transport = await with_tls(head, sock, tls() if parts.scheme == "https" else None, host)
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if parts.username:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(login).decode()}")
    transport.write("\r\n".join([*lines, "", ""]).encode())
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            _, status, _ = await read_upgrade_head(head.reader)
        if status // 100 != 2:
            raise ConnectionRefusedError(f"the proxy {parts.hostname} answered {status}")
    except HttpProblem as error:
        transport.abort()
        raise ConnectionAbortedError(f"the proxy {parts.hostname}: {error}") from error
    except BaseException:
        transport.abort()
        raise
    return transport


class _ProxyAnswer(asyncio.Protocol):
    """What a proxy says before it is only a wire."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()

    def data_received(self, data: bytes) -> None:
        self.reader.feed_data(data)

    def eof_received(self) -> bool:
        self.reader.feed_eof()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.reader.feed_eof()


def _host_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or PORTS.get(parts.scheme, 443)
