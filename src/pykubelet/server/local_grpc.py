"""A gRPC service on a local socket: listening, the limit on calls, ending.

Access is by the permissions of the socket's folder. A socket that cannot be had costs its service, not the node. Does
not cover: what the services say (pod_resources.py, pods_api.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pykubelet.kit.clock import Clock
from pykubelet.kit.limits import TokenBucket
from pykubelet.kit.tasks import finish

if TYPE_CHECKING:
    import grpc.aio

logger = logging.getLogger(__name__)

RATE, BURST = 100.0, 10
"""Calls a second, and how many at once after a silence."""
MAX_SOCKET_PATH = 107
"""Bytes the kernel takes for a socket's path."""
MAX_REQUEST = 64 * 1024
"""Bytes of a request; all there are hold a name or two."""
MAX_CALLS = 200
"""Calls that are open at the same time."""
STOP_WITHIN = 2.0


class CallLimit:
    """Refuses callers that ask more often than upstream lets them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._bucket = TokenBucket(rate=RATE, burst=BURST)

    async def check(self, context: Any) -> None:
        if not self._bucket.try_take(self._clock.monotonic()):
            await abort(context, "RESOURCE_EXHAUSTED", "rejected by rate limit")


async def abort(context: Any, code: str, text: str) -> NoReturn:
    import grpc

    await context.abort(grpc.StatusCode[code], text)
    raise AssertionError("abort raises")


def handlers(service: str, unary: Mapping[str, tuple[Any, Any]], streams: Mapping[str, tuple[Any, Any]] = {}) -> Any:
    """The methods of a service: name -> (function, type of its request).

    By hand: a generated servicer is a class, and this is a few functions.
    """
    import grpc

    def made(make: Any, methods: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
        return {
            name: make(method, request_deserializer=request.FromString, response_serializer=_serialized)
            for name, (method, request) in methods.items()
        }

    methods = {
        **made(grpc.unary_unary_rpc_method_handler, unary),
        **made(grpc.unary_stream_rpc_method_handler, streams),
    }
    return grpc.method_handlers_generic_handler(service, methods)


def _serialized(message: Any) -> bytes:
    found: bytes = message.SerializeToString()
    return found


async def serve(socket: Path, what: str, services: Sequence[Any]) -> NoReturn:
    """Offer the services on the socket until cancelled."""
    import grpc.aio

    options = [("grpc.max_receive_message_length", MAX_REQUEST)]
    server: grpc.aio.Server | None = grpc.aio.server(options=options, maximum_concurrent_rpcs=MAX_CALLS)
    assert server is not None
    server.add_generic_rpc_handlers(tuple(services))
    try:
        _listen(server, socket)
        await server.start()
    except (OSError, RuntimeError) as error:  # RuntimeError: what grpc says when it cannot bind
        logger.error("the %s service is not offered", what, extra={"socket": str(socket), "error": str(error)})
        server = None
    try:
        await asyncio.Event().wait()
        raise AssertionError("it is never set")
    finally:
        if server is not None:
            await finish(server.stop(STOP_WITHIN / 2), within=STOP_WITHIN)
            socket.unlink(missing_ok=True)


def _listen(server: grpc.aio.Server, socket: Path) -> None:
    path = str(socket)
    if len(path.encode()) > MAX_SOCKET_PATH:
        raise OSError(f"the path of the socket has more than {MAX_SOCKET_PATH} bytes")
    socket.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)  # left by an agent that was killed
    server.add_insecure_port(f"unix:{path}")
