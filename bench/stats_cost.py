"""What stats cost: CPU per scrape of each endpoint with many pods, and as a share of a core at a scrape every 10 s.

    python -m bench.stats_cost [pods]

Pods are cgroups without processes, really made on this host (needs root), so that the kernel's part is real; the
runtime's answers are canned. Network stats are read from this process, once per pod.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from tests.bed.cgroups import CgroupTree, cgroup_mounts

from pykubelet.api.types import Container, ObjectMeta, Pod, PodSpec
from pykubelet.clients.host.cgroup_stats import CgroupStats
from pykubelet.clients.host.kernel import DeviceKernelLog, KernelMemoryAlarms
from pykubelet.clients.host.machine import read_machine
from pykubelet.clients.host.node_stats import NodeStats
from pykubelet.clients.host.port import NodePaths
from pykubelet.context import Context
from pykubelet.edges import GuardEdges
from pykubelet.events.broadcaster import EventBroadcaster
from pykubelet.eviction.local_storage import StorageLimits
from pykubelet.eviction.manager import EvictionManager, EvictionRules
from pykubelet.eviction.pressure import SHORTEST
from pykubelet.eviction.stats import EvictionStats
from pykubelet.eviction.thresholds import ALLOCATABLE, MEMORY
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import Services
from pykubelet.model.cgroups import parent_for_runtime
from pykubelet.model.runtime_status import (
    ContainerState,
    ContainerStatus,
    FilesystemUsage,
    ImageFilesystems,
    PodRuntimeStatus,
    SandboxStatus,
)
from pykubelet.model.stats import NetworkCounters
from pykubelet.node.conditions import NodeConditions
from pykubelet.recorder import LifeRecorder
from pykubelet.settings.schema_resources import EvictionSettings
from pykubelet.settings.settings import Settings
from pykubelet.settings.thresholds import eviction_thresholds
from pykubelet.stats.build import Stats
from pykubelet.stats.cadvisor import machine_lines
from pykubelet.stats.provider import StatsProvider, StatsSettings
from pykubelet.stats.snapshot import CgroupNames
from pykubelet.stats.source import NodeStatsSource
from pykubelet.stats.volumes import VolumeStatsCalculator
from pykubelet.wire import cri_pb2

ROUNDS = 12
SCRAPE_EVERY = 10.0
CHECK = "eviction check"
LIMITS = "disk limits of all pods"
WATCH_BUDGET = 0.5
"""Percent of a core, with 100 pods."""


class ManyPods:
    """Pods, their runtime statuses and what the runtime measures, all made up."""

    def __init__(self, count: int) -> None:
        self._pods = [_pod(number) for number in range(count)]
        self._statuses = {pod.metadata.uid or "": _status(pod) for pod in self._pods}
        stats = [_stats(status.containers[0].id) for status in self._statuses.values()]
        self._wire = cri_pb2.ListContainerStatsResponse(stats=stats).SerializeToString()

    def pods(self) -> list[Pod]:
        return self._pods

    def runtime_statuses(self) -> list[PodRuntimeStatus]:
        return list(self._statuses.values())

    def runtime_status(self, uid: str) -> PodRuntimeStatus:
        return self._statuses[uid]

    async def list_container_stats(
        self, *, pod_uid: str | None = None, id: str | None = None, sandbox_id: str | None = None
    ) -> Sequence[cri_pb2.ContainerStats]:
        return tuple(cri_pb2.ListContainerStatsResponse.FromString(self._wire).stats)

    async def image_fs_info(self) -> ImageFilesystems:
        return ImageFilesystems(images=(FilesystemUsage(mountpoint="/", used_bytes=1, inodes_used=1, timestamp=1),))

    async def sandbox_image(self, sandbox_id: str) -> str:
        return "pause"


class Populated(CgroupStats):
    """Sandboxes of the fake pods have a process: this one."""

    def processes(self, path: str) -> tuple[int, ...]:
        return (os.getpid(),)


class OneInterface(NodeStats):
    """A pod sees one interface, not all of the machine's."""

    def network(self, now_ns: int, pid: int | None = None) -> NetworkCounters | None:
        found = super().network(now_ns, pid)
        if found is None or pid is None:
            return found
        return NetworkCounters(time_ns=found.time_ns, interfaces=found.interfaces[:1])


