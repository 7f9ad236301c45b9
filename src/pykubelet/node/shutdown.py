"""Graceful node shutdown: ends all pods in order when the machine goes down, announced by logind or by a command.

Pods are grouped by priority; groups end one after the other from the lowest priority, each within its own seconds. A
group is finished when its pods have released everything and the API server has their statuses. From the first moment
the node is not ready and admits no pods. After the reboot pods that ended by the shutdown and were replaced by their
controller are deleted. Does not cover delaying the shutdown (shutdown_inhibitor.py).
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct, field

from pykubelet.api.types import Pod, PodStatus
from pykubelet.clients.kube.port import KubeClient
from pykubelet.context import Context
from pykubelet.kit.files import Checkpoint
from pykubelet.kit.metrics import Registry
from pykubelet.model.errors import ApiConflict, ApiNotFound
from pykubelet.model.lifecycle import mark_disrupted
from pykubelet.model.pod import (
    deletion_requested,
    is_mirror,
    is_static,
    is_terminal_phase,
    name_of,
    namespace_of,
    readable,
    uid_of,
)
from pykubelet.model.reasons import NORMAL
from pykubelet.node.conditions import NodeConditions, is_ready
from pykubelet.node.own_node import OwnNode
from pykubelet.pods.record import StatusChange
from pykubelet.pods.table import PodTable
from pykubelet.settings.schema_resources import ShutdownSettings
from pykubelet.status.sender import StatusSender

logger = logging.getLogger(__name__)

CRITICAL = 2_000_000_000
"""Priority of system-cluster-critical, the lowest of the critical ones."""
DEFAULT_GRACE = 30
REPORT_WITHIN = 3.0
"""Seconds beyond a group's own for its last statuses to reach the API server; once more for the Node's at the end."""
REASON, MESSAGE = "Terminated", "Pod was terminated in response to imminent node shutdown."
EVENT = "Shutdown"
POLL_EVERY = 0.05
STATE_FILE = "graceful_node_shutdown_state"
TOO_FINE = re.compile(r"(\.\d{6})\d+")
NEVER = "0001-01-01T00:00:00Z"
REPLACING: Final = frozenset({"ReplicaSet", "ReplicationController", "DaemonSet", "StatefulSet"})
"""Controllers that have created another pod in place of the ended one."""
REFUSED: Final = "NodeShutdown"


class ShutdownPeriod(Struct, frozen=True, kw_only=True):
    """Pods of at least this priority, up to the next period's, and the seconds they get."""

    priority: int
    seconds: float


class Group(Struct, frozen=True, kw_only=True):
    period: ShutdownPeriod
    pods: list[Pod] = field(default_factory=list)


def two_periods(whole: float, critical: float) -> tuple[ShutdownPeriod, ...]:
    """Return the periods of ordinary pods, first, and of critical ones."""
    return (ShutdownPeriod(priority=0, seconds=whole - critical), ShutdownPeriod(priority=CRITICAL, seconds=critical))


def configured_periods(settings: ShutdownSettings) -> tuple[ShutdownPeriod, ...]:
    """Return the configured periods, lowest priority first; empty when graceful shutdown is off."""
    if settings.shutdown_grace_period_by_pod_priority:
        periods = [
            ShutdownPeriod(priority=each.priority, seconds=float(each.shutdown_grace_period_seconds))
            for each in settings.shutdown_grace_period_by_pod_priority
        ]
        return tuple(sorted(periods, key=lambda period: period.priority))
    if settings.shutdown_grace_period <= 0:
        return ()
    return two_periods(settings.shutdown_grace_period, settings.shutdown_grace_period_critical_pods)


def whole_time(periods: Sequence[ShutdownPeriod]) -> float:
    """Return how long the shutdown must be delayed at most, reporting included: else the last group is cut short."""
    return sum(period.seconds + REPORT_WITHIN for period in periods) + (REPORT_WITHIN if periods else 0.0)


def groups_of(periods: Sequence[ShutdownPeriod], pods: Iterable[Pod]) -> list[Group]:
    """Put each pod into the group of the highest period not above its priority, else into the lowest."""
    groups = [Group(period=period) for period in periods]
    for pod in pods:
        priority = pod.spec.priority or 0
        fitting = [group for group in groups if group.period.priority <= priority]
        (fitting[-1] if fitting else groups[0]).pods.append(pod)
    return groups


