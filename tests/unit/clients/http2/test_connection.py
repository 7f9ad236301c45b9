"""HTTP/2 connections against a server on loopback: streams side by side, windows, goodbyes, resets, silence."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import h2.settings
import pytest

from pykubelet.clients.http2 import frames as wire
from pykubelet.clients.http2.connection import FRAMES_AT_ONCE, MOST_UNSENT, Exchange, Health, Http2Connection
from pykubelet.clients.http2.session import (
    CONNECTION_WINDOW,
    STREAM_WINDOW,
    ConnectionEnded,
    NotProcessed,
    StreamReset,
)
from pykubelet.kit.clock import SystemClock
from tests.unit.clients.http2.servers import Asked, Http2Server, ok, serving

pytestmark = pytest.mark.uvloop

CLOCK = SystemClock()
THREE = {h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 3}

GET = [(":method", "GET"), (":scheme", "http"), (":authority", "server"), (":path", "/x")]
POST = [(":method", "POST"), *GET[1:]]


@asynccontextmanager
async def connected(server: Http2Server, **health: float) -> AsyncIterator[Http2Connection]:
    loop = asyncio.get_running_loop()
    made = Http2Connection(Health(**health))
    transport, connection = await loop.create_connection(lambda: made, "127.0.0.1", server.port)
    connection.begin(transport)
    try:
        yield connection
    finally:
        await connection.close()


async def body_of(exchange: Exchange) -> bytes:
    found = bytearray()
    while chunk := await exchange.chunk(5):
        found += chunk
    return bytes(found)


async def until(holds: Any) -> None:
    async with asyncio.timeout(5):
        while not holds():
            await CLOCK.sleep(0.005)


async def test_many_requests_share_a_connection_and_answers_come_in_any_order() -> None:
    gates = {f"/{number}": asyncio.Event() for number in range(50)}

    async def answer(asked: Asked) -> None:
        await gates[asked.path].wait()
        asked.answer(asked.path.encode())

    async with serving(answer) as server, connected(server) as connection:
        exchanges = [connection.request([*GET[:3], (":path", path)]) for path in gates]
        for path, exchange in reversed(list(zip(gates, exchanges, strict=True))):
            gates[path].set()
            assert (await exchange.head(5))[0] == 200
            assert await body_of(exchange) == path.encode()
        assert connection.streams == 0
        assert len(server.peers) == 1


async def test_headers_reach_the_server_however_long_and_its_own_are_read() -> None:
    long = "ü" * 20_000

    async def answer(asked: Asked) -> None:
        asked.head(201, retry_after="7", content_length="0")
        asked.end()

    async with serving(answer, settings={h2.settings.SettingCodes.HEADER_TABLE_SIZE: 0}) as server:
        async with connected(server) as connection:
            for _ in range(2):
                exchange = connection.request([*GET, ("authorization", "Bearer x"), ("long", long), ("empty", "")])
                status, fields = await exchange.head(5)
                assert (status, dict(fields)["retry-after"]) == (201, "7")
                assert await exchange.chunk(5) == b""
        assert [asked.headers["long"] for asked in server.requests] == [long, long]
        assert server.requests[0].headers["authorization"] == "Bearer x"


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 3_000_000])
async def test_bodies_are_sent_as_the_server_lets_us(size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    async with serving(ok) as server, connected(server) as connection:
        exchange = connection.request(POST, body)
        assert (await exchange.head(5))[0] == 200
        assert server.requests[0].body == body


async def test_upload_waits_for_the_window_and_does_not_hold_others() -> None:
    async with serving(ok, reads=False) as server, connected(server) as connection:
        large = connection.request(POST, b"x" * 100_000)
        await until(lambda: server.requests and len(server.requests[0].body) == 65_535)
        small = connection.request(GET)
        assert await body_of_answer(small) == b"ok"
        with pytest.raises(TimeoutError):
            await large.head(0.1)
        server.peers[0].machine.increment_flow_control_window(100_000)
        server.peers[0].machine.increment_flow_control_window(100_000, server.requests[0].stream)
        server.peers[0].flush()
        assert await body_of_answer(large) == b"ok"
        assert len(server.requests[0].body) == 100_000


async def body_of_answer(exchange: Exchange) -> bytes:
    await exchange.head(5)
    return await body_of(exchange)


async def test_answer_before_the_upload_is_done_ends_the_upload() -> None:
    async def refuse(asked: Asked) -> None:
        asked.answer(b"too large", 413)

    async with serving(refuse, reads=False) as server, connected(server) as connection:
        exchange = connection.request(POST, b"x" * 100_000)
        assert (await exchange.head(5))[0] == 413
        assert await body_of(exchange) == b"too large"
        await until(lambda: server.requests[0].gone == wire.CANCEL)
        assert connection.streams == 0


async def test_large_answers_flow_through_the_windows() -> None:
    body = bytes(range(251)) * 100_000  # 25 MB: more than both windows

    async def pour(asked: Asked) -> None:
        asked.head()
        await asked.pour(body, last=True)

    async with serving(pour) as server, connected(server) as connection:
        assert await body_of_answer(connection.request(GET)) == body


async def test_slow_reader_holds_up_to_its_window_and_nobody_else() -> None:
    async def pour(asked: Asked) -> None:
        asked.head()
        if asked.path == "/x":
            await asked.pour(b"x" * 3 * STREAM_WINDOW, last=True)
        else:
            await asked.pour(b"y" * CONNECTION_WINDOW, last=True)

    async with serving(pour) as server, connected(server) as connection:
        slow = [connection.request(GET) for _ in range(5)]
        await until(lambda: all(sum(map(len, each._stream.chunks)) == STREAM_WINDOW for each in slow))
        for _ in range(2):
            assert len(await body_of_answer(connection.request([*GET[:3], (":path", "/y")]))) == CONNECTION_WINDOW
        for each in slow:
            assert sum(map(len, each._stream.chunks)) == STREAM_WINDOW
        for each in slow[1:]:
            each.leave()
        assert len(await body_of_answer(slow[0])) == 3 * STREAM_WINDOW


async def test_stream_that_is_left_is_reset_and_its_late_data_do_no_harm() -> None:
    async def endless(asked: Asked) -> None:
        asked.head()
        if asked.path == "/x":
            await asked.pour(b"x" * 2 * STREAM_WINDOW)
        else:
            asked.say(b"ok", last=True)

    async with serving(endless) as server, connected(server) as connection:
        for _ in range(40):  # twice the connection's window, none of it read
            exchange = connection.request(GET)
            await exchange.head(5)
            await exchange.chunk(5)
            exchange.leave()
            exchange.leave()
        assert connection.streams == 0
        assert await body_of_answer(connection.request([*GET[:3], (":path", "/y")])) == b"ok"
        await until(lambda: all(asked.gone == wire.CANCEL for asked in server.requests[:40]))


async def test_streams_a_goodbye_includes_go_on_and_others_can_be_sent_again() -> None:
    async def watch(asked: Asked) -> None:
        asked.head()
        asked.say(b"first")

    async with serving(watch) as server, connected(server) as connection:
        served, refused = connection.request(GET), connection.request(GET)
        for each in (served, refused):
            await each.head(5)
            assert await each.chunk(5) == b"first"
        server.peers[0].goaway(2**31 - 1)
        await until(lambda: connection.room == 0)
        with pytest.raises(NotProcessed, match="goodbye"):
            connection.request(GET)
        server.peers[0].goaway(server.requests[0].stream)
        with pytest.raises(NotProcessed):
            await refused.chunk(5)
        server.requests[0].say(b"second")
        assert await served.chunk(5) == b"second"
        assert not connection.is_closed
        server.requests[0].end()
        assert await served.chunk(5) == b""
        async with asyncio.timeout(5):
            await server.peers[0].closed.wait()
        assert connection.is_closed


async def test_connection_that_ends_ends_its_streams() -> None:
    async def hang_up(asked: Asked) -> None:
        if asked.path == "/hang-up":
            asked.peer.abort()
        asked.head()
        asked.say(b"said")

    async with serving(hang_up) as server, connected(server) as connection:
        watch = connection.request(GET)
        await watch.head(5)
        await until(lambda: watch._stream.chunks)
        call = connection.request([*GET[:3], (":path", "/hang-up")])
        with pytest.raises(ConnectionEnded):
            await call.head(5)
        assert await watch.chunk(5) == b"said"
        with pytest.raises(ConnectionEnded):
            await watch.chunk(5)
        with pytest.raises(NotProcessed):
            connection.request(GET)


@pytest.mark.parametrize(
    ("code", "kind"), [(wire.REFUSED_STREAM, NotProcessed), (wire.INTERNAL_ERROR, StreamReset), (99, StreamReset)]
)
async def test_reset_ends_one_stream_alone(code: int, kind: type[Exception]) -> None:
    async def reset(asked: Asked) -> None:
        if asked.path == "/x":
            asked.reset(code)
        else:
            asked.answer(b"ok")

    async with serving(reset) as server, connected(server) as connection:
        exchange = connection.request(GET)
        with pytest.raises(kind) as caught:
            await exchange.head(5)
        assert type(caught.value) is kind
        assert await body_of_answer(connection.request([*GET[:3], (":path", "/y")])) == b"ok"


async def test_server_says_how_many_streams_it_takes() -> None:
    release = asyncio.Event()

    async def wait(asked: Asked) -> None:
        await release.wait()
        asked.answer(b"ok")

    async with serving(wait, settings=THREE) as server, connected(server) as connection:
        await connection.ready(5)
        exchanges = [connection.request(GET) for _ in range(3)]
        with pytest.raises(NotProcessed, match="no room"):
            connection.request(GET)
        release.set()
        for each in exchanges:
            await body_of_answer(each)
        assert connection.room == 3


async def test_silent_server_is_asked_and_one_that_answers_is_kept() -> None:
    async def watch(asked: Asked) -> None:
        asked.head()

    async with serving(watch) as server, connected(server, idle=0.1, answer=0.5) as connection:
        exchange = connection.request(GET)
        await exchange.head(5)
        await until(lambda: server.peers[0].pings >= 3)
        assert not connection.is_closed
        server.peers[0].silent = True
        with pytest.raises(ConnectionEnded, match="no answer to a PING within"):
            await exchange.chunk(5)


async def test_connection_without_requests_is_closed_after_a_while() -> None:
    async with serving(ok) as server, connected(server, idle=0.05, answer=0.05, kept=0.2) as connection:
        await body_of_answer(connection.request(GET))
        async with asyncio.timeout(5):
            await server.peers[0].closed.wait()
        assert connection.is_closed
        assert server.peers[0].client_said_goodbye == wire.NO_ERROR


async def test_without_health_checks_no_server_is_asked_and_unused_connections_are_closed_all_the_same() -> None:
    async with serving(ok) as server, connected(server, idle=math.inf, kept=0.2) as connection:
        await body_of_answer(connection.request(GET))
        async with asyncio.timeout(5):
            await server.peers[0].closed.wait()
        assert connection.is_closed and server.peers[0].pings == 0


async def test_silence_of_a_stream_is_a_timeout_and_words_after_it_are_still_read() -> None:
    async def watch(asked: Asked) -> None:
        asked.head()

    async with serving(watch) as server, connected(server) as connection:
        exchange = connection.request(GET)
        await exchange.head(5)
        with pytest.raises(TimeoutError):
            await exchange.chunk(0.05)
        server.requests[0].say(b"late")
        assert await exchange.chunk(5) == b"late"


async def test_retired_connection_closes_with_its_last_request() -> None:
    release = asyncio.Event()

    async def wait(asked: Asked) -> None:
        await release.wait()
        asked.answer(b"ok")

    async with serving(wait) as server, connected(server) as connection:
        exchange = connection.request(GET)
        connection.retire()
        assert not connection.is_closed
        assert connection.room == 0
        release.set()
        assert await body_of_answer(exchange) == b"ok"
        async with asyncio.timeout(5):
            await server.peers[0].closed.wait()


async def test_cancelled_readers_leave_nothing_behind() -> None:
    async def never(asked: Asked) -> None:
        return None

    async with serving(never) as server, connected(server) as connection:
        exchange = connection.request(GET)
        task = asyncio.get_running_loop().create_task(exchange.head())
        await until(lambda: server.requests)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        exchange.leave()
        assert connection.streams == 0
        await until(lambda: server.requests[0].gone == wire.CANCEL)


class Outlet(asyncio.Transport):
    """A transport whose other side does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.paused = self.gone = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def write(self, data: Any) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return self.gone

    def abort(self) -> None:
        self.gone = True

    def close(self) -> None:
        self.gone = True


