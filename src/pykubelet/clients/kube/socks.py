"""The handshake with a SOCKS5 proxy (RFC 1928, logins by RFC 1929), after which a socket is a wire to the target.

Spoken on the bare socket, before TLS, and never a byte is read that belongs to the target. Names are resolved by the
proxy, for `socks5://` as for `socks5h://`, as in Go. Every answer has at most 262 bytes.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Final
from urllib.parse import unquote, urlsplit

SCHEMES: Final = frozenset({"socks5", "socks5h"})
VERSION, LOGIN_VERSION = 5, 1
NO_LOGIN, LOGIN, NONE_OF_THESE = 0, 2, 0xFF
CONNECT, IPV4, NAME, IPV6 = 1, 1, 3, 4
LONGEST = 255
REFUSALS: Final = {
    1: "general SOCKS server failure",
    2: "connection not allowed by ruleset",
    3: "network unreachable",
    4: "host unreachable",
    5: "connection refused",
    6: "TTL expired",
    7: "command not supported",
    8: "address type not supported",
}


def is_socks(proxy: str) -> bool:
    return urlsplit(proxy).scheme in SCHEMES


async def pass_through(sock: socket.socket, proxy: str, host: str, port: int) -> None:
    """Have the proxy at the other end connect this socket to the target. Raises OSError; the caller limits the time."""
    parts = urlsplit(proxy)
    try:
        address = target_address(host)
        login = login_message(unquote(parts.username), unquote(parts.password or "")) if parts.username else b""
        await _greet(sock, login)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, bytes([VERSION, CONNECT, 0]) + address + port.to_bytes(2, "big"))
        await _read_answer(sock)
    except ProxyRefused as error:
        raise ConnectionRefusedError(f"the proxy {parts.hostname}: {error}") from error


class ProxyRefused(Exception):
    """What the proxy said, or what cannot be said to it."""


def target_address(host: str) -> bytes:
    """The target as SOCKS writes it: an address as such, a name with its length."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return bytes([IPV4 if address.version == 4 else IPV6]) + address.packed
    try:
        name = host.encode("ascii" if host.isascii() else "idna")
    except UnicodeError as error:
        raise ProxyRefused(f"the name {host[:80]!r} cannot be sent: {error}") from error
    if not 0 < len(name) <= LONGEST:
        raise ProxyRefused(f"a name of {len(name)} bytes cannot be sent")
    return bytes([NAME, len(name)]) + name


def login_message(user: str, password: str) -> bytes:
    name, secret = user.encode(), password.encode()
    if len(name) > LONGEST or len(secret) > LONGEST:
        raise ProxyRefused("user and password may have 255 bytes each")
    return bytes([LOGIN_VERSION, len(name)]) + name + bytes([len(secret)]) + secret


async def _greet(sock: socket.socket, login: bytes) -> None:
    loop = asyncio.get_running_loop()
    methods = bytes([NO_LOGIN, LOGIN] if login else [NO_LOGIN])
    await loop.sock_sendall(sock, bytes([VERSION, len(methods)]) + methods)
    version, method = await _exactly(sock, 2)
    _check_version(version)
    if method == NONE_OF_THESE:
        raise ProxyRefused("no acceptable authentication methods")
    if method not in methods:
        raise ProxyRefused(f"unsupported authentication method {method}")
    if method == LOGIN:
        await loop.sock_sendall(sock, login)
        version, status = await _exactly(sock, 2)
        if version != LOGIN_VERSION or status != 0:
            raise ProxyRefused("username/password authentication failed")


async def _read_answer(sock: socket.socket) -> None:
    version, status, _, kind = await _exactly(sock, 4)
    _check_version(version)
    if status != 0:
        raise ProxyRefused(REFUSALS.get(status, f"unknown code: {status}"))
    match kind:
        case 1:
            length = 4
        case 4:
            length = 16
        case 3:
            [length] = await _exactly(sock, 1)
        case _:
            raise ProxyRefused(f"unknown address type {kind}")
    await _exactly(sock, length + 2)  # the address that the proxy connected from


def _check_version(version: int) -> None:
    if version != VERSION:
        raise ProxyRefused(f"unexpected protocol version {version}")


async def _exactly(sock: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = await asyncio.get_running_loop().sock_recv(sock, count - len(found))
        if not more:
            raise ProxyRefused("it closed the connection")
        found += more
    return found
