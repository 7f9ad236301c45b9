"""A machine that stands still: the deadline of a handshake passes at the moment the connection is made."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest
import uvloop

from pykubelet.kit.clock import SystemClock
from pykubelet.kit.tasks import running
from pykubelet.server.admission import PendingConnections
from pykubelet.server.http import HttpServer
from pykubelet.server.listeners import Limits, Listener, TcpAddress

LIMITS = Limits(handshake=0.2)


class Halting(HttpServer):
    """Everything stands still for longer than a handshake may take, right after a connection was made."""

    def connection_made(self, handler: Any, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        time.sleep(LIMITS.handshake * 2)


async def connections_left() -> tuple[int, int]:
    clock, pending = SystemClock(), PendingConnections(LIMITS.pending_connections)
    served = Halting(app=cast(Any, None), clock=clock, limits=LIMITS, pending_connections=pending, stream_idle=60.0)
    listener = Listener(
        name="plain",
        address=TcpAddress("127.0.0.1", 0),
        make_server=lambda _: served,
        tls=None,
        clock=clock,
        limits=LIMITS,
        pending_connections=pending,
    )
    listener.open()
    async with running(listener):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        assert await reader.read() == b""
        writer.close()
        await asyncio.sleep(0)
        return len(served.connections), len(served._open)


@pytest.mark.real_loop
def test_a_connection_that_is_dropped_late_is_forgotten() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(connections_left()) == (0, 0)