def _id(kind: str, number: int) -> str:
    return f"{kind}{number:063x}"


def _pod(number: int) -> Pod:
    uid = f"00000000-0000-4000-8000-{number:012d}"
    spec = PodSpec(containers=[Container(name="app", image="docker.io/library/busybox:latest")])
    return Pod(metadata=ObjectMeta(name=f"pod-{number}", namespace="default", uid=uid), spec=spec)


def _status(pod: Pod) -> PodRuntimeStatus:
    number = int((pod.metadata.uid or "")[-12:])
    uid, name = pod.metadata.uid or "", pod.metadata.name or ""
    sandbox = SandboxStatus(
        id=_id("a", number), pod_uid=uid, pod_name=name, pod_namespace="default", created_at=1_700_000_000_000_000_000
    )
    container = ContainerStatus(
        id=_id("c", number),
        name="app",
        state=ContainerState.RUNNING,
        image="docker.io/library/busybox:latest",
        created_at=1_700_000_000_000_000_000,
    )
    return PodRuntimeStatus(uid=uid, name=name, namespace="default", sandboxes=(sandbox,), containers=(container,))


def _stats(container: str) -> cri_pb2.ContainerStats:
    return cri_pb2.ContainerStats(
        attributes=cri_pb2.ContainerAttributes(id=container, metadata=cri_pb2.ContainerMetadata(name="app")),
        cpu=cri_pb2.CpuUsage(timestamp=1, usage_core_nano_seconds=cri_pb2.UInt64Value(value=1)),
        memory=cri_pb2.MemoryUsage(timestamp=1, working_set_bytes=cri_pb2.UInt64Value(value=1)),
        writable_layer=cri_pb2.FilesystemUsage(
            timestamp=1,
            fs_id=cri_pb2.FilesystemIdentifier(mountpoint="/"),
            used_bytes=cri_pb2.UInt64Value(value=4096),
            inodes_used=cri_pb2.UInt64Value(value=3),
        ),
    )


def make_groups(many: ManyPods, root: str) -> None:
    for pod in many.pods():
        parent = parent_for_runtime(pod, driver="cgroupfs", root=root)
        number = int((pod.metadata.uid or "")[-12:])
        for mount in cgroup_mounts():
            for kind in ("a", "c"):
                (mount / parent.lstrip("/") / _id(kind, number)).mkdir(parents=True, exist_ok=True)


def make_logs(many: ManyPods, paths: NodePaths) -> None:
    for pod in many.pods():
        uid = pod.metadata.uid or ""
        folder = paths.log_folder("default", pod.metadata.name or "", uid) / "app"
        folder.mkdir(parents=True)
        (folder / "0.log").write_text("x" * 5000)


async def measured(work: Callable[[], Awaitable[Any]]) -> tuple[float, Any]:
    """CPU milliseconds of one call, median over the rounds; and its last result."""
    times, result = [], None
    for _ in range(ROUNDS):
        begun = time.process_time()
        result = await work()
        times.append((time.process_time() - begun) * 1000)
    return statistics.median(times), result


