"""Events of the runtime, and how two looks at one pod become events. Pure.

Sandboxes are told of like containers: ready is running, not ready is ended. A created container is not
told of: nothing has to happen because of it. The table is upstream's generic PLEG.
Does not cover: delivery (relist.py).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

from msgspec import Struct

from pykubelet.model.runtime_status import (
    ContainerRecord,
    ContainerState,
    PodRuntimeStatus,
    SandboxRecord,
    SandboxState,
)


class Life(enum.Enum):
    """What matters of a state: it runs, it has ended, or neither is known."""

    RUNNING = "running"
    ENDED = "ended"
    OTHER = "other"


class _Told(Struct, frozen=True, kw_only=True):
    pod_uid: str
    container_id: str
    """A sandbox's id when `sandbox` is true."""
    name: str = ""
    """The container's name; empty for sandboxes."""
    sandbox: bool = False
    asked: bool = False
    """Found by a refresh that somebody asked for, who therefore has the new status in hand."""


class ContainerStarted(_Told, frozen=True, kw_only=True):
    pass


class ContainerDied(_Told, frozen=True, kw_only=True):
    pass


class ContainerRemoved(_Told, frozen=True, kw_only=True):
    pass


class ContainerChanged(_Told, frozen=True, kw_only=True):
    """It is there, neither running nor ended. Not delivered, as upstream: it only renews the cache."""


class PodSync(Struct, frozen=True, kw_only=True):
    """A pod that could not be inspected could be now, and nothing else can be said."""

    pod_uid: str


RuntimeEvent = ContainerStarted | ContainerDied | ContainerRemoved | ContainerChanged | PodSync

_CONTAINER_LIFE = {
    ContainerState.RUNNING: Life.RUNNING,
    ContainerState.EXITED: Life.ENDED,
    ContainerState.CREATED: Life.OTHER,
    ContainerState.UNKNOWN: Life.OTHER,
}
_SANDBOX_LIFE = {SandboxState.READY: Life.RUNNING, SandboxState.NOT_READY: Life.ENDED}


class Seen(Struct, frozen=True):
    life: Life
    name: str = ""
    sandbox: bool = False


Sight = Mapping[str, Seen]
"""One look at a pod: id of each sandbox and container, and what matters of it."""
NOTHING: Sight = {}


def sight_of(status: PodRuntimeStatus) -> Sight:
    sight = {s.id: Seen(_SANDBOX_LIFE[s.state], sandbox=True) for s in status.sandboxes}
    sight.update((c.id, Seen(_CONTAINER_LIFE[c.state], c.name)) for c in status.containers)
    return sight


def listed_lives(
    sandboxes: Iterable[SandboxRecord], containers: Iterable[ContainerRecord]
) -> dict[str, dict[str, Life]]:
    """A full listing by pod: what each id is doing. Things that belong to no pod are left out."""
    pods: dict[str, dict[str, Life]] = {}
    for sandbox in sandboxes:
        if sandbox.pod_uid:
            pods.setdefault(sandbox.pod_uid, {})[sandbox.id] = _SANDBOX_LIFE[sandbox.state]
    for container in containers:
        if container.pod_uid:
            pods.setdefault(container.pod_uid, {})[container.id] = _CONTAINER_LIFE[container.state]
    return pods


def plan_events(uid: str, old: Sight, new: Sight, *, asked: bool = False) -> list[RuntimeEvent]:
    """What happened between two looks at a pod, ends before starts so that a restart reads in order."""
    ends: list[RuntimeEvent] = []
    starts: list[RuntimeEvent] = []
    for id in (*old, *(id for id in new if id not in old)):
        was, now = old.get(id), new.get(id)
        if was is not None and now is not None and was.life is now.life:
            continue
        facts = now or was
        assert facts is not None
        named = _Args(uid, id, facts, asked)
        if now is None:
            if was is not None and was.life is not Life.ENDED:
                ends.append(named.make(ContainerDied))
            ends.append(named.make(ContainerRemoved))
        elif now.life is Life.RUNNING:
            starts.append(named.make(ContainerStarted))
        elif now.life is Life.ENDED:
            ends.append(named.make(ContainerDied))
        else:
            starts.append(named.make(ContainerChanged))
    return ends + starts


class _Args(Struct, frozen=True):
    uid: str
    id: str
    facts: Seen
    asked: bool

    def make(
        self, kind: type[ContainerStarted] | type[ContainerDied] | type[ContainerRemoved] | type[ContainerChanged]
    ) -> RuntimeEvent:
        return kind(
            pod_uid=self.uid,
            container_id=self.id,
            name=self.facts.name,
            sandbox=self.facts.sandbox,
            asked=self.asked,
        )
