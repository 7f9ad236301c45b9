"""One gRPC connection to a plugin's socket; every call has a deadline and fails with a PluginError.

The error names the plugin's socket and the call, so that whoever reads it in an event or in `explain` knows
whom to ask. Does not cover what the calls mean: each kind of plugin has its own client beside this file.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

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
            path, request_serializer=type(request).SerializeToString, response_deserializer=_reader(answer)
        )
        try:
            given: A | None = await method(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise self._failure(path, error) from error
        except grpc.aio.UsageError as error:
            raise self._closed(path) from error
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            raise self._closed(path) from error
        return self._read(path, given)

    async def stream(self, path: str, request: Message, answer: type[A]) -> AsyncGenerator[A, None]:
        """Answers as they come, without a deadline. Leaving the generator cancels the call."""
        method: Any = self._channel.unary_stream(
            path, request_serializer=type(request).SerializeToString, response_deserializer=_reader(answer)
        )
        try:
            call = method(request)
        except grpc.aio.UsageError as error:
            raise self._closed(path) from error
        try:
            async for given in call:
                yield self._read(path, given)
        except grpc.aio.AioRpcError as error:
            raise self._failure(path, error) from error
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            raise self._closed(path) from error
        finally:
            await let_go(call)

    def _read(self, path: str, given: A | None) -> A:
        if given is None:
            call = path.rpartition("/")[2]
            raise PluginError("its answer cannot be read", code="INTERNAL", call=call, socket=str(self.socket))
        return given

    def _failure(self, path: str, error: grpc.aio.AioRpcError) -> PluginError:
        words = error.details() or "no reason given"
        return PluginError(words, code=error.code().name, call=path.rpartition("/")[2], socket=str(self.socket))

    def _closed(self, path: str) -> PluginError:
        call = path.rpartition("/")[2]
        return PluginError("the connection is closed", code="CANCELLED", call=call, socket=str(self.socket))


def _reader(answer: type[A]) -> Callable[[bytes], A | None]:
    """None for nonsense: grpc gives that, too, when its reader fails, but prints a traceback first."""

    def read(data: bytes) -> A | None:
        try:
            return answer.FromString(data)
        except DecodeError:
            return None

    return read


def _is_cancelled() -> bool:
    """Whether the caller is to end. grpc raises the same when the connection is closed under a call, and the task
    that made the call must not take that for its own end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
