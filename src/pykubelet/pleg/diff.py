"""How two inspections of one pod become signals, and whether a listing says anything new. Pure.

Sandboxes are treated like containers: ready is running, not ready is ended. A created container causes no signal:
nothing has to happen because of it. The table is upstream's generic PLEG.
Does not cover: delivery (pleg.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from pykubelet.model.runtime_status import (
    ContainerRecord,
    ContainerState,
    Life,
    PodRuntimeStatus,
    SandboxRecord,
    SandboxState,
)
from pykubelet.signals import ContainerDied, ContainerRemoved, ContainerStarted, RuntimeSignal

_CONTAINER_LIFE = {
    ContainerState.RUNNING: Life.RUNNING,
    ContainerState.EXITED: Life.ENDED,
    ContainerState.CREATED: Life.OTHER,
    ContainerState.UNKNOWN: Life.OTHER,
}
_SANDBOX_LIFE = {SandboxState.READY: Life.RUNNING, SandboxState.NOT_READY: Life.ENDED}


class Observed(Struct, frozen=True):
    life: Life
    name: str = ""
    sandbox: bool = False


def lives(status: PodRuntimeStatus) -> dict[str, Observed]:
    """The id of each sandbox and container, and what matters of it."""
    found = {s.id: Observed(_SANDBOX_LIFE[s.state], sandbox=True) for s in status.sandboxes}
    found.update((c.id, Observed(_CONTAINER_LIFE[c.state], c.name)) for c in status.containers)
    return found


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


def agrees(status: PodRuntimeStatus, listed: Mapping[str, Life], newer: Mapping[str, Life]) -> bool:
    """Whether a newer listing says what the last inspection, by its statuses or its listing, said already."""
    if newer == listed:
        return True
    known = lives(status)
    if newer.keys() != listed.keys() and newer.keys() != known.keys():
        return False
    for id, life in newer.items():
        observed = known.get(id)
        if listed.get(id) is not life and (observed is None or observed.life is not life):
            return False
    return True


def plan_signals(
    uid: str, old: Mapping[str, Observed], new: Mapping[str, Observed], *, requested: bool = False
) -> list[RuntimeSignal]:
    """What happened between two inspections of a pod, ends before starts so that a restart reads in order."""
    ends: list[RuntimeSignal] = []
    starts: list[RuntimeSignal] = []

    def make(kind: type[RuntimeSignal], id: str, facts: Observed) -> RuntimeSignal:
        return kind(uid=uid, container_id=id, name=facts.name, sandbox=facts.sandbox, requested=requested)

    for id in (*old, *(id for id in new if id not in old)):
        was, now = old.get(id), new.get(id)
        if now is None and was is not None:
            if was.life is not Life.ENDED:
                ends.append(make(ContainerDied, id, was))
            ends.append(make(ContainerRemoved, id, was))
        elif now is None or (was is not None and was.life is now.life):
            continue
        elif now.life is Life.RUNNING:
            starts.append(make(ContainerStarted, id, now))
        elif now.life is Life.ENDED:
            ends.append(make(ContainerDied, id, now))
    return ends + starts
