"""HTTP/2 frames as bytes (RFC 9113): cutting what comes into frames, making those that are sent, request headers.

Request headers are written without a table of earlier ones and without Huffman coding: a few hundred bytes more on the
wire for nothing to remember, nothing the server could make grow, and no secret in a table.
Does not cover: what frames mean (session.py), reading header blocks (the hpack library).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD: Final = 9
LARGEST: Final = 16 * 1024
"""Bytes of payload, both ways; what every peer must be able to take, and all that we do."""
LARGEST_NUMBER: Final = 2**31 - 1
"""Of streams, and of bytes in a window."""

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, PRIORITIZED = 0x4, 0x8, 0x20

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR, SETTINGS_TIMEOUT, STREAM_CLOSED = range(6)
FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, CONNECT_ERROR, ENHANCE_YOUR_CALM = range(6, 12)
HTTP_1_1_REQUIRED: Final = 13
ERRORS: Final = (
    *("NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED"),
    *("FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM"),
    *("INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED"),
)

ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_HEADER_LIST_SIZE = 2, 3, 4, 6

_HEAD = struct.Struct(">HBBBL")
_SETTING = struct.Struct(">HL")
_NUMBER = struct.Struct(">L")

NO_TABLE: Final = b"\x20"
"""At the beginning of a connection's first header block: we keep no table, whatever the server would allow."""
_STATIC: Final = {
    (":method", "GET"): b"\x82",
    (":method", "POST"): b"\x83",
    (":scheme", "http"): b"\x86",
    (":scheme", "https"): b"\x87",
}
SECRET: Final = frozenset(("authorization", "proxy-authorization", "cookie"))


class Fault(Exception):
    """The peer broke the protocol or our limits: the connection ends with this code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Frame(NamedTuple):
    type: int
    flags: int
    stream: int
    payload: bytes


def error_name(code: int) -> str:
    return ERRORS[code] if code < len(ERRORS) else f"error {code:#x}"


class Frames:
    """Cuts bytes, in any pieces, into frames."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, data: bytes) -> None:
        self._data += data

    def take(self) -> Frame | None:
        """The next frame; None while it is not there as a whole. Raises Fault."""
        data = self._data
        if len(data) < HEAD:
            return None
        high, low, kind, flags, stream = _HEAD.unpack_from(data)
        size = high << 8 | low
        if size > LARGEST:
            raise Fault(FRAME_SIZE_ERROR, f"a frame of {size} bytes")
        if len(data) < HEAD + size:
            return None
        payload = bytes(data[HEAD : HEAD + size])
        del data[: HEAD + size]
        return Frame(kind, flags, stream & LARGEST_NUMBER, payload)


def frame(kind: int, flags: int, stream: int, payload: bytes | memoryview = b"") -> bytes:
    return _HEAD.pack(len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream) + bytes(payload)


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*item) for item in values.items()))


def read_settings(payload: bytes) -> dict[int, int]:
    """By number; of one that is given more than once the last counts."""
    if len(payload) % _SETTING.size:
        raise Fault(FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
    return dict(_SETTING.iter_unpack(payload))


def number_frame(kind: int, stream: int, number: int) -> bytes:
    """RST_STREAM and WINDOW_UPDATE."""
    return frame(kind, 0, stream, _NUMBER.pack(number))


def read_number(frame: Frame) -> int:
    if len(frame.payload) != _NUMBER.size:
        raise Fault(FRAME_SIZE_ERROR, f"a frame of type {frame.type} of a wrong size")
    return int(_NUMBER.unpack(frame.payload)[0])


def goaway(code: int, text: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack(">LL", 0, code) + text.encode()[:200])


def read_goaway(payload: bytes) -> tuple[int, int, str]:
    """The last stream that is served, the code, and a text for people."""
    if len(payload) < 8:
        raise Fault(FRAME_SIZE_ERROR, "GOAWAY of a wrong size")
    last, code = struct.unpack_from(">LL", payload)
    return last & LARGEST_NUMBER, code, payload[8:208].decode("ascii", "replace")


def content(frame: Frame) -> bytes:
    """The payload of DATA or HEADERS without padding and priority."""
    payload, padding = frame.payload, 0
    if frame.flags & PADDED:
        if not payload:
            raise Fault(FRAME_SIZE_ERROR, "a padded frame without padding")
        payload, padding = payload[1:], payload[0]
    if frame.type == HEADERS and frame.flags & PRIORITIZED:
        if len(payload) < 5:
            raise Fault(FRAME_SIZE_ERROR, "HEADERS of a wrong size")
        payload = payload[5:]
    if padding > len(payload):
        raise Fault(PROTOCOL_ERROR, "more padding than payload")
    return payload[: len(payload) - padding]


def request_frames(stream: int, fields: Sequence[tuple[str, str]], *, first: bool, ends: bool) -> bytes:
    """HEADERS, and CONTINUATION when they are long. `first`: of the connection."""
    block = (NO_TABLE if first else b"") + b"".join(_field(name, value) for name, value in fields)
    pieces = [block[at : at + LARGEST] for at in range(0, len(block), LARGEST)]
    last = len(pieces) - 1
    return b"".join(
        frame(
            CONTINUATION if number else HEADERS,
            (END_HEADERS if number == last else 0) | (END_STREAM if ends and number == 0 else 0),
            stream,
            piece,
        )
        for number, piece in enumerate(pieces)
    )


def _field(name: str, value: str) -> bytes:
    known = _STATIC.get((name, value))
    if known is not None:
        return known
    # Never indexed, for what no proxy on the way may keep; else without indexing.
    kind = b"\x10" if name in SECRET else b"\x00"
    return kind + _text(name.encode("ascii")) + _text(value.encode("utf-8", "surrogateescape"))


def _text(text: bytes) -> bytes:
    """A length with a prefix of seven bits, and the bytes as they are."""
    size = len(text)
    if size < 127:
        return bytes((size,)) + text
    out = bytearray((127,))
    size -= 127
    while size > 127:
        out.append(size & 127 | 128)
        size >>= 7
    out.append(size)
    return bytes(out) + text
