"""A gRPC connection to a unix socket: the one way to call container runtimes and plugins.

Covers: channel options, deadlines, answers that cannot be decoded, a channel closed under a call. The channel
connects with the first call and again after a loss. Each owner says which of its errors a failed call becomes.
Requests are never logged: they carry secrets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

A = TypeVar("A", bound=Message)

Failure = Callable[[str, grpc.StatusCode | None, str], Exception]
"""The error to raise for a call's path, status code and details; without a code the connection was closed."""

UNREADABLE = "its answer cannot be read"
MAX_RECEIVE_BYTES = 16 * 1024 * 1024

CHANNEL_OPTIONS: Sequence[tuple[str, Any]] = (
    ("grpc.default_authority", "localhost"),
    ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 3000),
    # Despite its name this is the least time a connection attempt may take.
    ("grpc.min_reconnect_backoff_ms", 5000),
    # A channel of its own: a fresh client must not inherit the back-off of a closed one.
    ("grpc.use_local_subchannel_pool", 1),
)

_STATUS_TASK = "_AioCall._handle_status_once_received"
_CANCEL_WAIT = 1.0


class GrpcConnection:
    """Make it inside the running loop; close it there too."""

    def __init__(self, socket: str, failure: Failure) -> None:
        self._failure = failure
        self._channel = grpc.aio.insecure_channel(target_of(socket), options=CHANNEL_OPTIONS)
        self._methods: dict[str, Any] = {}

    async def close(self) -> None:
        """Cancel what is under way and close. Safe to repeat."""
        await self._channel.close(None)

    async def call(self, path: str, request: Message, answer: type[A], *, timeout: float | None) -> A:
        """One request, one answer. `path` is /package.Service/Method; `timeout` None means no deadline."""
        method = self._methods.get(path)
        if method is None:
            method = self._methods[path] = self._channel.unary_unary(
                path, request_serializer=type(request).SerializeToString, response_deserializer=_decoder(answer)
            )
        try:
            given: A | None = await method(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise self._failure(path, error.code(), error.details() or "") from error
        except grpc.aio.UsageError as error:
            raise self._failure(path, None, "") from error
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            raise self._failure(path, None, "") from error
        return self._decoded(path, given)

    async def stream(
        self,
        path: str,
        request: Message,
        answer: type[A],
        *,
        timeout: float | None = None,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> AsyncGenerator[A, None]:
        """Answers as they come. Leaving the generator cancels the call."""
        method: Any = self._channel.unary_stream(
            path, request_serializer=type(request).SerializeToString, response_deserializer=_decoder(answer)
        )
        try:
            call = method(request, timeout=timeout, metadata=tuple(metadata))
        except grpc.aio.UsageError as error:
            raise self._failure(path, None, "") from error
        try:
            async for each in call:
                yield self._decoded(path, each)
        except grpc.aio.AioRpcError as error:
            raise self._failure(path, error.code(), error.details() or "") from error
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            raise self._failure(path, None, "") from error
        finally:
            await _let_go(call)

    async def ready(self) -> AsyncGenerator[bool, None]:
        """Whether the other side accepts, at first and at each change, until it is closed here. Connects without a
        call, and again after a loss."""
        shown: bool | None = None
        while (state := self._channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.SHUTDOWN:
            ready = state is grpc.ChannelConnectivity.READY
            if ready is not shown:
                shown = ready
                yield ready
            try:
                await self._channel.wait_for_state_change(state)
            except grpc.aio.UsageError:  # closed meanwhile
                return

    def _decoded(self, path: str, answer: A | None) -> A:
        if answer is None:
            raise self._failure(path, grpc.StatusCode.INTERNAL, UNREADABLE)
        return answer


def target_of(socket: str) -> str:
    return f"unix://{quote(socket)}"


def _decoder(answer: type[A]) -> Callable[[bytes], A | None]:
    """None for nonsense: grpc gives that, too, when its decoder fails, but prints a traceback first."""

    def decode(data: bytes) -> A | None:
        try:
            return answer.FromString(data)
        except DecodeError:
            return None

    return decode


def _is_cancelled() -> bool:
    """Whether the calling task is being cancelled.

    grpc raises CancelledError, too, when the connection is closed under a call; that must not end the task.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _let_go(call: Any) -> None:
    """End a stream that was left early, and wait until grpc has let go of it.

    grpc counts the call as done at once, but a task of its own still waits for its thread; if the loop closes before
    that, grpc prints a traceback. The call does not show that task, so it is found by name, and as it is about to end
    it is the first of its kind that does.
    """
    call.cancel()
    if not call.cancelled():
        return
    waiting = [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__qualname__", "") == _STATUS_TASK]
    if waiting:
        await asyncio.wait(waiting, timeout=_CANCEL_WAIT, return_when=asyncio.FIRST_COMPLETED)
