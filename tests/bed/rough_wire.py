"""A wire to the API server that is slow, holds pieces back and loses connections: a TCP proxy on the event loop.

Pieces of different connections overtake each other, since each waits for itself; within one they stay in order, as in
TCP. All connections share one rate. Behind it the server may go away and come back: then the wire hangs up.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pykubelet.kit.clock import Clock

PIECE = 16 * 1024


class RoughWire:
    def __init__(self, target: int, *, clock: Clock, source: random.Random) -> None:
        self._target = target
        self._clock = clock
        self._source = source
        self._server: asyncio.Server | None = None
        self._ends: set[asyncio.Transport] = set()
        self._free_at = 0.0
        self.port = 0
        self.delay = 0.0
        """Seconds a piece is held back at most."""
        self.rate = math.inf
        """Bytes a second, both ways and all connections together."""
        self.opened: list[float] = []
        """When connections were asked for."""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=PIECE)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.drop(1.0)
        await self._server.wait_closed()

    @property
    def connections(self) -> int:
        return len(self._ends) // 2

    def drop(self, part: float) -> None:
        """Lose this part of the connections, without a farewell."""
        for each in list(self._ends):
            if self._source.random() < part:
                each.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened.append(self._clock.monotonic())
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target, limit=PIECE)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer.transport, far_writer.transport}
        self._ends |= ends
        try:
            await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))
        except OSError:
            pass  # one side is gone, and so is the other now
        finally:
            self._ends -= ends
            for each in ends:
                each.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(PIECE):
            await self._hold(len(piece))
            if writer.transport.is_closing():  # uvloop's would not take it
                break
            writer.write(piece)
            await writer.drain()
        raise ConnectionResetError

    async def _hold(self, size: int) -> None:
        now = self._clock.monotonic()
        self._free_at = max(self._free_at, now) + size / self.rate
        wait = self._free_at - now + self._source.uniform(0.0, self.delay)
        if wait > 0:
            await self._clock.sleep(wait)


@asynccontextmanager
async def rough_wire(target: int, *, clock: Clock, source: random.Random) -> AsyncIterator[RoughWire]:
    wire = RoughWire(target, clock=clock, source=source)
    await wire.start()
    try:
        yield wire
    finally:
        await wire.stop()
