"""Taking a caller's connection from the HTTP library, for what is no HTTP any more.

Does not cover: what is done with it (proxy.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from pykubelet.server.proxy import BLOCK


class Gone(web.StreamResponse):
    """Stands for an answer that was sent by other means; the connection ends with it."""

    def __init__(self) -> None:
        super().__init__()
        self.force_close()

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None

    async def write_eof(self, data: Any = b"") -> None:
        return


class _Tail:
    """Collects the bytes that came right behind the upgrade request."""

    def __init__(self) -> None:
        self.data = bytearray()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        return


class _Taken(asyncio.StreamReaderProtocol):
    lost = False
    error: Exception | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost, self.error = True, exc
        super().connection_lost(exc)


@asynccontextmanager
async def taken_over(request: web.BaseRequest) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """The caller's bare connection for the length of the block; then it is closed."""
    transport, handler = request.transport, request.protocol
    if transport is None or transport.is_closing():
        raise ConnectionResetError("the caller has gone")
    loop = asyncio.get_running_loop()
    tail = _Tail()
    handler.set_parser(cast(Any, tail))
    handler.keep_alive(False)
    reader = asyncio.StreamReader(limit=BLOCK, loop=loop)
    protocol = _Taken(reader, loop=loop)
    if tail.data:
        reader.feed_data(bytes(tail.data))
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    if not transport.is_reading():
        transport.resume_reading()
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    try:
        yield reader, writer
    finally:
        handler.close()  # whatever still arrives is no HTTP
        if protocol.lost:
            # Later, so that the library does not cancel the very task that is finishing here.
            loop.call_soon(handler.connection_lost, protocol.error)
        else:
            transport.set_protocol(handler)
            writer.close()
