"""What a server, well-meaning or not, can do to our side of a connection: nothing unbounded, nothing unnoticed."""

from __future__ import annotations

import logging
import os
import sys

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.clients.http2 import frames as wire
from pykubelet.clients.http2 import session as module
from pykubelet.clients.http2.frames import Fault, Frame, Frames
from pykubelet.clients.http2.session import NotProcessed, Session, Stream, StreamReset

GET = [(":method", "GET"), (":scheme", "https"), (":authority", "server"), (":path", "/x")]
SETTINGS = Frame(wire.SETTINGS, 0, 0, b"")


def started(*settings: tuple[int, int]) -> Session:
    session = Session()
    session.receive(cut(wire.settings(dict(settings)))[0], 0.0)
    session.out.clear()
    return session


def cut(data: bytes | bytearray) -> list[Frame]:
    frames = Frames()
    frames.add(bytes(data))
    found = []
    while (frame := frames.take()) is not None:
        found.append(frame)
    return found


def headers(
    stream: Stream | int, *fields: tuple[str, str], flags: int = wire.END_HEADERS, status: str = "200"
) -> Frame:
    number = stream if isinstance(stream, int) else stream.id
    # A fresh encoder has an empty table, as ours at the other side has at first; nothing is put into it here.
    block = hpack.Encoder().encode([(name, value, True) for name, value in ((":status", status), *fields)])
    return Frame(wire.HEADERS, flags, number, block)


def data(stream: Stream, payload: bytes, flags: int = 0) -> Frame:
    return Frame(wire.DATA, flags, stream.id, payload)


def sent(session: Session) -> list[Frame]:
    found = cut(session.out)
    session.out.clear()
    return found


def refused(session: Session, *frames: Frame) -> Fault:
    with pytest.raises(Fault) as caught:
        for frame in frames:
            session.receive(frame, 0.0)
    return caught.value


def test_frames_are_cut_from_pieces_of_any_size() -> None:
    stream = b"".join(wire.frame(number % 12, number, number, os.urandom(number * 37)) for number in range(60))
    frames, found = Frames(), []
    for at in range(0, len(stream), 7):
        frames.add(stream[at : at + 7])
        while (frame := frames.take()) is not None:
            found.append(frame)
    assert b"".join(wire.frame(*each) for each in found) == stream


def test_frame_too_large_is_refused_by_its_header_alone() -> None:
    frames = Frames()
    frames.add((wire.LARGEST + 1).to_bytes(3, "big") + bytes(6))
    with pytest.raises(Fault, match="a frame of 16385 bytes"):
        frames.take()


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 254, 255, 256, 16_384, 70_000])
def test_request_headers_are_read_by_another_implementation(size: int) -> None:
    fields = [*GET, ("authorization", "x" * size), ("x" * max(1, size % 1000), "y")]
    frames = cut(wire.request_frames(1, fields, first=True, ends=True))
    assert [frame.type for frame in frames] == [wire.HEADERS] + [wire.CONTINUATION] * (len(frames) - 1)
    assert [bool(frame.flags & wire.END_HEADERS) for frame in frames] == [False] * (len(frames) - 1) + [True]
    decoder = hpack.Decoder(max_header_list_size=1_000_000)
    decoded = list(decoder.decode(b"".join(frame.payload for frame in frames)))
    assert [(field[0], field[1]) for field in decoded] == fields
    assert [field.indexable for field in decoded if field[0] == "authorization"] == [False]
    assert decoder.header_table_size == 0


def test_debug_lines_of_the_library_do_not_show_headers() -> None:
    assert not logging.getLogger("hpack.hpack").isEnabledFor(logging.DEBUG)


