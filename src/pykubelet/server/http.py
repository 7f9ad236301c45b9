"""HTTP with aiohttp: requests become `Call`s, replies become bytes, upgraded connections are taken over.

What knows the HTTP library (this, channels.py, takeover.py) is imported when the first caller comes. Also keeps
the list of connections: who idles, who is a stranger still, whose headers are under way, whose certificate was checked
with an old CA. Does not cover: accepting and TLS (listeners.py), what is answered (site.py).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol, cast, overload
from urllib.parse import parse_qsl, unquote

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from pykubelet.kit.clock import Clock
from pykubelet.server.admission import Shares, Stranger, Strangers
from pykubelet.server.auth import PeerCertificate, peer_certificate
from pykubelet.server.calls import TEXT, Admit, Answer, Bridging, Call, Flow, Refused, Reply, Upgraded
from pykubelet.server.channels import serve_channels, serve_tunnel
from pykubelet.server.listeners import Limits
from pykubelet.server.proxy import Idle, open_stream, relay
from pykubelet.server.streams import RETRY_AFTER
from pykubelet.server.takeover import Gone, taken_over
from pykubelet.server.tls import TlsFiles

logger = logging.getLogger(__name__)

LINGERING = 2.0
"""Seconds a body nobody wants is read and thrown away, so that the caller sees the answer."""
READ_BUFFER = 64 * 1024
LARGE = 64 * 1024
MAX_PATH = 16 * 1024
"""Of the path alone: taking it apart costs time before anybody knows who asks."""
MAX_PARAMETERS = 10_000
PAUSE_AFTER_REFUSALS = 1.0
"""Seconds a stranger waits for each refusal after its first on a connection: guessing tokens costs it time, not us."""
HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 35\r\n"
    b"Connection: close\r\n\r\n431 Request Header Fields Too Large"
)


class Site(Protocol):
    async def answer(self, call: Call, certificate: PeerCertificate | None, admit: Admit) -> Reply:
        """Never fails: what goes wrong is an Answer."""
        ...


@dataclass(slots=True, eq=False)
class Connection:
    transport: asyncio.Transport
    generation: int
    address: str
    stranger: Stranger | None
    """None as soon as somebody vouched for the caller."""
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
    """The last bytes went on after a request's headers; whether they were its body or the next request, who knows."""


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


class _Handler(RequestHandler):
    """The library's protocol, with an eye on headers that do not come to an end."""

    __slots__ = ("connection", "front", "stranger")

    def __init__(self, front: HttpFront, stranger: Stranger, **options: Any) -> None:
        super().__init__(front, **options)
        self.front = front
        self.stranger = stranger
        self.connection: Connection | None = None

    def data_received(self, data: bytes) -> None:
        connection = self.connection
        if connection is not None and not self.front.may_go_on(connection, data):
            if self.transport is not None and not connection.busy:
                self.transport.write(HEAD_TOO_LARGE)
            self.force_close()
            return
        super().data_received(data)


