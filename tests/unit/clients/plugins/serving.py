"""A plugin that really listens: any methods of a gRPC service on a unix socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio


def unary(call: Any, request: Any) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_unary_rpc_method_handler(call, request_deserializer=request.FromString, response_serializer=_wire)


def stream(call: Any, request: Any) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_stream_rpc_method_handler(
        call, request_deserializer=request.FromString, response_serializer=_wire
    )


def _wire(answer: Any) -> bytes:
    """Bytes go out as they are, so that a plugin can talk nonsense."""
    found: bytes = answer if isinstance(answer, bytes) else answer.SerializeToString()
    return found


@asynccontextmanager
async def serving(
    socket: Path, services: Mapping[str, Mapping[str, grpc.RpcMethodHandler[Any, Any]]]
) -> AsyncIterator[None]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(name, dict(methods)) for name, methods in services.items()]
    )
    server.add_insecure_port(f"unix://{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)
