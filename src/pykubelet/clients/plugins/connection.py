"""One gRPC connection to a plugin's socket; every call has a deadline and fails with a PluginError.

The error names the plugin's socket and the call, so that whoever reads it in an event or in `explain` knows
whom to ask. Does not cover what the calls mean: each kind of plugin has its own client beside this file.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from pykubelet.clients.cri.transport import CHANNEL_OPTIONS, let_go, target_of
from pykubelet.model.errors import PluginError

A = TypeVar("A", bound=Message)

CONNECT_SECONDS = 10.0
"""How long a plugin's socket may take to accept."""


class PluginConnection:
    """Make it inside the running loop. The channel connects with the first call and again after a loss."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._channel = grpc.aio.insecure_channel(target_of(str(socket)), options=CHANNEL_OPTIONS)

    async def __aenter__(self) -> PluginConnection:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close(None)

    async def call(self, path: str, request: Message, answer: type[A], *, seconds: float) -> A:
        """`path` is /package.Service/Method."""
        method = self._channel.unary_unary(
            path, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
        )
        try:
            given: A = await method(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise self._failure(path, error) from error
        except grpc.aio.UsageError as error:
            raise self._closed(path) from error
        return given

    async def stream(self, path: str, request: Message, answer: type[A]) -> AsyncGenerator[A, None]:
        """Answers as they come, without a deadline. Leaving the generator cancels the call."""
        method: Any = self._channel.unary_stream(
            path, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
        )
        try:
            call = method(request)
        except grpc.aio.UsageError as error:
            raise self._closed(path) from error
        try:
            async for given in call:
                yield given
        except grpc.aio.AioRpcError as error:
            raise self._failure(path, error) from error
        finally:
            await let_go(call)

    def _failure(self, path: str, error: grpc.aio.AioRpcError) -> PluginError:
        words = error.details() or "no reason given"
        return PluginError(words, code=error.code().name, call=path.rpartition("/")[2], socket=str(self.socket))

    def _closed(self, path: str) -> PluginError:
        call = path.rpartition("/")[2]
        return PluginError("the connection is closed", code="CANCELLED", call=call, socket=str(self.socket))
