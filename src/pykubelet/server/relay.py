"""Joining a caller's upgraded connection to the runtime's streaming server.

The request is repeated to the URL the runtime gave, with the caller's headers but not its credentials; the runtime's
answer goes back as it is, and after a 101 bytes flow both ways until either side ends. Each direction holds at most a
few blocks: a side that does not read stops the other from writing.

WebSocket callers of runtimes that speak SPDY get v5 channels for exec and attach: a message is a channel number and
bytes (0 stdin, 1 stdout, 2 stderr, 3 error, 4 resize), 255 with a number closes that channel, and each channel is one
SPDY stream. Port-forward tunnels carry SPDY itself in messages. Older channel protocols runtimes speak themselves.
Does not cover: how the caller's connection is taken from the HTTP library (http.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from aiohttp import WSMsgType, web

from pykubelet.clients.http.http1 import read_body, read_upgrade_head
from pykubelet.clients.http.spdy import SpdyConnection, SpdyError, SpdyStream
from pykubelet.kit.clock import Clock
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.http import HttpProblem
from pykubelet.server.auth import without_credentials
from pykubelet.server.requests import Refused, Upgrade
from pykubelet.server.streams import CHANNELS_V5, TUNNEL_PROTOCOL

logger = logging.getLogger(__name__)

BLOCK = 64 * 1024
MAX_ERROR_BODY = 64 * 1024
DIAL_TIMEOUT = 10.0
ANSWER_TIMEOUT = 60.0
"""The runtime answers an upgrade at once, but an attach may wait for the container's lock."""
LINGER = 10.0
"""Seconds the runtime gets to send its last bytes after the caller has gone."""


@dataclass(slots=True, kw_only=True)
class RuntimeStream:
    """The runtime's answer to an upgrade; after a 101, reader and writer carry the new protocol."""

    status: int
    head: bytes
    """Status line and headers as they came, with the blank line."""
    headers: Mapping[str, str]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    body: bytes = b""

    def close(self) -> None:
        self.writer.close()


def request_head(url: str, method: str, headers: Sequence[tuple[str, str]]) -> bytes:
    """The request as the runtime gets it. The query is the URL's own; the caller's has been used up."""
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = [f"{method} {target} HTTP/1.1", f"Host: {parts.netloc}"]
    lines += [f"{name}: {value}" for name, value in without_credentials(headers) if name != "host"]
    text = "\r\n".join(lines)
    if "\r\n\r\n" in text or "\0" in text:
        raise Refused(400, "malformed header")
    return text.encode("utf-8", "surrogateescape") + b"\r\n\r\n"


async def open_stream(url: str, method: str, headers: Sequence[tuple[str, str]]) -> RuntimeStream:
    """Ask the runtime for the stream. Raises Refused when it cannot be reached or talks nonsense."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Refused(500, f"the runtime gave a streaming address without a host: {url[:100]!r}")
    head = request_head(url, method, headers)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(DIAL_TIMEOUT):
            reader, writer = await asyncio.open_connection(
                parts.hostname, port, limit=BLOCK, ssl=_unverified() if parts.scheme == "https" else None
            )
    except (OSError, TimeoutError) as error:
        logger.error("the runtime's streaming server cannot be reached", extra={"url": url, "error": str(error)})
        raise Refused(502, f"error dialing backend: {error or 'timed out'}") from error
    try:
        return await _ask(reader, writer, head)
    except BaseException:
        writer.close()
        raise


def _unverified() -> ssl.SSLContext:
    """The runtime signs for itself and is reached on loopback; upstream does not verify it either."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # the default one reads all authorities of the machine
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> RuntimeStream:
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            writer.write(head)
            await writer.drain()
            answer, status, headers = await read_upgrade_head(reader)
            stream = RuntimeStream(status=status, head=answer, headers=dict(headers), reader=reader, writer=writer)
            if status != 101:
                stream.body = await read_body(reader, headers, MAX_ERROR_BODY)
            return stream
    except (OSError, TimeoutError, HttpProblem) as error:
        logger.error("the runtime's streaming server gave no usable answer", extra={"error": str(error)})
        raise Refused(502, f"the runtime's streaming server gave no usable answer: {error}") from error


