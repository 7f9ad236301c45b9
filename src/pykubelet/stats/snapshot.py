"""One reading of the node, from which the summary, the metrics and eviction are made, and the pods it covers.

A snapshot never changes; parts that were not requested, or that the host does not have, are None. As upstream it has
pods with at least one running container, and of those only the running containers. Network stats of pods on the
host's network are left out: they would be the machine's, once more for every such pod.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec
from msgspec import Struct

from pykubelet.api.types import Pod
from pykubelet.model.cgroups import cgroupfs_path, class_parts, parent_for_runtime, systemd_path
from pykubelet.model.pod import QosClass
from pykubelet.model.runtime_status import NamespaceMode, PodRuntimeStatus
from pykubelet.model.stats import (
    CgroupBounds,
    CgroupDetail,
    CgroupUsage,
    DiskCounters,
    FolderUsage,
    FsUsage,
    Measurement,
    MemoryUsage,
    NetworkCounters,
    ProcessCounts,
    TaskCounts,
)
from pykubelet.pods.table import PodTable


class Look(enum.IntEnum):
    """How much of the node a snapshot shows; each look has all of those before it."""

    USAGE = 0
    """CPU and memory."""
    SUMMARY = 1
    """Disks, networks and pressure, too."""
    EVERYTHING = 2
    """Also the counters that only /metrics/cadvisor has."""


NO_IMAGES: Mapping[str, str] = MappingProxyType({})


class ContainerItem(Measurement, frozen=True, kw_only=True):
    id: str
    name: str
    image: str = ""
    created_ns: int = 0


class PodItem(Measurement, frozen=True, kw_only=True):
    uid: str
    name: str
    namespace: str
    created_ns: int = 0
    sandbox_id: str = ""
    sandbox_image: str = ""
    host_network: bool = False
    group: str | None = None
    """The pod's cgroup; None when pods have none of their own."""
    containers: tuple[ContainerItem, ...] = ()


class CgroupNames(Struct, frozen=True, kw_only=True):
    """Where cgroups are on this node."""

    root: str = "/"
    driver: str = "cgroupfs"
    per_qos: bool = True
    """False: pods have no cgroup of their own."""

    def pod(self, pod: Pod) -> str | None:
        return parent_for_runtime(pod, driver=self.driver, root=self.root) if self.per_qos else None

    def pods(self) -> str:
        """The group above all pods."""
        return self._of(class_parts(QosClass.GUARANTEED)) if self.per_qos else self.root

    def classes(self) -> tuple[str, ...]:
        if not self.per_qos:
            return ()
        return tuple(self._of(class_parts(qos)) for qos in (QosClass.BURSTABLE, QosClass.BEST_EFFORT))

    def _of(self, parts: tuple[str, ...]) -> str:
        return (systemd_path if self.driver == "systemd" else cgroupfs_path)(parts, self.root)


def take_inventory(
    table: PodTable, groups: dict[str, str | None], images: Mapping[str, str] = NO_IMAGES
) -> tuple[PodItem, ...]:
    """`groups` is uid to cgroup of every pod this node wants; others are on their way out and not reported. `images`
    is sandbox to image."""
    found = []
    for status in table.runtime_statuses():
        if status.uid in groups:
            item = pod_item(status, groups[status.uid], images)
            if item is not None:
                found.append(item)
    return tuple(found)


def pod_groups(pods: Iterable[Pod], names: CgroupNames) -> dict[str, str | None]:
    return {pod.metadata.uid or "": names.pod(pod) for pod in pods}


def pod_item(status: PodRuntimeStatus, group: str | None, images: Mapping[str, str] = NO_IMAGES) -> PodItem | None:
    running = status.running()
    if not running:
        return None
    ready = status.ready_sandboxes()
    sandbox = ready[0] if ready else None
    return PodItem(
        uid=status.uid,
        name=status.name,
        namespace=status.namespace,
        created_ns=sandbox.created_at if sandbox is not None else running[0].created_at,
        sandbox_id=sandbox.id if sandbox is not None else "",
        sandbox_image=images.get(sandbox.id, "") if sandbox is not None else "",
        host_network=sandbox is not None and sandbox.network_mode is NamespaceMode.NODE,
        group=group,
        containers=tuple(
            ContainerItem(id=each.id, name=each.name, image=each.image, created_ns=each.created_at) for each in running
        ),
    )


