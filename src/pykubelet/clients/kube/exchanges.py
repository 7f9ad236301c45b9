"""One request and its answer, the same for HTTP/2 and HTTP/1.1, and requests over HTTP/2.

HTTP/2 puts everything on one connection, and on another when the server takes no more streams on the first. How much
of an answer is read is bounded.
Does not cover: HTTP/1.1 (http1.py), which of them is used, with which certificate (connections.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import ClassVar, Final, Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from pykubelet.clients.http2.connection import Exchange, Http2Connection
from pykubelet.clients.http2.session import ConnectionEnded, NotProcessed
from pykubelet.clients.kube.dialing import Route
from pykubelet.clients.kube.port import Sent
from pykubelet.kit.backoff import jittered
from pykubelet.kit.tasks import gather_all
from pykubelet.model.errors import ApiServerError

logger = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 64
"""Of HTTP/2; a server that takes fewer streams on each than we need at once is asked again later."""
MOST_BODY: Final = 256 * 1024 * 1024
"""Bytes of one answer; a list of everything in a large cluster has a tenth of it."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds after a connection failed in which no other is tried; growing while they fail."""
RENEWED: Final = "the connections were renewed"


class Request(Struct, frozen=True, kw_only=True):
    method: str
    url: str
    headers: list[tuple[str, str]]
    body: bytes = b""
    silence: float | None = None
    """For an endless answer: the seconds it may say nothing."""
    sent: Sent | None = None


class Answer(Protocol):
    """To be left in any case."""

    status: int
    retry_after: str

    @property
    def version(self) -> str:
        """Of HTTP."""
        ...

    def chunk(self) -> Awaitable[bytes]:
        """Some bytes; nothing at the end."""
        ...

    def end(self) -> None:
        """Make its reader get an error: it shall start again."""
        ...

    def leave(self) -> None:
        """Let go of it, whether or not it has ended."""
        ...


async def read_all(answer: Answer) -> bytes:
    """The whole body. Raises ApiServerError when it is too long."""
    body = bytearray()  # not a list of pieces: a server may send single bytes
    while chunk := await answer.chunk():
        body += chunk
        if len(body) > MOST_BODY:
            raise ApiServerError(f"an answer of more than {MOST_BODY} bytes")
    return bytes(body)


Dial = Callable[[], Awaitable[Http2Connection | None]]


class Http2Connections:
    def __init__(self, route: Route, dial: Dial) -> None:
        """`dial` gives None when the server does not speak HTTP/2."""
        parts = urlsplit(route.server)
        self._scheme, self._authority = parts.scheme, parts.netloc.rpartition("@")[2]
        self._dial = dial
        self._open: list[Http2Connection] = []
        self._dialing = asyncio.Lock()  # one connection at a time: it serves all who wait
        self._attempts = 0
        self._problem: OSError | None = None
        self._failures = 0
        self._not_before = 0.0
        self._retired = False
        self.not_spoken = False
        """The server chose HTTP/1.1 when it was last asked."""

    def __len__(self) -> int:
        return len(self._open)

    async def open(self, request: Request) -> Answer | None:
        """None when the server does not speak HTTP/2. Raises OSError, TimeoutError."""
        connection = await self._connection()
        if connection is None:
            return None
        parts = urlsplit(request.url)
        fields = [
            (":method", request.method),
            (":scheme", self._scheme),
            (":authority", self._authority),
            (":path", (parts.path or "/") + (f"?{parts.query}" if parts.query else "")),
            *((name.lower(), value) for name, value in request.headers),
        ]
        if request.body:
            fields.append(("content-length", str(len(request.body))))
        exchange = connection.request(fields, request.body)
        if request.sent is not None:
            request.sent(True)
        try:
            status, headers = await exchange.head(request.silence)
        except BaseException:
            exchange.leave()
            raise
        return Http2Answer(exchange, status, dict(headers).get("retry-after", ""), request.silence)

    def retire(self) -> None:
        """No new requests; connections close when those under way are done."""
        self._retired = True
        for each in self._open:
            each.retire()

    def abort(self) -> None:
        self._retired = True
        for each in self._open:
            each.abort()

    async def close(self) -> None:
        self._retired = True
        await gather_all(*(each.close() for each in self._open))

    async def _connection(self) -> Http2Connection | None:
        """One with room for a request."""
        asked, loop = self._attempts, asyncio.get_running_loop()
        if (found := self._with_room()) is not None:
            return found
        async with self._dialing:
            if (found := self._with_room()) is not None:
                return found
            if self.not_spoken:
                return None
            if self._problem is not None and (self._attempts > asked or loop.time() < self._not_before):
                # Tried while we waited, or just before. If all who wait tried in turn, the last would learn it much
                # too late; and hundreds of watches would knock at the door of a server that is about to start.
                raise ConnectionAbortedError(str(self._problem) or type(self._problem).__name__) from self._problem
            return await self._dialed()

    def _with_room(self) -> Http2Connection | None:
        self._open = [each for each in self._open if not each.is_closed]
        return next((each for each in self._open if each.room > 0), None)

    async def _dialed(self) -> Http2Connection | None:
        if self._retired:
            raise NotProcessed(RENEWED)
        if len(self._open) >= MOST_CONNECTIONS:
            # A server that often says goodbye leaves many with a few watches each; they can begin again.
            leaving = next((each for each in self._open if each.is_draining), None)
            if leaving is None:
                raise NotProcessed(f"none of {MOST_CONNECTIONS} connections takes another request")
            leaving.abort("too many connections are about to end")
        try:
            made = await self._dial()
        except OSError as error:  # TimeoutError is one
            self._problem, self._attempts = error, self._attempts + 1
            pause = min(FIRST_PAUSE * 2**self._failures, LONGEST_PAUSE)
            self._failures = min(self._failures + 1, 10)
            self._not_before = asyncio.get_running_loop().time() + jittered(pause, 0.5)
            raise
        self._problem, self._attempts, self._failures = None, self._attempts + 1, 0
        if made is None:
            self.not_spoken = True
            logger.info("the server does not speak HTTP/2, going on with HTTP/1.1", extra={"server": self._authority})
            return None
        if self._retired:
            made.abort()
            raise NotProcessed(RENEWED)
        self._open.append(made)
        logger.debug("connected over HTTP/2", extra={"server": self._authority, "connections": len(self._open)})
        return made


class Http2Answer:
    __slots__ = ("_exchange", "_silence", "retry_after", "status")
    version: ClassVar = "2"

    def __init__(self, exchange: Exchange, status: int, retry_after: str, silence: float | None) -> None:
        self._exchange = exchange
        self._silence = silence
        self.status = status
        self.retry_after = retry_after

    def chunk(self) -> Awaitable[bytes]:
        return self._exchange.chunk(self._silence)

    def end(self) -> None:
        self._exchange.end(ConnectionEnded(RENEWED))

    def leave(self) -> None:
        self._exchange.leave()
