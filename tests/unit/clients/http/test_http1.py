"""Whatever a pod sends, in whatever pieces: an answer or an HttpProblem, never anything else."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykubelet.clients.http.http1 import ResponseReader, read_body, read_upgrade_head
from pykubelet.model.http import HttpAnswer, HttpProblem


class Pieces:
    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]

    async def send(self, data: bytes) -> None:
        raise AssertionError("reading sends nothing")

    async def recv(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""

    def close(self) -> None:
        pass


def read(pieces: list[bytes], max_body: int = 50) -> HttpAnswer | None:
    async def body() -> HttpAnswer | None:
        try:
            return await ResponseReader(Pieces(pieces).recv).answer(max_body)
        except HttpProblem:
            return None

    return asyncio.run(body())


FRAGMENTS = st.sampled_from(
    [
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.0 ",
        b"HTTP/1.1 100 C\r\n\r\n",
        b"Content-Length: 5\r\n",
        b"Content-Length: 99999999999999999999999\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"\r\n",
        b"\n",
        b":",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b"fffffffffffffff\r\n",
        b"hello",
        b"\x00\xff",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(FRAGMENTS, st.binary(max_size=20)), max_size=12))
def test_hostile_answers(pieces: list[bytes]) -> None:
    answer = read(pieces)
    if answer is not None:
        assert 100 <= answer.status <= 999
        assert len(answer.body) <= 50


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(min_value=1, max_value=60), max_size=10))
def test_where_the_pieces_break_does_not_matter(cuts: list[int]) -> None:
    data = b"HTTP/1.1 200 OK\r\nX-A: b\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
    pieces, position = [], 0
    for cut in cuts:
        pieces.append(data[position : position + cut])
        position += cut
    pieces.append(data[position:])
    answer = read(pieces)
    assert answer is not None
    assert (answer.status, answer.body, answer.header("x-a")) == (200, b"abcdefg", "b")


def test_a_head_that_comes_byte_by_byte_for_ever_ends() -> None:
    assert read([b"HTTP/1.1 200 OK\r\nX: "] + [b"y"] * 66_000) is None


async def test_the_head_of_an_upgrade_leaves_what_follows_unread() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\n\r\n\x80\x03")
    head, status, headers = await read_upgrade_head(reader)
    assert (status, headers) == (101, [("upgrade", "SPDY/3.1")]) and head.endswith(b"3.1\r\n\r\n")
    assert await reader.read(10) == b"\x80\x03"


@pytest.mark.parametrize(
    ("head", "sent"),
    [
        (b"Content-Length: 9", b"forbidden"),
        (b"Transfer-Encoding: chunked", b"4\r\nforb\r\n5;x=y\r\nidden\r\n0\r\n\r\n"),
        (b"Connection: close", b"forbidden"),
    ],
)
async def test_the_body_of_a_refused_upgrade(head: bytes, sent: bytes) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(b"HTTP/1.1 403 Forbidden\r\n" + head + b"\r\n\r\n" + sent)
    reader.feed_eof()
    _, status, headers = await read_upgrade_head(reader)
    assert (status, await read_body(reader, headers, 100)) == (403, b"forbidden")


@pytest.mark.parametrize(
    "sent", [b"", b"HTTP/1.1 101 Switching", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nx\r\n\r\n"]
)
async def test_what_is_no_answer_to_an_upgrade(sent: bytes) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(sent)
    reader.feed_eof()
    with pytest.raises(HttpProblem):
        await read_upgrade_head(reader)
