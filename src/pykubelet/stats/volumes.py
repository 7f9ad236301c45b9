"""Per-volume figures, measured in turn all the time and kept for whoever asks.

Walking big volumes costs, so each pod is measured about once a period, pods spread over it, and a pod whose walk
took long is left alone for a hundred times as long: walking never takes more than a percent of the time.
How one volume is measured is the volumes' own business.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from pykubelet.api.types import Pod
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Histogram, Registry
from pykubelet.model.errors import PykubeletError
from pykubelet.model.figures import Figures
from pykubelet.stats.inventory import KnownPods

logger = logging.getLogger(__name__)

REST_FACTOR = 100
PAUSE = 1.0
NOT_YET_PERIOD = 10.0
"""For pods of which nothing was found: their volumes are perhaps not mounted yet."""
DISABLED_PAUSE = 60.0


class VolumeUse(Protocol):
    """One volume, as volumes measure it."""

    @property
    def name(self) -> str: ...
    @property
    def used_bytes(self) -> int: ...
    @property
    def capacity_bytes(self) -> int: ...
    @property
    def available_bytes(self) -> int: ...
    @property
    def inodes(self) -> int: ...
    @property
    def inodes_free(self) -> int: ...
    @property
    def inodes_used(self) -> int: ...
    @property
    def claim(self) -> tuple[str, str] | None: ...
    @property
    def on_node_disk(self) -> bool: ...


class VolumeMeter(Protocol):
    async def usage(self, pod: Pod) -> Sequence[VolumeUse]: ...


class PodVolumes(Figures, frozen=True, kw_only=True):
    time_ns: int
    volumes: tuple[VolumeUse, ...]


class VolumeFigures:
    """A service; `of_pod` answers at any time with the latest measurement."""

    name = "volume figures"

    def __init__(
        self, *, meter: VolumeMeter, pods: KnownPods, clock: Clock, metrics: Registry, period: float = 60.0
    ) -> None:
        """A period of zero or less turns measuring off."""
        self._meter = meter
        self._pods = pods
        self._clock = clock
        self._period = period
        self._found: dict[str, PodVolumes] = {}
        self._next: dict[str, float] = {}
        self._durations: Histogram = metrics.histogram(
            "kubelet_volume_metric_collection_duration_seconds",
            "Time to measure the volumes of one pod",
            ("metric_source",),
        )

    def of_pod(self, uid: str) -> PodVolumes | None:
        return self._found.get(uid)

    def all(self) -> Mapping[str, PodVolumes]:
        return self._found

    async def run(self) -> None:
        while True:
            if self._period <= 0:
                await self._clock.sleep(DISABLED_PAUSE)
                continue
            await self.measure_due()
            await self._clock.sleep(PAUSE)

    async def measure_due(self) -> None:
        """Measure the pods whose turn it is: a period's share of all of them, longest waiting first."""
        now = self._clock.monotonic()
        wanted = {pod.metadata.uid or "": pod for pod in self._pods.pods() if pod.spec.volumes}
        for uid in [uid for uid in (*self._next, *self._found) if uid not in wanted]:
            self._next.pop(uid, None)
            self._found.pop(uid, None)
        for uid in wanted:
            self._next.setdefault(uid, now)
        due = sorted((at, uid) for uid, at in self._next.items() if at <= now)
        share = max(1, math.ceil(len(wanted) * PAUSE / self._period))
        fresh = [uid for _, uid in due if uid not in self._found]  # a new pod does not wait for its turn
        for uid in (*fresh, *[uid for _, uid in due if uid in self._found][:share]):
            await self._measure(uid, wanted[uid])

    async def renew(self, *, within: float) -> None:
        """Measure every pod now, longest ago first, for at most so many seconds: for a decision that must not rest on
        old figures. A second is old when a disk is being filled."""
        began = self._clock.monotonic()
        wanted = {pod.metadata.uid or "": pod for pod in self._pods.pods() if pod.spec.volumes}
        times = {uid: self._found[uid].time_ns if uid in self._found else 0 for uid in wanted}
        for uid in sorted(times, key=times.__getitem__):
            if self._clock.monotonic() - began > within:
                break
            await self._measure(uid, wanted[uid])

    async def _measure(self, uid: str, pod: Pod) -> None:
        started = self._clock.monotonic()
        try:
            volumes = tuple(await self._meter.usage(pod))
        except (PykubeletError, OSError, RuntimeError) as error:
            logger.warning("volumes cannot be measured", extra={"pod_uid": uid, "error": str(error)})
        else:
            self._found[uid] = PodVolumes(time_ns=self._clock.now_ns(), volumes=volumes)
        took = self._clock.monotonic() - started
        self._durations.observe(took, "pod")
        found = self._found.get(uid)
        period = self._period if found is not None and found.volumes else min(self._period, NOT_YET_PERIOD)
        self._next[uid] = started + max(period, took * REST_FACTOR)
