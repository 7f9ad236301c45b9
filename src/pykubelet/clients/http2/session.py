"""The client's side of one HTTP/2 connection without I/O: frames come in, bytes to send go out, streams change.

Covers streams, both directions of flow control, settings, GOAWAY in the middle of streams (those the server still
serves go on), resets. What the server can make us keep or compute is bounded: header blocks, bytes not yet read (a
window per stream and one for all), and frames that carry nothing for us (PING, SETTINGS, empty DATA, what belongs to
closed streams …), which are counted against an allowance. Pushed streams are refused.
Does not cover: sockets, time-outs, health checks (connection.py).
"""

from __future__ import annotations

import logging
import math
from asyncio import Future
from collections.abc import Sequence
from typing import Final

from hpack import Decoder, HPACKError, OversizedHeaderListError

from pykubelet.clients.http2 import frames as wire
from pykubelet.clients.http2.frames import Fault, Frame

# Its debug lines would show what header blocks hold.
logging.getLogger("hpack").setLevel(logging.INFO)

STREAM_WINDOW: Final = 1024 * 1024
"""Bytes of one answer that may wait to be read here."""
CONNECTION_WINDOW: Final = 16 * 1024 * 1024
"""The same for all answers together; more than a few stalled readers can fill, so that they do not stall others."""
CONNECTION_CREDIT: Final = 1024 * 1024
"""Bytes read after which the server may send as many more."""
SMALL: Final = 4096
"""Bytes of an answer up to which pieces are put together as they come."""
PLAIN_WINDOW: Final = 65_535
"""What each side may send before the other said anything."""
LARGEST_BLOCK: Final = 32 * 1024
LARGEST_HEADERS: Final = 64 * 1024
FIRST_STREAMS: Final = 100
"""At once, until the server says how many it allows."""
USUAL_STREAMS: Final = 1000
"""At once, when it does not say."""
MOST_INTERIM: Final = 5
"""1xx answers accepted before the real one."""
ALLOWANCE: Final = 1000
ALLOWANCE_PER_SECOND: Final = 10.0
ALLOWANCE_PER_SENT: Final = 4
"""A server answers what we send with window updates."""
ALLOWANCE_PER_LEFT: Final = 2 * STREAM_WINDOW // wire.LARGEST
"""What a server sends of a stream until it knows that we left it."""

Fields = Sequence[tuple[str, str]]


class ConnectionEnded(ConnectionError):
    """The connection ended before the answer did."""


class StreamReset(ConnectionError):
    """The server ended this stream alone."""


class NotProcessed(ConnectionError):
    """The server did nothing with the request: it can be sent again, whatever it is."""


class Stream:
    """One request and its answer; what came and was not yet read stays here after the end."""

    __slots__ = (
        *("allowed", "chunks", "credit", "deadline", "ended", "expected", "fields", "id", "interim", "problem"),
        *("received", "send_window", "status", "unsent", "waiter"),
    )

    def __init__(self, number: int, send_window: int, body: bytes) -> None:
        self.id = number
        self.status = 0
        self.fields: Fields = ()
        """Headers of the answer, names in lower case, until they are taken."""
        self.chunks: list[bytes] = []
        self.ended = False
        self.problem: Exception | None = None
        self.waiter: Future[None] | None = None
        self.deadline = math.inf
        """When the waiter gets a TimeoutError."""
        self.unsent: memoryview | None = memoryview(body) if body else None
        self.send_window = send_window
        self.allowed = STREAM_WINDOW
        """Bytes the server may still send."""
        self.credit = 0
        """Bytes read here that the server may not yet send again."""
        self.expected = -1
        self.received = 0
        self.interim = 0

    @property
    def is_open(self) -> bool:
        return not self.ended and self.problem is None

    def keep(self, data: bytes) -> None:
        """Add to what is to be read; small pieces are put together, or each byte of the window could cost fifty."""
        if self.chunks and len(self.chunks[-1]) + len(data) <= SMALL:
            self.chunks[-1] += data
        elif data:
            self.chunks.append(data)

    def wake(self) -> None:
        waiter = self.waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def raise_problem(self) -> None:
        """Each reader gets an error of its own: many streams may have failed by the same."""
        if self.problem is not None:
            raise type(self.problem)(*self.problem.args)

    def fail(self, problem: Exception) -> None:
        if self.is_open:
            self.problem, self.unsent = problem, None
            self.wake()


