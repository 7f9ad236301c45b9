"""Local storage limits of single pods: emptyDir sizes, a container's files and logs, and the pod's total.

They hold whether or not the disk is short, and are checked every ten seconds by the last measurement of the volumes
and the current size of the containers' files. Nothing here waits for a volume: a dead file server of one pod must not
keep the node from evicting. Messages are upstream's, the explanation (`why`) is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import Pod
from pykubelet.eviction.stats import EvictionStats, PodUse
from pykubelet.kit.clock import Clock
from pykubelet.model.pod import is_critical, uid_of
from pykubelet.model.pod_resources import (
    container_storage_limits,
    empty_dir_limits,
    limits_disk,
    limits_storage,
    storage_limit,
)
from pykubelet.stats.volumes import VolumeStatsCalculator
from pykubelet.volumes.spec import VolumeUsage

PERIOD: Final = 10.0
EMPTY_DIR_LIMIT: Final = "emptydirfs.limit"
POD_LIMIT: Final = "ephemeralpodfs.limit"
CONTAINER_LIMIT: Final = "ephemeralcontainerfs.limit"


class StorageLimits:
    def __init__(
        self, *, stats: EvictionStats, volumes: VolumeStatsCalculator, clock: Clock, period: float = PERIOD
    ) -> None:
        self._volumes = volumes
        self._stats = stats
        self._clock = clock
        self._period = period
        self._next = 0.0

    def due_in(self) -> float:
        return max(0.0, self._next - self._clock.monotonic())

    async def breaches(self, pods: Iterable[Pod], *, layers_apart: bool) -> list[tuple[Pod, Breach]]:
        """Return pods that exceed a limit; none before the next check is due."""
        now = self._clock.monotonic()
        if now < self._next:
            return []
        self._next = now + self._period
        limited = [pod for pod in pods if not is_critical(pod) and limits_disk(pod)]
        if not limited:
            return []
        counted = {str(uid_of(pod)) for pod in limited if limits_storage(pod)}
        uses = await self._stats.files(counted) if counted else {}
        found = []
        for pod in limited:
            known = self._volumes.of_pod(uid_of(pod))
            volumes = known.volumes if known is not None else ()
            over = breach(pod, volumes, uses.get(uid_of(pod)), layers_apart=layers_apart)
            if over is not None:
                found.append((pod, over))
        return found


class Breach(Struct, frozen=True, kw_only=True):
    signal: str
    """As in metrics."""
    message: str
    why: str


def breach(pod: Pod, volumes: Sequence[VolumeUsage], use: PodUse | None, *, layers_apart: bool) -> Breach | None:
    """Return the first limit the pod exceeds. `layers_apart`: writable layers are on another disk and do not count for
    their container. Without `use` only volumes are checked."""
    over = _empty_dirs(pod, volumes)
    if over is None and use is not None:
        over = _total(pod, volumes, use) or _containers(pod, use, layers_apart=layers_apart)
    return over


def _empty_dirs(pod: Pod, volumes: Sequence[VolumeUsage]) -> Breach | None:
    used = {each.name: each.used_bytes for each in volumes}
    for name, limit in empty_dir_limits(pod).items():
        if Quantity.of_bytes(used.get(name, 0)) > limit:
            return Breach(
                signal=EMPTY_DIR_LIMIT,
                message=f'Usage of EmptyDir volume "{name}" exceeds the limit "{limit}". ',
                why=f"emptyDir volume {name} holds {Quantity.of_bytes(used[name])}, its sizeLimit is {limit}",
            )
    return None


def _total(pod: Pod, volumes: Sequence[VolumeUsage], use: PodUse) -> Breach | None:
    limit = storage_limit(pod)
    if limit is None:
        return None
    parts = {
        "writable layers": sum(each.layer for each in use.containers.values()),
        "logs": sum(each.logs for each in use.containers.values()),
        "volumes": sum(each.used_bytes for each in volumes if each.on_node_disk),
        "other files": use.other,
    }
    total = Quantity.of_bytes(sum(parts.values()))
    if total <= limit:
        return None
    return Breach(
        signal=POD_LIMIT,
        message=f"Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ",
        why=f"the pod's files take {total} ({_parts(parts)}), its ephemeral-storage limit is {limit}",
    )


def _containers(pod: Pod, use: PodUse, *, layers_apart: bool) -> Breach | None:
    for name, limit in container_storage_limits(pod).items():
        found = use.containers.get(name)
        if found is None:
            continue
        parts = {"logs": found.logs} if layers_apart else {"writable layer": found.layer, "logs": found.logs}
        total = Quantity.of_bytes(sum(parts.values()))
        if total > limit:
            return Breach(
                signal=CONTAINER_LIMIT,
                message=f'Container {name} exceeded its local ephemeral storage limit "{limit}". ',
                why=f"files of container {name} take {total} ({_parts(parts)}), its ephemeral-storage limit is {limit}",
            )
    return None


def _parts(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {Quantity.of_bytes(size)}" for name, size in parts.items() if size)
