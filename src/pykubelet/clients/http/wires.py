"""Bytes to and from a pod: a plain or TLS connection on a bare non-blocking socket.

No asyncio transports and streams: a probe is one write and one or two reads, and a socket alone costs half the
CPU and a tenth of the memory of a stream pair. TLS is not verified into pods (probes never are) and sees the raw
bytes, so that an answer in plain HTTP is distinguished from any other broken handshake. Not covered: HTTP (client.py).
"""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from pykubelet.clients.http.http1 import os_error_text
from pykubelet.clients.http.port import ConnectProblem
from pykubelet.kit.names import LookupFailed, NameLookups
from pykubelet.kit.tls_records import Records
from pykubelet.model.http import HttpProblem, PlainAnswer, join_host_port

T = TypeVar("T")

CHUNK: Final = 16 * 1024
SPARE_RECORDS: Final = 32
"""TLS records without data in one answer; a server sends a few session tickets."""
LINGER_SECONDS: Final = 1


class Wire(Protocol):
    async def send(self, data: bytes) -> None: ...

    async def recv(self) -> bytes:
        """Some bytes; empty at the end."""
        ...

    def close(self) -> None: ...


THIS_MACHINE = "127.0.0.1"
"""What no host at all means, as in Go: the probes of a pod on the host's network, on a node without an API server."""


async def dial(host: str, port: int, lookups: NameLookups) -> socket.socket:
    """A connected socket. Raises ConnectProblem in Go's words; takes as long as the caller's timeout allows."""
    problem: Exception | None = None
    for family, address in await _addresses(host, port, lookups):
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            _quick_goodbye(sock)
            await asyncio.get_running_loop().sock_connect(sock, address)
            return sock
        except OSError as error:
            sock.close()
            problem = error
        except BaseException:
            sock.close()
            raise
    assert isinstance(problem, OSError)
    raise ConnectProblem(f"dial tcp {join_host_port(host, port)}: connect: {os_error_text(problem)}") from problem


async def _addresses(host: str, port: int, lookups: NameLookups) -> list[tuple[int, Any]]:
    host = host or THIS_MACHINE
    for family in (socket.AF_INET6, socket.AF_INET) if ":" in host else (socket.AF_INET,):
        try:
            socket.inet_pton(family, host)
        except (OSError, ValueError):
            continue
        return [(family, (host, port))]
    try:
        return [*await lookups.addresses(host, port)]
    except LookupFailed as error:
        raise ConnectProblem(f"dial tcp: {error}") from error


def _quick_goodbye(sock: socket.socket) -> None:
    """A peer that never closes its side must not hold our port for the system's minute.

    Go sets SO_LINGER to 1 s here. On Linux that makes close() itself wait, even on a non-blocking socket, which
    would stop our loop; the limit on the half-closed state has the wanted effect without waiting.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_LINGER2, LINGER_SECONDS)


class PlainWire:
    __slots__ = ("_loop", "_sock")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._sock, data)

    async def recv(self) -> bytes:
        return await self._loop.sock_recv(self._sock, CHUNK)

    def close(self) -> None:
        self._sock.close()


class TlsWire:
    __slots__ = ("_incoming", "_outgoing", "_plain", "_records", "_spare", "_started", "_tls")

    def __init__(self, sock: socket.socket, server_name: str, context: ssl.SSLContext) -> None:
        self._plain = PlainWire(sock)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._started = False
        self._records: Records | None = None
        """After the handshake: what came and was not yet given to the session."""
        self._spare = SPARE_RECORDS
        # An address is no server name: OpenSSL leaves it out of the hello by itself.
        try:
            self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        except ValueError as error:
            raise HttpProblem(f"tls: bad server name {server_name!r}: {error}") from error

    async def handshake(self) -> None:
        await self._drive(self._tls.do_handshake)
        self._records = Records(self._incoming.read())

    async def send(self, data: bytes) -> None:
        await self._drive(lambda: self._tls.write(data))

    async def recv(self) -> bytes:
        try:
            data = await self._drive(lambda: self._tls.read(CHUNK))
        except ssl.SSLZeroReturnError:
            return b""
        self._spare = min(SPARE_RECORDS, self._spare + 1)
        return data

    def close(self) -> None:
        self._plain.close()

    async def _drive(self, action: Callable[[], T]) -> T:
        while True:
            try:
                result = action()
            except ssl.SSLWantReadError:
                await self._flush()
                await (self._feed() if self._records is None else self._feed_record(self._records))
            except ssl.SSLEOFError:
                raise HttpProblem("EOF") from None
            else:
                await self._flush()
                return result

    async def _flush(self) -> None:
        if self._outgoing.pending:
            await self._plain.send(self._outgoing.read())

    async def _feed(self) -> None:
        data = await self._plain.recv()
        if not data:
            self._incoming.write_eof()
            return
        if not self._started and data.startswith(b"HTTP/"):
            raise PlainAnswer("http: server gave HTTP response to HTTPS client")
        self._started = True
        self._incoming.write(data)

    async def _feed_record(self, records: Records) -> None:
        """One at a time: a change of keys costs the loop many times what the bytes cost a pod that ask for it."""
        while not (record := records.take()):
            data = await self._plain.recv()
            if not data:
                self._incoming.write_eof()
                return
            records.add(data)
        if self._spare <= 0:
            raise HttpProblem("tls: too many ignored records")
        self._spare -= 1
        self._incoming.write(record)


async def open_wire(scheme: str, host: str, port: int, lookups: NameLookups, tls: ssl.SSLContext) -> Wire:
    sock = await dial(host, port, lookups)
    if scheme != "https":
        return PlainWire(sock)
    try:
        wire = TlsWire(sock, host, tls)
        await wire.handshake()
    except BaseException:
        sock.close()
        raise
    return wire


@functools.cache
def unverified() -> ssl.SSLContext:
    """For pods, which have certificates of their own making."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    # Nothing is verified, so short keys in pods' own certificates are no reason to refuse either.
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


@functools.cache
def verified() -> ssl.SSLContext:
    """For servers that give the node orders: a certificate for that name, by one of the system's authorities."""
    return ssl.create_default_context()