def grace_of(pod: Pod, period: ShutdownPeriod) -> int:
    """Return the pod's grace period: its own, no longer than its group has."""
    own = pod.spec.termination_grace_period_seconds
    own = DEFAULT_GRACE if own is None else own
    # 0 would mean the pod's own grace period to the worker.
    return max(1, min(own, int(period.seconds)))


class ShutdownTimes(Struct, frozen=True, kw_only=True):
    """Unix seconds; 0 = not yet."""

    started: float = 0.0
    ended: float = 0.0


class ShutdownRecord:
    def __init__(self, path: Path, *, metrics: Registry) -> None:
        self._checkpoint = Checkpoint(path, encode=_encode, decode=_decode, mode=0o644)
        self._started = metrics.gauge(
            "kubelet_graceful_shutdown_start_time_seconds", "When the last orderly shutdown began, in unix seconds."
        )
        self._ended = metrics.gauge(
            "kubelet_graceful_shutdown_end_time_seconds", "When the last orderly shutdown was through, in unix seconds."
        )

    def load(self) -> ShutdownTimes:
        """Return what was saved before the reboot; the metrics show it until the next shutdown."""
        times = self._checkpoint.load()
        if times is None:
            return ShutdownTimes()
        self._show(times)
        return times

    def save(self, times: ShutdownTimes) -> None:
        self._show(times)
        try:
            self._checkpoint.save_now(times)
        except OSError as error:
            extra = {"path": str(self._checkpoint.path), "error": str(error)}
            logger.warning("the record of this shutdown cannot be written", extra=extra)

    def _show(self, times: ShutdownTimes) -> None:
        self._started.set(times.started)
        self._ended.set(times.ended)


def _encode(times: ShutdownTimes) -> bytes:
    return json.dumps({"startTime": _text(times.started), "endTime": _text(times.ended)}).encode()


def _decode(raw: bytes) -> ShutdownTimes:
    found = json.loads(raw)
    return ShutdownTimes(started=_seconds(found["startTime"]), ended=_seconds(found["endTime"]))


def _text(seconds: float) -> str:
    if not seconds:
        return NEVER
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _seconds(text: object) -> float:
    if text == NEVER:
        return 0.0
    # Go writes nanoseconds and the machine's time zone; Python reads microseconds at most.
    return datetime.fromisoformat(TOO_FINE.sub(r"\1", str(text))).timestamp()


class PodEnder(Protocol):
    """Orders to the pods' workers; both return at once."""

    def end(self, pod: Pod, grace: int, mark: StatusChange) -> None:
        """Begin to stop a pod."""
        ...

    def restart(self, pod: Pod) -> None:
        """Start the pod again unless its controller creates another one."""
        ...


class ShutdownOutcome(Struct, frozen=True, kw_only=True):
    """The result, for people."""

    stopped: Sequence[str]
    left: Sequence[str]
    """Pods that did not end in time."""
    seconds: float