class HttpFront(web.Server):
    """Makes a protocol for each connection; also the place where connections are counted and judged."""

    def __init__(
        self,
        *,
        site: Site,
        clock: Clock,
        limits: Limits,
        strangers: Strangers,
        stream_idle: float,
        tls: TlsFiles | None = None,
        trusted: bool = False,
    ) -> None:
        """`trusted`: whoever gets here is known, as on the local socket."""
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
        self._site = site
        self._clock = clock
        self._limits = limits
        self._strangers = strangers
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

    def handler(self, stranger: Stranger) -> RequestHandler:
        return _Handler(self, stranger, loop=asyncio.get_running_loop(), **self._options)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        assert isinstance(handler, _Handler)
        self._renew()
        handler.connection = connection = Connection(
            transport, self._generation, handler.stranger.address, handler.stranger
        )
        handler.stranger.drop = transport.abort
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
        if connection.stranger is not None:
            self._strangers.leave(connection.stranger)

    def _make_known(self, connection: Connection) -> None:
        if connection.stranger is not None:
            self._strangers.leave(connection.stranger)
            connection.stranger = None

    def _rest(self, connection: Connection) -> None:
        """A known caller has nothing to ask for now."""
        self._idle[connection] = None
        if len(self._idle) > self._limits.connections:
            self.drop_longest_idle()

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
            if connection.busy:
                handler.close()  # after the request that is under way
            else:
                connection.transport.close()

    def drop_longest_idle(self) -> bool:
        """Make room; False when every caller who is known is busy."""
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
            return True  # a body has its own bounds: reading stops while nobody takes it
        connection.head_bytes += len(data)
        self._heads += len(data)
        connection.more = not data.endswith(b"\r\n\r\n")
        if not connection.busy:
            self._expect_head(connection)
        if self._heads > self._limits.heads_bytes:
            # The largest, a stranger's before that of a caller who is known.
            chosen = max(self._open.values(), key=lambda c: (c.stranger is not None and c.head_bytes > 0, c.head_bytes))
            chosen.transport.abort()
        return connection.head_bytes <= self._limits.head_bytes

    # --- requests -------------------------------------------------------------------------------

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = self._open.get(request.protocol)
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

        self._begin(connection, request)
        try:
            call = _call(request, connection.address)
            reply = await self._site.answer(call, connection.certificate, admit)
            if connection.stranger is not None and isinstance(reply, Answer) and reply.status == 401:
                connection.refusals += 1
                if connection.refusals > 1:
                    await self._clock.sleep(PAUSE_AFTER_REFUSALS)
            connection.upgraded = isinstance(reply, Upgraded)
            return await self._send(request, call, reply)
        except Refused as refusal:
            return _refusal(refusal)
        finally:
            for key in shares:
                self._shares.give_back(key)
            self._end(connection, request.protocol)

    def _begin(self, connection: Connection, request: web.BaseRequest) -> None:
        connection.busy = True
        connection.body = request.content
        self._idle.pop(connection, None)
        self._head_complete(connection)

    def _end(self, connection: Connection, handler: RequestHandler) -> None:
        connection.busy = False
        connection.body, connection.upgraded = None, False
        if handler not in self._open:
            return
        if connection.head_bytes or connection.more:
            self._expect_head(connection)  # the next request may have begun already
        if connection.stranger is None:
            self._rest(connection)

    async def _send(self, request: web.BaseRequest, call: Call, reply: Reply) -> web.StreamResponse:
        match reply:
            case Answer() if len(reply.body) > LARGE and reply.status == 200 and request.method != "HEAD":
                return await _flow(request, _in_pieces(reply), self._limits.stalled_answer)
            case Answer():
                return _whole(reply)
            case Flow():
                return await _flow(request, reply, self._limits.stalled_flow)
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


class _Query(Sequence[tuple[str, str]]):
    """The parameters, taken apart when somebody asks for them: strangers are sent away before that."""

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


def _call(request: web.BaseRequest, address: str) -> Call:
    """Raises Refused for a path that is too long."""
    path, _, query = request.raw_path.partition("?")
    if len(path) > MAX_PATH:
        raise Refused(414, "414 Request-URI Too Long")
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
        path=unquote(_text(path), errors="replace"),
        query=_Query(_text(query)),
        headers=[
            (name.decode("latin-1").lower(), value.decode("utf-8", "surrogateescape"))
            for name, value in request.raw_headers
        ],
        body=body,
        has_body=request.body_exists,
        address=address,
    )


def _text(raw: str) -> str:
    """The library keeps bytes that are no UTF-8 as half characters, which nothing could be answered or logged with."""
    return raw.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _headers(content_type: str, more: Mapping[str, str]) -> dict[str, str]:
    return {"Content-Type": content_type, "X-Content-Type-Options": "nosniff", **more}


def _whole(answer: Answer) -> web.Response:
    return web.Response(status=answer.status, body=answer.body, headers=_headers(answer.content_type, answer.headers))


def _in_pieces(answer: Answer) -> Flow:
    """A large answer is sent as it is taken, so that one nobody takes is noticed; a small one waits in the kernel."""

    async def pieces() -> AsyncGenerator[bytes, None]:
        for at in range(0, len(answer.body), LARGE):
            yield answer.body[at : at + LARGE]

    return Flow(chunks=pieces(), content_type=answer.content_type, length=len(answer.body), headers=answer.headers)


def _refusal(refusal: Refused) -> web.Response:
    return _whole(Answer(status=refusal.status, body=refusal.text.encode(), headers=refusal.headers))


async def _flow(request: web.BaseRequest, flow: Flow, stalled_after: float) -> web.StreamResponse:
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
                    async with asyncio.timeout(stalled_after):
                        await response.write(chunk)
        except TimeoutError as error:
            logger.info("an answer was not taken", extra={"path": request.path[:200], "seconds": stalled_after})
            if request.transport is not None:
                request.transport.abort()  # closing would wait for the caller once more
            raise ConnectionResetError("the caller takes nothing") from error
        except (OSError, Refused) as error:
            if not isinstance(error, ConnectionError):
                logger.warning("an answer broke off", extra={"path": request.path[:200], "error": str(error)})
            # The headers said success: only a connection that breaks can say otherwise now.
            raise ConnectionResetError(str(error)) from error
    if flow.length is not None and sent != flow.length:
        raise ConnectionResetError("the file became shorter while it was sent")
    await response.write_eof()
    return response
