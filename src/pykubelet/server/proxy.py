"""Joining a caller's upgraded connection to the runtime's streaming server, byte for byte.

The request is repeated to the URL the runtime gave, with the caller's headers but not its credentials; the
runtime's answer goes back as it is, and after a 101 bytes flow both ways until either side ends. Each direction
holds at most a few blocks: who does not read stops who writes. Does not cover: how the caller's connection is
taken from the HTTP library (http.py), protocols that have to be translated (channels.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pykubelet.clients.http.http1 import read_body, read_upgrade_head
from pykubelet.kit.clock import Clock
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.http import HttpProblem
from pykubelet.server.auth import without_credentials
from pykubelet.server.calls import Refused

logger = logging.getLogger(__name__)

BLOCK = 64 * 1024
MAX_ERROR_BODY = 64 * 1024
DIAL_TIMEOUT = 10.0
ANSWER_TIMEOUT = 60.0
"""The runtime answers an upgrade at once, but an attach may wait for the container's lock."""
LINGER = 10.0
"""Seconds the runtime gets to say its last words after the caller has gone."""


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
    """Until the runtime has said all, the caller is gone, or nothing moved for too long. Closes the runtime's side."""
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
    """Wait until the last bytes are handed to the kernel: closing gives a slow reader too little time."""
    with contextlib.suppress(OSError, RuntimeError, TimeoutError):
        async with asyncio.timeout(idle.seconds or None):
            # Not 0: the TLS transport would call an empty buffer full.
            writer.transport.set_write_buffer_limits(high=1, low=0)
            await writer.drain()


def _log_broken(error: BaseException) -> None:
    logger.error("a streaming connection failed unexpectedly", extra={"error": repr(error)})
