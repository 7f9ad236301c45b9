"""HTTP with aiohttp: requests become `Request`s, replies become bytes, upgraded connections are taken over.

The modules that need the HTTP library (this and relay.py) are imported when the first caller connects. Also keeps
the connections: idle ones, those of callers not yet known, headers under way, certificates checked with an old CA.
Does not cover: accepting and TLS (listeners.py), what is answered (app.py).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from typing import Any, cast, overload
from urllib.parse import parse_qsl, unquote

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler
from msgspec import Struct

from pykubelet.kit.clock import Clock
from pykubelet.server.admission import PendingConnection, PendingConnections, Shares
from pykubelet.server.app import App
from pykubelet.server.auth import PeerCertificate, peer_certificate
from pykubelet.server.listeners import Limits
from pykubelet.server.relay import BLOCK, Idle, open_stream, relay, serve_channels, serve_tunnel
from pykubelet.server.requests import TEXT, Bridging, Refused, Reply, Request, Response, Stream, Upgrade
from pykubelet.server.streams import RETRY_AFTER
from pykubelet.server.tls import TlsFiles

logger = logging.getLogger(__name__)

LINGERING = 2.0
"""Seconds an unused body is read and thrown away, so that the caller sees the response."""
READ_BUFFER = 64 * 1024
LARGE = 64 * 1024
MAX_PATH = 16 * 1024
"""Of the path alone: parsing it costs time before the caller is known."""
MAX_PARAMETERS = 10_000
PAUSE_AFTER_REFUSALS = 1.0
"""Seconds before each 401 after the first on a connection: guessing tokens costs the caller time, not us."""
HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 35\r\n"
    b"Connection: close\r\n\r\n431 Request Header Fields Too Large"
)


class Connection(Struct, eq=False):
    transport: asyncio.Transport
    generation: int
    address: str
    pending: PendingConnection | None
    """None as soon as the caller is authenticated."""
    certificate: PeerCertificate | None = None
    busy: bool = False
    body: StreamReader | None = None
    """Of the request under way."""
    upgraded: bool = False
    """Bytes are no HTTP for as long as the request lasts."""
    refusals: int = 0
    head_bytes: int = 0
    """Of a request that has not begun to be served."""
    head_timer: asyncio.TimerHandle | None = None
    more: bool = False
    """The last bytes went on after a request's headers: its body or the next request."""


class _Log:
    """aiohttp's log: garbage from callers is worth a debug line, our own mistakes an error."""

    def exception(self, message: str, *words: object, exc_info: BaseException | None = None) -> None:
        if isinstance(exc_info, HttpProcessingError | ConnectionError):
            logger.debug("a request could not be read", extra={"problem": str(exc_info)[:200]})
        else:
            logger.error("serving a request failed", exc_info=exc_info)

    def debug(self, message: str, *words: object, exc_info: BaseException | None = None) -> None:
        return

    def warning(self, message: str, *words: object) -> None:
        logger.warning(message, *words)


class _Handler(RequestHandler):
    """The library's protocol, with an eye on headers that do not come to an end."""

    __slots__ = ("connection", "pending", "server")

    def __init__(self, server: HttpServer, pending: PendingConnection, **options: Any) -> None:
        super().__init__(server, **options)
        self.server = server
        self.pending = pending
        self.connection: Connection | None = None

    def data_received(self, data: bytes) -> None:
        connection = self.connection
        if connection is not None and not self.server.may_go_on(connection, data):
            if self.transport is not None and not connection.busy:
                self.transport.write(HEAD_TOO_LARGE)
            self.force_close()
            return
        super().data_received(data)


