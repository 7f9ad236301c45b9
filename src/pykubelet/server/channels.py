"""WebSocket callers of runtimes that speak SPDY: v5 channels for exec and attach, tunnels for port-forward.

A v5 message is a channel number and bytes (0 stdin, 1 stdout, 2 stderr, 3 error, 4 resize); 255 with a number
closes that channel. Each channel is one SPDY stream towards the runtime. A tunnel carries SPDY itself in messages.
Does not cover: older channel protocols, which runtimes speak themselves (proxy.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from aiohttp import WSMsgType, web

from pykubelet.clients.http.spdy import SpdyConnection, SpdyError, SpdyStream
from pykubelet.kit.tasks import TaskSet
from pykubelet.server.calls import Refused, Upgraded
from pykubelet.server.proxy import BLOCK, Idle, RuntimeStream, open_stream
from pykubelet.server.streams import CHANNELS_V5, TUNNEL_PROTOCOL

logger = logging.getLogger(__name__)

NUMBERS = {"stdin": 0, "stdout": 1, "stderr": 2, "error": 3, "resize": 4}
CLOSE = 255
FROM_CALLER = frozenset({"stdin", "resize"})
MAX_MESSAGE = 1024 * 1024


async def _runtime(url: str, protocol: str) -> RuntimeStream:
    runtime = await open_stream(
        url,
        "POST",
        [
            ("connection", "Upgrade"),
            ("upgrade", "SPDY/3.1"),
            ("x-stream-protocol-version", protocol),
            ("content-length", "0"),
        ],
    )
    if runtime.status != 101:
        runtime.close()
        raise Refused(runtime.status, runtime.body.decode(errors="replace"))
    return runtime


def _socket(protocol: str) -> web.WebSocketResponse:
    # No pings of our own: while one side waits for the other nobody reads the answers, and a patient caller would be
    # cut off. Who vanished without a word is noticed by the kernel (listeners.py).
    return web.WebSocketResponse(protocols=(protocol,), compress=False, max_msg_size=MAX_MESSAGE, autoping=True)


async def _prepare(request: web.BaseRequest, socket: web.WebSocketResponse) -> None:
    try:
        await socket.prepare(request)
    except web.HTTPException as error:
        raise Refused(400, error.text or "unable to upgrade") from error


async def serve_channels(request: web.BaseRequest, reply: Upgraded, idle: Idle) -> web.StreamResponse:
    runtime = await _runtime(reply.url, "v4.channel.k8s.io")
    connection = SpdyConnection(runtime.reader, runtime.writer)
    try:
        socket = _socket(CHANNELS_V5)
        await _prepare(request, socket)
        await _bridge(socket, connection, ("error", *reply.streams), idle)
        await socket.close()
    finally:
        connection.close()
    return socket


async def _bridge(
    socket: web.WebSocketResponse, connection: SpdyConnection, names: tuple[str, ...], idle: Idle
) -> None:
    async with TaskSet("channels", on_error=_log_broken) as tasks:
        reading = tasks.spawn(connection.run(), name="channels from the runtime")
        streams = {name: await connection.open({"streamtype": name}) for name in names}
        to_caller = {
            tasks.spawn(_to_caller(socket, NUMBERS[name], stream, idle), name=f"channel {name}")
            for name, stream in streams.items()
            if name not in FROM_CALLER
        }
        from_caller = tasks.spawn(_from_caller(socket, streams, idle), name="channels from the caller")
        watch = tasks.spawn(idle.wait(), name="channels idle watch")
        pending: set[asyncio.Task[None]] = {from_caller, watch, *to_caller}
        # The runtime ends its output streams when the command has ended; the caller leaving ends it all.
        while to_caller & pending and not from_caller.done() and not watch.done():
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        reading.cancel()


async def _to_caller(socket: web.WebSocketResponse, number: int, stream: SpdyStream, idle: Idle) -> None:
    prefix = bytes([number])
    while block := await stream.read():
        idle.touch()
        await socket.send_bytes(prefix + block)


async def _from_caller(socket: web.WebSocketResponse, streams: Mapping[str, SpdyStream], idle: Idle) -> None:
    by_number = {NUMBERS[name]: stream for name, stream in streams.items()}
    allowed = {NUMBERS[name] for name in FROM_CALLER}
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        idle.touch()
        number, data = message.data[0], message.data[1:]
        if number == CLOSE:
            stream = by_number.get(data[0]) if data else None
            if stream is not None and data[0] in allowed:
                await stream.finish()
            continue
        stream = by_number.get(number)
        if stream is not None and number in allowed and data and not stream.finished:
            await stream.write(data)


async def serve_tunnel(request: web.BaseRequest, reply: Upgraded, idle: Idle) -> web.StreamResponse:
    runtime = await _runtime(reply.url, "portforward.k8s.io")
    try:
        socket = _socket(TUNNEL_PROTOCOL)
        await _prepare(request, socket)
        async with TaskSet("tunnel", on_error=_log_broken) as tasks:
            up = tasks.spawn(_tunnel_up(socket, runtime, idle), name="tunnel to the runtime")
            down = tasks.spawn(_tunnel_down(socket, runtime, idle), name="tunnel to the caller")
            watch = tasks.spawn(idle.wait(), name="tunnel idle watch")
            await asyncio.wait({up, down, watch}, return_when=asyncio.FIRST_COMPLETED)
        await socket.close()
    finally:
        runtime.close()
    return socket


async def _tunnel_up(socket: web.WebSocketResponse, runtime: RuntimeStream, idle: Idle) -> None:
    async for message in socket:
        if message.type is WSMsgType.BINARY:
            idle.touch()
            runtime.writer.write(message.data)
            await runtime.writer.drain()


async def _tunnel_down(socket: web.WebSocketResponse, runtime: RuntimeStream, idle: Idle) -> None:
    while block := await runtime.reader.read(BLOCK):
        idle.touch()
        await socket.send_bytes(block)


def _log_broken(error: BaseException) -> None:
    """A connection that breaks ends the stream, which is nothing to shout about; the rest is."""
    if isinstance(error, OSError | SpdyError):
        logger.info("a streaming connection broke", extra={"error": str(error)})
    else:
        logger.error("a streaming connection failed unexpectedly", extra={"error": repr(error)})
