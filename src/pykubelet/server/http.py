"""HTTP with aiohttp: requests become `Call`s, replies become bytes, upgraded connections are taken over.

The only module of the server that knows the HTTP library; it is imported when the first caller comes. Also keeps
the list of connections: who idles, who has not sent a request yet, whose certificate was checked with an old CA.
Does not cover: accepting and TLS (listeners.py), what is answered (site.py).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast
from urllib.parse import parse_qsl, unquote

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from pykubelet.kit.clock import Clock
from pykubelet.server.auth import PeerCertificate, peer_certificate
from pykubelet.server.calls import TEXT, Answer, Bridging, Call, Flow, Refused, Reply, Upgraded
from pykubelet.server.channels import serve_channels, serve_tunnel
from pykubelet.server.listeners import Limits
from pykubelet.server.proxy import BLOCK, Idle, open_stream, relay
from pykubelet.server.tls import TlsFiles

logger = logging.getLogger(__name__)

LINGERING = 2.0
"""Seconds a body nobody wants is read and thrown away, so that the caller sees the answer."""
READ_BUFFER = 64 * 1024


class Site(Protocol):
    async def answer(self, call: Call, certificate: PeerCertificate | None) -> Reply:
        """Never fails: what goes wrong is an Answer."""
        ...


@dataclass(slots=True, eq=False)
class Connection:
    transport: asyncio.Transport
    generation: int
    idle_since: float | None
    head_timer: asyncio.TimerHandle | None = None
    certificate: PeerCertificate | None = None


class _Log:
    """What aiohttp has to say: strangers' garbage is worth a debug line, our own mistakes an error."""

    def exception(self, message: str, *words: object, exc_info: BaseException | None = None) -> None:
        if isinstance(exc_info, HttpProcessingError | ConnectionError):
            logger.debug("a request could not be read", extra={"problem": str(exc_info)[:200]})
        else:
            logger.error("serving a request failed", exc_info=exc_info)

    def debug(self, message: str, *words: object, exc_info: BaseException | None = None) -> None:
        return

    def warning(self, message: str, *words: object) -> None:
        logger.warning(message, *words)


class HttpFront(web.Server):
    """Makes a protocol for each connection; also the place where connections are counted and judged."""

    def __init__(
        self, *, site: Site, clock: Clock, limits: Limits, stream_idle: float, tls: TlsFiles | None = None
    ) -> None:
        super().__init__(
            cast(Any, self._serve),
            handler_cancellation=True,
            keepalive_timeout=limits.idle,
            logger=cast(Any, _Log()),
            access_log=cast(Any, None),
            max_line_size=limits.line_bytes,
            max_field_size=limits.field_bytes,
            max_headers=limits.fields,
            lingering_time=LINGERING,
            read_bufsize=READ_BUFFER,
            auto_decompress=False,
        )
        self._site = site
        self._clock = clock
        self._limits = limits
        self._stream_idle = stream_idle
        self._tls = tls
        self._open: dict[RequestHandler, Connection] = {}
        self._generation = 0

    # --- connections ----------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._open)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        loop = asyncio.get_running_loop()
        self._renew()
        connection = Connection(transport, self._generation, loop.time())
        connection.head_timer = loop.call_later(self._limits.head, transport.abort)
        secured = transport.get_extra_info("ssl_object")
        if secured is not None:
            connection.certificate = peer_certificate(secured.getpeercert(), ssl.cert_time_to_seconds)
            if self._tls is not None:
                connection.generation = self._tls.generation_of(secured.context)
        self._open[handler] = connection

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        connection = self._open.pop(handler, None)
        if connection is not None and connection.head_timer is not None:
            connection.head_timer.cancel()

    def _renew(self) -> None:
        """Callers whose certificates were judged by an older CA bundle have to connect again."""
        if self._tls is None:
            return
        self._tls.context()  # looks at the files
        generation = self._tls.generation
        if generation == self._generation:
            return
        self._generation = generation
        for handler, connection in list(self._open.items()):
            if connection.certificate is None:
                continue
            if connection.idle_since is not None:
                connection.transport.close()
            else:
                handler.close()  # after the request that is under way

    def drop_longest_idle(self) -> bool:
        """Make room; False when every connection is busy."""
        idle = [(since, c) for c in self._open.values() if (since := c.idle_since) is not None]
        if not idle:
            return False
        chosen = min(idle, key=lambda pair: pair[0])[1]
        chosen.idle_since = None  # not to be chosen again while it closes
        chosen.transport.abort()
        return True

    # --- requests -------------------------------------------------------------------------------

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = self._open.get(request.protocol)
        if connection is not None and connection.certificate is not None:
            self._renew()
        stale = connection is not None and connection.certificate is not None
        if connection is None or (stale and connection.generation != self._generation):
            raise ConnectionResetError("the connection must be made anew")
        connection.idle_since = None
        if connection.head_timer is not None:
            connection.head_timer.cancel()
            connection.head_timer = None
        try:
            call = _call(request)
            reply = await self._site.answer(call, connection.certificate)
            return await self._send(request, call, reply)
        finally:
            connection.idle_since = asyncio.get_running_loop().time()

    async def _send(self, request: web.BaseRequest, call: Call, reply: Reply) -> web.StreamResponse:
        match reply:
            case Answer():
                return _whole(reply)
            case Flow():
                return await _flow(request, reply)
            case Upgraded():
                try:
                    return await self._upgrade(request, call, reply)
                except Refused as refusal:
                    return _refusal(refusal)

    async def _upgrade(self, request: web.BaseRequest, call: Call, reply: Upgraded) -> web.StreamResponse:
        idle = Idle(self._clock, self._stream_idle)
        match reply.bridging:
            case Bridging.CHANNELS:
                return await serve_channels(request, reply, idle)
            case Bridging.TUNNEL:
                return await serve_tunnel(request, reply, idle)
        runtime = await open_stream(reply.url, call.method, call.headers)
        if runtime.status != 101:
            runtime.close()
            kind = runtime.headers.get("content-type", TEXT)
            return _whole(Answer(status=runtime.status, body=runtime.body, content_type=kind))
        try:
            async with taken_over(request) as (reader, writer):
                writer.write(runtime.head)
                await relay((reader, writer), (runtime.reader, runtime.writer), idle=idle)
        finally:
            runtime.close()
        return Gone()