def begun() -> tuple[Http2Connection, Outlet]:
    connection, outlet = Http2Connection(Health()), Outlet()
    connection.begin(outlet)
    connection.data_received(wire.settings({}))
    return connection, outlet


async def test_loop_gets_a_turn_however_many_frames_come_at_once() -> None:
    connection, outlet = begun()
    exchange = connection.request(GET)
    connection.data_received(wire.frame(wire.HEADERS, wire.END_HEADERS, 1, b"\x88"))
    connection.data_received(wire.frame(wire.DATA, 0, 1, b"x") * 20_000)
    assert 0 < exchange._stream.received <= FRAMES_AT_ONCE
    assert outlet.paused
    turns = 0
    while exchange._stream.received < 20_000:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 20_000 // FRAMES_AT_ONCE - 1
    await asyncio.sleep(0)
    assert not outlet.paused
    connection.connection_lost(None)


async def test_server_that_asks_and_does_not_read_is_given_up() -> None:
    connection, outlet = begun()
    connection.pause_writing()
    exchange = connection.request(POST, b"x" * 10_000_000)
    before = len(outlet.written)
    assert before < 1000
    for _ in range(300):
        connection.data_received(wire.number_frame(wire.WINDOW_UPDATE, 0, 20_000))
        connection.data_received(wire.number_frame(wire.WINDOW_UPDATE, 1, 20_000))
    assert len(outlet.written) == before  # bodies wait while the buffer is full
    outlet.written += bytes(MOST_UNSENT)
    connection.data_received(wire.frame(wire.PING, 0, 0, bytes(8)))
    assert outlet.gone
    with pytest.raises(ConnectionEnded, match="does not read"):
        await exchange.head(5)
    connection.connection_lost(None)


async def test_many_silent_streams_need_one_timer_and_each_its_own_time() -> None:
    async def watch(asked: Asked) -> None:
        asked.head()

    async with serving(watch) as server, connected(server) as connection:
        exchanges = [connection.request(GET) for _ in range(20)]
        for each in exchanges:
            await each.head(5)
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def silent_for(exchange: Exchange, within: float) -> float:
            with pytest.raises(TimeoutError):
                await exchange.chunk(within)
            return loop.time() - began

        waits = [0.3 - 0.01 * number for number in range(20)]
        took = await asyncio.gather(*map(silent_for, exchanges, waits))
    assert all(spent >= wait - 0.005 for spent, wait in zip(took, waits, strict=True))
    assert sorted(took, reverse=True) == list(took)