class Group(Measurement, frozen=True, kw_only=True):
    """A cgroup with what is known about it."""

    path: str
    usage: CgroupUsage | None = None
    rate: int | None = None
    """CPU nanoseconds per second."""
    detail: CgroupDetail | None = None
    bounds: CgroupBounds | None = None
    created_ns: int = 0


class WritableLayer(Measurement, frozen=True, kw_only=True):
    time_ns: int
    used: int
    inodes: int | None
    mountpoint: str


class ContainerSample(Measurement, frozen=True, kw_only=True):
    item: ContainerItem
    group: Group
    layer: WritableLayer | None = None
    logs: FolderUsage | None = None
    processes: ProcessCounts | None = None


class PodSample(Measurement, frozen=True, kw_only=True):
    item: PodItem
    group: Group
    sandbox: Group | None = None
    network: NetworkCounters | None = None
    containers: tuple[ContainerSample, ...] = ()
    own_logs: FolderUsage | None = None
    """Files beside the containers' log folders."""
    etc_hosts: FolderUsage | None = None
    counted: int | None = None
    """Processes, as the runtime counts them for the whole pod; None where its containers were looked at."""

    @property
    def processes(self) -> int | None:
        if self.counted is not None:
            return self.counted
        details = [each.group.detail for each in self.containers if each.group.detail is not None]
        counts = [detail.processes for detail in details if detail.processes is not None]
        return sum(counts) if counts else None


class RuntimeFs(Measurement, frozen=True, kw_only=True):
    """A filesystem of the runtime: what the runtime reports it uses, and the whole of it."""

    time_ns: int
    mountpoint: str
    used: int
    inodes_used: int
    whole: FsUsage | None = None


class NodeSample(Measurement, frozen=True, kw_only=True):
    boot_seconds: int
    root: Group
    system: dict[str, Group]
    """kubelet, runtime, misc where configured; pods always."""
    classes: tuple[Group, ...] = ()
    network: NetworkCounters | None = None
    tasks: TaskCounts | None = None
    load: float = 0.0
    """Running tasks, smoothed over ten seconds."""
    disks: tuple[DiskCounters, ...] = ()
    fs: FsUsage | None = None
    image_fs: RuntimeFs | None = None
    container_fs: RuntimeFs | None = None
    filesystems: dict[str, FsUsage] = msgspec.field(default_factory=dict)
    """Of every mountpoint that writable layers are on."""


class Snapshot(Measurement, frozen=True, kw_only=True):
    time_ns: int
    node: NodeSample
    pods: tuple[PodSample, ...]


def sum_of(containers: Sequence[ContainerSample], path: str) -> Group:
    """Add up the usage of a pod's containers, for a pod without a cgroup of its own."""
    usages = [each.group.usage for each in containers if each.group.usage is not None]
    if not usages:
        return Group(path=path)
    rates = [each.group.rate for each in containers if each.group.rate is not None]
    usage = CgroupUsage(
        time_ns=max(each.time_ns for each in usages),
        cpu_ns=sum(each.cpu_ns or 0 for each in usages),
        memory=_sum_memory([each.memory for each in usages if each.memory is not None]),
    )
    return Group(path=path, usage=usage, rate=sum(rates) if rates else None)


def _sum_memory(memories: Sequence[MemoryUsage]) -> MemoryUsage | None:
    if not memories:
        return None
    return MemoryUsage(
        usage=sum(each.usage for each in memories),
        working_set=sum(each.working_set for each in memories),
        rss=sum(each.rss for each in memories),
        swap=sum(each.swap or 0 for each in memories),
        faults=sum(each.faults for each in memories),
        major_faults=sum(each.major_faults for each in memories),
    )