class HttpServer(web.Server):
    """Makes a protocol for each connection, and keeps the connections within their limits."""

    def __init__(
        self,
        *,
        app: App,
        clock: Clock,
        limits: Limits,
        pending_connections: PendingConnections,
        stream_idle: float,
        tls: TlsFiles | None = None,
        trusted: bool = False,
    ) -> None:
        """`trusted`: every caller is known, as on the local socket."""
        super().__init__(cast(Any, self._serve), handler_cancellation=True)
        self._options: dict[str, Any] = {
            "keepalive_timeout": limits.idle,
            "logger": _Log(),
            "access_log": None,
            "max_line_size": limits.head_bytes,
            "max_field_size": limits.head_bytes,
            "max_headers": limits.fields,
            "lingering_time": LINGERING,
            "read_bufsize": READ_BUFFER,
            "auto_decompress": False,
        }
        self._app = app
        self._clock = clock
        self._limits = limits
        self._pending = pending_connections
        self._shares = Shares(limits.requests)
        self._stream_idle = stream_idle
        self._tls = tls
        self._trusted = trusted
        self._open: dict[RequestHandler, Connection] = {}
        self._idle: dict[Connection, None] = {}
        """Known callers that ask nothing just now, the one that has idled longest first."""
        self._heads = 0
        """Bytes of all headers that are not complete."""
        self._generation = 0

    # --- connections ----------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._open)

    def handler(self, pending: PendingConnection) -> RequestHandler:
        return _Handler(self, pending, loop=asyncio.get_running_loop(), **self._options)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        assert isinstance(handler, _Handler)
        self._renew()
        handler.connection = connection = Connection(
            transport, self._generation, handler.pending.address, handler.pending
        )
        handler.pending.drop = transport.abort
        secured = transport.get_extra_info("ssl_object")
        if secured is not None:
            connection.certificate = peer_certificate(secured.getpeercert(), ssl.cert_time_to_seconds)
            if self._tls is not None:
                connection.generation = self._tls.generation_of(secured.context)
        self._open[handler] = connection
        self._expect_head(connection)
        if self._trusted or connection.certificate is not None:
            self._make_known(connection)
            self._rest(connection)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        connection = self._open.pop(handler, None)
        if connection is None:
            return
        self._idle.pop(connection, None)
        self._head_complete(connection)
        if connection.pending is not None:
            self._pending.leave(connection.pending)

    def _make_known(self, connection: Connection) -> None:
        if connection.pending is not None:
            self._pending.leave(connection.pending)
            connection.pending = None

    def _rest(self, connection: Connection) -> None:
        """A known caller has nothing to ask for now."""
        self._idle[connection] = None
        if len(self._idle) > self._limits.connections:
            self.drop_longest_idle()

    def _renew(self) -> None:
        """Callers whose certificates were verified with an older CA bundle have to connect again."""
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
            if connection.busy:
                handler.close()  # after the request that is under way
            else:
                connection.transport.close()

    def drop_longest_idle(self) -> bool:
        """Close the connection idle for longest; False when all known callers are busy."""
        if not self._idle:
            return False
        chosen = next(iter(self._idle))
        del self._idle[chosen]
        chosen.transport.abort()
        return True

    # --- headers under way ------------------------------------------------------------------------

    def _expect_head(self, connection: Connection) -> None:
        if connection.head_timer is None:
            loop = asyncio.get_running_loop()
            connection.head_timer = loop.call_later(self._limits.head, connection.transport.abort)

    def _head_complete(self, connection: Connection) -> None:
        self._heads -= connection.head_bytes
        connection.head_bytes = 0
        if connection.head_timer is not None:
            connection.head_timer.cancel()
            connection.head_timer = None

    def may_go_on(self, connection: Connection, data: bytes) -> bool:
        """Bytes came. False when they can only be headers and are too many for one request."""
        if connection.upgraded or (connection.body is not None and not connection.body.is_eof()):
            return True  # a body has its own bounds: reading stops while it is not consumed
        connection.head_bytes += len(data)
        self._heads += len(data)
        connection.more = not data.endswith(b"\r\n\r\n")
        if not connection.busy:
            self._expect_head(connection)
        if self._heads > self._limits.heads_bytes:
            # The largest, a pending connection's before that of an authenticated caller.
            chosen = max(self._open.values(), key=lambda c: (c.pending is not None and c.head_bytes > 0, c.head_bytes))
            chosen.transport.abort()
        return connection.head_bytes <= self._limits.head_bytes

    # --- requests -------------------------------------------------------------------------------

    async def _serve(self, incoming: web.BaseRequest) -> web.StreamResponse:
        connection = self._open.get(incoming.protocol)
        if connection is not None and connection.certificate is not None:
            self._renew()
        stale = connection is not None and connection.certificate is not None
        if connection is None or (stale and connection.generation != self._generation):
            raise ConnectionResetError("the connection must be made anew")
        shares: list[str] = []

        def admit(key: str) -> None:
            self._make_known(connection)
            if not self._shares.take(key):
                text = f"too many requests under way for {key}, try again later"
                raise Refused(429, text, {"Retry-After": RETRY_AFTER})
            shares.append(key)

        self._begin(connection, incoming)
        try:
            request = _request(incoming, connection.address)
            with ExitStack() as until_sent:
                reply = await self._app.handle(request, connection.certificate, admit, until_sent)
                if connection.pending is not None and isinstance(reply, Response) and reply.status == 401:
                    connection.refusals += 1
                    if connection.refusals > 1:
                        await self._clock.sleep(PAUSE_AFTER_REFUSALS)
                connection.upgraded = isinstance(reply, Upgrade)
                return await self._send(incoming, request, reply)
        except Refused as refusal:
            return _refusal(refusal)
        finally:
            for key in shares:
                self._shares.give_back(key)
            self._end(connection, incoming.protocol)

    def _begin(self, connection: Connection, incoming: web.BaseRequest) -> None:
        connection.busy = True
        connection.body = incoming.content
        self._idle.pop(connection, None)
        self._head_complete(connection)

    def _end(self, connection: Connection, handler: RequestHandler) -> None:
        connection.busy = False
        connection.body, connection.upgraded = None, False
        if handler not in self._open:
            return
        if connection.head_bytes or connection.more:
            self._expect_head(connection)  # the next request may have begun already
        if connection.pending is None:
            self._rest(connection)

    async def _send(self, incoming: web.BaseRequest, request: Request, reply: Reply) -> web.StreamResponse:
        match reply:
            case Response() if len(reply.body) > LARGE and reply.status == 200 and incoming.method != "HEAD":
                return await _send_stream(incoming, _in_pieces(reply), self._limits.stalled_answer)
            case Response():
                return _whole(reply)
            case Stream():
                return await _send_stream(incoming, reply, self._limits.stalled_flow)
            case Upgrade():
                try:
                    return await self._upgrade(incoming, request, reply)
                except Refused as refusal:
                    return _refusal(refusal)

    async def _upgrade(self, incoming: web.BaseRequest, request: Request, reply: Upgrade) -> web.StreamResponse:
        idle = Idle(self._clock, self._stream_idle)
        match reply.bridging:
            case Bridging.CHANNELS:
                return await serve_channels(incoming, reply, idle)
            case Bridging.TUNNEL:
                return await serve_tunnel(incoming, reply, idle)
        runtime = await open_stream(reply.url, request.method, request.headers)
        if runtime.status != 101:
            runtime.close()
            kind = runtime.headers.get("content-type", TEXT)
            return _whole(Response(status=runtime.status, body=runtime.body, content_type=kind))
        try:
            async with taken_over(incoming) as (reader, writer):
                writer.write(runtime.head)
                await relay((reader, writer), (runtime.reader, runtime.writer), idle=idle)
        finally:
            runtime.close()
        return Gone()


