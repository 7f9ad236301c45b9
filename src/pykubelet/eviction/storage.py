"""Looks after the disk limits of single pods; pods without limits cost nothing.

Every ten seconds the pods that have limits are judged (limits.py) by the last figures of their volumes and by what
their containers hold now. Nothing here waits for a volume: a dead file server of one pod must not keep the node from
defending itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol

from pykubelet.api.types import Pod
from pykubelet.eviction.limits import Breach, VolumeUse, breach, limits_disk, limits_storage
from pykubelet.kit.clock import Clock
from pykubelet.model.pod import is_critical, uid_of
from pykubelet.model.signals import PodUse

PERIOD: Final = 10.0


class PodVolumes(Protocol):
    @property
    def volumes(self) -> Sequence[VolumeUse]: ...


class Volumes(Protocol):
    def of_pod(self, uid: str, /) -> PodVolumes | None:
        """The latest figures of its volumes; somebody else measures them all the time."""
        ...


class PodUses(Protocol):
    async def files(self, uids: Collection[str], /) -> Mapping[str, PodUse]: ...


class StorageLimits:
    def __init__(self, *, volumes: Volumes, uses: PodUses, clock: Clock, period: float = PERIOD) -> None:
        self._volumes = volumes
        self._uses = uses
        self._clock = clock
        self._period = period
        self._next = 0.0

    def due_in(self) -> float:
        return max(0.0, self._next - self._clock.monotonic())

    async def breaches(self, pods: Iterable[Pod], *, layers_apart: bool) -> list[tuple[Pod, Breach]]:
        """Pods over a limit of theirs, when it is time to look; nothing otherwise."""
        now = self._clock.monotonic()
        if now < self._next:
            return []
        self._next = now + self._period
        limited = [pod for pod in pods if not is_critical(pod) and limits_disk(pod)]
        if not limited:
            return []
        counted = {str(uid_of(pod)) for pod in limited if limits_storage(pod)}
        uses = await self._uses.files(counted) if counted else {}
        found = []
        for pod in limited:
            known = self._volumes.of_pod(uid_of(pod))
            volumes = known.volumes if known is not None else ()
            over = breach(pod, volumes, uses.get(uid_of(pod)), layers_apart=layers_apart)
            if over is not None:
                found.append((pod, over))
        return found