@dataclass(slots=True)
class Idle:
    """When bytes last moved, and the end of patience. 0 seconds is patience without end."""

    clock: Clock
    seconds: float
    last: float = field(init=False)

    def __post_init__(self) -> None:
        self.touch()

    def touch(self) -> None:
        self.last = self.clock.monotonic()

    async def wait(self) -> None:
        while True:
            left = self.last + self.seconds - self.clock.monotonic() if self.seconds > 0 else 3600.0
            if left <= 0:
                return
            await self.clock.sleep(left)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, touched: Callable[[], None]) -> None:
    """Copy until the reader ends or the writer breaks; then pass the end on where the connection knows halves."""
    try:
        while block := await reader.read(BLOCK):
            touched()
            writer.write(block)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except (OSError, RuntimeError) as error:
        # A broken connection ends the stream as an orderly one does; RuntimeError: the transport is closing.
        logger.debug("a streaming connection broke", extra={"error": str(error)})


async def relay(
    client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    runtime: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    *,
    idle: Idle,
) -> None:
    """Run until the runtime has sent all, the caller is gone, or both are idle too long. Closes the runtime's side."""
    try:
        async with TaskSet("relay", on_error=_log_broken) as tasks:
            up = tasks.spawn(pump(client[0], runtime[1], idle.touch), name="relay to the runtime")
            down = tasks.spawn(pump(runtime[0], client[1], idle.touch), name="relay to the caller")
            watch = tasks.spawn(idle.wait(), name="relay idle watch")
            await asyncio.wait({up, down, watch}, return_when=asyncio.FIRST_COMPLETED)
            if up.done() and not down.done() and not watch.done():
                await asyncio.wait({down, watch}, timeout=LINGER, return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                logger.info("an idle streaming connection was closed", extra={"seconds": idle.seconds})
            elif down.done():
                await _flush(client[1], idle)
    finally:
        runtime[1].close()


async def _flush(writer: asyncio.StreamWriter, idle: Idle) -> None:
    """Wait until the last bytes are in the kernel: closing gives a slow reader too little time."""
    with contextlib.suppress(OSError, RuntimeError, TimeoutError):
        async with asyncio.timeout(idle.seconds or None):
            # Not 0: the TLS transport would call an empty buffer full.
            writer.transport.set_write_buffer_limits(high=1, low=0)
            await writer.drain()


NUMBERS = {"stdin": 0, "stdout": 1, "stderr": 2, "error": 3, "resize": 4}
CLOSE = 255
FROM_CALLER = frozenset({"stdin", "resize"})
MAX_MESSAGE = 1024 * 1024


async def _runtime(url: str, protocol: str) -> RuntimeStream:
    runtime = await open_stream(
        url,
        "POST",
        [
            ("connection", "Upgrade"),
            ("upgrade", "SPDY/3.1"),
            ("x-stream-protocol-version", protocol),
            ("content-length", "0"),
        ],
    )
    if runtime.status != 101:
        runtime.close()
        raise Refused(runtime.status, runtime.body.decode(errors="replace"))
    return runtime


def _socket(protocol: str) -> web.WebSocketResponse:
    # No pings of our own: while one side waits for the other the answers are not read, and a patient caller would be
    # cut off. A caller that vanished is noticed by the kernel (listeners.py).
    return web.WebSocketResponse(protocols=(protocol,), compress=False, max_msg_size=MAX_MESSAGE, autoping=True)


async def _prepare(incoming: web.BaseRequest, socket: web.WebSocketResponse) -> None:
    try:
        await socket.prepare(incoming)
    except web.HTTPException as error:
        raise Refused(400, error.text or "unable to upgrade") from error


async def serve_channels(incoming: web.BaseRequest, reply: Upgrade, idle: Idle) -> web.StreamResponse:
    runtime = await _runtime(reply.url, "v4.channel.k8s.io")
    connection = SpdyConnection(runtime.reader, runtime.writer)
    try:
        socket = _socket(CHANNELS_V5)
        await _prepare(incoming, socket)
        await _bridge(socket, connection, ("error", *reply.streams), idle)
        await socket.close()
    finally:
        connection.close()
    return socket


async def _bridge(
    socket: web.WebSocketResponse, connection: SpdyConnection, names: tuple[str, ...], idle: Idle
) -> None:
    async with TaskSet("channels", on_error=_log_broken) as tasks:
        reading = tasks.spawn(connection.run(), name="channels from the runtime")
        streams = {name: await connection.open({"streamtype": name}) for name in names}
        to_caller = {
            tasks.spawn(_to_caller(socket, NUMBERS[name], stream, idle), name=f"channel {name}")
            for name, stream in streams.items()
            if name not in FROM_CALLER
        }
        from_caller = tasks.spawn(_from_caller(socket, streams, idle), name="channels from the caller")
        watch = tasks.spawn(idle.wait(), name="channels idle watch")
        pending: set[asyncio.Task[None]] = {from_caller, watch, *to_caller}
        # The runtime ends its output streams when the command has ended; the caller leaving ends it all.
        while to_caller & pending and not from_caller.done() and not watch.done():
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        reading.cancel()


async def _to_caller(socket: web.WebSocketResponse, number: int, stream: SpdyStream, idle: Idle) -> None:
    prefix = bytes([number])
    while block := await stream.read():
        idle.touch()
        await socket.send_bytes(prefix + block)


async def _from_caller(socket: web.WebSocketResponse, streams: Mapping[str, SpdyStream], idle: Idle) -> None:
    by_number = {NUMBERS[name]: stream for name, stream in streams.items()}
    allowed = {NUMBERS[name] for name in FROM_CALLER}
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        idle.touch()
        number, data = message.data[0], message.data[1:]
        if number == CLOSE:
            stream = by_number.get(data[0]) if data else None
            if stream is not None and data[0] in allowed:
                await stream.finish()
            continue
        stream = by_number.get(number)
        if stream is not None and number in allowed and data and not stream.finished:
            await stream.write(data)


async def serve_tunnel(incoming: web.BaseRequest, reply: Upgrade, idle: Idle) -> web.StreamResponse:
    runtime = await _runtime(reply.url, "portforward.k8s.io")
    try:
        socket = _socket(TUNNEL_PROTOCOL)
        await _prepare(incoming, socket)
        async with TaskSet("tunnel", on_error=_log_broken) as tasks:
            up = tasks.spawn(_tunnel_up(socket, runtime, idle), name="tunnel to the runtime")
            down = tasks.spawn(_tunnel_down(socket, runtime, idle), name="tunnel to the caller")
            watch = tasks.spawn(idle.wait(), name="tunnel idle watch")
            await asyncio.wait({up, down, watch}, return_when=asyncio.FIRST_COMPLETED)
        await socket.close()
    finally:
        runtime.close()
    return socket


async def _tunnel_up(socket: web.WebSocketResponse, runtime: RuntimeStream, idle: Idle) -> None:
    async for message in socket:
        if message.type is WSMsgType.BINARY:
            idle.touch()
            runtime.writer.write(message.data)
            await runtime.writer.drain()


async def _tunnel_down(socket: web.WebSocketResponse, runtime: RuntimeStream, idle: Idle) -> None:
    while block := await runtime.reader.read(BLOCK):
        idle.touch()
        await socket.send_bytes(block)


def _log_broken(error: BaseException) -> None:
    """A connection that breaks ends the stream, which is nothing to shout about; the rest is."""
    if isinstance(error, OSError | SpdyError):
        logger.info("a streaming connection broke", extra={"error": str(error)})
    else:
        logger.error("a streaming connection failed unexpectedly", extra={"error": repr(error)})
