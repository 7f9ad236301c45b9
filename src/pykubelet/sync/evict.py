"""Ends a pod for the node's sake: its status, its event, its story, and the wait until all it held is given back.

Used by eviction. Who goes and why is decided there; how a pod is stopped is the pod worker's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from pykubelet.api.types import Pod, PodStatus
from pykubelet.kit.clock import Clock
from pykubelet.model.disruption import mark_disrupted
from pykubelet.model.events import AnnotatedSink
from pykubelet.model.life import LifeRecorder, Step
from pykubelet.model.pod import uid_of
from pykubelet.model.reasons import WARNING
from pykubelet.pods.record import StatusChange, WorkerState
from pykubelet.pods.table import PodTable
from pykubelet.sync.worker import KillRequest, PodWorkers, UpdateKind

EVICTED = "Evicted"
LEAST_PATIENCE = 10.0
PATIENCE_FACTOR = 1.5
STEP = 0.1


class ToldWhy(Protocol):
    @property
    def message(self) -> str: ...
    @property
    def annotations(self) -> Mapping[str, str]: ...
    @property
    def why(self) -> str: ...


class EndOrder(Protocol):
    @property
    def told(self) -> ToldWhy: ...
    @property
    def grace(self) -> int: ...
    @property
    def signal(self) -> str: ...
    @property
    def disruption(self) -> bool: ...


class PodEvictor:
    def __init__(
        self,
        *,
        workers: PodWorkers,
        table: PodTable,
        events: AnnotatedSink,
        recorder: LifeRecorder,
        clock: Clock,
    ) -> None:
        self._workers = workers
        self._table = table
        self._events = events
        self._recorder = recorder
        self._clock = clock

    async def evict(self, pod: Pod, order: EndOrder) -> None:
        told = order.told
        text = f"{told.message}{told.why}" if told.why else told.message
        self._events.pod_event(pod, WARNING, EVICTED, text, annotations=told.annotations)
        self._recorder.fail(uid_of(pod), Step.EVICTION, order.signal, reason=EVICTED, message=told.why or told.message)
        mark = self._mark(told.message, disruption=order.disruption)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        kill = KillRequest(grace_override=order.grace, evicted=True, change_status=mark, done=done)
        self._workers.update(UpdateKind.KILL, pod, kill)
        try:
            async with asyncio.timeout(max(LEAST_PATIENCE, PATIENCE_FACTOR * order.grace)):
                await done
        except TimeoutError:
            late = "Container runtime did not kill the pod within specified grace period."
            self._events.pod_event(pod, WARNING, "ExceededGracePeriod", late)

    async def cleaned_up(self, pod: Pod, *, within: float) -> bool:
        deadline = self._clock.monotonic() + within
        while not self._is_over(pod):
            if self._clock.monotonic() >= deadline:
                return False
            await self._clock.sleep(STEP)
        return True

    def is_leaving(self, pod: Pod) -> bool:
        worker = self._table.worker(uid_of(pod))
        return worker is not None and worker.evicted

    def _mark(self, message: str, *, disruption: bool) -> StatusChange:
        at = self._clock.now()

        def mark(status: PodStatus) -> None:
            status.phase, status.reason, status.message = "Failed", EVICTED, message
            if disruption:
                mark_disrupted(status, message, at=at)

        return mark

    def _is_over(self, pod: Pod) -> bool:
        worker = self._table.worker(uid_of(pod))
        return worker is None or worker.state is WorkerState.FINISHED
