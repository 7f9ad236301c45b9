"""One gRPC connection to a runtime socket and the single wrapper every call goes through.

Covers: channel options, deadlines, translation of gRPC codes into our errors, one debug line and one
measurement a call. The channel reconnects by itself when the runtime comes back.
Does not cover: what the calls mean (client.py). Requests are never logged: they carry secrets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import grpc
import grpc.aio
from google.protobuf.message import Message

from pykubelet.clients.cri.calls import Rpc
from pykubelet.kit.clock import Clock
from pykubelet.model.errors import (
    CallTimedOut,
    CriAlreadyExists,
    CriError,
    CriNotFound,
    Exhausted,
    InvalidArgument,
    RuntimeDown,
    Unimplemented,
)

logger = logging.getLogger(__name__)

A = TypeVar("A", bound=Message)

CallObserver = Callable[[str, float, CriError | None], None]
"""Told after every call: operation_type, seconds, error or None."""

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

_ERRORS: dict[grpc.StatusCode, type[CriError]] = {
    grpc.StatusCode.NOT_FOUND: CriNotFound,
    grpc.StatusCode.ALREADY_EXISTS: CriAlreadyExists,
    grpc.StatusCode.UNAVAILABLE: RuntimeDown,
    grpc.StatusCode.DEADLINE_EXCEEDED: CallTimedOut,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Exhausted,
}

_STARTING = "server is not initialized yet"
"""containerd's answer (code Unknown) while its CRI plugin is still loading."""


_STATUS_TASK = "_AioCall._handle_status_once_received"
_CANCEL_WAIT = 1.0


def target_of(endpoint: str) -> str:
    """The gRPC target of `unix:///path` or a bare path; raises CriError for anything else."""
    path = endpoint.removeprefix("unix://")
    if not path.startswith("/"):
        raise CriError(f"container runtime endpoint {endpoint!r}: must be unix:// and an absolute path")
    return f"unix://{quote(path)}"


def translate(error: grpc.aio.AioRpcError) -> CriError:
    """Our error for a failed call, with the runtime's own words."""
    details = error.details() or error.code().name
    if details == _STARTING:
        return RuntimeDown(details)
    return _ERRORS.get(error.code(), CriError)(details)


async def let_go(call: Any) -> None:
    """End a stream that was left early, and wait until grpc has let go of it.

    grpc counts the call as done at once, but a task of its own waits on for the word of its thread; if the
    loop closes before that, grpc prints a traceback. The call does not show that task, so it is known by
    name, and as it is about to end it is the first of its kind that does.
    """
    call.cancel()
    if not call.cancelled():
        return
    waiting = [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__qualname__", "") == _STATUS_TASK]
    if waiting:
        await asyncio.wait(waiting, timeout=_CANCEL_WAIT, return_when=asyncio.FIRST_COMPLETED)


class Connection:
    """A lazily connecting channel. Make it inside the running loop; close it there too."""

    def __init__(self, endpoint: str, *, clock: Clock, observe: CallObserver | None = None) -> None:
        self.endpoint = endpoint
        self._clock = clock
        self._observe = observe
        self._channel = grpc.aio.insecure_channel(target_of(endpoint), options=CHANNEL_OPTIONS)
        self._methods: dict[str, Any] = {}

    async def close(self) -> None:
        """Cancel what is under way and close. Safe to repeat."""
        await self._channel.close(None)

    async def call(self, rpc: Rpc[A], request: Message, *, timeout: float | None) -> A:
        """One request, one answer. `timeout` None means no deadline."""
        method = self._methods.get(rpc.path)
        if method is None:
            method = self._channel.unary_unary(
                rpc.path,
                request_serializer=type(request).SerializeToString,
                response_deserializer=rpc.answer.FromString,
            )
            self._methods[rpc.path] = method
        started = self._clock.monotonic()
        try:
            answer: A = await method(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            failure = translate(error)
            self._done(rpc.verb, started, failure)
            raise failure from error
        except grpc.aio.UsageError as error:  # the channel was closed
            raise RuntimeDown(f"{rpc.verb}: connection to {self.endpoint} is closed") from error
        self._done(rpc.verb, started, None)
        return answer

    async def stream(
        self,
        rpc: Rpc[A],
        request: Message,
        *,
        timeout: float | None = None,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> AsyncGenerator[A, None]:
        """Answers as they come. Leaving the generator cancels the call."""
        started = self._clock.monotonic()
        failure: CriError | None = None
        try:
            call = self._channel.unary_stream(
                rpc.path,
                request_serializer=type(request).SerializeToString,
                response_deserializer=rpc.answer.FromString,
            )(request, timeout=timeout, metadata=tuple(metadata))
        except grpc.aio.UsageError as error:
            raise RuntimeDown(f"{rpc.verb}: connection to {self.endpoint} is closed") from error
        try:
            async for answer in call:
                yield answer
        except grpc.aio.AioRpcError as error:
            failure = translate(error)
            raise failure from error
        finally:
            await let_go(call)
            self._done(rpc.verb, started, failure)

    def _done(self, verb: str, started: float, failure: CriError | None) -> None:
        seconds = self._clock.monotonic() - started
        if logger.isEnabledFor(logging.DEBUG):
            fields = {"verb": verb, "seconds": round(seconds, 4), "error": str(failure) if failure else ""}
            logger.debug("cri call", extra=fields)
        if self._observe is not None:
            self._observe(verb, seconds, failure)
