"""SPDY/3.1 as container runtimes speak it on their streaming ports: framing, and the client side of a connection.

Only what exec, attach and port-forward use: streams we open, data both ways, half-close, reset, ping, goaway. Flow
control windows are not kept, for the runtimes' library keeps none. Frames from the other side are read into bounded
queues: a stream that is not read stops the connection, as intended. Covers no server push and no settings.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Mapping

from msgspec import Struct

from pykubelet.model.errors import PykubeletError

_WORDS = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    "authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie "
    "keep-alive origin"
)
_REST = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden"
    "404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug "
    "Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,"
    "application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdch"
    "charset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _dictionary() -> bytes:
    """The text both sides assume to have been sent before the first header, fixed by the protocol's version 3."""
    words = [word.replace("_", " ").encode() for word in _WORDS.split()]
    return b"".join(struct.pack(">I", len(word)) + word for word in words) + _REST.encode()


DICTIONARY = _dictionary()

VERSION = 3
CONTROL = 0x8000
SYN_STREAM, SYN_REPLY, RST_STREAM, PING, GOAWAY, HEADERS = 1, 2, 3, 6, 7, 8
FIN = 0x01
CANCEL = 5
MAX_CONTROL = 64 * 1024
MAX_HEADERS = 64 * 1024
BLOCK = 64 * 1024
QUEUED_BLOCKS = 4
"""Blocks of one stream that wait to be taken."""


class SpdyError(PykubeletError):
    """The other side broke the protocol or reset a stream."""


class HeaderPacker:
    """Header blocks of one direction; their compression goes on from frame to frame."""

    def __init__(self) -> None:
        self._pack = zlib.compressobj(zdict=DICTIONARY)
        self._unpack = zlib.decompressobj(zdict=DICTIONARY)

    def pack(self, headers: Mapping[str, str]) -> bytes:
        parts = [struct.pack(">I", len(headers))]
        for name, value in headers.items():
            for text in (name.lower().encode(), value.encode()):
                parts.append(struct.pack(">I", len(text)) + text)
        return self._pack.compress(b"".join(parts)) + self._pack.flush(zlib.Z_SYNC_FLUSH)

    def unpack(self, block: bytes) -> dict[str, str]:
        """Names in lower case. Raises SpdyError."""
        try:
            plain = self._unpack.decompress(block, MAX_HEADERS)
            if self._unpack.unconsumed_tail:
                raise SpdyError("a header block is too large")
            return _pairs(plain)
        except (zlib.error, struct.error, UnicodeDecodeError, IndexError) as error:
            raise SpdyError(f"a header block cannot be read: {error}") from error


def _pairs(plain: bytes) -> dict[str, str]:
    (count,) = struct.unpack_from(">I", plain)
    at, found = 4, {}
    for _ in range(count):
        texts = []
        for _ in range(2):
            (length,) = struct.unpack_from(">I", plain, at)
            if at + 4 + length > len(plain):
                raise IndexError("a header is cut off")
            texts.append(plain[at + 4 : at + 4 + length].decode())
            at += 4 + length
        found[texts[0].lower()] = texts[1]
    return found


def control_frame(kind: int, payload: bytes, flags: int = 0) -> bytes:
    return struct.pack(">HHI", CONTROL | VERSION, kind, flags << 24 | len(payload)) + payload


def data_head(stream: int, length: int, flags: int = 0) -> bytes:
    return struct.pack(">II", stream, flags << 24 | length)


class FrameHead(Struct, frozen=True):
    control: bool
    kind: int
    """Of a control frame; for data the stream's number."""
    flags: int
    length: int


def frame_head(raw: bytes) -> FrameHead:
    first, second = struct.unpack(">II", raw)
    flags, length = second >> 24, second & 0xFFFFFF
    if first >> 31:
        if first >> 16 & 0x7FFF != VERSION:
            raise SpdyError("not SPDY version 3")
        return FrameHead(True, first & 0xFFFF, flags, length)
    return FrameHead(False, first, flags, length)