def _call(request: web.BaseRequest) -> Call:
    path, _, query = request.raw_path.partition("?")
    if not path.startswith("/"):  # absolute form, as sent to a proxy
        path = request.rel_url.raw_path

    async def body(limit: int) -> bytes:
        found = bytearray()
        while len(found) <= limit and (block := await request.content.readany()):
            found += block
        if len(found) > limit:
            raise Refused(413, f"the body may have {limit} bytes")
        return bytes(found)

    return Call(
        method=request.method,
        path=unquote(path, errors="replace"),
        query=parse_qsl(query, keep_blank_values=True, errors="replace", max_num_fields=None),
        headers=[
            (name.decode("latin-1").lower(), value.decode("utf-8", "surrogateescape"))
            for name, value in request.raw_headers
        ],
        body=body,
        has_body=request.body_exists,
    )


def _headers(content_type: str, more: Mapping[str, str]) -> dict[str, str]:
    return {"Content-Type": content_type, "X-Content-Type-Options": "nosniff", **more}


def _whole(answer: Answer) -> web.Response:
    return web.Response(status=answer.status, body=answer.body, headers=_headers(answer.content_type, answer.headers))


def _refusal(refusal: Refused) -> web.Response:
    return _whole(Answer(status=refusal.status, body=refusal.text.encode(), headers=refusal.headers))


async def _flow(request: web.BaseRequest, flow: Flow) -> web.StreamResponse:
    response = web.StreamResponse(headers=_headers(flow.content_type, flow.headers))
    async with aclosing(flow.chunks) as chunks:
        if flow.length is not None:
            response.content_length = flow.length
        elif request.version >= (1, 1):
            response.enable_chunked_encoding()
        else:
            response.force_close()
        await response.prepare(request)
        sent = 0
        try:
            async for chunk in chunks:
                sent += len(chunk)
                if chunk:
                    await response.write(chunk)
        except (OSError, Refused) as error:
            if not isinstance(error, ConnectionError):
                logger.warning("an answer broke off", extra={"path": request.path[:200], "error": str(error)})
            # The headers said success: only a connection that breaks can say otherwise now.
            raise ConnectionResetError(str(error)) from error
    if flow.length is not None and sent != flow.length:
        raise ConnectionResetError("the file became shorter while it was sent")
    await response.write_eof()
    return response


# --- taking a connection from the HTTP library ---------------------------------------------------


class Gone(web.StreamResponse):
    """Stands for an answer that was sent by other means; the connection ends with it."""

    def __init__(self) -> None:
        super().__init__()
        self.force_close()

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None

    async def write_eof(self, data: Any = b"") -> None:
        return


class _Tail:
    """Collects the bytes that came right behind the upgrade request."""

    def __init__(self) -> None:
        self.data = bytearray()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        return


class _Taken(asyncio.StreamReaderProtocol):
    lost = False
    error: Exception | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost, self.error = True, exc
        super().connection_lost(exc)


@asynccontextmanager
async def taken_over(request: web.BaseRequest) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """The caller's bare connection for the length of the block; then it is closed."""
    transport, handler = request.transport, request.protocol
    if transport is None or transport.is_closing():
        raise ConnectionResetError("the caller has gone")
    loop = asyncio.get_running_loop()
    tail = _Tail()
    handler.set_parser(cast(Any, tail))
    handler.keep_alive(False)
    reader = asyncio.StreamReader(limit=BLOCK, loop=loop)
    protocol = _Taken(reader, loop=loop)
    if tail.data:
        reader.feed_data(bytes(tail.data))
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    if not transport.is_reading():
        transport.resume_reading()
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    try:
        yield reader, writer
    finally:
        handler.close()  # whatever still arrives is no HTTP
        if protocol.lost:
            # Later, so that the library does not cancel the very task that is finishing here.
            loop.call_soon(handler.connection_lost, protocol.error)
        else:
            transport.set_protocol(handler)
            writer.close()
