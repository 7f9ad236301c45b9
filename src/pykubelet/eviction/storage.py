"""Looks after the disk limits of single pods, within a budget: pods without limits cost nothing.

Every ten seconds the pods that have limits are measured; one whose walk took long rests a hundred times as long, so
that walking never takes more than a percent of the time. Judging is in limits.py.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol

from pykubelet.api.types import Pod
from pykubelet.eviction.limits import Breach, VolumeUse, breach, limits_storage, limits_volumes
from pykubelet.kit.clock import Clock
from pykubelet.model.errors import PykubeletError
from pykubelet.model.pod import is_critical, readable, uid_of
from pykubelet.model.signals import PodUse

logger = logging.getLogger(__name__)

PERIOD: Final = 10.0
REST_FACTOR: Final = 100.0


class Volumes(Protocol):
    async def usage(self, pod: Pod, /) -> Sequence[VolumeUse]: ...


class PodUses(Protocol):
    async def files(self, uids: Collection[str], /) -> Mapping[str, PodUse]: ...


class StorageLimits:
    def __init__(self, *, volumes: Volumes, uses: PodUses, clock: Clock, period: float = PERIOD) -> None:
        self._volumes = volumes
        self._uses = uses
        self._clock = clock
        self._period = period
        self._next = 0.0
        self._rests: dict[str, float] = {}

    def due_in(self) -> float:
        return max(0.0, self._next - self._clock.monotonic())

    async def breaches(self, pods: Iterable[Pod], *, layers_apart: bool) -> list[tuple[Pod, Breach]]:
        """Pods over a limit of theirs, when it is time to look; nothing otherwise."""
        now = self._clock.monotonic()
        if now < self._next:
            return []
        self._next = now + self._period
        limited = [
            pod
            for pod in pods
            if not is_critical(pod)
            and self._rests.get(uid_of(pod), 0.0) <= now
            and (limits_volumes(pod) or limits_storage(pod))
        ]
        self._rests = {uid: until for uid, until in self._rests.items() if until > now}
        if not limited:
            return []
        counted = {str(uid_of(pod)) for pod in limited if limits_storage(pod)}
        uses = await self._uses.files(counted) if counted else {}
        found = []
        for pod in limited:
            over = breach(pod, await self._measured(pod), uses.get(uid_of(pod)), layers_apart=layers_apart)
            if over is not None:
                found.append((pod, over))
        return found

    async def _measured(self, pod: Pod) -> Sequence[VolumeUse]:
        if not pod.spec.volumes:
            return ()
        began = self._clock.monotonic()
        try:
            return await self._volumes.usage(pod)
        except (PykubeletError, OSError, RuntimeError) as error:
            logger.warning("volumes cannot be measured", extra={"pod": readable(pod), "error": str(error)})
            return ()
        finally:
            took = self._clock.monotonic() - began
            self._rests[uid_of(pod)] = began + took * REST_FACTOR
