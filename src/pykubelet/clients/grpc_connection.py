"""A gRPC connection: the one way to call container runtimes, plugins and a collector of spans.

Covers: channel options, deadlines, answers that cannot be decoded, a channel closed under a call, a span for each call
and its context for the other side. The channel connects with the first call and again after a loss. Each owner says
which of its errors a failed call becomes. Requests are never logged: they carry secrets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from pykubelet.kit import tracing
from pykubelet.kit.tracing import NO_SPAN, Kind, Span, Value

A = TypeVar("A", bound=Message)

Failure = Callable[[str, grpc.StatusCode | None, str], Exception]
"""The error to raise for a call's path, status code and details; without a code the connection was closed."""

UNIX = "unix://"
STATUS = "rpc.response.status_code"
UNREADABLE = "its answer cannot be read"
MAX_RECEIVE_BYTES = 16 * 1024 * 1024

CHANNEL_OPTIONS: Sequence[tuple[str, Any]] = (
    ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 3000),
    # Despite its name this is the least time a connection attempt may take.
    ("grpc.min_reconnect_backoff_ms", 5000),
    # A channel of its own: a fresh client must not inherit the back-off of a closed one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)

_STATUS_TASK = "_AioCall._handle_status_once_received"
_CANCEL_WAIT = 1.0


class GrpcConnection:
    """Make it inside the running loop; close it there too."""

    def __init__(
        self, target: str, failure: Failure, *, authority: str | None = "localhost", traced: bool = True
    ) -> None:
        """`target` as gRPC writes it, see `target_of`. `authority` None: that of the target."""
        self._failure = failure
        self._target = target
        self._traced = traced
        options = [*CHANNEL_OPTIONS, ("grpc.default_authority", authority)] if authority else CHANNEL_OPTIONS
        self._channel = grpc.aio.insecure_channel(target, options=options)
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
        with self._span(path, request) as span:
            try:
                given: A | None = await method(request, timeout=timeout, metadata=tuple(span.carrier))
            except grpc.aio.AioRpcError as error:
                raise self._failed(span, path, error) from error
            except grpc.aio.UsageError as error:
                raise self._failure(path, None, "") from error
            except asyncio.CancelledError as error:
                if _is_cancelled():
                    raise
                raise self._failure(path, None, "") from error
            if span.recorded and given is not None:
                span.event("message", _message("RECEIVED", given))
                span.set({STATUS: "OK"})
            return self._decoded(path, given)

    def _span(self, path: str, request: Message) -> Span:
        if not self._traced:
            return NO_SPAN
        span = tracing.span(path[1:], Kind.CLIENT)
        if span.recorded:
            address = unquote(self._target.removeprefix(UNIX))
            span.set({"rpc.method": path[1:], "rpc.system.name": "grpc", "server.address": address})
            span.event("message", _message("SENT", request))
        return span

    def _failed(self, span: Span, path: str, error: grpc.aio.AioRpcError) -> Exception:
        details = error.details() or ""
        if span.recorded:
            span.set({STATUS: code_name(error.code())})
            span.fail(details)
        return self._failure(path, error.code(), details)

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
        # Not as a block: it would become the parent of what the reader does between two answers.
        span = self._span(path, request)
        try:
            call = method(request, timeout=timeout, metadata=(*metadata, *span.carrier))
        except grpc.aio.UsageError as error:
            span.end()
            raise self._failure(path, None, "") from error
        try:
            async for each in call:
                yield self._decoded(path, each)
            span.set({STATUS: "OK"})
        except grpc.aio.AioRpcError as error:
            raise self._failed(span, path, error) from error
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            raise self._failure(path, None, "") from error
        finally:
            span.end()
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
    return f"{UNIX}{quote(socket)}"


def code_name(code: grpc.StatusCode) -> str:
    """As Go spells it: NotFound for NOT_FOUND."""
    if code is grpc.StatusCode.OK:
        return "OK"
    if code is grpc.StatusCode.CANCELLED:
        return "Canceled"
    return code.name.title().replace("_", "")


def _message(kind: str, message: Message) -> Mapping[str, Value]:
    size = message.ByteSize()
    return {
        "rpc.message.type": kind,
        "rpc.message.id": 1,
        "rpc.message.compressed_size": size,
        "rpc.message.uncompressed_size": size,
    }


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
