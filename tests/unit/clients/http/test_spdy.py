"""SPDY frames as both sides must read them, and a connection that survives what runtimes send."""

from __future__ import annotations

import asyncio
import hashlib
import struct

import pytest

from pykubelet.clients.http.spdy import (
    DICTIONARY,
    FIN,
    GOAWAY,
    PING,
    RST_STREAM,
    SYN_REPLY,
    SYN_STREAM,
    HeaderPacker,
    SpdyConnection,
    SpdyError,
    control_frame,
    data_head,
    frame_head,
)
from pykubelet.kit.tasks import TaskSet


def test_the_dictionary_is_the_protocols() -> None:
    assert len(DICTIONARY) == 1423
    assert hashlib.sha1(DICTIONARY).hexdigest()[:8] == "d68ca9b2"


def test_headers_survive_packing_across_frames() -> None:
    sender, receiver = HeaderPacker(), HeaderPacker()
    for headers in ({"streamType": "stdin"}, {"port": "80", "requestID": "1"}, {}):
        found = receiver.unpack(sender.pack(headers))
        assert found == {name.lower(): value for name, value in headers.items()}
    with pytest.raises(SpdyError):
        receiver.unpack(b"nonsense")
    with pytest.raises(SpdyError, match="too large"):
        HeaderPacker().unpack(HeaderPacker().pack({"a": "x" * 100_000}))


def test_frame_heads() -> None:
    head = frame_head(control_frame(PING, b"1234", 7)[:8])
    assert (head.control, head.kind, head.flags, head.length) == (True, PING, 7, 4)
    head = frame_head(data_head(5, 70_000, FIN))
    assert (head.control, head.kind, head.flags, head.length) == (False, 5, FIN, 70_000)
    with pytest.raises(SpdyError, match="version 3"):
        frame_head(b"\x80\x02\0\1\0\0\0\0")


class Sink:
    def __init__(self) -> None:
        self.sent = bytearray()

    def write(self, data: bytes) -> None:
        self.sent += data

    async def drain(self) -> None:
        return

    def close(self) -> None:
        return


def reply(packer: HeaderPacker, number: int) -> bytes:
    return control_frame(SYN_REPLY, struct.pack(">I", number) + packer.pack({}))


async def test_a_conversation() -> None:
    reader, sink, packer = asyncio.StreamReader(), Sink(), HeaderPacker()
    connection = SpdyConnection(reader, sink)  # type: ignore[arg-type]
    async with TaskSet("test") as tasks:
        tasks.spawn(connection.run(), name="run")
        first = await connection.open({"streamType": "stdout"})
        second = await connection.open({"streamType": "error"}, finished=True)
        assert (first.number, second.number) == (1, 3)
        reader.feed_data(reply(packer, 1) + reply(packer, 3) + control_frame(PING, b"\0\0\0\2"))
        reader.feed_data(data_head(1, 5) + b"hello" + data_head(9, 2) + b"??" + data_head(1, 1, FIN) + b"!")
        assert [await first.read(), await first.read(), await first.read()] == [b"hello", b"!", b""]
        assert await first.read() == b""
        reader.feed_data(control_frame(RST_STREAM, struct.pack(">II", 3, 5)) + control_frame(GOAWAY, b"\0" * 8))
        assert (await second.read(), second.problem) == (b"", "the runtime reset the stream")
        await first.write(b"x" * 70_000)
        await first.finish()
        await first.finish()
        assert control_frame(PING, b"\0\0\0\2") in sink.sent
        assert sink.sent.count(data_head(1, 0, FIN)) == 1
        reader.feed_eof()
    assert connection.closed


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x80\x02\0\1\0\0\0\0",
        control_frame(SYN_STREAM, b"\0" * 10),
        struct.pack(">HHI", 0x8003, 2, 1 << 20),
        control_frame(SYN_REPLY, b"\0\0\0\1garbage"),
        control_frame(RST_STREAM, b"\0"),
    ],
)
async def test_rules_that_are_broken(garbage: bytes) -> None:
    reader = asyncio.StreamReader()
    connection = SpdyConnection(reader, Sink())  # type: ignore[arg-type]
    stream = await connection.open({})
    reader.feed_data(garbage)
    with pytest.raises(SpdyError):
        await connection.run()
    assert await stream.read() == b""
