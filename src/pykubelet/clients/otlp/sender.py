"""Spans go to a collector, over OTLP, without anything that waits for it.

Spans wait in a bounded queue and are sent a batch at a time on the agent's loop; the library's own exporter would need
threads and block at the end. A batch that the collector cannot take now is sent again for a minute. Spans for which
there is no room, or no collector, are counted and dropped; the log says so once, until spans can be sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

import grpc
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import ReadableSpan

from pykubelet.clients.grpc_connection import GrpcConnection
from pykubelet.kit.backoff import Backoff
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import Wakeup, finish
from pykubelet.model.errors import PykubeletError

logger = logging.getLogger(__name__)

EXPORT: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
MOST_WAITING: Final = 2048
BATCH: Final = 64
"""Spans of a request; making it takes some milliseconds of the loop's time."""
COLLECTING: Final = 5.0
"""Seconds that a span waits for others to be sent with."""
ANSWER_SECONDS: Final = 10.0
REPEATING: Final = 60.0
FIRST_REPEAT, LAST_REPEAT = 5.0, 30.0
LAST_SECONDS: Final = 2.0
"""For what waits when the agent stops."""

_TRANSIENT: Final = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)


class ExportFailed(PykubeletError):
    def __init__(self, text: str, *, transient: bool) -> None:
        super().__init__(text)
        self.transient = transient


def _failure(path: str, code: grpc.StatusCode | None, details: str) -> ExportFailed:
    name = code.name if code is not None else "the connection is closed"
    return ExportFailed(f"{name}: {details}" if details else name, transient=code in _TRANSIENT)


class SpanSender:
    """A service; make it inside the running loop."""

    name = "span-sender"

    def __init__(self, target: str, *, clock: Clock, metrics: Registry) -> None:
        self._target = target
        self._clock = clock
        self._connection = GrpcConnection(target, _failure, authority=None, traced=False)
        self._waiting: deque[ReadableSpan] = deque()
        self._some, self._many = Wakeup(), Wakeup()
        self._dropping = 0
        """Since spans could be sent the last time."""
        self._sent = metrics.counter("pykubelet_spans_sent_total", "Spans that the collector took.")
        self._dropped = metrics.counter("pykubelet_spans_dropped_total", "Spans that could not be sent.")

    def take(self, span: ReadableSpan) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self._drop(1, f"{MOST_WAITING} spans wait already")
            return
        self._waiting.append(span)
        self._some.set()
        if len(self._waiting) >= BATCH:
            self._many.set()

    async def run(self) -> None:
        try:
            while True:
                await self._some.wait()
                await self._many.wait(at_most=COLLECTING)
                while self._waiting:
                    await self._send(repeating=REPEATING)
        finally:
            await finish(self._end(), within=2 * LAST_SECONDS)

    async def _end(self) -> None:
        try:
            async with asyncio.timeout(LAST_SECONDS):
                while self._waiting:
                    await self._send(repeating=0.0)
        except TimeoutError:
            self._drop(len(self._waiting), "no answer while the agent stops")
        await self._connection.close()

    async def _send(self, *, repeating: float) -> None:
        """Send a batch; when that is cancelled, it waits again."""
        batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        try:
            await self._deliver(batch, self._clock.monotonic() + repeating)
        except asyncio.CancelledError:
            self._waiting.extendleft(reversed(batch))
            raise

    async def _deliver(self, batch: Sequence[ReadableSpan], until: float) -> None:
        request, backoff = encode_spans(batch), Backoff(FIRST_REPEAT, LAST_REPEAT)
        while True:
            try:
                answer = await self._connection.call(
                    EXPORT, request, ExportTraceServiceResponse, timeout=ANSWER_SECONDS
                )
            except ExportFailed as error:
                wait = backoff.next()
                if not error.transient or self._clock.monotonic() + wait > until:
                    self._drop(len(batch), str(error))
                    return
                await self._clock.sleep(wait)
            else:
                break
        refused = min(answer.partial_success.rejected_spans, len(batch))
        if refused:
            self._drop(refused, f"refused: {answer.partial_success.error_message[:500]}")
        self._note_sent(len(batch) - refused)

    def _note_sent(self, count: int) -> None:
        self._sent.inc(by=count)
        if count and self._dropping:
            logger.info("spans are sent again", extra={"collector": self._target, "dropped": self._dropping})
            self._dropping = 0

    def _drop(self, count: int, why: str) -> None:
        if not self._dropping:
            extra = {"collector": self._target, "problem": why[:500]}
            logger.warning("spans are dropped until the collector takes them", extra=extra)
        self._dropping += count
        self._dropped.inc(by=count)
