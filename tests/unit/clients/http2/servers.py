"""An HTTP/2 server on loopback that does as a test says; its protocol is the h2 library's, not ours."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

from pykubelet.clients.http2 import frames as wire


@dataclass(eq=False)
class Asked:
    """A request as the server sees it, and what it can do about it."""

    peer: Peer
    stream: int
    headers: dict[str, str]
    body: bytearray = field(default_factory=bytearray)
    gone: int | None = None
    """The code the client left it with."""
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def path(self) -> str:
        return self.headers[":path"]

    def head(self, status: int = 200, **headers: str) -> None:
        fields = [(":status", str(status)), *((name.replace("_", "-"), value) for name, value in headers.items())]
        self.peer.machine.send_headers(self.stream, fields)
        self.peer.flush()

    def say(self, data: bytes, *, last: bool = False) -> None:
        """Within the client's window."""
        self.peer.machine.send_data(self.stream, data, end_stream=last)
        self.peer.flush()

    async def pour(self, data: bytes, *, last: bool = False) -> None:
        """As much as the client's window allows, the rest when it allows more."""
        view = memoryview(data)
        while view:
            room = min(
                self.peer.machine.local_flow_control_window(self.stream), self.peer.machine.max_outbound_frame_size
            )
            if room <= 0:
                self.changed.clear()
                await self.changed.wait()
                continue
            self.say(bytes(view[:room]), last=last and room >= len(view))
            view = view[room:]

    def end(self) -> None:
        self.peer.machine.end_stream(self.stream)
        self.peer.flush()

    def reset(self, code: int) -> None:
        self.peer.machine.reset_stream(self.stream, code)
        self.peer.flush()

    def answer(self, body: bytes = b"", status: int = 200) -> None:
        self.head(status)
        self.say(body, last=True)


Handler = Callable[[Asked], Awaitable[None]]


class Peer(asyncio.Protocol):
    """One connection, the server's end."""

    def __init__(self, server: Http2Server) -> None:
        self.server = server
        self.machine = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        self.machine.local_settings = h2.settings.Settings(client=False, initial_values=server.settings)
        self.asked: dict[int, Asked] = {}
        self.transport: asyncio.Transport | None = None
        self.fault: Exception | None = None
        self.closed = asyncio.Event()
        self.client_said_goodbye: int | None = None
        self.pings = 0
        self.silent = False
        """Neither reads nor says anything, as behind a broken network."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.server.peers.append(self)
        self.machine.initiate_connection()
        self.flush()

    def data_received(self, data: bytes) -> None:
        if self.silent:
            return
        try:
            events = self.machine.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            self.fault = error
            self.flush()
            assert self.transport is not None
            self.transport.close()
            return
        for event in events:
            self._handle(event)
        self.flush()

    def _handle(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            asked = self.asked[event.stream_id] = Asked(self, event.stream_id, dict(event.headers))
            self.server.requests.append(asked)
            self.server.begin(asked)
        elif isinstance(event, h2.events.DataReceived):
            self.asked[event.stream_id].body += event.data
            if self.server.reads:
                self.machine.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self.asked[event.stream_id].complete.set()
        elif isinstance(event, h2.events.StreamReset):
            self.asked[event.stream_id].gone = int(event.error_code)
            self.asked[event.stream_id].changed.set()
        elif isinstance(event, h2.events.WindowUpdated):
            for each in self.asked.values():
                each.changed.set()
        elif isinstance(event, h2.events.PingReceived):
            self.pings += 1
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.client_said_goodbye = int(event.error_code)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()

    def flush(self) -> None:
        self.raw(self.machine.data_to_send())

    def raw(self, data: bytes) -> None:
        """Bytes as they are, also such that no sane server sends."""
        if self.transport is not None and not self.transport.is_closing() and not self.silent:
            self.transport.write(data)

    def goaway(self, last: int, code: int = wire.NO_ERROR) -> None:
        """By hand: the library could not go on after it."""
        self.raw(wire.frame(wire.GOAWAY, 0, 0, last.to_bytes(4, "big") + code.to_bytes(4, "big")))

    def abort(self) -> None:
        assert self.transport is not None
        self.transport.abort()


@dataclass
class Http2Server:
    handler: Handler
    tls: ssl.SSLContext | None = None
    settings: dict[Any, int] = field(default_factory=dict)
    reads: bool = True
    """Whether it lets clients send more than the first window."""
    port: int = 0
    peers: list[Peer] = field(default_factory=list)
    requests: list[Asked] = field(default_factory=list)
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def open(self) -> list[Peer]:
        return [peer for peer in self.peers if not peer.closed.is_set()]

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Peer(self), "127.0.0.1", self.port, ssl=self.tls, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        for peer in self.open:
            peer.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0.02)

    def begin(self, asked: Asked) -> None:
        task = asyncio.get_running_loop().create_task(self._run(asked))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, asked: Asked) -> None:
        with suppress(h2.exceptions.StreamClosedError, h2.exceptions.ProtocolError):
            await self.handler(asked)


@asynccontextmanager
async def serving(handler: Handler, **options: Any) -> AsyncIterator[Http2Server]:
    server = Http2Server(handler, **options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def ok(asked: Asked) -> None:
    await asked.complete.wait()
    asked.answer(b"ok")