def test_server_that_does_not_begin_with_settings_is_refused() -> None:
    assert refused(Session(), Frame(wire.PING, 0, 0, bytes(8))).code == wire.PROTOCOL_ERROR
    with pytest.raises(Fault):
        cut(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_header_block_may_come_in_parts_but_not_in_too_many_or_too_large_ones() -> None:
    session = started()
    stream = session.open(GET, b"")
    whole = headers(stream, ("a", "b" * 50)).payload
    session.receive(Frame(wire.HEADERS, 0, stream.id, whole[:10]), 0.0)
    session.receive(Frame(wire.CONTINUATION, 0, stream.id, whole[10:20]), 0.0)
    session.receive(Frame(wire.CONTINUATION, wire.END_HEADERS, stream.id, whole[20:]), 0.0)
    assert stream.status == 200
    flood = [Frame(wire.CONTINUATION, 0, 3, b"")] * (module.ALLOWANCE + 10)
    large = [Frame(wire.CONTINUATION, 0, 3, bytes(wire.LARGEST))] * 3
    for frames in (flood, large):
        session = started()
        session.open(GET, b"")
        session.open(GET, b"")
        assert refused(session, Frame(wire.HEADERS, 0, 3, b""), *frames).code == wire.ENHANCE_YOUR_CALM


def test_header_block_that_is_interrupted_or_has_no_beginning_is_refused() -> None:
    session = started()
    stream = session.open(GET, b"")
    begun = Frame(wire.HEADERS, 0, stream.id, b"")
    assert refused(session, begun, Frame(wire.PING, 0, 0, bytes(8))).code == wire.PROTOCOL_ERROR
    assert refused(started(), Frame(wire.CONTINUATION, 0, 1, b"")).code == wire.PROTOCOL_ERROR


def test_small_block_that_grows_when_it_is_read_is_refused() -> None:
    session = started()
    stream = session.open(GET, b"")
    bomb = hpack.Encoder().encode([(":status", "200")]) + b"\x40\x01a\x7f\x81\x1e" + b"x" * 4000 + b"\xbe" * 8000
    assert refused(session, Frame(wire.HEADERS, wire.END_HEADERS, stream.id, bomb)).code == wire.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("block", [b"\xff\xff\xff\xff\xff\xff", b"\x80", b"\x40\x7f", b"\x3f\xff\xff\xff\x7f", b"\x00"])
def test_header_block_that_cannot_be_read_ends_the_connection(block: bytes) -> None:
    session = started()
    stream = session.open(GET, b"")
    assert refused(session, Frame(wire.HEADERS, wire.END_HEADERS, stream.id, block)).code == wire.COMPRESSION_ERROR


@pytest.mark.parametrize(
    "frame",
    [
        Frame(wire.PING, 0, 0, bytes(8)),
        Frame(wire.PING, wire.ACK, 0, bytes(8)),
        SETTINGS,
        Frame(wire.SETTINGS, wire.ACK, 0, b""),
        Frame(wire.WINDOW_UPDATE, 0, 0, b"\0\0\0\1"),
        Frame(wire.DATA, 0, 3, b""),
        Frame(wire.DATA, wire.PADDED, 3, b"\x05\0\0\0\0\0"),
        Frame(wire.DATA, 0, 1, b"late"),
        Frame(wire.RST_STREAM, 0, 1, b"\0\0\0\0"),
        Frame(wire.PRIORITY, 0, 3, bytes(5)),
        Frame(wire.GOAWAY, 0, 0, b"\x7f\xff\xff\xff\0\0\0\0"),
        Frame(0xFA, 0, 0, b"unknown"),
        headers(1),
    ],
    ids=lambda frame: f"{frame.type}-{frame.flags}-{frame.stream}",
)
def test_flood_of_frames_that_carry_nothing_ends_the_connection(frame: Frame) -> None:
    session = started()
    session.leave(session.open(GET, b""))
    watch = session.open(GET, b"")
    session.receive(headers(watch), 0.0)
    session.out.clear()
    few = module.ALLOWANCE - 10
    for _ in range(few):
        session.receive(frame, 0.0)
    assert len(session.out) <= few * 17
    hour = 3600.0
    for _ in range(few):
        session.receive(frame, hour)
    with pytest.raises(Fault, match="carry nothing"):
        for _ in range(20):
            session.receive(frame, hour)


def test_interim_answers_are_skipped_but_not_without_end() -> None:
    session = started()
    stream, other = session.open(GET, b""), session.open(GET, b"")
    session.receive(headers(stream, status="103"), 0.0)
    session.receive(headers(stream), 0.0)
    assert stream.status == 200
    for _ in range(module.MOST_INTERIM + 1):
        session.receive(headers(other, status="103"), 0.0)
    with pytest.raises(StreamReset, match="1xx"):
        other.raise_problem()
    assert stream.is_open


@pytest.mark.parametrize("status", ["", "20", "2000", "abc", "²00"])
def test_answer_without_a_status_breaks_its_stream_alone(status: str) -> None:
    session = started()
    stream, other = session.open(GET, b""), session.open(GET, b"")
    session.out.clear()
    session.receive(headers(stream, status=status), 0.0)
    with pytest.raises(StreamReset, match="malformed"):
        stream.raise_problem()
    assert [frame.type for frame in sent(session)] == [wire.RST_STREAM]
    session.receive(headers(other), 0.0)
    assert other.status == 200


def test_data_before_headers_and_headers_in_the_middle_break_the_stream() -> None:
    session = started()
    early, middle, trailers = (session.open(GET, b"") for _ in range(3))
    session.receive(data(early, b"x"), 0.0)
    for stream in (middle, trailers):
        session.receive(headers(stream), 0.0)
        session.receive(data(stream, b"x"), 0.0)
    session.receive(headers(middle), 0.0)
    session.receive(headers(trailers, flags=wire.END_HEADERS | wire.END_STREAM), 0.0)
    for stream in (early, middle):
        with pytest.raises(StreamReset):
            stream.raise_problem()
    assert trailers.ended
    assert session.take(trailers) == b"x"
    assert session.streams == {}


@pytest.mark.parametrize("body", [b"12", b"1234"])
def test_body_of_another_length_than_announced_is_broken(body: bytes) -> None:
    session = started()
    stream = session.open(GET, b"")
    session.receive(headers(stream, ("content-length", "3")), 0.0)
    session.receive(data(stream, body, wire.END_STREAM), 0.0)
    with pytest.raises(StreamReset, match=f"{len(body)} bytes of 3"):
        stream.raise_problem()


def test_data_beyond_a_window_end_the_connection() -> None:
    for streams in (1, module.CONNECTION_WINDOW // module.STREAM_WINDOW + 1):
        session = started()
        opened = [session.open(GET, b"") for _ in range(streams)]
        kept = 0
        with pytest.raises(Fault, match="window") as caught:
            for stream in opened:
                session.receive(headers(stream), 0.0)
                for _ in range(module.STREAM_WINDOW // wire.LARGEST + (streams == 1)):
                    session.receive(data(stream, bytes(wire.LARGEST)), 0.0)
                    kept += wire.LARGEST
        assert caught.value.code == wire.FLOW_CONTROL_ERROR
        assert kept <= module.CONNECTION_WINDOW


def test_padding_counts_for_windows_and_is_given_back() -> None:
    session = started()
    stream = session.open(GET, b"")
    session.receive(headers(stream), 0.0)
    for _ in range(2 * module.CONNECTION_WINDOW // 10_000):
        session.receive(data(stream, b"\xff" + bytes(9_744) + b"\0" * 255, wire.PADDED), 0.0)
        assert len(session.take(stream)) == 9_744


@pytest.mark.parametrize(
    "frame",
    [
        Frame(wire.PUSH_PROMISE, wire.END_HEADERS, 1, bytes(8)),
        Frame(wire.DATA, 0, 99, b"x"),
        Frame(wire.DATA, 0, 2, b"x"),
        Frame(wire.DATA, 0, 0, b"x"),
        Frame(wire.DATA, wire.PADDED, 1, b""),
        Frame(wire.DATA, wire.PADDED, 1, b"\x05abc"),
        Frame(wire.HEADERS, wire.PRIORITIZED, 1, b"abc"),
        Frame(wire.RST_STREAM, 0, 99, bytes(4)),
        Frame(wire.RST_STREAM, 0, 1, bytes(3)),
        Frame(wire.WINDOW_UPDATE, 0, 0, bytes(4)),
        Frame(wire.WINDOW_UPDATE, 0, 1, bytes(4)),
        Frame(wire.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"),
        Frame(wire.WINDOW_UPDATE, 0, 1, b"\x7f\xff\xff\xff"),
        Frame(wire.WINDOW_UPDATE, 0, 1, b"abc"),
        Frame(wire.SETTINGS, 0, 0, b"abc"),
        Frame(wire.SETTINGS, 0, 1, b""),
        Frame(wire.SETTINGS, 0, 0, b"\0\4\xff\xff\xff\xff"),
        Frame(wire.PING, 0, 0, b"short"),
        Frame(wire.GOAWAY, 0, 0, b"short"),
    ],
    ids=lambda frame: f"{frame.type}-{frame.flags}-{frame.stream}-{len(frame.payload)}",
)
def test_broken_protocol_ends_the_connection(frame: Frame) -> None:
    session = started()
    session.open(GET, b"")
    refused(session, frame)


def test_smaller_window_in_the_middle_of_an_upload_is_obeyed() -> None:
    session = started((wire.INITIAL_WINDOW_SIZE, 10))
    stream = session.open(GET, b"x" * 100)
    session.upload()
    assert [len(frame.payload) for frame in sent(session) if frame.type == wire.DATA] == [10]
    session.receive(cut(wire.settings({wire.INITIAL_WINDOW_SIZE: 5}))[0], 0.0)
    assert stream.send_window == -5
    session.receive(cut(wire.number_frame(wire.WINDOW_UPDATE, stream.id, 5))[0], 0.0)
    session.upload()
    assert [frame for frame in sent(session) if frame.type == wire.DATA] == []
    session.receive(cut(wire.number_frame(wire.WINDOW_UPDATE, stream.id, 1000))[0], 0.0)
    session.upload()
    (rest,) = sent(session)
    assert (len(rest.payload), rest.flags) == (90, wire.END_STREAM)


def test_goodbye_lets_go_of_what_is_not_served_and_keeps_its_reason() -> None:
    session = started()
    first, second = session.open(GET, b""), session.open(GET, b"x" * 100_000)
    session.receive(Frame(wire.GOAWAY, 0, 0, b"\0\0\0\1\0\0\0\x0bslow down"), 0.0)
    assert first.is_open
    with pytest.raises(NotProcessed, match="ENHANCE_YOUR_CALM slow down"):
        second.raise_problem()
    assert session.room == 0
    session.upload()


def test_numbers_of_streams_run_out_without_harm() -> None:
    session = started()
    session._next = wire.LARGEST_NUMBER
    stream = session.open(GET, b"")
    assert session.room == 0
    session.receive(headers(stream, flags=wire.END_HEADERS | wire.END_STREAM), 0.0)
    assert stream.ended


ANY_FRAME = st.builds(
    Frame,
    type=st.integers(0, 11),
    flags=st.sampled_from([0, 1, 4, 5, 8, 0x20, 0x2C, 0xFF]),
    stream=st.sampled_from([0, 1, 2, 3, 5, 7, 9]),
    payload=st.one_of(
        st.binary(max_size=40),
        st.sampled_from(
            [b"", bytes(4), bytes(8), b"\x88", b"\0\0\0\5", wire.settings({3: 1, 4: 9})[9:], bytes(16_384)]
        ),
    ),
)


@given(st.lists(ANY_FRAME, max_size=60))
def test_whatever_comes_it_is_a_fault_or_within_bounds(frames: list[Frame]) -> None:
    session = started()
    streams = [session.open(GET, b"x" * 70_000 * (number % 2)) for number in range(4)]
    session.receive(headers(streams[0]), 0.0)
    session.leave(streams[3])
    try:
        for number, frame in enumerate(frames):
            session.receive(frame, 0.0)
            session.upload()
            if number % 7 == 0:
                session.take(streams[0])
    except Fault as fault:
        assert wire.error_name(fault.code)
    assert sum(len(chunk) for stream in streams for chunk in stream.chunks) <= module.CONNECTION_WINDOW
    assert len(session.out) <= 4 * 80_000 + 30 * len(frames) + 100
    assert set(session.streams) <= {1, 3, 5, 7}
    assert all(stream.is_open for stream in session.streams.values())


@given(st.binary(max_size=300))
def test_whatever_bytes_come_they_are_frames_or_a_fault(data: bytes) -> None:
    try:
        for frame in cut(data):
            assert len(frame.payload) <= wire.LARGEST
    except Fault as fault:
        assert fault.code == wire.FRAME_SIZE_ERROR


def test_single_bytes_cost_little_more_than_their_number() -> None:
    session = started()
    stream = session.open(GET, b"")
    session.receive(headers(stream), 0.0)
    for _ in range(10_000):
        session.receive(data(stream, b"xy"), 0.0)
    assert sum(sys.getsizeof(each) for each in stream.chunks) < 1.1 * 20_000
    assert session.take(stream) == b"xy" * 10_000
