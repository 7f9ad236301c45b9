"""Volume stats, measured all the time and kept for requests.

Walking big volumes costs, so each pod is measured about once a period, pods spread over it, and a pod whose walk
took long is not measured for a hundred times as long: walking never takes more than a percent of the time. Pods with
limits on the disk are measured every ten seconds, at the latest every minute. Pods are measured side by side: one
that hangs delays no other. Measuring one volume is in volumes/usage.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence

from pykubelet.api.types import Pod
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Histogram, Registry
from pykubelet.kit.tasks import TaskSet, gather_all
from pykubelet.model.errors import PykubeletError
from pykubelet.model.stats import Measurement
from pykubelet.pods.table import PodTable
from pykubelet.volumes.manager import VolumeManager
from pykubelet.volumes.spec import VolumeUsage

logger = logging.getLogger(__name__)

REST_FACTOR = 100
COUNTING_FACTOR = 10
"""For a pod of which a big volume is being counted in passes: the next pass comes soon."""
PAUSE = 1.0
NOT_YET_PERIOD = 10.0
"""For pods of which nothing was found: their volumes are perhaps not mounted yet."""
LIMITED_PERIOD = 10.0
LONGEST_REST = 60.0
"""Seconds between two measurements of a pod with limits, however long one takes."""
AT_ONCE = 16
"""Pods that are measured at the same time."""


class PodVolumeStats(Measurement, frozen=True, kw_only=True):
    time_ns: int
    volumes: tuple[VolumeUsage, ...]


NO_VOLUMES = PodVolumeStats(time_ns=0, volumes=())


class VolumeStatsCalculator:
    """A service; `of_pod` answers at any time with the latest measurement."""

    name = "volume stats"

    def __init__(
        self,
        *,
        meter: VolumeManager,
        table: PodTable,
        clock: Clock,
        metrics: Registry,
        period: float = 60.0,
        is_limited: Callable[[Pod], bool] = lambda pod: False,
        on_abnormal: Callable[[Pod, VolumeUsage], None] = lambda pod, volume: None,
    ) -> None:
        """A period of zero or less disables measuring, except of pods with limits."""
        self._meter = meter
        self._table = table
        self._clock = clock
        self._period = period
        self._is_limited = is_limited
        self._on_abnormal = on_abnormal
        self._reported: dict[tuple[str, str], tuple[str, float]] = {}
        """Pod and volume to what was last reported about its condition, and when."""
        self._found: dict[str, PodVolumeStats] = {}
        self._next: dict[str, float] = {}
        self._under_way: set[str] = set()
        self._tasks = TaskSet("volume stats", on_error=_task_failed)
        self._durations: Histogram = metrics.histogram(
            "kubelet_volume_metric_collection_duration_seconds",
            "Time to measure the volumes of one pod",
            ("metric_source",),
        )

    def of_pod(self, uid: str) -> PodVolumeStats | None:
        return self._found.get(uid)

    def all(self) -> Mapping[str, PodVolumeStats]:
        return self._found

    async def run(self) -> None:
        async with self._tasks:
            while True:
                for uid, pod in self._due():
                    self._tasks.spawn(self._measure(uid, pod), name=f"measuring volumes of {uid}")
                await self._clock.sleep(PAUSE)

    async def measure_due(self) -> None:
        """Measure the pods that are due, at the same time, and wait for all of them."""
        await gather_all(*(self._measure(uid, pod) for uid, pod in self._due()))

    async def renew(self, *, within: float) -> None:
        """Measure every pod, for at most so many seconds, because a second is old when a disk is being filled.

        Of pods that take longer the last stats count."""
        wanted = {pod.metadata.uid or "": pod for pod in self._table.pods() if pod.spec.volumes}
        slots = asyncio.Semaphore(AT_ONCE)

        async def measure(uid: str, pod: Pod) -> None:
            async with slots:
                await self._measure(uid, pod)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await gather_all(*(measure(*each) for each in wanted.items() if each[0] not in self._under_way))

    def _wanted(self) -> dict[str, Pod]:
        return {
            pod.metadata.uid or "": pod
            for pod in self._table.pods()
            if pod.spec.volumes and (self._period > 0 or self._is_limited(pod))
        }

    def _due(self) -> list[tuple[str, Pod]]:
        """A period's share of all pods, longest waiting first; those with limits and new ones besides."""
        now = self._clock.monotonic()
        wanted = self._wanted()
        for uid in [uid for uid in (*self._next, *self._found) if uid not in wanted]:
            self._next.pop(uid, None)
            for volume in self._found.pop(uid, NO_VOLUMES).volumes:
                self._reported.pop((uid, volume.name), None)
        for uid in wanted:
            self._next.setdefault(uid, now)
        due = [uid for at, uid in sorted((at, uid) for uid, at in self._next.items() if at <= now)]
        at_once = [uid for uid in due if uid not in self._found or self._is_limited(wanted[uid])]
        share = max(1, math.ceil(len(wanted) * PAUSE / self._period)) if self._period > 0 else 0
        in_turn = [uid for uid in due if uid not in at_once][:share]
        free = max(0, AT_ONCE - len(self._under_way))
        return [(uid, wanted[uid]) for uid in (*at_once, *in_turn) if uid not in self._under_way][:free]

    async def _measure(self, uid: str, pod: Pod) -> None:
        started = self._clock.monotonic()
        self._under_way.add(uid)
        try:
            volumes = tuple(await self._meter.usage(pod))
        except (PykubeletError, OSError, RuntimeError) as error:
            logger.warning("volumes cannot be measured", extra={"pod_uid": uid, "error": str(error)})
        else:
            self._found[uid] = PodVolumeStats(time_ns=self._clock.now_ns(), volumes=volumes)
            self._report_abnormal(uid, pod, volumes)
        finally:
            self._under_way.discard(uid)
            took = self._clock.monotonic() - started
            self._durations.observe(took, "pod")
            self._next[uid] = started + self._rest(uid, pod, took)

    def _report_abnormal(self, uid: str, pod: Pod, volumes: Sequence[VolumeUsage]) -> None:
        """At once, and again each period for as long as it lasts; pods with limits are measured more often."""
        now = self._clock.monotonic()
        for volume in volumes:
            key = (uid, volume.name)
            if not volume.abnormal:
                self._reported.pop(key, None)
                continue
            last = self._reported.get(key)
            if last is None or last[0] != volume.condition or now - last[1] >= self._period:
                self._reported[key] = (volume.condition, now)
                self._on_abnormal(pod, volume)

    def _rest(self, uid: str, pod: Pod, took: float) -> float:
        found = self._found.get(uid)
        volumes = found.volumes if found is not None else ()
        pause = took * (REST_FACTOR if all(each.complete for each in volumes) else COUNTING_FACTOR)
        if self._is_limited(pod):
            return min(max(LIMITED_PERIOD, pause), LONGEST_REST)
        return max(self._period if volumes else min(self._period, NOT_YET_PERIOD), pause)


def _task_failed(error: BaseException) -> None:
    logger.error("volumes of a pod cannot be measured", exc_info=error)
