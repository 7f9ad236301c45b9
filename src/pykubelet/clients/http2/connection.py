"""One HTTP/2 connection on the event loop: requests and endless answers side by side, each with its own time-out.

A server that has sent nothing for a while is asked with a PING; one that does not answer is gone, and all streams end.
A connection that takes no new streams closes with its last one. However many frames come at once, the loop gets a turn
in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Final

from msgspec import Struct

from pykubelet.clients.http2 import frames as wire
from pykubelet.clients.http2.frames import Fault, Frames
from pykubelet.clients.http2.session import ConnectionEnded, Fields, NotProcessed, Session, Stream

FRAMES_AT_ONCE: Final = 100
LONG_HEADERS: Final = 2048
"""Bytes of a header block after which the loop gets a turn."""
MOST_UNSENT: Final = 4 * 1024 * 1024
"""Bytes a server that does not read may leave in our buffer."""
FULL, EMPTIED = 256 * 1024, 64 * 1024
CLOSE_WITHIN: Final = 1.0
TIMER_PRECISION: Final = 0.002


class Health(Struct, frozen=True, kw_only=True):
    """Seconds, as client-go has them."""

    idle: float = 30.0
    """Without a byte from the server before it is asked; infinite = it is never asked."""
    answer: float = 15.0
    """To answer."""
    kept: float = 60.0
    """Without a request before the connection is closed."""


class Http2Connection(asyncio.Protocol):
    """Made by the loop's create_connection or start_tls; `begin` is called with the transport they return."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._session = Session()
        self._frames = Frames()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._ready = asyncio.Event()
        self._closed = asyncio.Event()
        self._heard_at = 0.0
        self._asked = False
        self._check: asyncio.TimerHandle | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._sweep_at = math.inf
        self._working = self._full = False
        self.idle_since = self._loop.time()
        self.speaks_http2 = True
        """Whether the server agreed to that; if not it is closed."""

    # --- for callers --------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many more requests it takes now."""
        return 0 if self.is_closed else self._session.room

    @property
    def streams(self) -> int:
        """Requests under way."""
        return len(self._session.streams)

    @property
    def is_draining(self) -> bool:
        """It takes no new requests and closes with the last one under way."""
        return self._session.draining

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set() or (self._transport is not None and self._transport.is_closing())

    async def ready(self, within: float) -> None:
        """Until the server has said how many requests it takes. Raises ConnectionEnded, TimeoutError."""
        async with asyncio.timeout(within):
            await self._ready.wait()
        if self.is_closed:
            raise ConnectionEnded(self._session.why_draining)

    def request(self, fields: Fields, body: bytes = b"") -> Exchange:
        """Send a request. Raises NotProcessed when the connection takes none."""
        if self.room <= 0:
            raise NotProcessed(self._session.why_draining or "no room for another stream")
        stream = self._session.open(fields, body)
        self._flush()
        return Exchange(self, stream)

    def retire(self) -> None:
        """Take no new requests; close when those under way are done."""
        self._session.draining = True
        self._close_if_done()

    async def close(self) -> None:
        """End everything and wait until it is closed."""
        self._end(ConnectionEnded("the connection was closed here"), wire.NO_ERROR)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN):
                await self._closed.wait()
        self.abort()

    def abort(self, why: str = "the connection was given up") -> None:
        """End everything without a farewell."""
        self._session.end(ConnectionEnded(why))
        if self._transport is not None:
            self._transport.abort()

    # --- for exchanges ------------------------------------------------------------------------------

    def waiter(self, stream: Stream, within: float | None) -> asyncio.Future[None]:
        """Done when something of the stream changed; a TimeoutError after that time."""
        waiter = stream.waiter = self._loop.create_future()
        if within is None:
            stream.deadline = math.inf
        else:
            stream.deadline = self._loop.time() + within
            if stream.deadline < self._sweep_at:
                self._sweep_again(stream.deadline)
        return waiter

    def _sweep_again(self, when: float) -> None:
        """One timer for all streams: most of them only ever wait, and for as long as each other."""
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep_at = when
        self._sweep = None if when == math.inf else self._loop.call_at(when, self._expire)

    def _expire(self) -> None:
        self._sweep, self._sweep_at = None, math.inf
        now = self._loop.time() + TIMER_PRECISION
        soonest = math.inf
        for stream in self._session.streams.values():
            waiter = stream.waiter
            if waiter is None or waiter.done():
                continue
            if stream.deadline <= now:
                waiter.set_exception(TimeoutError())
            else:
                soonest = min(soonest, stream.deadline)
        self._sweep_again(soonest)

    def take(self, stream: Stream) -> bytes:
        data = self._session.take(stream)
        self._flush()
        return data

    def leave(self, stream: Stream) -> None:
        if stream.id in self._session.streams or stream.chunks:
            self._session.leave(stream)
            self._flush()
            self._changed()

    # --- for the dialer and the loop -----------------------------------------------------------------

    def begin(self, transport: asyncio.Transport) -> None:
        if self._closed.is_set():
            return
        self._transport = transport
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self.speaks_http2 = False
            transport.abort()
            return
        transport.set_write_buffer_limits(FULL, EMPTIED)
        self._heard_at = self._loop.time()
        self._check_at(self._heard_at + self._health.idle)
        self._flush()
        self._work()

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        self._heard_at = self._loop.time()
        if self._asked:
            self._asked = False
            self._check_at(self._heard_at + self._health.idle)  # else it would wake up in between for nothing
        self._frames.add(data)
        if not self._working and self._transport is not None:
            self._work()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._flush()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for timer in (self._check, self._sweep):
            if timer is not None:
                timer.cancel()
        self._session.end(ConnectionEnded(str(exc) if exc else "the server closed the connection"))
        self._closed.set()
        self._ready.set()

    def _work(self) -> None:
        """Handle frames; with many of them the rest after other work of the loop."""
        self._working = False
        before = self.streams
        try:
            for _ in range(FRAMES_AT_ONCE):
                frame = self._frames.take()
                if frame is None or self._transport is None:
                    break
                self._session.receive(frame, self._heard_at)
                if frame.type in (wire.HEADERS, wire.CONTINUATION) and len(frame.payload) > LONG_HEADERS:
                    self._later()
                    break
            else:
                self._later()
        except Fault as fault:
            self._end(ConnectionEnded(f"{wire.error_name(fault.code)}: {fault}"), fault.code)
            return
        if self._session.heard_settings:
            self._ready.set()
        self._flush()
        if self.streams < before:
            self._changed()
        elif self._session.draining:
            self._close_if_done()

    def _later(self) -> None:
        self._working = True
        if self._transport is not None:
            self._transport.pause_reading()
        self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._work()
            if not self._working and self._transport is not None:
                self._transport.resume_reading()

    def _flush(self) -> None:
        if self._transport is None:
            return
        if not self._full:
            self._session.upload()
        if self._session.out:
            data, self._session.out = self._session.out, bytearray()
            self._transport.write(bytes(data))
        if self._full and self._transport.get_write_buffer_size() > MOST_UNSENT:
            self.abort("the server does not read")

    def _changed(self) -> None:
        """A stream ended."""
        if not self.streams:
            self.idle_since = self._loop.time()
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._session.draining and not self.streams and not self.is_closed:
            self._end(ConnectionEnded(self._session.why_draining), wire.NO_ERROR)

    def _end(self, problem: ConnectionEnded, code: int) -> None:
        self._session.end(problem)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(bytes(self._session.out) + wire.goaway(code, str(problem) if code else ""))
            self._session.out.clear()
            self._transport.close()

    def _check_at(self, when: float) -> None:
        if self._check is not None:
            self._check.cancel()
        self._check = self._loop.call_at(min(when, self._loop.time() + self._health.kept), self._check_health)

    def _check_health(self) -> None:
        now = self._loop.time()
        if self._asked:
            self.abort(f"no answer to a PING within {self._health.answer:g} s")
            return
        if not self.streams and now - self.idle_since >= self._health.kept:
            self.retire()
            return
        due = self._heard_at + self._health.idle
        if due <= now:
            self._asked = True
            self._session.ping()
            self._flush()
            due = now + self._health.answer
        self._check_at(due)


class Exchange:
    """A request that was sent, and its answer. To be left in any case."""

    __slots__ = ("_connection", "_stream")

    def __init__(self, connection: Http2Connection, stream: Stream) -> None:
        self._connection = connection
        self._stream = stream

    async def head(self, within: float | None = None) -> tuple[int, Fields]:
        """Status and headers, once. Raises ConnectionError, TimeoutError."""
        stream = self._stream
        while not stream.status:
            stream.raise_problem()
            await self._connection.waiter(stream, within)
        fields, stream.fields = stream.fields, ()
        return stream.status, fields

    async def chunk(self, within: float | None = None) -> bytes:
        """What came of the body, at least a byte; nothing at its end. Raises ConnectionError, TimeoutError."""
        stream = self._stream
        while not stream.chunks:
            if stream.ended:
                return b""
            stream.raise_problem()
            await self._connection.waiter(stream, within)
        return self._connection.take(stream)

    def leave(self) -> None:
        """End it if it did not end by itself."""
        self._connection.leave(self._stream)

    def end(self, problem: Exception) -> None:
        """Make its reader get this error."""
        self._stream.fail(problem)
