"""Sends events to the API server: `put` never blocks, the service sends.

Events wait in a bounded queue and are sent one by one, counted and combined (correlation.py). While the server is
away the queue holds them; what does not fit, and what the server refuses, is dropped and counted in
`pykubelet_events_dropped_total`. On shutdown the last ones get a short while to go out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping

from pykubelet.api.types import Event, EventSource, ObjectMeta, ObjectReference
from pykubelet.clients.kube.port import KubeClient, PatchType
from pykubelet.events.correlation import Correlated, Correlator
from pykubelet.kit.backoff import Backoff, jittered
from pykubelet.kit.clock import Clock, utc
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import Wakeup, finish
from pykubelet.kit.text import shortened
from pykubelet.model.errors import ApiDown, ApiError, ApiNotFound, ApiServerError, TooManyRequests

logger = logging.getLogger(__name__)

COMPONENT = "kubelet"
QUEUED = 1000
LONGEST_MESSAGE = 10 * 1024
"""Characters: as much as a probe shows of an answer, and the queue, the counts and the server keep each one."""
TRIES = 12
FIRST_DELAY, LONGEST_DELAY = 0.5, 10.0
FLUSH_WITHIN = 2.0


class ApiEventSink:
    """`kube` should be a client of its own: events have their own rate (eventRecordQPS, eventBurst)."""

    name = "events"

    def __init__(self, *, kube: KubeClient, clock: Clock, node_name: str, metrics: Registry) -> None:
        self._kube = kube
        self._clock = clock
        self._node_name = node_name
        self._queue: deque[Event] = deque()
        self._filled = Wakeup()
        self._current: Correlated | None = None  # kept across a cancel, so that it is not counted twice
        self._last_stamp = 0
        self._correlator = Correlator(self._event_name)
        self._dropped = metrics.counter(
            "pykubelet_events_dropped_total", "Events that were not sent, by reason.", ("reason",)
        )
        self._sent = metrics.counter("pykubelet_events_sent_total", "Events created or counted up on the server.")

    def put(
        self,
        involved: ObjectReference,
        kind: str,
        reason: str,
        message: str,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        if len(self._queue) >= QUEUED:
            self._dropped.inc("queue full")
            return
        now = utc(self._clock.now())
        namespace = involved.namespace or "default"
        self._queue.append(
            Event(
                metadata=ObjectMeta(
                    name=self._event_name(involved.name or ""),
                    namespace=namespace,
                    annotations=dict(annotations or {}),
                ),
                involved_object=involved,
                reason=reason,
                message=shortened(message, LONGEST_MESSAGE),
                type=kind,
                count=1,
                first_timestamp=now,
                last_timestamp=now,
                source=EventSource(component=COMPONENT, host=self._node_name),
                reporting_component=COMPONENT,
                reporting_instance=self._node_name,
            )
        )
        self._filled.set()

    def snapshot(self) -> dict[str, float]:
        return {"queued": len(self._queue), "sent": self._sent.value()}

    async def run(self) -> None:
        try:
            while True:
                while self._current is not None or self._queue:
                    await self._send_next(TRIES)
                await self._filled.wait()
        except asyncio.CancelledError:
            try:
                await finish(self._flush(), within=FLUSH_WITHIN)
            except TimeoutError:
                logger.info("events left unsent at shutdown", extra={"count": len(self._queue)})
            raise

    async def _flush(self) -> None:
        while self._current is not None or self._queue:
            if not await self._send_next(1):
                return

    async def _send_next(self, tries: int) -> bool:
        """Send one event; False when the server could not be reached."""
        if self._current is None:
            self._current = self._correlator.correlate(self._queue.popleft(), self._clock.now())
        found = self._current
        if found is None:
            self._dropped.inc("spam")
            return True
        reached = await self._send_retrying(found, tries)
        self._current = None
        return reached

    async def _send_retrying(self, found: Correlated, tries: int) -> bool:
        backoff = Backoff(initial=FIRST_DELAY, maximum=LONGEST_DELAY)
        while True:
            try:
                await self._send(found)
            except (ApiDown, TooManyRequests, ApiServerError) as error:
                delay = max(error.retry_after or 0.0, jittered(backoff.next()))
                if backoff.failures >= tries:
                    self._drop(found.event, "unreachable", error)
                    return False
                await self._clock.sleep(delay)
            except ApiError as error:
                # Refused for good: the namespace is ending, the object is wrong, we may not.
                self._drop(found.event, "refused", error)
                return True
            else:
                self._sent.inc()
                return True

    async def _send(self, found: Correlated) -> None:
        event = found.event
        if found.patch is not None:
            try:
                await self._kube.patch(
                    Event,
                    event.metadata.name or "",
                    found.patch,
                    patch_type=PatchType.STRATEGIC,
                    namespace=event.metadata.namespace or "",
                )
                return
            except ApiNotFound:
                pass  # the server keeps events for an hour only: create it anew, with the count reached
        await self._kube.create(event)

    def _drop(self, event: Event, reason: str, error: ApiError) -> None:
        self._dropped.inc(reason)
        logger.warning(
            "event was not sent",
            extra={"reason": event.reason, "error": str(error), "text": event.message},
        )

    def _event_name(self, object_name: str) -> str:
        """Unique because time is; two events of one nanosecond get different ones all the same."""
        self._last_stamp = max(self._last_stamp + 1, self._clock.now_ns())
        return f"{object_name}.{self._last_stamp:x}"