class SpdyStream:
    """One stream. Reading ends with an empty block when the other side has ended it."""

    def __init__(self, connection: SpdyConnection, number: int) -> None:
        self._connection = connection
        self.number = number
        self.arrived: asyncio.Queue[bytes] = asyncio.Queue(QUEUED_BLOCKS)
        self.ended = False
        """The other side will send no more on it."""
        self.finished = False
        """We will send no more on it."""
        self.problem = ""

    async def read(self) -> bytes:
        if self.ended and self.arrived.empty():
            return b""
        return await self.arrived.get()

    async def write(self, data: bytes) -> None:
        for at in range(0, len(data), BLOCK):
            block = data[at : at + BLOCK]
            await self._connection.send(data_head(self.number, len(block)) + block)

    async def finish(self) -> None:
        if not self.finished:
            self.finished = True
            await self._connection.send(data_head(self.number, 0, FIN))

    async def reset(self) -> None:
        """Give the stream up in both directions."""
        if not (self.ended and self.finished):
            self.ended = self.finished = True
            await self._connection.send(control_frame(RST_STREAM, struct.pack(">II", self.number, CANCEL)))


class SpdyConnection:
    """The side that opens streams. `run` reads until the connection ends and must be running."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._packer = HeaderPacker()
        self._streams: dict[int, SpdyStream] = {}
        self._next = 1
        self.closed = False

    async def open(self, headers: Mapping[str, str], *, finished: bool = False) -> SpdyStream:
        stream = SpdyStream(self, self._next)
        stream.finished = finished
        self._streams[stream.number] = stream
        self._next += 2
        payload = struct.pack(">IIH", stream.number, 0, 0) + self._packer.pack(headers)
        await self.send(control_frame(SYN_STREAM, payload, FIN if finished else 0))
        return stream

    async def send(self, frame: bytes) -> None:
        self._writer.write(frame)
        await self._writer.drain()

    async def run(self) -> None:
        """Returns when the other side closes; raises SpdyError when it breaks the rules."""
        try:
            while True:
                head = frame_head(await self._reader.readexactly(8))
                if not head.control:
                    await self._data(head)
                    continue
                if head.length > MAX_CONTROL:
                    raise SpdyError(f"a control frame of {head.length} bytes")
                await self._control(head, await self._reader.readexactly(head.length))
        except (asyncio.IncompleteReadError, OSError):
            return
        finally:
            self.closed = True
            for stream in self._streams.values():
                self._end(stream)

    async def _data(self, head: FrameHead) -> None:
        left = head.length
        stream = self._streams.get(head.kind)
        while left:
            block = await self._reader.read(min(left, BLOCK))
            if not block:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(block)
            if stream is not None and not stream.ended:
                await stream.arrived.put(block)
        if head.flags & FIN and stream is not None:
            self._end(stream)

    async def _control(self, head: FrameHead, payload: bytes) -> None:
        match head.kind:
            case x if x == PING:
                await self.send(control_frame(PING, payload))
            case x if x in (SYN_REPLY, HEADERS):
                self._packer.unpack(payload[4:])  # keeps the compression state, also when it is unused
                if head.flags & FIN and (stream := self._addressed(payload)) is not None:
                    self._end(stream)
            case x if x == RST_STREAM:
                if (stream := self._addressed(payload)) is not None:
                    stream.problem = "the runtime reset the stream"
                    stream.finished = True
                    self._end(stream)
            case x if x == SYN_STREAM:
                raise SpdyError("the runtime opened a stream of its own")
            case _:
                return  # settings, goaway, window updates: nothing follows from them here

    def _addressed(self, payload: bytes) -> SpdyStream | None:
        if len(payload) < 4:
            raise SpdyError("a control frame is cut off")
        return self._streams.get(struct.unpack_from(">I", payload)[0] & 0x7FFFFFFF)

    def _end(self, stream: SpdyStream) -> None:
        stream.ended = True
        # Wakes a reader that waits; with a full queue there is none, and it will see `ended` when it is empty.
        if not stream.arrived.full():
            stream.arrived.put_nowait(b"")

    def close(self) -> None:
        self._writer.close()