async def measure(count: int, root: str, folder: Path) -> dict[str, float]:
    """Endpoint to CPU milliseconds per scrape, nothing served from the cache."""
    many = ManyPods(count)
    paths = NodePaths(root=folder, pod_logs=folder / "logs", container_logs=folder / "links")
    make_groups(many, root)
    make_logs(many, paths)
    cgroups, host, clock = Populated(), OneInterface(), SystemClock()
    names = CgroupNames(root=root)
    settings = StatsSettings(cgroups=names, fresh_for=0.0, disks_every=0.0)
    guard = GuardEdges(cgroups=cgroups, host=host, kernel_log=DeviceKernelLog())
    provider = StatsProvider(guard, cri=many, table=many, paths=paths, clock=clock, settings=settings)
    machine = read_machine()
    volumes = VolumeStatsCalculator(meter=NoEvictor(), table=many, clock=clock, metrics=Registry())
    stats = Stats(provider=provider, volumes=volumes, cgroups=names, services=Services())
    cores, sockets = host.cpu_layout()
    source = NodeStatsSource(
        provider=provider,
        volumes=stats.volumes,
        machine=machine,
        machine_text=machine_lines(machine, physical_cores=cores, sockets=sockets, version="bench"),
        node_name="bench",
        disk_names=host.device_name,
    )
    signals = EvictionStats(
        stats, guard, cri=many, clock=clock, memory_bytes=machine.memory_bytes, root_dir=str(folder)
    )

    async def summary() -> bytes:
        return await source.summary(only_cpu_and_memory=False)

    async def zipped() -> bytes:
        return gzip.compress((await source.cadvisor()).encode(), compresslevel=1)

    await source.cadvisor()  # first snapshot: finds cgroups, counts descriptors
    costs = {}
    costs["metrics/resource"], _ = await measured(source.resource)
    costs["stats/summary"], _ = await measured(summary)
    costs["metrics/cadvisor"], text = await measured(source.cadvisor)
    costs["metrics/cadvisor gzip"], _ = await measured(zipped)
    costs["eviction signals"], _ = await measured(signals.node)
    costs["eviction ranking"], _ = await measured(lambda: signals.pods(disks=True))
    costs[CHECK], _ = await measured(_watcher(many, stats, signals, clock).synchronize)
    costs[LIMITS], _ = await measured(lambda: signals.files([status.uid for status in many.runtime_statuses()]))
    print(f"{count} pods, {len(text.splitlines())} cadvisor lines, {len(text) / 1e6:.1f} MB")
    return costs


class NoEvictor:
    """No volumes, and no pod that would be evicted."""

    def __init__(self, many: ManyPods | None = None) -> None:
        self.many = many or ManyPods(0)

    async def usage(self, pod: Pod, /) -> Sequence[Any]:
        return ()

    async def evict(self, pod: Pod, order: object) -> None:
        raise AssertionError("nothing is short here")

    async def cleaned_up(self, pod: Pod, *, within: float) -> bool:
        return True

    def candidates(self) -> list[Pod]:
        return self.many.pods()


def _watcher(many: ManyPods, stats: Stats, signals: EvictionStats, clock: SystemClock) -> EvictionManager:
    """Eviction with the default thresholds; what it does when nothing is short."""
    ctx = Context(
        settings=Settings(),
        node_name="bench",
        clock=clock,
        events=EventBroadcaster(clock=clock, node_name="bench"),
        recorder=LifeRecorder(clock),
        metrics=Registry(),
    )
    return EvictionManager(
        ctx,
        stats=signals,
        storage=StorageLimits(volumes=stats.volumes, stats=signals, clock=clock, period=0.0),
        evictor=NoEvictor(many),
        reclaimers={},
        conditions=NodeConditions(ctx.signals),
        alarms=KernelMemoryAlarms(),
        rules=EvictionRules(thresholds=eviction_thresholds(EvictionSettings()), groups={MEMORY: "/", ALLOCATABLE: "/"}),
    )


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    tree = CgroupTree(f"/pklstats-{os.getpid()}")
    tree.make()
    try:
        with tempfile.TemporaryDirectory() as folder:
            costs = asyncio.run(measure(count, tree.name, Path(folder)))
    finally:
        tree.remove(within=60.0)
    for what, milliseconds in costs.items():
        print(f"{what:24s} {milliseconds:8.2f} ms  {milliseconds / SCRAPE_EVERY / 10:6.3f} % of a core")
    watching = (costs[CHECK] / SHORTEST + costs[LIMITS] / SCRAPE_EVERY) / 10
    print(f"watching at its busiest (a check every {SHORTEST:g} s, disk limits every 10 s): {watching:.3f} % of a core")
    if watching > WATCH_BUDGET:
        raise SystemExit(f"more than {WATCH_BUDGET:g} % of a core")


if __name__ == "__main__":
    main()
