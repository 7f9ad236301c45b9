"""The connection to a runtime socket: its errors in our terms, one debug line and one measurement a call.

Does not cover: what the calls mean (client.py), the channel (grpc_connection.py).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from pykubelet.clients.cri.calls import Rpc
from pykubelet.clients.grpc_connection import GrpcConnection, target_of
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
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
"""Called after every call with operation_type, seconds, and error or None."""

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

_BUCKETS = tuple(0.005 * 2.5**step for step in range(14))


def socket_of(endpoint: str) -> str:
    """The path in `unix:///path` or a bare path; raises CriError for anything else."""
    path = endpoint.removeprefix("unix://")
    if not path.startswith("/"):
        raise CriError(f"container runtime endpoint {endpoint!r}: must be unix:// and an absolute path")
    return path


class Connection:
    def __init__(self, endpoint: str, *, clock: Clock, observe: CallObserver | None = None) -> None:
        self.endpoint = endpoint
        self._clock = clock
        self._observe = observe
        self._grpc = GrpcConnection(target_of(socket_of(endpoint)), self._failure)

    async def close(self) -> None:
        await self._grpc.close()

    async def call(self, rpc: Rpc[A], request: Message, *, timeout: float | None) -> A:
        """One request, one answer. `timeout` None means no deadline."""
        started = self._clock.monotonic()
        try:
            answer = await self._grpc.call(rpc.path, request, rpc.answer, timeout=timeout)
        except CriError as error:
            self._done(rpc.verb, started, error)
            raise
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
        """Answers as they come; `timeout` is for all of them. Leaving the generator cancels the call."""
        started = self._clock.monotonic()
        failure: CriError | None = None
        stream = self._grpc.stream(rpc.path, request, rpc.answer, timeout=timeout, metadata=metadata)
        try:
            async for answer in stream:
                yield answer
        except CriError as error:
            failure = error
            raise
        finally:
            await stream.aclose()
            self._done(rpc.verb, started, failure)

    def _failure(self, path: str, code: grpc.StatusCode | None, details: str) -> CriError:
        """Our error for a failed call, with the runtime's own text."""
        if code is None:
            return RuntimeDown(f"{path.rpartition('/')[2]}: connection to {self.endpoint} is closed")
        if details == _STARTING:
            return RuntimeDown(details)
        return _ERRORS.get(code, CriError)(details or code.name)

    def _done(self, verb: str, started: float, failure: CriError | None) -> None:
        seconds = self._clock.monotonic() - started
        if logger.isEnabledFor(logging.DEBUG):
            fields = {"verb": verb, "seconds": round(seconds, 4), "error": str(failure) if failure else ""}
            logger.debug("cri call", extra=fields)
        if self._observe is not None:
            self._observe(verb, seconds, failure)


def operation_metrics(registry: Registry) -> CallObserver:
    """The runtime operation metrics of every kubelet: counts, failures and durations by operation_type."""
    labels = ("operation_type",)
    total = registry.counter("kubelet_runtime_operations_total", "Runtime operations by type.", labels)
    failed = registry.counter("kubelet_runtime_operations_errors_total", "Failed runtime operations.", labels)
    seconds = registry.histogram(
        "kubelet_runtime_operations_duration_seconds", "Duration of runtime operations.", labels, _BUCKETS
    )

    def observe(verb: str, duration: float, error: CriError | None) -> None:
        total.inc(verb)
        seconds.observe(duration, verb)
        if error is not None:
            failed.inc(verb)

    return observe
