"""What the agent knows about one pod, in parts that have one writer each.

A part is there while its writer has something to say: a rejected pod has no worker, an orphan no desired pod.
Only the writer named at a part changes it, through the methods of `PodTable` or of the part itself.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from pykubelet.api.types import Pod, PodStatus
from pykubelet.kit.tasks import Wakeup
from pykubelet.model.errors import CriError, IllegalMove
from pykubelet.model.pod import PodUID, ProbeKey, ProbeOutcome
from pykubelet.model.problems import ContainerProblem
from pykubelet.model.runtime_status import Life, PodRuntimeStatus

HISTORY_LENGTH = 12
NEVER = float("-inf")

StatusChange = Callable[[PodStatus], None]


class WorkerState(enum.Enum):
    SYNCING = "syncing"
    """The pod should run: bring the runtime to what the spec says, again and again."""
    TERMINATING = "terminating"
    """Containers are being stopped; nothing may be started any more."""
    TERMINATED = "terminated"
    """Nothing runs; volumes, cgroups and the like are being released."""
    FINISHED = "finished"
    """Nothing of the pod is left to do; remembered until its source forgets it."""


NEXT: Mapping[WorkerState, frozenset[WorkerState]] = {
    WorkerState.SYNCING: frozenset({WorkerState.TERMINATING, WorkerState.TERMINATED, WorkerState.FINISHED}),
    WorkerState.TERMINATING: frozenset({WorkerState.TERMINATED, WorkerState.FINISHED}),
    WorkerState.TERMINATED: frozenset({WorkerState.FINISHED}),
    WorkerState.FINISHED: frozenset(),
}


class Orphan(Struct, frozen=True, kw_only=True):
    """A pod that only the runtime knows."""

    uid: PodUID
    name: str
    namespace: str


class Room(Struct, frozen=True, kw_only=True):
    """The victims of a preemption: the pod starts when they are stopped, or when `patience` is over."""

    stopped: Sequence[asyncio.Future[None]]
    patience: float


class PodWorker(Struct):
    """The worker of one pod: what it decided, what it does next, and how its last pass went."""

    uid: PodUID
    full_name: str
    pod: Pod | None
    """The version it works with; None for an orphan that only the runtime knows."""
    state: WorkerState = WorkerState.SYNCING
    started: bool = False
    """Whether the worker was allowed to begin (static pods of one name run one at a time)."""
    synced: bool = False
    """Whether a sync has begun."""
    updated: bool = False
    """Whether its source has changed it since the last sync began."""
    deleted: bool = False
    """Its source deleted it or has it no more. False for a pod that the node ended and its source still shows."""
    evicted: bool = False
    grace: int | None = None
    """Seconds the containers get to stop; only ever shortened."""
    restart_requested: bool = False
    """The same UID was added again while it was ending; housekeeping starts it anew."""
    history: deque[tuple[WorkerState, str]] = field(default_factory=lambda: deque(maxlen=HISTORY_LENGTH))
    orphan: Orphan | None = None
    room: Room | None = None
    changes: list[StatusChange] = field(default_factory=list)
    """What those who ended the pod want to see in its last statuses."""
    waiters: list[asyncio.Future[None]] = field(default_factory=list)
    """Completed when no container runs any more."""
    wake: Wakeup = field(default_factory=Wakeup)
    scope: asyncio.Timeout | None = None
    """Around the step in flight; expiring it cancels the step and nothing else."""
    last_sync: float = -1.0
    runtime_status: PodRuntimeStatus | None = None
    """What the pass in flight, or the last one, started from."""
    hurried: PodRuntimeStatus | None = None
    """What the last pass started from if it requested another one soon."""
    failures: int = 0
    next_run: float | None = None
    last_error: str = ""

    def move(self, to: WorkerState, because: str) -> None:
        if to not in NEXT[self.state]:
            wrong = f"{self.state.value} -> {to.value} ({because})"
            raise IllegalMove(f"pod {self.full_name} ({self.uid}): {wrong}; history: {list(self.history)}")
        self.history.append((to, because))
        self.state = to

    @property
    def is_ending(self) -> bool:
        return self.state is not WorkerState.SYNCING

    @property
    def is_active(self) -> bool:
        """Whether containers of the pod could run; such a pod holds resources of the node."""
        return self.state in (WorkerState.SYNCING, WorkerState.TERMINATING)

    def shorten_grace(self, override: int | None) -> bool:
        """Apply the rules for the effective grace period; True when it became shorter than before."""
        before = self.grace
        requested = self.pod.metadata.deletion_grace_period_seconds if self.pod else None
        bounds = [seconds for seconds in (before, requested, override) if seconds is not None]
        if not bounds and self.pod is not None:
            bounds = [self.pod.spec.termination_grace_period_seconds or 0]
        self.grace = max(1, min(bounds, default=0))
        return before is not None and self.grace < before

    def interrupt(self, now: float) -> None:
        """Cancel the step in flight, so that the next one begins with what is known now."""
        if self.scope is not None and not self.scope.expired():
            self.scope.reschedule(now)

    def stopped(self) -> None:
        """No container runs any more: complete those who wait for that."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)


class ObservedRuntime(Struct):
    """The last inspection of the pod, and whether it still holds."""

    status: PodRuntimeStatus
    """The newest that could be read."""
    listed: Mapping[str, Life] = field(default_factory=dict)
    """What the listing said about each id, which the statuses read a moment later may contradict."""
    at: float = NEVER
    """Monotonic time at which the listing behind the status, or the attempt that failed, was started."""
    error: CriError | None = None
    """Why the last inspection failed."""
    stale_since: float | None = None
    """Start of the relist that found the pod changed; it waits for an inspection."""

    @property
    def is_empty(self) -> bool:
        return not self.status.sandboxes and not self.status.containers

    @property
    def shows_nothing(self) -> bool:
        """Whether neither statuses nor listing named anything."""
        return self.is_empty and not self.listed


class ReportedStatus(Struct):
    """The newest status that this agent reports of a pod."""

    pod: Pod
    status: PodStatus
    version: int
    plain: PodStatus
    """The status before it was explained; what is made anew from a part of it begins here."""
    finished: bool = False
    """Nothing of the pod is left on this node; the API object may be deleted."""


class PodRecord(Struct):
    uid: PodUID
    pod: Pod | None = None
    """Desired: the pod as its source has it, None when no source has it. Written by the sync loop."""
    worker: PodWorker | None = None
    """Written by the pod workers."""
    runtime: ObservedRuntime | None = None
    """What the runtime has of the pod. Written by PLEG."""
    reported: ReportedStatus | None = None
    """Written by the status manager."""
    probed: set[ProbeKey] | None = None
    """Probes of a static pod's containers with a result since the agent started. Written by the status manager."""
    start_failures: dict[str, ContainerProblem] | None = None
    """Why containers could not be started, by name, until they start. Written by the runtime manager."""
    probe_outcomes: dict[ProbeKey, ProbeOutcome] | None = None
    """Newest results of probes. Written by the probe workers."""
    termination_messages: dict[str, str] | None = None
    """By container id, of containers that ended. Written by the status maker."""

    @property
    def is_empty(self) -> bool:
        return self.pod is None and self.worker is None and self.runtime is None and not self.has_results

    @property
    def has_results(self) -> bool:
        """Whether anything is kept that is dropped with the pod and its worker."""
        return bool(
            self.reported or self.probed or self.start_failures or self.probe_outcomes or self.termination_messages
        )
