"""Which dead containers and sandboxes are of no more use. Pure.

The numbers are upstream's: the newest dead container of each name is kept for its logs and exit code, the
newest sandbox for its addresses; pods that are gone keep nothing. What runs, what is ready, and what a
wanted pod has just created is never chosen. Things that belong to no pod are not ours to remove.
Does not cover: removing (gc.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from pykubelet.model.runtime_status import (
    ContainerRecord,
    ContainerState,
    ContainerStatus,
    PodRuntimeStatus,
    SandboxRecord,
    SandboxState,
)

IsGone = Callable[[str], bool]
"""Whether everything of the pod with this uid may go."""


class GcPolicy(Struct, frozen=True, kw_only=True):
    min_age: float = 0.0
    """Seconds a container is kept at the least, counted from its creation."""
    max_per_container: int = 1
    """Dead containers kept for each container of a pod; below 0 = all."""
    max_total: int = -1
    """Dead containers kept on the whole node; below 0 = no limit."""


def plan_containers(
    containers: Iterable[ContainerRecord], *, now_ns: int, policy: GcPolicy, is_gone: IsGone
) -> list[ContainerRecord]:
    """Containers to remove, the oldest of each name first."""
    units: dict[tuple[str, str], list[ContainerRecord]] = {}
    newest: dict[tuple[str, str], int] = {}
    for container in containers:
        key = (container.pod_uid, container.name)
        newest[key] = max(newest.get(key, 0), container.created_at)
        if container.pod_uid and container.state is not ContainerState.RUNNING:
            units.setdefault(key, []).append(container)
    chosen: list[ContainerRecord] = []
    kept: list[list[ContainerRecord]] = []
    for key, unit in units.items():
        uid = key[0]
        unit.sort(key=lambda c: c.created_at, reverse=True)
        if is_gone(uid):
            chosen += _old_enough(reversed(unit), now_ns, policy)
            continue
        if unit[0].state is ContainerState.CREATED and unit[0].created_at == newest[key]:
            unit = unit[1:]  # about to be started; an older one was given up by a killed agent
        unit = list(_old_enough(unit, now_ns, policy))
        if policy.max_per_container >= 0:
            chosen += reversed(unit[policy.max_per_container :])
            unit = unit[: policy.max_per_container]
        kept.append(unit)
    if policy.max_total >= 0:
        chosen += _over_total(kept, policy.max_total)
    return chosen


def _old_enough(unit: Iterable[ContainerRecord], now_ns: int, policy: GcPolicy) -> Iterable[ContainerRecord]:
    youngest = now_ns - int(policy.min_age * 1_000_000_000)
    return (c for c in unit if c.created_at <= youngest)


def _over_total(units: Sequence[list[ContainerRecord]], limit: int) -> list[ContainerRecord]:
    """An even share for every container, at least one each; if that is still too much, the oldest go."""
    units = [unit for unit in units if unit]
    if sum(map(len, units)) <= limit:
        return []
    share = max(1, limit // len(units))
    chosen = [c for unit in units for c in reversed(unit[share:])]
    left = sorted((c for unit in units for c in unit[:share]), key=lambda c: c.created_at)
    return chosen + left[: max(0, len(left) - limit)]


def plan_sandboxes(
    sandboxes: Iterable[SandboxRecord], containers: Iterable[ContainerRecord], *, is_gone: IsGone
) -> list[SandboxRecord]:
    """Sandboxes to remove, oldest first. `containers` are those that are still there."""
    in_use = {container.sandbox_id for container in containers}
    pods: dict[str, list[SandboxRecord]] = {}
    for sandbox in sandboxes:
        if sandbox.pod_uid:
            pods.setdefault(sandbox.pod_uid, []).append(sandbox)
    chosen: list[SandboxRecord] = []
    for uid, owned in pods.items():
        owned.sort(key=lambda s: (s.created_at, s.attempt))
        candidates = owned if is_gone(uid) else owned[:-1]
        chosen += [s for s in candidates if s.state is not SandboxState.READY and s.id not in in_use]
    return chosen


def plan_prune(status: PodRuntimeStatus, name: str, *, keep: int, is_gone: bool) -> list[ContainerStatus]:
    """Ended containers of one pod to remove after one named `name` ended; of all names when the pod is gone."""
    ended = [c for c in status.containers if c.state is ContainerState.EXITED]
    if is_gone:
        return ended
    mine = [c for c in ended if not name or c.name == name]
    mine.sort(key=lambda c: c.created_at, reverse=True)
    if name:
        return mine[keep:] if keep >= 0 else []
    return [c for other in {c.name for c in mine} for c in plan_prune(status, other, keep=keep, is_gone=False)]
