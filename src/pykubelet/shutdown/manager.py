"""The orderly end of all pods when the machine goes down, whoever says so: logind, or a command on this machine.

Pods end class by class, each class within its seconds; a class is through when its pods have given back what they held
and the API server knows. From the first moment the node says that it is not ready and takes no new pods. Does not cover
holding up the shutdown meanwhile (watch.py) nor who goes when (plan.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from msgspec import Struct

from pykubelet.api.types import Pod, PodStatus
from pykubelet.kit.clock import Clock
from pykubelet.model.disruption import mark_disrupted
from pykubelet.model.events import EventSink
from pykubelet.model.pod import readable, uid_of
from pykubelet.model.reasons import NORMAL
from pykubelet.shutdown.plan import TELL_WITHIN, Group, Turn, grace_of, groups_of
from pykubelet.shutdown.state import ShutdownRecord, ShutdownTimes

logger = logging.getLogger(__name__)

REASON, MESSAGE = "Terminated", "Pod was terminated in response to imminent node shutdown."
EVENT = "Shutdown"
NOT_READY = "node is shutting down"
LOOK_EVERY = 0.05

MarkStatus = Callable[[PodStatus], None]


class RunningPods(Protocol):
    """What the sequence needs of the pods' workers."""

    def active(self) -> Sequence[Pod]:
        """Pods that are not over yet."""
        ...

    def end(self, pod: Pod, grace: int, mark: MarkStatus) -> None:
        """Begin to stop a pod; returns at once."""
        ...

    def again(self, pod: Pod) -> None:
        """Start a pod anew if nobody else would."""
        ...

    def is_over(self, uid: str) -> bool:
        """Whether nothing of it is left: containers, volumes, cgroup."""
        ...

    def is_stopped(self, uid: str) -> bool:
        """Whether none of its containers runs."""
        ...


class ShutdownOutcome(Struct, frozen=True, kw_only=True):
    """How it went, for people."""

    stopped: Sequence[str]
    left: Sequence[str]
    """Pods that did not end in their time."""
    seconds: float


class ShutdownManager:
    def __init__(
        self,
        *,
        pods: RunningPods,
        record: ShutdownRecord,
        events: EventSink,
        clock: Clock,
        tell_node: Callable[[], None] = lambda: None,
        node_told: Callable[[], bool] = lambda: True,
        untold: Callable[[Collection[str]], Collection[str]] = lambda uids: (),
    ) -> None:
        """`tell_node`: the Node's status has changed; `node_told`: the API server shows it as not ready.
        `untold`: which pods' statuses the API server lacks."""
        self._pods = pods
        self._record = record
        self._events = events
        self._clock = clock
        self._tell_node = tell_node
        self._node_told = node_told
        self._untold = untold
        self._shutting_down = False
        self._ended: dict[str, Pod] = {}

    @property
    def shutting_down(self) -> bool:
        return self._shutting_down

    def problems(self) -> Sequence[str]:
        """Why the node is not ready on our account."""
        return (NOT_READY,) if self._shutting_down else ()

    async def shut_down(self, turns: Sequence[Turn]) -> ShutdownOutcome:
        """Run the whole sequence. Asked again while it runs, the later one ends the pods that are left its own way."""
        begun = self._clock.monotonic()
        started = self._clock.now()
        if not self._shutting_down:
            self._shutting_down = True
            self._events.node_event(NORMAL, EVENT, "Shutdown manager detected shutdown event")
            self._record.save(ShutdownTimes(started=started))
        self._tell_node()
        pods = list(self._pods.active())
        logger.info("the machine goes down: stopping pods", extra={"pods": len(pods)})
        for group in groups_of(turns, pods) if turns else []:
            await self._end_group(group)
        await self._until(self._node_told, self._clock.monotonic() + TELL_WITHIN)
        left = [readable(pod) for pod in pods if not self._pods.is_stopped(uid_of(pod))]
        if left:
            logger.warning("pods did not end before the machine goes down", extra={"pods": ", ".join(left)})
        self._record.save(ShutdownTimes(started=started, ended=self._clock.now()))
        seconds = self._clock.monotonic() - begun
        logger.info("pods are stopped, the machine may go down", extra={"seconds": f"{seconds:.1f}"})
        stopped = [readable(pod) for pod in pods if readable(pod) not in left]
        return ShutdownOutcome(stopped=stopped, left=left, seconds=seconds)

    def cancel(self) -> None:
        """The machine does not go down after all: take pods again, and start those that no controller makes anew."""
        if not self._shutting_down:
            return
        self._shutting_down = False
        self._events.node_event(NORMAL, EVENT, "Shutdown manager detected shutdown cancellation")
        self._tell_node()
        for pod in self._ended.values():
            self._pods.again(pod)
        self._ended.clear()

    async def _end_group(self, group: Group) -> None:
        if not group.pods:
            return
        end = self._clock.monotonic() + group.turn.seconds
        for pod in group.pods:
            self._pods.end(pod, grace_of(pod, group.turn), self._mark)
            self._ended[uid_of(pod)] = pod
        logger.info(
            "stopping a class of pods",
            extra={"priority": group.turn.priority, "pods": len(group.pods), "seconds": group.turn.seconds},
        )
        uids = [uid_of(pod) for pod in group.pods]
        await self._until(lambda: all(self._pods.is_over(uid) for uid in uids), end)
        # Before the next class: the API server itself may be a pod of it.
        await self._told(uids, max(end, self._clock.monotonic() + TELL_WITHIN))

    async def _told(self, uids: Sequence[str], end: float) -> None:
        await self._until(lambda: not self._untold(uids), end)
        if late := self._untold(uids):
            logger.warning("the API server was not told of all pods that ended", extra={"pods": len(late)})

    async def _until(self, holds: Callable[[], bool], end: float) -> None:
        while not holds() and self._clock.monotonic() < end:
            await self._clock.sleep(LOOK_EVERY)

    def _mark(self, status: PodStatus) -> None:
        if status.phase != "Succeeded":
            status.phase = "Failed"
        status.reason, status.message = REASON, MESSAGE
        mark_disrupted(status, MESSAGE, at=self._clock.now())