class Session:
    def __init__(self) -> None:
        self.out = bytearray(wire.PREFACE)
        self.streams: dict[int, Stream] = {}
        self.draining = False
        """No new streams: the server said GOAWAY, or numbers ran out."""
        self.why_draining = ""
        self._next = 1
        self._most = FIRST_STREAMS
        self._decoder = Decoder(max_header_list_size=LARGEST_HEADERS)
        self.heard_settings = False
        """Whether the server began as it must, and we know how many streams it takes."""
        self._send_window = self._first_send_window = PLAIN_WINDOW
        self._allowed = CONNECTION_WINDOW
        self._credit = 0
        self._uploads: dict[int, Stream] = {}
        self._block: _Block | None = None
        self._allowance = float(ALLOWANCE)
        self._filled_at: float | None = None
        self.out += wire.settings(
            {
                wire.ENABLE_PUSH: 0,
                wire.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                wire.MAX_HEADER_LIST_SIZE: LARGEST_HEADERS,
            }
        )
        self.out += wire.number_frame(wire.WINDOW_UPDATE, 0, CONNECTION_WINDOW - PLAIN_WINDOW)

    # --- what we do ---------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many more streams may be opened now."""
        return 0 if self.draining else self._most - len(self.streams)

    def open(self, fields: Fields, body: bytes) -> Stream:
        """Send a request; its body follows with `upload`."""
        number = self._next
        self._next += 2
        if self._next > wire.LARGEST_NUMBER:
            self.draining, self.why_draining = True, "the connection's numbers of streams are used up"
        stream = self.streams[number] = Stream(number, self._first_send_window, body)
        self.out += wire.request_frames(number, fields, first=number == 1, ends=not body)
        self._fill(ALLOWANCE_PER_SENT)
        if body:
            self._uploads[number] = stream
        return stream

    def upload(self) -> None:
        """Send of the bodies what the windows allow."""
        for stream in list(self._uploads.values()):
            while stream.unsent is not None and (size := self._sendable(stream, stream.unsent)) > 0:
                piece, rest = stream.unsent[:size], stream.unsent[size:]
                stream.unsent = rest if rest else None
                stream.send_window -= size
                self._send_window -= size
                self.out += wire.frame(wire.DATA, 0 if rest else wire.END_STREAM, stream.id, piece)
                self._fill(ALLOWANCE_PER_SENT)
            if stream.unsent is None:
                del self._uploads[stream.id]

    def _sendable(self, stream: Stream, unsent: memoryview) -> int:
        return min(len(unsent), stream.send_window, self._send_window, wire.LARGEST)

    def take(self, stream: Stream) -> bytes:
        """What came of the answer and was not yet taken; the server may send that much more."""
        chunks, stream.chunks = stream.chunks, []
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if data:
            self._read(len(data))
            if stream.is_open:
                stream.credit += len(data)
                if stream.credit >= STREAM_WINDOW // 2:
                    self.out += wire.number_frame(wire.WINDOW_UPDATE, stream.id, stream.credit)
                    stream.allowed += stream.credit
                    stream.credit = 0
        return data

    def leave(self, stream: Stream, code: int = wire.CANCEL) -> None:
        """End a stream, whatever still comes of it."""
        if self.streams.pop(stream.id, None) is not None:
            self._uploads.pop(stream.id, None)
            self.out += wire.number_frame(wire.RST_STREAM, stream.id, code)
            self._fill(ALLOWANCE_PER_LEFT)
        stream.fail(StreamReset("the stream was left"))
        self._read(sum(map(len, stream.chunks)))
        stream.chunks = []

    def ping(self) -> None:
        self.out += wire.frame(wire.PING, 0, 0, b"pykubele")

    def end(self, problem: Exception) -> None:
        """The connection is over: so is every stream."""
        self.draining, self.why_draining = True, str(problem)
        streams, self.streams = self.streams, {}
        self._uploads.clear()
        for stream in streams.values():
            stream.fail(problem)

    def _read(self, size: int) -> None:
        self._credit += size
        if self._credit >= CONNECTION_CREDIT:
            self.out += wire.number_frame(wire.WINDOW_UPDATE, 0, self._credit)
            self._allowed += self._credit
            self._credit = 0

    # --- what the server does -----------------------------------------------------------------------

    def receive(self, frame: Frame, now: float) -> None:
        """Raises Fault: then the connection is to be ended."""
        if not self.heard_settings and (frame.type != wire.SETTINGS or frame.flags & wire.ACK):
            raise Fault(wire.PROTOCOL_ERROR, "its first frame is not SETTINGS")
        if self._block is not None and (frame.type != wire.CONTINUATION or frame.stream != self._block.stream):
            raise Fault(wire.PROTOCOL_ERROR, "a header block is interrupted")
        if frame.type == wire.DATA:
            self._data(frame, now)
        elif frame.type == wire.HEADERS:
            self._headers(frame, now)
        elif frame.type == wire.CONTINUATION:
            self._continuation(frame, now)
        elif frame.type == wire.RST_STREAM:
            self._reset(frame, now)
        elif frame.type == wire.WINDOW_UPDATE:
            self._spend(now)
            self._window_update(frame)
        elif frame.type == wire.GOAWAY:
            self._spend(now)
            self._goaway(frame)
        elif frame.type == wire.PUSH_PROMISE:
            raise Fault(wire.PROTOCOL_ERROR, "a pushed stream")
        else:
            self._spend(now)
            self._about_connection(frame)

    def _about_connection(self, frame: Frame) -> None:
        if frame.type == wire.SETTINGS:
            self._settings(frame)
        elif frame.type == wire.PING:
            if frame.stream or len(frame.payload) != 8:
                raise Fault(wire.FRAME_SIZE_ERROR, "a PING of a wrong size")
            if not frame.flags & wire.ACK:
                self.out += wire.frame(wire.PING, wire.ACK, 0, frame.payload)

    def _spend(self, now: float) -> None:
        """Count a frame that carries nothing for us."""
        if self._filled_at is not None:
            self._fill((now - self._filled_at) * ALLOWANCE_PER_SECOND)
        self._filled_at = now
        self._allowance -= 1
        if self._allowance < 0:
            raise Fault(wire.ENHANCE_YOUR_CALM, "too many frames that carry nothing")

    def _fill(self, amount: float) -> None:
        self._allowance = min(ALLOWANCE, self._allowance + amount)

    def _stream(self, number: int) -> Stream | None:
        """None for one that is closed here: the server may not know that yet."""
        if number % 2 == 0 or number >= self._next:
            raise Fault(wire.PROTOCOL_ERROR, f"a frame for stream {number}, which was never opened")
        return self.streams.get(number)

    def _data(self, frame: Frame, now: float) -> None:
        stream, size, data = self._stream(frame.stream), len(frame.payload), wire.content(frame)
        ends = bool(frame.flags & wire.END_STREAM)
        self._allowed -= size
        if self._allowed < 0:
            raise Fault(wire.FLOW_CONTROL_ERROR, "more data than the connection's window allows")
        self._read(size if stream is None else size - len(data))
        if stream is None or not (data or ends):
            self._spend(now)
        if stream is None:
            return
        stream.allowed -= size
        if stream.allowed < 0:
            raise Fault(wire.FLOW_CONTROL_ERROR, "more data than the stream's window allows")
        stream.credit += size - len(data)
        if not stream.status:
            self._break(stream, "data before the answer's headers")
            return
        stream.received += len(data)
        stream.keep(data)
        if ends:
            self._finish(stream)
        stream.wake()

    def _headers(self, frame: Frame, now: float) -> None:
        if self._stream(frame.stream) is None:
            self._spend(now)
        ends = bool(frame.flags & wire.END_STREAM)
        self._block = _Block(frame.stream, ends)
        self._add_to_block(self._block, wire.content(frame), frame.flags)

    def _continuation(self, frame: Frame, now: float) -> None:
        if self._block is None:
            raise Fault(wire.PROTOCOL_ERROR, "CONTINUATION of nothing")
        self._spend(now)
        self._add_to_block(self._block, frame.payload, frame.flags)

    def _add_to_block(self, block: _Block, data: bytes, flags: int) -> None:
        block.data += data
        if len(block.data) > LARGEST_BLOCK:
            raise Fault(wire.ENHANCE_YOUR_CALM, f"headers of more than {LARGEST_BLOCK} bytes")
        if not flags & wire.END_HEADERS:
            return
        self._block = None
        try:
            # Also for streams that are closed here: the block may change the table that later ones refer to.
            fields = self._decoder.decode(bytes(block.data), raw=True)
        except OversizedHeaderListError:
            raise Fault(wire.ENHANCE_YOUR_CALM, f"headers of more than {LARGEST_HEADERS} bytes") from None
        except (HPACKError, IndexError, TypeError, ValueError) as error:
            raise Fault(wire.COMPRESSION_ERROR, f"headers cannot be read: {error}") from None
        stream = self.streams.get(block.stream)
        if stream is not None:
            self._answer(stream, [(_text(field[0]), _text(field[1])) for field in fields], block.ends)

    def _answer(self, stream: Stream, fields: Fields, ends: bool) -> None:
        if stream.status:  # trailers
            if not ends:
                self._break(stream, "headers in the middle of an answer")
                return
            self._finish(stream)
            stream.wake()
            return
        by_name = dict(fields)
        status = by_name.get(":status", "")
        if not (len(status) == 3 and status.isascii() and status.isdigit()):
            self._break(stream, "an answer without a status")
            return
        if status.startswith("1"):
            stream.interim += 1
            if ends or stream.interim > MOST_INTERIM:
                self._break(stream, "too many 1xx answers" if not ends else "a 1xx answer that ends the stream")
            return
        length = by_name.get("content-length", "")
        if length.isascii() and length.isdigit() and len(length) < 19:
            stream.expected = int(length)
        stream.status, stream.fields = int(status), fields
        if ends:
            self._finish(stream)
        stream.wake()

    def _finish(self, stream: Stream) -> None:
        if stream.expected >= 0 and stream.received != stream.expected:
            self._break(stream, f"{stream.received} bytes of {stream.expected}")
            return
        if stream.unsent is not None:  # it has its answer without having read everything
            self.out += wire.number_frame(wire.RST_STREAM, stream.id, wire.CANCEL)
        stream.ended, stream.unsent = True, None
        self.streams.pop(stream.id, None)
        self._uploads.pop(stream.id, None)

    def _break(self, stream: Stream, text: str) -> None:
        """The server's mistake about one stream."""
        stream.fail(StreamReset(f"malformed answer: {text}"))
        self.leave(stream, wire.PROTOCOL_ERROR)

    def _reset(self, frame: Frame, now: float) -> None:
        stream, code = self._stream(frame.stream), wire.read_number(frame)
        if stream is None:
            self._spend(now)
            return
        del self.streams[stream.id]
        self._uploads.pop(stream.id, None)
        kind = NotProcessed if code == wire.REFUSED_STREAM else StreamReset
        stream.fail(kind(f"the server reset the stream: {wire.error_name(code)}"))

    def _window_update(self, frame: Frame) -> None:
        size = wire.read_number(frame) & wire.LARGEST_NUMBER
        if frame.stream == 0:
            self._send_window += size
            if not size or self._send_window > wire.LARGEST_NUMBER:
                raise Fault(wire.FLOW_CONTROL_ERROR, "a WINDOW_UPDATE out of range")
        elif (stream := self._stream(frame.stream)) is not None:
            stream.send_window += size
            if not size or stream.send_window > wire.LARGEST_NUMBER:
                raise Fault(wire.FLOW_CONTROL_ERROR, "a WINDOW_UPDATE out of range")

    def _settings(self, frame: Frame) -> None:
        if frame.stream:
            raise Fault(wire.PROTOCOL_ERROR, "SETTINGS for a stream")
        if frame.flags & wire.ACK:
            return
        values = wire.read_settings(frame.payload)
        usual = self._most if self.heard_settings else USUAL_STREAMS
        self._most = values.get(wire.MAX_CONCURRENT_STREAMS, usual)
        self.heard_settings = True
        if wire.INITIAL_WINDOW_SIZE in values:
            window = values[wire.INITIAL_WINDOW_SIZE]
            if window > wire.LARGEST_NUMBER:
                raise Fault(wire.FLOW_CONTROL_ERROR, "a window out of range")
            change, self._first_send_window = window - self._first_send_window, window
            for stream in self.streams.values():
                stream.send_window += change
        self.out += wire.frame(wire.SETTINGS, wire.ACK, 0)

    def _goaway(self, frame: Frame) -> None:
        last, code, text = wire.read_goaway(frame.payload)
        self.draining = True
        self.why_draining = f"the server said goodbye: {wire.error_name(code)} {text}".rstrip()
        for number in [each for each in self.streams if each > last]:
            stream = self.streams.pop(number)
            self._uploads.pop(number, None)
            stream.fail(NotProcessed(self.why_draining))


class _Block:
    """A header block that is not yet complete."""

    __slots__ = ("data", "ends", "stream")

    def __init__(self, stream: int, ends: bool) -> None:
        self.stream = stream
        self.ends = ends
        self.data = bytearray()


def _text(text: bytes | str) -> str:
    return text if isinstance(text, str) else text.decode("latin-1")
