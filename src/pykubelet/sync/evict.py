"""Ends pods for the node's sake: evictions and shutdowns.

Which pods and why is decided in eviction/ and node/shutdown.py; how a pod is stopped, by its worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pykubelet.api.types import Pod, PodStatus
from pykubelet.context import Context
from pykubelet.eviction.manager import EvictionOrder
from pykubelet.model.lifecycle import mark_disrupted
from pykubelet.model.pod import is_static, uid_of
from pykubelet.model.reasons import WARNING
from pykubelet.pods.record import StatusChange
from pykubelet.pods.table import PodTable
from pykubelet.recorder import Step
from pykubelet.sync.worker import KillRequest, PodWorkers, UpdateKind

EVICTED = "Evicted"
LEAST_PATIENCE = 10.0
PATIENCE_FACTOR = 1.5
STEP = 0.1


class PodEvictor:
    def __init__(
        self, ctx: Context, *, workers: PodWorkers, table: PodTable, active: Callable[[], Sequence[Pod]]
    ) -> None:
        """`active`: pods as they were allocated."""
        self._workers = workers
        self._table = table
        self._active = active
        self._events = ctx.events
        self._recorder = ctx.recorder
        self._clock = ctx.clock

    def candidates(self) -> Sequence[Pod]:
        return [pod for pod in self._active() if not self._is_evicted(pod)]

    async def evict(self, pod: Pod, order: EvictionOrder) -> None:
        message, why = order.text.message, order.text.why
        self._events.pod_event(pod, WARNING, EVICTED, f"{message}{why}", annotations=order.text.annotations)
        self._recorder.fail(uid_of(pod), Step.EVICTION, order.signal, reason=EVICTED, message=why or message)
        mark = self._mark(message, disruption=order.disruption)
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
        while not self._table.is_gone(uid_of(pod)):
            if self._clock.monotonic() >= deadline:
                return False
            await self._clock.sleep(STEP)
        return True

    def _is_evicted(self, pod: Pod) -> bool:
        worker = self._table.worker(uid_of(pod))
        return worker is not None and worker.evicted

    def _mark(self, message: str, *, disruption: bool) -> StatusChange:
        at = self._clock.now()

        def mark(status: PodStatus) -> None:
            status.phase, status.reason, status.message = "Failed", EVICTED, message
            if disruption:
                mark_disrupted(status, message, at=at)

        return mark


class PodEnder:
    """Ends pods when the node shuts down, and starts them again when the shutdown is cancelled."""

    def __init__(self, workers: PodWorkers) -> None:
        self._workers = workers

    def end(self, pod: Pod, grace: int, mark: StatusChange) -> None:
        self._workers.update(UpdateKind.KILL, pod, KillRequest(grace_override=grace, change_status=mark))

    def restart(self, pod: Pod) -> None:
        """Start a static pod again; no controller would create another one."""
        if is_static(pod):
            self._workers.update(UpdateKind.CREATE, pod)
