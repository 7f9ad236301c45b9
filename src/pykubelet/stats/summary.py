"""/stats/summary: its JSON, with upstream's field names and omissions, and how it is made from a snapshot. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from pykubelet.kit.clock import utc, utc_from_ns
from pykubelet.model.stats import FolderUsage, FsUsage, NetworkCounters, Pressure, PressureLine
from pykubelet.stats.snapshot import ContainerSample, Group, NodeSample, PodItem, PodSample, RuntimeFs, Snapshot
from pykubelet.stats.volumes import PodVolumeStats
from pykubelet.volumes.spec import VolumeUsage


class Shape(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """Fields without a default are always there."""


class PsiData(Shape, kw_only=True):
    total: int
    avg10: float
    avg60: float
    avg300: float


class PsiStats(Shape, kw_only=True):
    full: PsiData
    some: PsiData


class CpuStats(Shape, kw_only=True):
    time: datetime
    usage_nano_cores: int | None = None
    usage_core_nano_seconds: int | None = None
    psi: PsiStats | None = None


class MemoryStats(Shape, kw_only=True):
    time: datetime
    available_bytes: int | None = None
    usage_bytes: int | None = None
    working_set_bytes: int | None = None
    rss_bytes: int | None = None
    page_faults: int | None = None
    major_page_faults: int | None = None
    psi: PsiStats | None = None


class IoStats(Shape, kw_only=True):
    time: datetime
    psi: PsiStats | None = None


class SwapStats(Shape, kw_only=True):
    time: datetime
    swap_available_bytes: int | None = None
    swap_usage_bytes: int | None = None


class InterfaceStats(Shape, kw_only=True):
    name: str
    rx_bytes: int | None = None
    rx_errors: int | None = None
    tx_bytes: int | None = None
    tx_errors: int | None = None


class NetworkStats(Shape, kw_only=True):
    time: datetime
    name: str
    rx_bytes: int | None = None
    rx_errors: int | None = None
    tx_bytes: int | None = None
    tx_errors: int | None = None
    interfaces: list[InterfaceStats] = []


class FsStats(Shape, kw_only=True):
    time: datetime
    available_bytes: int | None = None
    capacity_bytes: int | None = None
    used_bytes: int | None = None
    inodes_free: int | None = None
    inodes: int | None = None
    inodes_used: int | None = None


class PvcReference(Shape, kw_only=True):
    name: str
    namespace: str


class VolumeHealthStats(Shape, kw_only=True):
    abnormal: bool


class VolumeStats(FsStats, kw_only=True):
    name: str
    pvc_ref: PvcReference | None = None
    volume_health_stats: VolumeHealthStats | None = None


class ContainerStats(Shape, kw_only=True):
    name: str
    start_time: datetime | None
    cpu: CpuStats | None = None
    memory: MemoryStats | None = None
    io: IoStats | None = None
    rootfs: FsStats | None = None
    logs: FsStats | None = None
    swap: SwapStats | None = None


class PodReference(Shape, kw_only=True):
    name: str
    namespace: str
    uid: str


class ProcessStats(Shape, kw_only=True, rename="lower"):
    process_count: int | None = None


class PodStats(Shape, kw_only=True):
    pod_ref: PodReference
    start_time: datetime | None
    containers: list[ContainerStats]
    cpu: CpuStats | None = None
    memory: MemoryStats | None = None
    io: IoStats | None = None
    network: NetworkStats | None = None
    volume: list[VolumeStats] = []
    ephemeral_storage: FsStats | None = msgspec.field(default=None, name="ephemeral-storage")
    process_stats: ProcessStats | None = msgspec.field(default=None, name="process_stats")
    swap: SwapStats | None = None


class RuntimeStats(Shape, kw_only=True):
    image_fs: FsStats | None = None
    container_fs: FsStats | None = None


class RlimitStats(Shape, kw_only=True):
    time: datetime
    maxpid: int | None = None
    curproc: int | None = None


class NodeStats(Shape, kw_only=True):
    node_name: str
    start_time: datetime | None
    system_containers: list[ContainerStats] = []
    cpu: CpuStats | None = None
    memory: MemoryStats | None = None
    io: IoStats | None = None
    network: NetworkStats | None = None
    fs: FsStats | None = None
    runtime: RuntimeStats | None = None
    rlimit: RlimitStats | None = None
    swap: SwapStats | None = None


class Summary(Shape, kw_only=True):
    node: NodeStats
    pods: list[PodStats]


MAIN_INTERFACE = "eth0"


def summarize(
    snapshot: Snapshot,
    *,
    node_name: str,
    memory_bytes: int,
    swap_bytes: int,
    volumes: Mapping[str, PodVolumeStats],
    full: bool,
) -> Summary:
    """Return the summary; without `full` only CPU and memory."""
    return Summary(
        node=_node(snapshot.node, node_name, memory_bytes, swap_bytes, full),
        pods=[_pod(pod, volumes.get(pod.item.uid), snapshot.node, full) for pod in snapshot.pods],
    )


def _node(node: NodeSample, name: str, memory_bytes: int, swap_bytes: int, full: bool) -> NodeStats:
    """The root group has no limits of its own; the machine is its limit."""
    root = node.root
    stats = NodeStats(
        node_name=name,
        start_time=utc(node.boot_seconds) if node.boot_seconds else None,
        system_containers=[_system(kind, group, full) for kind, group in node.system.items()],
        cpu=cpu(root, full),
        memory=memory(root, full, limit=memory_bytes),
        swap=swap(root, limit=swap_bytes),
    )
    if not full:
        return stats
    stats.io = io(root)
    stats.network = network(node.network)
    stats.fs = whole_fs(node.fs) if node.fs is not None else None
    stats.runtime = RuntimeStats(image_fs=runtime_fs(node.image_fs), container_fs=runtime_fs(node.container_fs))
    if node.tasks is not None:
        stats.rlimit = RlimitStats(
            time=utc_from_ns(node.tasks.time_ns), maxpid=node.tasks.limit, curproc=node.tasks.tasks
        )
    return stats


def _system(name: str, group: Group, full: bool) -> ContainerStats:
    return ContainerStats(
        name=name,
        start_time=_time(group.created_ns),
        cpu=cpu(group, full),
        memory=memory(group, full),
        swap=swap(group),
        io=io(group) if full else None,
    )


def _pod(pod: PodSample, volumes: PodVolumeStats | None, node: NodeSample, full: bool) -> PodStats:
    item = pod.item
    stats = PodStats(
        pod_ref=PodReference(name=item.name, namespace=item.namespace, uid=item.uid),
        start_time=_time(item.created_ns),
        containers=[_container(each, node, full) for each in pod.containers],
        cpu=cpu(pod.group, full),
        memory=memory(pod.group, full),
        swap=swap(pod.group),
    )
    if not full:
        return stats
    stats.io = io(pod.group)
    stats.network = network(pod.network)
    if volumes is not None:
        stats.volume = [_volume(each, volumes.time_ns, item) for each in volumes.volumes]
    if node.fs is not None:
        stats.ephemeral_storage = ephemeral_storage(pod, volumes, node.fs)
    if pod.processes is not None:
        stats.process_stats = ProcessStats(process_count=pod.processes)
    return stats


def _container(container: ContainerSample, node: NodeSample, full: bool) -> ContainerStats:
    group = container.group
    stats = ContainerStats(
        name=container.item.name,
        start_time=_time(container.item.created_ns),
        cpu=cpu(group, full),
        memory=memory(group, full),
        swap=swap(group),
    )
    if not full:
        return stats
    stats.io = io(group)
    layer = container.layer
    if layer is not None:
        whole = node.filesystems.get(layer.mountpoint)
        stats.rootfs = FsStats(
            time=utc_from_ns(layer.time_ns),
            used_bytes=layer.used,
            inodes_used=layer.inodes,
            **_room(whole),
        )
    if container.logs is not None:
        stats.logs = folder_fs(container.logs, node.fs)
    return stats


# --- parts --------------------------------------------------------------------------------------------------------


def cpu(group: Group, full: bool) -> CpuStats | None:
    usage = group.usage
    if usage is None or usage.cpu_ns is None:
        return None
    return CpuStats(
        time=utc_from_ns(usage.time_ns),
        usage_nano_cores=group.rate,
        usage_core_nano_seconds=usage.cpu_ns,
        psi=psi(group.detail.cpu_pressure) if full and group.detail is not None else None,
    )


def memory(group: Group, full: bool, *, limit: int | None = None) -> MemoryStats | None:
    usage = group.usage
    if usage is None or usage.memory is None:
        return None
    found = usage.memory
    if limit is None and group.bounds is not None:
        limit = group.bounds.memory
    return MemoryStats(
        time=utc_from_ns(usage.time_ns),
        available_bytes=max(0, limit - found.working_set) if limit is not None else None,
        usage_bytes=found.usage,
        working_set_bytes=found.working_set,
        rss_bytes=found.rss,
        page_faults=found.faults,
        major_page_faults=found.major_faults,
        psi=psi(group.detail.memory_pressure) if full and group.detail is not None else None,
    )


def swap(group: Group, *, limit: int | None = None) -> SwapStats | None:
    usage = group.usage
    if usage is None or usage.memory is None:
        return None
    used = usage.memory.swap
    if limit is None and group.bounds is not None:
        limit = group.bounds.swap
    return SwapStats(
        time=utc_from_ns(usage.time_ns),
        swap_available_bytes=max(0, limit - (used or 0)) if limit is not None else None,
        swap_usage_bytes=used,
    )


def io(group: Group) -> IoStats | None:
    if group.usage is None or group.detail is None:
        return None
    return IoStats(time=utc_from_ns(group.usage.time_ns), psi=psi(group.detail.io_pressure))


def psi(pressure: Pressure | None) -> PsiStats | None:
    if pressure is None:
        return None
    return PsiStats(full=_psi_data(pressure.full), some=_psi_data(pressure.some))


def _psi_data(line: PressureLine) -> PsiData:
    return PsiData(total=line.total, avg10=line.avg10, avg60=line.avg60, avg300=line.avg300)


def network(sample: NetworkCounters | None) -> NetworkStats | None:
    if sample is None:
        return None
    interfaces = [
        InterfaceStats(
            name=each.name,
            rx_bytes=each.rx_bytes,
            rx_errors=each.rx_errors,
            tx_bytes=each.tx_bytes,
            tx_errors=each.tx_errors,
        )
        for each in sample.interfaces
    ]
    stats = NetworkStats(time=utc_from_ns(sample.time_ns), name="", interfaces=interfaces)
    for each in interfaces:
        if each.name == MAIN_INTERFACE:
            stats.name, stats.rx_bytes, stats.rx_errors = each.name, each.rx_bytes, each.rx_errors
            stats.tx_bytes, stats.tx_errors = each.tx_bytes, each.tx_errors
    return stats


def whole_fs(sample: FsUsage) -> FsStats:
    return FsStats(
        time=utc_from_ns(sample.time_ns),
        used_bytes=sample.used,
        inodes_used=sample.inodes - sample.inodes_free,
        **_room(sample),
    )


def runtime_fs(sample: RuntimeFs | None) -> FsStats | None:
    if sample is None:
        return None
    return FsStats(
        time=utc_from_ns(sample.time_ns),
        used_bytes=sample.used,
        inodes_used=sample.inodes_used,
        **_room(sample.whole),
    )


def folder_fs(sample: FolderUsage, whole: FsUsage | None) -> FsStats:
    return FsStats(time=utc_from_ns(sample.time_ns), used_bytes=sample.bytes, inodes_used=sample.inodes, **_room(whole))


def ephemeral_storage(pod: PodSample, volumes: PodVolumeStats | None, whole: FsUsage) -> FsStats:
    """Everything of the pod that lies on the node's own disks."""
    used = inodes = 0
    newest = whole.time_ns
    folders = [pod.own_logs, pod.etc_hosts]
    for container in pod.containers:
        if container.layer is not None:
            used, inodes = used + container.layer.used, inodes + (container.layer.inodes or 0)
            newest = max(newest, container.layer.time_ns)
        folders.append(container.logs)
    for folder in folders:
        if folder is not None:
            used, inodes, newest = used + folder.bytes, inodes + folder.inodes, max(newest, folder.time_ns)
    for volume in volumes.volumes if volumes is not None else ():
        if volume.on_node_disk:
            used, inodes = used + volume.used_bytes, inodes + volume.inodes_used
    return FsStats(time=utc_from_ns(newest), used_bytes=used, inodes_used=inodes, **_room(whole))


def _volume(volume: VolumeUsage, time_ns: int, pod: PodItem) -> VolumeStats:
    claim = volume.claim
    return VolumeStats(
        name=volume.name,
        time=utc_from_ns(time_ns),
        available_bytes=volume.available_bytes,
        capacity_bytes=volume.capacity_bytes,
        used_bytes=volume.used_bytes,
        inodes_free=volume.inodes_free,
        inodes=volume.inodes,
        inodes_used=volume.inodes_used,
        pvc_ref=PvcReference(name=claim[1], namespace=claim[0]) if claim is not None else None,
        volume_health_stats=VolumeHealthStats(abnormal=volume.abnormal) if volume.abnormal is not None else None,
    )


def _room(whole: FsUsage | None) -> dict[str, int]:
    """Return capacity and free space of the filesystem."""
    if whole is None:
        return {}
    return {
        "available_bytes": whole.available,
        "capacity_bytes": whole.capacity,
        "inodes_free": whole.inodes_free,
        "inodes": whole.inodes,
    }


def _time(nanoseconds: int) -> datetime | None:
    return utc_from_ns(nanoseconds) if nanoseconds else None