class _Query(Sequence[tuple[str, str]]):
    """The parameters, parsed at first use: unauthenticated callers are refused before that."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found: list[tuple[str, str]] | None = None

    def _parsed(self) -> list[tuple[str, str]]:
        if self._found is None:
            try:
                self._found = parse_qsl(
                    self._text, keep_blank_values=True, errors="replace", max_num_fields=MAX_PARAMETERS
                )
            except ValueError:
                raise Refused(400, f"the query may have {MAX_PARAMETERS} parameters") from None
        return self._found

    @overload
    def __getitem__(self, index: int) -> tuple[str, str]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[str, str]]: ...
    def __getitem__(self, index: int | slice) -> tuple[str, str] | Sequence[tuple[str, str]]:
        return self._parsed()[index]

    def __len__(self) -> int:
        return len(self._parsed())


def _request(incoming: web.BaseRequest, address: str) -> Request:
    """Raises Refused for a path that is too long."""
    path, _, query = incoming.raw_path.partition("?")
    if len(path) > MAX_PATH:
        raise Refused(414, "414 Request-URI Too Long")
    if not path.startswith("/"):  # absolute form, as sent to a proxy
        path = incoming.rel_url.raw_path

    async def body(limit: int) -> bytes:
        found = bytearray()
        while len(found) <= limit and (block := await incoming.content.readany()):
            found += block
        if len(found) > limit:
            raise Refused(413, f"the body may have {limit} bytes")
        return bytes(found)

    return Request(
        method=incoming.method,
        path=unquote(_text(path), errors="replace"),
        query=_Query(_text(query)),
        headers=[
            (name.decode("latin-1").lower(), value.decode("utf-8", "surrogateescape"))
            for name, value in incoming.raw_headers
        ],
        body=body,
        has_body=incoming.body_exists,
        address=address,
        peer=_peer(incoming.transport),
        version=f"{incoming.version.major}.{incoming.version.minor}",
    )


def _peer(transport: asyncio.Transport | None) -> tuple[str, int]:
    name = transport.get_extra_info("peername") if transport is not None else None
    return (name[0], name[1]) if isinstance(name, tuple) else ("", 0)


def _text(raw: str) -> str:
    """The library keeps bytes that are no UTF-8 as half characters, which nothing could be answered or logged with."""
    return raw.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _headers(content_type: str, more: Mapping[str, str]) -> dict[str, str]:
    return {"Content-Type": content_type, "X-Content-Type-Options": "nosniff", **more}


def _whole(response: Response) -> web.Response:
    headers = _headers(response.content_type, response.headers)
    return web.Response(status=response.status, body=response.body, headers=headers)


def _in_pieces(response: Response) -> Stream:
    """A large response is sent as it is read, so that a stalled caller is noticed; a small one waits in the kernel."""

    async def pieces() -> AsyncGenerator[bytes, None]:
        for at in range(0, len(response.body), LARGE):
            yield response.body[at : at + LARGE]

    return Stream(
        chunks=pieces(), content_type=response.content_type, length=len(response.body), headers=response.headers
    )


def _refusal(refusal: Refused) -> web.Response:
    return _whole(Response(status=refusal.status, body=refusal.text.encode(), headers=refusal.headers))


async def _send_stream(incoming: web.BaseRequest, stream: Stream, stalled_after: float) -> web.StreamResponse:
    response = web.StreamResponse(headers=_headers(stream.content_type, stream.headers))
    async with aclosing(stream.chunks) as chunks:
        if stream.length is not None:
            response.content_length = stream.length
        elif incoming.version >= (1, 1):
            response.enable_chunked_encoding()
        else:
            response.force_close()
        await response.prepare(incoming)
        sent = 0
        try:
            async for chunk in chunks:
                sent += len(chunk)
                if chunk:
                    async with asyncio.timeout(stalled_after):
                        await response.write(chunk)
        except TimeoutError as error:
            logger.info("an answer was not taken", extra={"path": incoming.path[:200], "seconds": stalled_after})
            if incoming.transport is not None:
                incoming.transport.abort()  # closing would wait for the caller once more
            raise ConnectionResetError("the caller takes nothing") from error
        except (OSError, Refused) as error:
            if not isinstance(error, ConnectionError):
                logger.warning("an answer broke off", extra={"path": incoming.path[:200], "error": str(error)})
            # The headers were sent with success: only breaking the connection can still signal the failure.
            raise ConnectionResetError(str(error)) from error
    if stream.length is not None and sent != stream.length:
        raise ConnectionResetError("the file became shorter while it was sent")
    await response.write_eof()
    return response


class Gone(web.StreamResponse):
    """Stands for an answer that was sent by other means; the connection ends with it."""

    def __init__(self) -> None:
        super().__init__()
        self.force_close()

    async def prepare(self, incoming: web.BaseRequest) -> AbstractStreamWriter | None:
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
async def taken_over(incoming: web.BaseRequest) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """The caller's bare connection for the length of the block; then it is closed."""
    transport, handler = incoming.transport, incoming.protocol
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
        handler.close()  # further bytes are no HTTP
        if protocol.lost:
            # Later, so that the library does not cancel the very task that is finishing here.
            loop.call_soon(handler.connection_lost, protocol.error)
        else:
            transport.set_protocol(handler)
            writer.close()