class ShutdownManager:
    def __init__(
        self,
        ctx: Context,
        *,
        table: PodTable,
        ender: PodEnder,
        record: ShutdownRecord,
        conditions: NodeConditions,
        own: OwnNode,
        sender: StatusSender | None = None,
    ) -> None:
        """`sender` is None on a node without an API server; `own` is never known there."""
        self._table = table
        self._ender = ender
        self._record = record
        self._conditions = conditions
        self._own = own
        self._sender = sender
        self._events = ctx.events
        self._clock = ctx.clock
        self._ended: dict[str, Pod] = {}

    @property
    def shutting_down(self) -> bool:
        return self._conditions.shutting_down()

    async def shut_down(self, periods: Sequence[ShutdownPeriod]) -> ShutdownOutcome:
        """End all pods. A second call while the first runs ends the remaining pods by its own periods."""
        begun = self._clock.monotonic()
        started = self._clock.now()
        begins = not self.shutting_down
        self._conditions.set_shutting_down(True)
        if begins:
            self._events.node_event(NORMAL, EVENT, "Shutdown manager detected shutdown event")
            self._record.save(ShutdownTimes(started=started))
        pods = [worker.pod for worker in self._table.workers() if worker.pod is not None and worker.is_active]
        logger.info("the machine goes down: stopping pods", extra={"pods": len(pods)})
        for group in groups_of(periods, pods) if periods else []:
            await self._end_group(group)
        await self._until(self._node_reported, self._clock.monotonic() + REPORT_WITHIN)
        left = [readable(pod) for pod in pods if not self._is_stopped(uid_of(pod))]
        if left:
            logger.warning("pods did not end before the machine goes down", extra={"pods": ", ".join(left)})
        self._record.save(ShutdownTimes(started=started, ended=self._clock.now()))
        seconds = self._clock.monotonic() - begun
        logger.info("pods are stopped, the machine may go down", extra={"seconds": f"{seconds:.1f}"})
        stopped = [readable(pod) for pod in pods if readable(pod) not in left]
        return ShutdownOutcome(stopped=stopped, left=left, seconds=seconds)

    def cancel(self) -> None:
        """Admit pods again, and restart static pods, which no controller would create again."""
        if not self.shutting_down:
            return
        self._events.node_event(NORMAL, EVENT, "Shutdown manager detected shutdown cancellation")
        self._conditions.set_shutting_down(False)
        for pod in self._ended.values():
            self._ender.restart(pod)
        self._ended.clear()

    async def _end_group(self, group: Group) -> None:
        if not group.pods:
            return
        end = self._clock.monotonic() + group.period.seconds
        for pod in group.pods:
            self._ender.end(pod, grace_of(pod, group.period), self._mark)
            self._ended[uid_of(pod)] = pod
        logger.info(
            "stopping a group of pods",
            extra={"priority": group.period.priority, "pods": len(group.pods), "seconds": group.period.seconds},
        )
        uids = [uid_of(pod) for pod in group.pods]
        await self._until(lambda: all(map(self._table.is_gone, uids)), end)
        # Before the next group: the API server itself may be one of its pods.
        await self._reported(uids, max(end, self._clock.monotonic() + REPORT_WITHIN))

    def _is_stopped(self, uid: str) -> bool:
        """Whether none of the pod's containers runs."""
        worker = self._table.worker(uid)
        return worker is None or not worker.is_active

    def _node_reported(self) -> bool:
        """Whether the API server has the Node as not ready."""
        node = self._own.node
        return node is None or not is_ready(node.status)

    async def _reported(self, uids: Sequence[str], end: float) -> None:
        if self._sender is None:
            return
        sender = self._sender
        await self._until(lambda: not sender.unsent(uids), end)
        if late := sender.unsent(uids):
            logger.warning("the API server does not have the status of all pods that ended", extra={"pods": len(late)})

    async def _until(self, holds: Callable[[], bool], end: float) -> None:
        while not holds() and self._clock.monotonic() < end:
            await self._clock.sleep(POLL_EVERY)

    def _mark(self, status: PodStatus) -> None:
        if status.phase != "Succeeded":
            status.phase = "Failed"
        status.reason, status.message = REASON, MESSAGE
        mark_disrupted(status, MESSAGE, at=self._clock.now())


class Leftovers:
    """Pods that an earlier shutdown ended and that their controller has replaced; every reboot would add more.

    Pods without a controller stay, and so do those of Jobs, whose controller counts them. Nothing is deleted while the
    machine goes down, so that people can see what became of their pods.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        pods: Callable[[], Iterable[Pod]],
        table: PodTable,
        conditions: NodeConditions,
    ) -> None:
        """`pods` are those of the API server."""
        self._client = client
        self._pods = pods
        self._table = table
        self._conditions = conditions

    async def sweep(self) -> None:
        """Delete them; for housekeeping. Raises ApiError."""
        if self._conditions.shutting_down():
            return
        for pod in [each for each in self._pods() if is_leftover(each) and self._table.is_gone(uid_of(each))]:
            try:
                await self._client.delete(Pod, name_of(pod), namespace_of(pod), grace_seconds=0, uid=uid_of(pod))
            except (ApiNotFound, ApiConflict):
                continue  # gone already, or another pod has its name
            logger.info("a pod that ended by the last shutdown is deleted", extra={"pod": readable(pod)})


def is_leftover(pod: Pod) -> bool:
    status = pod.status
    ended = status.reason == REFUSED or (status.reason == REASON and status.message == MESSAGE)
    if not is_terminal_phase(status.phase) or not ended or deletion_requested(pod) or is_static(pod) or is_mirror(pod):
        return False
    return any(owner.controller and owner.kind in REPLACING for owner in pod.metadata.owner_references)
